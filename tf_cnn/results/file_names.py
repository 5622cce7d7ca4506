"""The names of result files: fields in braces stand for values of the run."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The value of --result_file that stands for standard output.
STDOUT = '-'
# A field of a path. The value of a flag or another property of the run replaces it.
FIELD = re.compile(r'\{(\w*)\}')
# The field for the number of a run, and all fields that let the program choose a free name.
RUN_FIELD = '{run}'
_CHOSEN = ('{date}', '{time}', RUN_FIELD)
# The fields that are not flags.
OTHER_FIELDS = ('shape', 'hostname', 'date', 'time', 'run')


def fill_fields(path: str, values: Mapping[str, Any]) -> str:
    """Replaces the fields of a path by their values. A slash in a value becomes an underscore."""
    return FIELD.sub(lambda field: str(values[field[1]]).replace('/', '_'), path)


def numbered_path(path: str, values: Mapping[str, Any]) -> str | None:
    """Returns the path with {run} in it, to find a free name; None if the user chose the name."""
    if not any(field in path for field in _CHOSEN):
        return None
    filled = fill_fields(path, {**values, 'run': RUN_FIELD})
    # Without a {run} field, the number goes before the last dot.
    return (
        filled
        if RUN_FIELD in filled
        else str(Path(filled).with_suffix(f'.{RUN_FIELD}{Path(filled).suffix}'))
    )
