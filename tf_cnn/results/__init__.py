"""The results of a run: measured values and their statistics, the result document, the console
output.
"""

# The version of a checkout; a wheel has that of the newest tag, see setup.py.
VERSION = '0.1.0'
