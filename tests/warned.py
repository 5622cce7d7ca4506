"""Checks warnings as users see them: lines of standard error with a fixed beginning and the facts concerned."""

from refusals import check_line

_START = 'tf_cnn_benchmarks: warning: '


def warnings_in(err: str) -> list[str]:
    """The warnings among the lines of a standard error, without their fixed beginning."""
    return [line.removeprefix(_START) for line in err.splitlines() if line.startswith(_START)]


def check_warning(err: str, *facts: object) -> str:
    """Returns the only warning that names all of the facts; fails unless there is exactly one."""
    lines = warnings_in(err)
    found = [line for line in lines if all(str(fact) in line for fact in facts)]
    assert len(found) == 1, f'{[str(fact) for fact in facts]} not in just one of: {lines}'
    return check_line(found[0], *facts)
