"""The two kinds of errors with their exit codes, and functions that format parts of messages."""

import contextlib
import difflib
import errno
import math
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_PROGRAM = 'tf_cnn_benchmarks'
# The operating system's errors for a full or failing disk.
FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# The path that stands for standard input or output.
STDIO = '-'
# The longest error or warning, in characters.
_LONGEST = 4000
# How similar a suggested name must be, from 0 to 1. A lower value would suggest mnist for 'vit'.
_SIMILAR = 0.6
# Of units, each 1000 times the one before.
_PREFIXES = ('', 'k', 'M', 'G', 'T', 'P', 'E')
# Modules that have other names than their packages.
_PACKAGES = {'PIL': 'pillow', 'absl': 'absl-py', 'google': 'protobuf', 'grpc': 'grpcio'}


class BenchmarkError(Exception):
    """An error that is printed without a traceback, one line for each message (usually one)."""

    exit_code: int

    def __str__(self) -> str:
        return '\n'.join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(str, self.args))


class UsageError(BenchmarkError):
    """Wrong use, detected before the run.

    Each message names the flag, its value, the reason, and what to use instead. Independent
    mistakes that are found together become one error with several messages (see ErrorCollector).
    """

    exit_code = 2


class RunError(BenchmarkError):
    """A fault during the run: data, disk, network.

    The message names the file, record, host or task, then the cause.
    """

    exit_code = 1
    # A results.document.Result with the measurements before the failure.
    result: object = None


class OutputError(RunError):
    """A stream or a file cannot be written; what was trained can still be saved."""


def format_flag(name: str, value: object) -> str:
    """Returns a flag as in a command line, --batch_size=64, in one line."""
    text = '' if value is None else str(value)
    return f'--{name}={text if text.isprintable() else repr(text)}'


def plural(number: int, noun: str, suffix: str = 's') -> str:
    """Returns a number with its noun, '1 step' or '2 steps'; suffix is the plural's ending."""
    return f'{number} {noun}{"" if number == 1 else suffix}'


def format_scaled(number: float, unit: str = 'B') -> str:
    """Formats a number with three digits and the prefix of its unit that fits: '17.4 MB', '177
    GFLOP/s'.
    """
    digits = float(f'{number:.2e}')
    power = min(max(int(math.log10(digits) // 3), 0), len(_PREFIXES) - 1) if digits > 0 else 0
    return f'{digits / 1000**power:.4g} {_PREFIXES[power]}{unit}'


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the most similar name, the first of several; None if none is similar."""
    return next(iter(similar_names(name, names, 1)), None)


def similar_names(name: str, names: Iterable[str], at_most: int) -> list[str]:
    """Returns the most similar names, nearest first; equally similar names keep their order."""
    similarities = {
        other: difflib.SequenceMatcher(None, other, name.lower()).ratio() for other in names
    }
    similar = [other for other, similarity in similarities.items() if similarity >= _SIMILAR]
    return sorted(similar, key=similarities.__getitem__, reverse=True)[:at_most]


def join_with_or(names: Sequence[str]) -> str:
    """Joins names for a sentence: 'a', 'a or b', 'a, b or c'."""
    return ' or '.join(filter(None, [', '.join(names[:-1]), *names[-1:]]))


def missing_package_message(module: str) -> str:
    """Returns the message for a missing package, with the command that installs it."""
    name = module.partition('.')[0]
    package = _PACKAGES.get(name, name)
    return f'the package {package} is not installed in this Python; run: {install_command(package)}'


def install_command(*packages: str, again: bool = False) -> str:
    """Returns the command that installs packages for this Python.

    Args:
      again: whether the packages are installed but damaged.
    """
    options = ['--force-reinstall'] if again else []
    return shlex.join([sys.executable, '-m', 'pip', 'install', *options, *packages])


def format_error(message: str) -> str:
    """Returns an error as one line; line breaks in the message become spaces."""
    return f'{_PROGRAM}: error: {_one_line(message)}'


def format_warning(message: str) -> str:
    """Returns a warning as one line; line breaks in the message become spaces."""
    return f'{_PROGRAM}: warning: {_one_line(message)}'


def _one_line(message: str) -> str:
    """Returns the message without line breaks and control characters.

    A very long message loses its middle, since it begins with the flag and ends with the advice.
    """
    line = ' '.join(message.split())
    line = ''.join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)
    if (num_omitted := len(line) - _LONGEST) <= 0:
        return line
    return (
        f'{line[: _LONGEST // 2]} ... ({num_omitted} characters omitted) ... '
        f'{line[-(_LONGEST // 2) :]}'
    )


class ErrorCollector:
    """Collects the messages of independent checks, to raise them as one error."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, *lines: str) -> None:
        """Adds messages, without duplicates."""
        self._lines |= dict.fromkeys(lines)

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Catches a UsageError in the block and keeps its messages."""
        try:
            yield
        except UsageError as error:
            self.add(*error.lines)

    def raise_all(self) -> None:
        """Raises one UsageError with all messages, if there are any."""
        if self._lines:
            raise UsageError(*self._lines)


def read_file(path: str | Path, most_bytes: int = 64 << 20) -> bytes:
    """Returns the content of a file or pipe that a user names; - is standard input.

    Raises OSError if it cannot be read, or is larger than most_bytes.
    """
    file: int | str | Path = os.dup(sys.stdin.fileno()) if str(path) == STDIO else path
    with open(file, 'rb') as content:
        if (size := os.fstat(content.fileno()).st_size) > most_bytes:
            reason = f'it has {size} bytes, more than the limit of {most_bytes}'
            raise OSError(errno.EFBIG, reason)
        data = content.read(most_bytes + 1)
    # A pipe or a device has no size.
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f'it has more than {most_bytes} bytes')
    return data


def warn(*lines: str) -> None:
    for line in lines:
        print(format_warning(line), file=sys.stderr, flush=True)
