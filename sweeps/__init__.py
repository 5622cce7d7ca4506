"""Sweeps: many configurations, each measured in fresh processes. Nothing here imports TensorFlow.

`files` and `grids` read what a sweep is to measure, `plan` makes the list of configurations, `order` says when each one
runs, `folder` keeps plan and results on disk, `process` runs one command within limits, and `runner` puts them together.
"""
