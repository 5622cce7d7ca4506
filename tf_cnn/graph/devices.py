"""Devices by name."""

# The device of everything that belongs to no tower.
HOST_DEVICE = '/cpu:0'
