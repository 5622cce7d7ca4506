"""Checks warnings as users see them: lines of standard error with a fixed beginning and the facts concerned."""

from refusals import check_line

_START = 'tf_cnn_benchmarks: warning: '
# What is said of the short runs that tests make.
_FEW_STEPS = 'timed, too few for the noise'


def warnings_in(err: str) -> list[str]:
    """The warnings among the lines of a standard error, without their fixed beginning and that of too few steps."""
    found = [line.removeprefix(_START) for line in err.splitlines() if line.startswith(_START)]
    return [line for line in found if _FEW_STEPS not in line]


def check_warning(err: str, *facts: object) -> str:
    """Returns the only warning that names all of the facts; fails unless there is exactly one."""
    lines = warnings_in(err)
    found = [line for line in lines if all(str(fact) in line for fact in facts)]
    assert len(found) == 1, f'{[str(fact) for fact in facts]} not in just one of: {lines}'
    return check_line(found[0], *facts)
