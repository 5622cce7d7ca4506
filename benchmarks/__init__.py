"""Compares the speed of this program with other software; both are measured in one run. Not part of
the tests.
"""
