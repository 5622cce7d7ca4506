"""The settings of a run: every flag once, read from a command line or from Python, and checked. No TensorFlow."""

from params.parsing import Parsed, make_params, parse_argv
from params.rules import RunFacts
from params.table import SPECS, Params, check, find_idle

__all__ = ['SPECS', 'Params', 'Parsed', 'RunFacts', 'check', 'find_idle', 'make_params', 'parse_argv']
