"""More than one process: who is in the cluster, and how it starts, runs, survives failures and
ends.
"""
