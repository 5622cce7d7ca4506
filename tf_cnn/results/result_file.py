"""Reserves the file for the result of a run: no other process can use it until the run ends."""

import fcntl
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tf_cnn.results.document import Result, read_result
from tf_cnn.results.file_names import RUN_FIELD, STDOUT
from tf_cnn.system.atomic import resolve_safely, write_atomically
from tf_cnn.system.errors import UsageError, format_flag


class ResultFile:
    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, text: str, result: Result) -> bool:
        """Writes the result, unless it measured nothing and would replace one that did. Returns
        whether it wrote.

        Raises:
          OSError: the file cannot be written.
        """
        if not _has_measured(result):
            with suppress(UsageError):
                earlier = read_result(Path(self.path))
                if isinstance(earlier, Result) and _has_measured(earlier):
                    return False
        write_atomically(f'{text}\n', self.path)
        return True


def _has_measured(result: Result) -> bool:
    return bool(
        result.statistics.num_steps or (result.run.role == 'evaluation' and result.evaluations)
    )


@contextmanager
def reserve(path: str, numbered_path: str | None = None, number: int = 2) -> Iterator[ResultFile]:
    """Reserves a file for the result of this process until the end of the block, where the file
    system has locks.

    Args:
      path: the file. An existing file is replaced, unless the program chose the name.
      numbered_path: the path with {run} in it, if the program chose the name. If `path` exists,
        {run} becomes the first number from `number` on that gives the name of no file.

    Raises:
      UsageError: another process has reserved it, or it cannot be written.
    """
    if path == STDOUT or (
        numbered_path is None and os.path.exists(path) and not os.path.isfile(path)
    ):
        # A pipe or a device has room for more than one result.
        yield ResultFile(path)
        return
    descriptor = None
    try:
        if numbered_path is None:
            is_new, descriptor = _open_locked(path)
        else:
            numbered_paths = (
                numbered_path.replace(RUN_FIELD, str(later)) for later in itertools.count(number)
            )
            for candidate in itertools.chain([path], numbered_paths):
                path = candidate
                # It may contain the number.
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                with suppress(FileExistsError):
                    is_new, descriptor = _open_locked(path, must_be_new=True)
                    break
    except OSError as error:
        flag = format_flag('result_file', path)
        raise UsageError(
            f'{flag}: it cannot be written ({error.strerror}); use another path'
        ) from error
    if descriptor is None:
        raise UsageError(
            f'{format_flag("result_file", path)}: another run, which goes on, writes its '
            'result to this file; use another path, or wait until that run ends'
        )
    try:
        yield ResultFile(path)
    finally:
        # Removes the file of a run that wrote nothing.
        with suppress(OSError):
            if is_new and _is_at(path, descriptor) and not os.fstat(descriptor).st_size:
                os.unlink(os.path.realpath(path))
        os.close(descriptor)


def _open_locked(path: str, *, must_be_new: bool = False) -> tuple[bool, int | None]:
    """Opens and locks a file; creates it if it is missing.

    Returns whether it created the file, and its descriptor, None if another process has the lock.
    """
    file = resolve_safely(Path(path))
    while True:
        is_new = True
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            if must_be_new:
                raise
            is_new, descriptor = False, os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False, None
        except OSError:
            # Some network file systems do not support locks.
            return is_new, descriptor
        if _is_at(path, descriptor):
            return is_new, descriptor
        # Another process has replaced or removed the file since it was opened.
        os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def check_not_reserved(path: str) -> None:
    """Raises UsageError if another process has reserved the file. Changes nothing."""
    if os.path.isfile(path):
        with reserve(path):
            pass
