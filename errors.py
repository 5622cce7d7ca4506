"""The two kinds of error with their exit codes; how messages spell flags and count things; the nearest known name."""

import difflib
from collections.abc import Iterable


class BenchmarkError(Exception):
    """An error that is printed in one line, without a traceback."""

    exit_code: int


class UsageError(BenchmarkError):
    """Wrong use: found before the run. The line names the flag, its value, why, and what to write instead."""

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
    """Returns the known name that is most similar to this one, or None if none is similar."""
    matches = difflib.get_close_matches(name.lower(), list(known), n=1)
    return matches[0] if matches else None
