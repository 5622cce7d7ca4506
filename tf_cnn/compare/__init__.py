"""Compares result documents: rates, ratios and their intervals, regressions, and the tables that
show them.
"""
