"""The machine: its processors, memory and GPUs, the programs that use them, and how TensorFlow uses
them.
"""
