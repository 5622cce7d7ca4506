"""The version of this program. Does not import TensorFlow."""

import platform

from hardware.surroundings import tensorflow_version

# setup.py reads it from here.
VERSION = '0.1.0'


def format_version() -> str:
    """The line of --version."""
    tensorflow = tensorflow_version() or 'unknown'
    return f'tf_cnn_benchmarks {VERSION} (TensorFlow {tensorflow}, Python {platform.python_version()})'
