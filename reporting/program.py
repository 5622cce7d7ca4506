"""The version of this program."""

# setup.py reads it from here.
VERSION = '0.1.0'
