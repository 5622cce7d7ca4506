"""Builds the graph of one step."""
