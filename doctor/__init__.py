"""Checks of a machine: what works on it, what does not, and what to do. Each check runs in a process of its own."""
