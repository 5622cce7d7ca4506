"""The laboratory: configurations make runs, runs become rows, and rows are compared."""
