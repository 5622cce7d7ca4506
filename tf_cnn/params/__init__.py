"""Defines, reads and checks the flags of a run. Does not import TensorFlow."""

from tf_cnn.params.parsing import ParsedFlags, make_params, parse_argv
from tf_cnn.params.rules import RunContext
from tf_cnn.params.table import SPECS, Params, check, ignored_flag_warnings

__all__ = [
    'SPECS',
    'Params',
    'ParsedFlags',
    'RunContext',
    'check',
    'ignored_flag_warnings',
    'make_params',
    'parse_argv',
]
