"""Runs Python files of users, such as --model_file.

Every package may import this module.
"""

import contextlib
import hashlib
import sys
import traceback
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tf_cnn.system.errors import UsageError, format_flag


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
        path = Path(name).resolve()
        try:
            return cls(flag, name, str(path), path.read_bytes())
        except OSError as error:
            raise UsageError(
                f'{format_flag(flag, name)}: it cannot be read ({error.strerror}); use the path of '
                'a Python file'
            ) from None

    @property
    def flag_text(self) -> str:
        return format_flag(self.flag, self.name)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source).hexdigest()

    def place(self, frames: Iterable[traceback.FrameSummary]) -> str:
        """Returns the flag, with the line of the innermost frame in this file."""
        lines = [frame.lineno for frame in frames if frame.filename == self.path]
        return f'{self.flag_text}, line {lines[-1]}' if lines else self.flag_text

    def run(self) -> None:
        """Runs the file, which can import modules from its folder and prints to standard error.

        Raises UsageError, with the line, if it fails.
        """
        module = types.ModuleType(f'{self.flag}_{Path(self.path).stem}')
        module.__file__ = self.path
        if (folder := str(Path(self.path).parent)) not in sys.path:
            sys.path.append(folder)
        _RUNNING.append(self)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(compile(self.source, self.path, 'exec', dont_inherit=True), vars(module))
        except (Exception, SystemExit) as error:
            place = self.place(traceback.extract_tb(error.__traceback__))
            if isinstance(error, SyntaxError) and error.filename == self.path:
                place = f'{self.flag_text}, line {error.lineno}'
            # A message may have several lines.
            message = ' '.join(str(error).split())
            raise UsageError(f'{place}: {type(error).__name__}: {message}') from error
        finally:
            _RUNNING.pop()


# The files that run now. The last one registers models and modes.
_RUNNING: list[UserFile] = []


def running_file() -> UserFile | None:
    return _RUNNING[-1] if _RUNNING else None
