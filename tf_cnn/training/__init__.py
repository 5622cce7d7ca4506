"""Variables, optimizers, precision, learning rates and checkpoints."""
