"""One run: its plan, the graph of a step, the session, and the work between two steps."""
