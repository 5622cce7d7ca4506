"""The settings of a run: every flag once, read from a command line or from Python, and checked. No
TensorFlow.
"""

from tf_cnn.params.parsing import Parsed, make_params, parse_argv
from tf_cnn.params.rules import RunFacts
from tf_cnn.params.table import SPECS, Params, check, find_idle

__all__ = [
    'SPECS',
    'Params',
    'Parsed',
    'RunFacts',
    'check',
    'find_idle',
    'make_params',
    'parse_argv',
]
