"""What was measured: the result, its statistics, and the lines that the console shows."""
