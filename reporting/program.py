"""The version of this program. Does not import TensorFlow."""

import importlib.metadata
import platform

# setup.py reads it from here.
VERSION = '0.1.0'


def format_version() -> str:
    """The line of --version."""
    try:
        tensorflow = importlib.metadata.version('tensorflow')
    except importlib.metadata.PackageNotFoundError:
        tensorflow = 'unknown'
    return f'tf_cnn_benchmarks {VERSION} (TensorFlow {tensorflow}, Python {platform.python_version()})'
