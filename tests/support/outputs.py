"""Checks the program's output: errors and warnings in one line, and the values that scripts
read.
"""

import contextlib
import functools
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple, TypeVar

import pytest

from tf_cnn.results.advice import ADVICE
from tf_cnn.system.errors import BenchmarkError, RunError, UsageError

Error = TypeVar('Error', bound=BenchmarkError)

# ---- refusals ------------------------------------------------------------------------------------
# An error is one line with an exit code, and names its flag, value, file or host.


def check_line(line: object, *facts: object) -> str:
    """Returns the text of an error or a warning; fails unless it is one line with all facts."""
    text = str(line)
    assert len(text.splitlines()) == 1, text
    missing = [str(fact) for fact in facts if str(fact) not in text]
    assert not missing, f'{missing} not in: {text}'
    return text


@contextlib.contextmanager
def _raises(
    kind: type[Error], exit_code: int, *facts: object
) -> Iterator[pytest.ExceptionInfo[Error]]:
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.exit_code == exit_code
    check_line(caught.value, *facts)


# Check that a block raises an error with this exit code, and one line with all facts.
refused = functools.partial(_raises, UsageError, 2)
failed = functools.partial(_raises, RunError, 1)


# ---- warnings ------------------------------------------------------------------------------------

_START = 'tf_cnn_benchmarks: warning: '
# The codes of warnings that the machine and its speed decide, with which these warnings end.
_OF_THE_MACHINE = ADVICE.keys() - {'loss_not_finite'}


def warnings_in(err: str) -> list[str]:
    """Returns the warnings on standard error that are the same on every machine, without their
    fixed beginning.
    """
    lines = [line.removeprefix(_START) for line in err.splitlines() if line.startswith(_START)]
    return [line for line in lines if line.rpartition(' [')[2].rstrip(']') not in _OF_THE_MACHINE]


def check_warning(err: str, *facts: object) -> str:
    """Returns the only warning with all facts; fails unless there is exactly one."""
    lines = warnings_in(err)
    matches = [line for line in lines if all(str(fact) in line for fact in facts)]
    assert len(matches) == 1, f'{[str(fact) for fact in facts]} not in just one of: {lines}'
    return check_line(matches[0], *facts)


def check_error(err: str, *facts: object) -> None:
    """Fails unless the last line on standard error is the only error, with all facts."""
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith('tf_cnn_benchmarks: error: ')]
    assert errors == lines[-1:], err
    check_line(errors[0], *facts)


# ---- standard output -----------------------------------------------------------------------------
# People's scripts read it by awk's last field, sed, grep and line starts.

# A label with its value, which may have further lines.
_FIELD = r'^(\w[\w ]*):[ \t]+(\S.*\n(?: .*\n)*)'
_STEP = r'^(\d+)\timages/sec: (\d+\.\d) \+/- \d+\.\d \(jitter = \d+\.\d\)\t(-?\d+\.\d{3})'
_ACCURACY = r'^Accuracy @ 1 = ([01]\.\d{4}) Accuracy @ 5 = ([01]\.\d{4}) \[(\d+) examples\]\n'
_INTERIM = r'^evaluation images/sec: \d+\.\d\d\n'
# Commands in people's scripts; each must print only the total.
_PROGRAMS = (
    ('awk', '/total images\\/sec/ {print $NF}'),
    ('awk', '-F: ', '/^total images\\/sec/ {print $2}'),
    ('sed', '-n', 's/^total images\\/sec: //p'),
    ('grep', '-oP', '^total images/sec: \\K\\S+'),
)
_PATTERNS = (
    r'^total images/sec: (\S+)',
    r'total images/sec:\s+([\d.]+)$',
    r'images/sec: (\d+\.\d\d)\n-{64}\n\Z',
)


class Output(NamedTuple):
    """The contents of standard output.

    Attributes:
      banner: the fields of the banner by their labels, a line each.
      steps: the number, rate, loss and accuracies, if any, of each step line.
      accuracies: top-1, top-5 and the number of examples of each evaluation.
      total: images/sec, as printed.
    """

    banner: dict[str, list[str]]
    steps: list[tuple[float, ...]]
    accuracies: list[tuple[float, ...]]
    total: str


def read_output(text: str, *, with_accuracy: bool = False) -> Output:
    """Reads the standard output of a run; fails if it contains anything else, or if programs read
    another total.
    """
    columns = '\ttop_1_accuracy\ttop_5_accuracy' * with_accuracy
    step = _STEP + r'\t([01]\.\d{3})' * 2 * with_accuracy + r'\n'
    rule, accuracies = '-' * 64, f'{_ACCURACY}|{_INTERIM}'
    match = re.fullmatch(
        rf'(?P<banner>(?:{_FIELD})+)==========\n'
        rf'(?P<body>(?:Running warm up\n(?:{accuracies})*Done warm up\n'
        rf'Step\tImg/sec\ttotal_loss{columns}\n(?:{step}|{accuracies})*)?'
        rf'(?:{accuracies})*){rule}\ntotal images/sec: (?P<total>\d+\.\d\d)\n{rule}\n',
        text,
        re.MULTILINE,
    )
    assert match, text
    for program in _PROGRAMS:
        read = subprocess.run(program, input=text, capture_output=True, text=True, timeout=20)
        assert read.stdout == f'{match["total"]}\n', program
    for pattern in _PATTERNS:
        assert re.findall(pattern, text, re.MULTILINE) == [match['total']], pattern
    fields = re.findall(_FIELD, match['banner'], re.MULTILINE)
    banner = {label: [line.strip() for line in value.splitlines()] for label, value in fields}
    assert len(banner) == len(fields), 'a label appears twice'
    steps, evaluations = (
        [tuple(map(float, row)) for row in re.findall(pattern, match['body'], re.MULTILINE)]
        for pattern in (step, _ACCURACY)
    )
    return Output(banner, steps, evaluations, match['total'])
