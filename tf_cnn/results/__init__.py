"""The results of a run: measured values and their statistics, the result document, the console
output.
"""

# The version of a checkout; setup.py gives a wheel the version of the newest tag.
VERSION = '0.1.0'
