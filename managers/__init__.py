"""Where variables live and how gradients meet: one class for each way."""
