"""More than one process: who is in the cluster, how it starts, lives and ends."""
