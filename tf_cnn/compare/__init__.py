"""Compares result documents: throughputs, ratios and their intervals, regressions, and reports."""
