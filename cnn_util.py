"""What only callers of the original's Python modules use; benchmark_cnn.py has its other names.

docs/from_the_original.md lists all of them. Does not import TensorFlow before it is needed.
"""

from tf_cnn.machine.quiet import import_tensorflow_quietly


def log_fn(log: object) -> None:
    """Prints a line of the log."""
    print(log, flush=True)


def tensorflow_version_tuple() -> tuple[int, int, str]:
    """Returns the version of TensorFlow, such as (2, 21, '0')."""
    import_tensorflow_quietly()
    import tensorflow as tf

    major, minor, patch = tf.__version__.split('.', 2)
    return int(major), int(minor), patch
