"""Clusters: discovery of their tasks, start, failure detection and exit."""
