"""The two kinds of error with their exit codes; how messages spell flags and count things; the nearest known name."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator

# How similar a name must be to be suggested, from 0 to 1; with less, 'vit' would be taken for mnist.
_SIMILAR = 0.6


class BenchmarkError(Exception):
    """An error that is printed without a traceback, each of its messages in one line; most have one message."""

    exit_code: int

    def __str__(self) -> str:
        return '\n'.join(self.lines)

    @property
    def lines(self) -> tuple[str, ...]:
        """The messages."""
        return tuple(map(str, self.args))


class UsageError(BenchmarkError):
    """Wrong use: found before the run. Each line names the flag, its value, why, and what to write instead.

    What can be told about independent mistakes at once is one error of several messages (see Refusals).
    """

    exit_code = 2


class RunError(BenchmarkError):
    """A fault during the run: data, disk, network. The line names the file, record, host or task, then the cause."""

    exit_code = 1
    # What was measured before a run failed, a reporting.result.Result.
    result: object = None


def spelled(name: str, value: object) -> str:
    """A flag as a command line has it, --batch_size=64; always one line."""
    text = '' if value is None else str(value)
    return f'--{name}={text if text.isprintable() else repr(text)}'


def counted(number: int, noun: str, plural: str = 's') -> str:
    """A number of things: '1 step', '2 steps'; plural is what follows the noun for any number but 1."""
    return f'{number} {noun}{"" if number == 1 else plural}'


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to this one, the first of several, or None if none is similar."""
    similarities = {other: difflib.SequenceMatcher(None, other, name.lower()).ratio() for other in known}
    near = max(similarities, key=similarities.__getitem__, default=None)
    return near if near is not None and similarities[near] >= _SIMILAR else None


class Refusals:
    """Collects the mistakes that checks find which do not depend on each other."""

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
