"""One run: the plan of it, the graph of a step, its session, and what happens between two steps."""
