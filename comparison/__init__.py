"""Result documents compared: rates, ratios and intervals, regressions, and the layer of tables."""
