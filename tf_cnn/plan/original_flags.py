"""The table of all flags of the original tf_cnn_benchmarks and its other versions.

A flag of the original that changes no result never stops a run: it works, or a warning says what
happens instead. A flag is refused only if the run would measure something else than requested.
"""

import csv
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.flags.spec import NEW, OTHER, FlagSpec, Value
from tf_cnn.plan.params import SPECS, Params
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, nearest


class Status(enum.Enum):
    """How this program treats a flag of the original."""

    WORKS = 'works'
    RENAMED = 'works as another name'
    ABSL = 'works as in absl'
    NO_EFFECT = 'has no effect'
    REFUSED = 'is refused'


@dataclass(frozen=True)
class OriginalFlag:
    """One flag of the original; `spec` has its name, and reads its value.

    Attributes:
      message: the name here if RENAMED, what happens (instead) if ABSL (NO_EFFECT), or the reason
        and the remedy if REFUSED.
      accepted_value: the value that requests what this program always does, and causes no warning.
        With None, only an empty value causes no warning.
      on: for a RENAMED switch, the value of the other flag that it stands for; `off` if the switch
        is off. None: the other flag has the same value.
    """

    status: Status
    spec: FlagSpec
    message: str = ''
    accepted_value: Value = None
    on: Value = None
    off: Value = None


_TYPES = {kind.__name__: kind for kind in (bool, int, float, str)}
_HEADINGS = {
    Status.RENAMED: 'Other names of flags',
    Status.ABSL: 'Flags of absl',
    Status.NO_EFFECT: 'Flags of the original without an effect here',
    Status.REFUSED: 'Flags of the original that are refused',
}


def _read_row(row: Mapping[str, str]) -> OriginalFlag:
    status = Status(row['status'])
    spec = FlagSpec(
        row['name'],
        _TYPES[row['type']],
        optional=True,
        group=_HEADINGS[status],
        help=row['help'],
        original=OTHER if row['version'] == 'other' else None,
        # The level of absl for warnings is -1, and a flag without an effect may have any value.
        lower_bound=0 if status is Status.RENAMED else -math.inf,
    )
    on, off = (SPECS[row['message']].read(row[key]) if row[key] else None for key in ('on', 'off'))
    return OriginalFlag(status, spec, row['message'], spec.read(row['accepted_value']), on, off)


def _read_table() -> dict[str, OriginalFlag]:
    table = {
        name: OriginalFlag(Status.WORKS, spec)
        for name, spec in SPECS.items()
        if spec.original != NEW
    }
    with Path(__file__).with_suffix('.csv').open(encoding='utf-8', newline='') as file:
        return table | {row['name']: _read_row(row) for row in csv.DictReader(file)}


# Of each flag, what this program does instead and its meaning in the original. The flags that do
# not work under their name are in the file; its `version` is last or other.
TABLE: Mapping[str, OriginalFlag] = _read_table()
# All flags that a command line may have, including the flags of the original.
FLAGS: Mapping[str, FlagSpec] = {**SPECS, **{name: row.spec for name, row in TABLE.items()}}
# The names of flags in other programs, and their names here.
ELSEWHERE = {
    'lr': 'init_learning_rate',
    'gpus': 'num_gpus',
    'epochs': 'num_epochs',
    'steps': 'num_batches',
}
# Former flags of this program, and what stands in their place.
REMOVED = {
    'export_saved_model': 'tf.train.load_checkpoint reads the weights in --train_dir, see '
    'docs/training.md',
}
# The set of an early version; --data_name=records knows its five classes.
_OLDER_DATA_NAME = 'flowers'
# Switches that are ignored when they are off, their default in the original.
_OFF_BY_DEFAULT = ('mkl', 'xla_compile')


def find_flag_with_choice(value: str) -> str | None:
    """Returns the first flag that has this choice, or None: 'variable_update' for 'horovod'."""
    return next(
        (
            name
            for name, spec in SPECS.items()
            if value.lower() in map(str.lower, spec.choices or ())
        ),
        None,
    )


def replace_older_values(values: dict[str, object]) -> list[str]:
    """Replaces values that only older versions have; returns a warning for each."""
    if values.get('data_name') != _OLDER_DATA_NAME:
        return []
    values['data_name'] = 'imagenet'
    return [
        f'--data_name={_OLDER_DATA_NAME} is read as --data_name=imagenet, with its 1001 classes; '
        'the subcommand records makes a data set with the classes of a folder'
    ]


def replace_older_names(read: Mapping[str, Value], values: dict[str, Value]) -> dict[str, str]:
    """Adds the RENAMED flags in `read` to `values`, under our names.

    Returns the text of each added flag as the user wrote it, by our name. Raises UsageError if
    flags contradict each other.
    """
    as_written, refusals = {}, ErrorCollector()
    for older, value in read.items():
        # The original has xla and xla_compile for two ways to compile, so one of them may be off.
        is_ignored = value is None or (older in _OFF_BY_DEFAULT and value is False)
        if is_ignored or older not in TABLE or TABLE[older].status is not Status.RENAMED:
            continue
        row = TABLE[older]
        name, current_value, written = (
            row.message,
            values.get(row.message),
            format_flag(older, value),
        )
        is_same_value = row.on is None
        meant = value if is_same_value else row.on if value else row.off
        if current_value is None or (current_value is False and not SPECS[name].optional):
            if meant is not None:
                values[name], as_written[name] = meant, written
        elif (
            current_value != value
            if is_same_value
            else (str(row.on) in str(current_value)) != value
        ):
            refusals.add(
                f'{written} contradicts {format_flag(name, current_value)}, its other name; '
                'remove it'
            )
    refusals.raise_all()
    return as_written


def older_value(params: Params, name: str) -> Value:
    """Returns the value of a flag by the name that only the original or older versions have.

    Raises AttributeError if no flag that works has this name.
    """
    row = TABLE.get(name)
    if row is None or row.status is not Status.RENAMED:
        near = nearest(name, (*SPECS, '_replace'))
        hint = f'; did you mean {near}?' if near else ''
        raise AttributeError(f'Params has no flag {name!r}{hint}')
    value: Value = params.value(row.message)
    return value if row.on is None else str(row.on) in str(value)


def original_flag_warnings(name: str, value: object) -> list[str]:
    """Returns the warning about a flag of the original that has no effect here, if any.

    Raises UsageError if the flag is refused.
    """
    row = TABLE.get(name)
    if (
        row is None
        or row.status in (Status.WORKS, Status.RENAMED, Status.ABSL)
        or value in (None, row.accepted_value)
    ):
        return []
    if row.status is Status.REFUSED:
        raise UsageError(f'{format_flag(name, value)}: {row.message}')
    return [f'{format_flag(name, value)} has no effect: {row.message}']
