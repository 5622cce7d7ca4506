"""Sweeps: many configurations, each measured in fresh processes. Nothing here imports TensorFlow.

`sweep_file` and `request` read a request, `configurations` makes the plan, `folder` stores plan and
results on disk, `limited_process` runs one command within a limit of time, and `runner` and
`search` run all of them.
"""
