"""Compares the speed of this program with other software, both measured in one run. Not part of the tests."""
