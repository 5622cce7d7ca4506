"""Whether TensorFlow computes by oneDNN on CPUs. Importing this module does not import
TensorFlow.
"""

import contextlib

# TensorFlow reads it once, when it is imported (tensorflow/core/util/port.cc, IsMklEnabled). Unset,
# it uses oneDNN on x86 processors with VNNI, BF16 or AMX.
ONEDNN_VARIABLE = 'TF_ENABLE_ONEDNN_OPTS'
# The values of the variable; TensorFlow ignores others.
_VALUES = {'1': True, 'true': True, '0': False, 'false': False}


def read_switch(text: str) -> bool | None:
    """Returns what a value of the variable means; None if TensorFlow ignores it."""
    return _VALUES.get(text.lower())


def uses_onednn() -> bool | None:
    """Returns whether the imported TensorFlow computes by oneDNN; None if unknown.

    Call it after TensorFlow's import. No public function has the answer. The graph of a session
    would show it, but a session fixes the threads of the process.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from tensorflow.python.util import _pywrap_util_port

        return bool(_pywrap_util_port.IsMklEnabled())
    return None
