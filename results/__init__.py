"""The results of a run: measured values and their statistics, the result document, the console output."""

# The version of this program; setup.py reads it from here.
VERSION = '0.1.0'
