"""Checks errors as users see them: one line, an exit code, and the flag, value, file or host concerned.

Tests check these facts, not the wording.
"""

import contextlib
from collections.abc import Iterator

import pytest

from errors import BenchmarkError, RunError, UsageError


def check_line(line: object, *facts: object) -> str:
    """Returns the text of an error or a warning; fails unless it is one line that names all of the facts."""
    text = str(line)
    assert len(text.splitlines()) == 1, text
    missing = [str(fact) for fact in facts if str(fact) not in text]
    assert not missing, f'{missing} not in: {text}'
    return text


@contextlib.contextmanager
def refused(*facts: object) -> Iterator[pytest.ExceptionInfo[UsageError]]:
    """Checks that the block raises UsageError, with exit code 2 and one line that names all of the facts."""
    with _raised(UsageError, 2, facts) as caught:
        yield caught


@contextlib.contextmanager
def failed(*facts: object) -> Iterator[pytest.ExceptionInfo[RunError]]:
    """Checks that the block raises RunError, with exit code 1 and one line that names all of the facts."""
    with _raised(RunError, 1, facts) as caught:
        yield caught


@contextlib.contextmanager
def _raised(kind: type[BenchmarkError], exit_code: int, facts: tuple[object, ...]) -> Iterator[pytest.ExceptionInfo]:
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.exit_code == exit_code
    check_line(caught.value, *facts)
