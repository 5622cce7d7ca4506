"""The two kinds of error with their exit codes; how messages spell flags, count things and name
what to install.
"""

import contextlib
import difflib
import errno
import importlib.util
import os
import shlex
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tf_cnn.system.place import FOLDER

_PROGRAM = 'tf_cnn_benchmarks'
# The operating system's errors for a disk that is full or fails.
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The most characters of an error or a warning.
_LONGEST = 4000
# How similar a name must be to be suggested, from 0 to 1. With less, 'vit' would suggest mnist.
_SIMILAR = 0.6
# Packages whose modules have other names.
_PACKAGES = {'PIL': 'pillow', 'absl': 'absl-py', 'google': 'protobuf', 'grpc': 'grpcio'}


class BenchmarkError(Exception):
    """An error that is printed without a traceback, each of its messages in one line; most have one
    message.
    """

    exit_code: int

    def __str__(self) -> str:
        return '\n'.join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The messages."""
        return tuple(map(str, self.args))


class UsageError(BenchmarkError):
    """Wrong use: found before the run. Each line names the flag, its value, why, and what to write
    instead.

    Independent mistakes that are found together are one error with several messages (see Refusals).
    """

    exit_code = 2


class RunError(BenchmarkError):
    """A fault during the run: data, disk, network. The line names the file, record, host or task,
    then the cause.
    """

    exit_code = 1
    # What was measured before a run failed, a results.document.Result.
    result: object = None


def format_flag(name: str, value: object) -> str:
    """Returns a flag as a command line contains it, --batch_size=64; always one line."""
    text = '' if value is None else str(value)
    return f'--{name}={text if text.isprintable() else repr(text)}'


def plural(number: int, noun: str, suffix: str = 's') -> str:
    """Returns a number of things: '1 step', '2 steps'; suffix is the ending for all numbers except
    1.
    """
    return f'{number} {noun}{"" if number == 1 else suffix}'


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to this one, the first of several, or None if
    none is similar.
    """
    return next(iter(similar_names(name, names, 1)), None)


def similar_names(name: str, names: Iterable[str], at_most: int) -> list[str]:
    """Returns the known names that are most similar to this one, the nearest first; equally similar
    ones in order.
    """
    similarities = {
        other: difflib.SequenceMatcher(None, other, name.lower()).ratio() for other in names
    }
    similar = [other for other, similarity in similarities.items() if similarity >= _SIMILAR]
    return sorted(similar, key=similarities.__getitem__, reverse=True)[:at_most]


def join_with_or(names: Sequence[str]) -> str:
    """Joins names for a sentence: 'a', 'a or b', 'a, b or c'."""
    return ' or '.join(filter(None, [', '.join(names[:-1]), *names[-1:]]))


def missing_package_message(module: str) -> str:
    """Returns the message that the package of a module is missing, with the command that installs
    it.
    """
    name = module.partition('.')[0]
    package = _PACKAGES.get(name, name)
    return f'the package {package} is not installed in this Python; run: {install_command(package)}'


def install_command(*packages: str, again: bool = False) -> str:
    """Returns the command that installs packages into the environment of this process: of make,
    pipx or pip.

    Args:
      again: whether the packages are installed, but damaged.
    """
    environment, program = Path(sys.prefix), FOLDER
    if (environment / 'pipx_metadata.json').exists():
        options = ['--force'] if again else []
        return shlex.join(['pipx', 'inject', *options, environment.name, *packages])
    if (program / 'Makefile').exists() and not again:
        folder = [] if program == Path.cwd() else ['-C', str(program)]
        # With -B, since make does not notice that a package is missing.
        make = shlex.join(['make', '-B', *folder, 'install'])
        if environment.resolve() == (program / '.venv').resolve():
            return make
        if importlib.util.find_spec('tensorflow') is None:
            activate = f'source {shlex.quote(str(Path(*folder[1:], ".venv", "bin", "activate")))}'
            # The file is the last that `make install` makes.
            return (
                activate if (program / '.venv' / '.installed').exists() else f'{make} && {activate}'
            )
    options = ['--force-reinstall'] if again else []
    return shlex.join([sys.executable, '-m', 'pip', 'install', *options, *packages])


def format_error(message: str) -> str:
    """Returns the one line that reports an error; line breaks in the message become spaces."""
    return f'{_PROGRAM}: error: {_one_line(message)}'


def format_warning(message: str) -> str:
    """Returns the one line that reports a warning; line breaks in the message become spaces."""
    return f'{_PROGRAM}: warning: {_one_line(message)}'


def _one_line(message: str) -> str:
    """Returns the message without line breaks and control characters.

    A very long message loses its middle: it begins with the flag, and ends with what to do.
    """
    line = ' '.join(message.split())
    line = ''.join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    if (num_omitted := len(line) - _LONGEST) <= 0:
        return line
    return (
        f'{line[: _LONGEST // 2]} ... ({num_omitted} characters are left out) ... '
        f'{line[-(_LONGEST // 2) :]}'
    )


class ErrorCollector:
    """Collects the independent mistakes that checks find."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, *lines: str) -> None:
        """Adds mistakes, each once."""
        self._lines |= dict.fromkeys(lines)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Ends the block at a UsageError, and keeps its lines."""
        try:
            yield
        except UsageError as error:
            self.add(*error.lines)

    def raise_all(self) -> None:
        """Raises one UsageError with all mistakes so far, if there are any."""
        if self._lines:
            raise UsageError(*self._lines)


def read_regular_file(path: str | Path, most_bytes: int = 64 << 20) -> bytes:
    """Returns the whole content of a file that a user names.

    Raises:
      OSError: it cannot be read, is not a regular file (reading a pipe, or /dev/zero, might never
        end), or is larger than most_bytes.
    """
    # O_NONBLOCK, so as not to wait for the writer of a pipe.
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, 'rb') as content:
        status = os.fstat(file)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, 'it is no regular file')
        data = content.read(most_bytes + 1) if status.st_size <= most_bytes else b''
        if max(status.st_size, len(data)) > most_bytes:
            raise OSError(
                errno.EFBIG,
                f'it has {status.st_size} bytes, more than the {most_bytes} that are read',
            )
        return data
