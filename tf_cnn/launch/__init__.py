"""Starts the processes of a cluster, on this machine or on other hosts over ssh."""
