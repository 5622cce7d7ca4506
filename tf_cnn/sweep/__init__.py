"""Sweeps: many configurations, each measured in fresh processes. Nothing here imports TensorFlow.

`sweep_file` and `request` read what to measure, `configurations` makes the plan, `folder` stores
plan and results on disk, and `runner` and `search` run the commands. The subcommand calls
`plan_sweep` and `run_plan`.
"""
