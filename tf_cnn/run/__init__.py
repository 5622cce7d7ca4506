"""Takes the steps of a run, and ends well."""
