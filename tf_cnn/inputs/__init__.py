"""How batches reach the devices, and what a data folder holds."""
