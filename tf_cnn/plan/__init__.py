"""Decides: from flags to the plan of a run."""
