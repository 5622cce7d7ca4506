"""Checks warnings as users see them: lines of standard error with a fixed beginning and the facts concerned."""

import re

from tests.support.refusals import check_line

_START = 'tf_cnn_benchmarks: warning: '
# What is said of short runs, as tests make them, and of runs on a busy machine.
_NOISE = re.compile(
    r'timed, too few for the noise|the first \w+ .*times the median|outliers? among|steps spread by|'
    r'the second half of the timed steps|passed between the steps|other processes used|\(steal\)|the CPU quota of|'
    r'slowed down'
)


def warnings_in(err: str) -> list[str]:
    """The warnings among the lines of a standard error, without their fixed beginning and those of noise."""
    return [line for line in _all_warnings(err) if not _NOISE.search(line)]


def check_warning(err: str, *facts: object) -> str:
    """Returns the only warning that names all of the facts; fails unless there is exactly one."""
    lines = _all_warnings(err)
    found = [line for line in lines if all(str(fact) in line for fact in facts)]
    assert len(found) == 1, f'{[str(fact) for fact in facts]} not in just one of: {lines}'
    return check_line(found[0], *facts)


def _all_warnings(err: str) -> list[str]:
    return [line.removeprefix(_START) for line in err.splitlines() if line.startswith(_START)]
