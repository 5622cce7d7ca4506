"""The names of result files: fields in braces stand for values of the run."""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# A field of a path. The value of a flag or another property of the run replaces it.
FIELD = re.compile(r'\{(\w*)\}')
# The field for the number of a run, which stays in a path until the result is written.
RUN_FIELD = '{run}'
# The fields that are not flags.
OTHER_FIELDS = ('shape', 'hostname', 'date', 'time', 'run')


def fill_fields(path: str, values: Mapping[str, Any]) -> str:
    """Replaces the fields of a path by their values. A slash in a value becomes an underscore."""
    return FIELD.sub(lambda field: str(values[field[1]]).replace('/', '_'), path)


def may_replace(path: str) -> bool:
    """Returns whether a result may replace a file: the user chose the name, without the date, the
    time or the number of the run.
    """
    return not {'date', 'time', 'run'} & {*FIELD.findall(path)}


def numbered_path(path: str) -> str:
    """Returns the path with {run} in it, before its last dot if the user did not write it."""
    if RUN_FIELD in path:
        return path
    return str(Path(path).with_suffix(f'.{RUN_FIELD}{Path(path).suffix}'))


def names_in_order(path: str, number: int = 1) -> Iterator[str]:
    """Yields the names that a new result may get: the path with the numbers from `number` on for
    {run}; without {run} the path itself, then its numbered_path with the numbers from 2 on.
    """
    if RUN_FIELD not in path:
        yield path
        number = 2
    for run in itertools.count(number):
        yield numbered_path(path).replace(RUN_FIELD, str(run))
