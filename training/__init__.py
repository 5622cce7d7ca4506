"""What happens in a step, and around the steps."""
