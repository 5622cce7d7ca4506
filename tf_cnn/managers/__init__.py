"""Where variables live and how gradients are combined: one class for each mode."""
