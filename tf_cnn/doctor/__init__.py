"""The checks of `doctor`: what works on this machine."""
