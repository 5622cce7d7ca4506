"""Writes the file of a result at the end of its run: no two runs write one file."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from tf_cnn.results.document import Result, read_result
from tf_cnn.results.file_names import names_in_order
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import UsageError


def file_version(path: str) -> tuple[int, int] | None:
    """Returns what differs after another process has written the file; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def write_result(
    text: str, result: Result, path: str, replaced: tuple[int, int] | None
) -> str | None:
    """Writes the result of a run, and returns its path: another one if another run wrote `path`.

    Returns None, and writes nothing, if the result measured nothing and would replace one that did.

    Args:
      path: see names_in_order.
      replaced: the version of the file that the result may replace; None: it may replace no file.

    Raises:
      OSError: the file cannot be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        # A pipe or a device has room for more than one result.
        write_atomically(f'{text}\n', path)
        return path
    if replaced and not _has_measured(result):
        with contextlib.suppress(UsageError):
            earlier = read_result(Path(path))
            if isinstance(earlier, Result) and _has_measured(earlier):
                return None
    if replaced:
        with contextlib.suppress(FileNotFoundError), open(path, 'rb') as file:
            # Another run may be replacing the file. Some network file systems have no locks.
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            if file_version(path) == replaced:
                write_atomically(f'{text}\n', path)
                return path
    return write_new(text, names_in_order(path))


def write_new(text: str, names: Iterator[str]) -> str:
    """Writes a document under the first of these names that no file has, and returns it."""
    while True:
        name = next(names)
        file = Path(name).resolve()
        # The name of its folder may have the number of the run.
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            file.open('x').close()
            break
    try:
        write_atomically(f'{text}\n', file)
    except OSError:
        file.unlink()
        raise
    return name


def _has_measured(result: Result) -> bool:
    return bool(
        result.throughput.images or (result.run.role == 'evaluation' and result.evaluations)
    )
