"""Lets TensorFlow leave oneDNN off, as on a processor with AVX2 alone: for PYTHONPATH.

TensorFlow reads the variable from C. The program reads os.environ, where it must see no variable
that a user would have set. This spelling tells a child process that its parent did not set it.
"""

import os

_NAME, _OURS = 'TF_ENABLE_ONEDNN_OPTS', 'fAlse'
if os.environ.get(_NAME, _OURS) == _OURS:
    os.environ.pop(_NAME, None)
    os.putenv(_NAME, _OURS)
