"""Reads and runs Python files of users, such as --model_file, and reports their errors in one line.

Every package may import this module.
"""

import contextlib
import hashlib
import os
import sys
import traceback
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tf_cnn.system.errors import BenchmarkError, UsageError, format_flag


@dataclass(frozen=True)
class UserFile:
    """A Python file with the source that was read.

    Attributes:
      flag: the name of the flag that names the file.
      name: the path as the user wrote it; `path` is the absolute path.
    """

    flag: str
    name: str
    path: str
    source: bytes = field(repr=False)

    @classmethod
    def read(cls, flag: str, name: str) -> 'UserFile':
        """Reads the file; raises UsageError if it cannot be read."""
        flag_text, path = format_flag(flag, name), Path(name).resolve()
        if not os.path.isfile(path):
            raise UsageError(f'{flag_text}: there is no such file; use the path of a Python file')
        try:
            file = cls(flag, name, str(path), path.read_bytes())
        except OSError as error:
            reason = f'it cannot be read ({error.strerror})'
            raise UsageError(f'{flag_text}: {reason}; make it readable') from None
        _FILES[file.path] = file
        return file

    @property
    def flag_text(self) -> str:
        return format_flag(self.flag, self.name)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    def run(self) -> None:
        """Runs the file, which can import modules from its folder and prints to standard error.

        Raises UsageError, with the line, if it fails.
        """
        module = types.ModuleType(f'{self.flag}_{Path(self.path).stem}')
        module.__file__ = self.path
        if (folder := str(Path(self.path).parent)) not in sys.path:
            sys.path.append(folder)
        with user_code(self.flag_text), contextlib.redirect_stdout(sys.stderr):
            exec(compile(self.source, self.path, 'exec', dont_inherit=True), vars(module))


# The files that were read, by path.
_FILES: dict[str, UserFile] = {}


@contextlib.contextmanager
def user_code(registration: str | None) -> Iterator[None]:
    """Runs code of a user: any exception of the block becomes a UsageError in one line.

    The error names the innermost line of a user's file that the exception passed.

    registration: what the error names if there is no such line, as for a wrong result: where the
      code was registered. None: such exceptions pass unchanged.
    """
    try:
        yield
    except (BenchmarkError, KeyboardInterrupt):
        raise
    # A user's exception may be of any class.
    except BaseException as error:
        frames: list[Any] = traceback.extract_tb(error.__traceback__)
        if isinstance(error, SyntaxError) and error.filename:
            frames.append(traceback.FrameSummary(error.filename, error.lineno or 0, ''))
        place = find_line(frames)[1] or registration
        if place is None:
            raise
        raise UsageError(f'{place}: {_describe(error)}') from error


def find_line(frames: Iterable[Any]) -> tuple[UserFile | None, str | None]:
    """Returns the innermost user's file among stack frames, and its line with the flag.

    The line of a module beside the file follows, if the file called one. frames: outermost first.
    """
    file, line, helper = None, 0, ''
    for frame in frames:
        if frame.filename in _FILES:
            file, line, helper = _FILES[frame.filename], frame.lineno, ''
        elif file and Path(frame.filename).parent == Path(file.path).parent:
            helper = f' ({Path(frame.filename).name}, line {frame.lineno})'
    return file, f'{file.flag_text}, line {line}{helper}' if file else None


def check_type(argument: str, value: object, kind: type) -> None:
    """Raises TypeError if an argument of a registration is of another type."""
    # An integer is a number, too.
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(
            f'{argument}={value!r}: it must be of type {kind.__name__}, not {type(value).__name__}'
        )


def _describe(error: BaseException) -> str:
    """Returns the class of an exception and the first line of its message."""
    try:
        message = str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception:
        message = ''
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # TensorFlow puts the stack of a converted function (tf.function) before the message.
    line = lines[-1].partition(': ')[2] if lines[:1] == ['in user code:'] else ''.join(lines[:1])
    return f'{type(error).__name__}: {line}' if line else type(error).__name__
