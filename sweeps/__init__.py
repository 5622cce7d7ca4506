"""Sweeps: many configurations, each measured in fresh processes. Nothing here imports TensorFlow.

`files` and `flags` read what a sweep is to measure, `plan` makes the list of configurations, `order` says when each of
them runs, `folder` keeps plan and results on disk, `process` runs one command within limits, and `runner` and `search`
put them together.
"""
