"""TensorBoard's event files, and the errors of writing files."""

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Iterator, Mapping

import tensorflow.compat.v1 as tf

from tf_cnn.system.errors import OutputError

# TensorFlow's summary writer raises these errors for a full disk, a file that is too large, and a
# missing folder.
_WRITER_ERRORS = (RuntimeError, IndexError, ValueError)
_file_numbers = itertools.count()


@contextlib.contextmanager
def report_write_errors(flag: str, path: str) -> Iterator[None]:
    """Turns errors of writing a file, such as a full disk, into OutputError."""
    try:
        yield
    except (OSError, tf.errors.OpError, *_WRITER_ERRORS) as error:
        reason = (
            error.strerror
            if isinstance(error, OSError)
            else str(getattr(error, 'message', error)).splitlines()[0]
        )
        raise OutputError(
            f'--{flag}={path}: it cannot be written ({reason}); make room or write elsewhere'
        ) from error


def open_event_file(folder: str, graph: tf.Graph | None = None) -> tf.summary.FileWriter:
    """Opens a new event file in a folder.

    TensorFlow names event files by the time in seconds. Without the suffix, the second file of a
    second would replace the first. TensorBoard reads files in the order of their names; for one
    process this is the order of creation.
    """
    _silence_event_threads()
    return tf.summary.FileWriter(
        folder, graph=graph, filename_suffix=f'.{os.getpid()}.{next(_file_numbers):08d}'
    )


@functools.cache
def _silence_event_threads() -> None:
    """Keeps the threads that write event files from printing tracebacks.

    flush and close raise the errors of these threads.
    """
    tf.get_logger().addFilter(lambda record: 'EventFileWriter' not in str(record.msg))
    default_hook = threading.excepthook

    def report_other_threads(failure: threading.ExceptHookArgs) -> None:
        if failure.thread is None or failure.thread.name != 'EventLoggerThread':
            default_hook(failure)

    threading.excepthook = report_other_threads


def write_scalars(folder: str, flag: str, step: int, scalars: Mapping[str, float]) -> None:
    """Writes scalars of a step to the folder as a TensorBoard summary.

    Errors name `flag`, the source of the folder.
    """
    values = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    # FileWriter needs graph mode, which tf.Graph().as_default() ensures.
    with (
        report_write_errors(flag, folder),
        tf.Graph().as_default(),
        contextlib.closing(open_event_file(folder)) as writer,
    ):
        writer.add_summary(tf.Summary(value=values), step)
