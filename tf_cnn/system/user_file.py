"""Reads and runs Python files of users, such as --model_file, and reports their errors in one line.

Every package may import this module.
"""

import contextlib
import hashlib
import os
import sys
import traceback
import types
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from tf_cnn.system.errors import BenchmarkError, UsageError, format_flag

# The file that is being run.
_running: ContextVar['UserFile | None'] = ContextVar('_running', default=None)


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
            return cls(flag, name, str(path), path.read_bytes())
        except OSError as error:
            reason = f'it cannot be read ({error.strerror})'
            raise UsageError(f'{flag_text}: {reason}; make it readable') from None

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
        token = _running.set(self)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(compile(self.source, self.path, 'exec', dont_inherit=True), vars(module))
        except BenchmarkError:
            raise
        except (Exception, SystemExit) as error:
            raise self.explain(error) from error
        finally:
            _running.reset(token)

    def explain(self, error: BaseException, line: int | None = None) -> UsageError:
        """Returns the error that reports an exception of the file.

        line: the line to report if the traceback has none.
        """
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == self.path]
        reason = ' '.join(str(error).split())
        if isinstance(error, SyntaxError) and error.filename == self.path:
            lines, reason = [error.lineno], error.msg
        line = lines[-1] if lines else line
        location = f', line {line}' if line else ''
        return UsageError(f'{self.flag_text}{location}: {type(error).__name__}: {reason}')


def running_file() -> UserFile | None:
    """Returns the file that UserFile.run() is running, or None."""
    return _running.get()
