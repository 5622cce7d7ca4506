"""The result of a run, its statistics, and the console output."""
