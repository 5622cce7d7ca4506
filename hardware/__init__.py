"""The machine: its processors, memory and GPUs, what uses them, and what TensorFlow makes of them."""
