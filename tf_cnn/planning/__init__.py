"""Makes the plan of a run: every fact about it, each found once, before anything is built."""
