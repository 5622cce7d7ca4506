"""Reads what a sweep should measure, from a file or from flags, and checks each value by itself."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.topology import Shape
from tf_cnn.flags.spec import FlagSpec, Value, flag
from tf_cnn.managers.modes import MODES
from tf_cnn.managers.user_modes import read_modes
from tf_cnn.plan.original_flags import FLAGS
from tf_cnn.plan.params import SPECS
from tf_cnn.plan.parsing import MODES_FILE, split_argv
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, nearest

SHAPE = 'shape'
Setting = Value | Shape

# The location of a setting that is a flag after --.
AFTER_DASHES = '--'


_SHAPE_SETS_PROCESSES = 'the shape sets the processes, as in shape = "2*1+1"'
# The flags that a sweep sets itself, and the source of their values.
_SET_BY_SWEEP = {
    'num_gpus': 'the shape sets the devices of each worker',
    'result_file': 'the sweep keeps each result in its folder',
    'repeat': 'use --repeats=3, or repeats = 3 in a file',
    **dict.fromkeys((*ROLE_FLAGS, 'num_ps'), _SHAPE_SETS_PROCESSES),
}


@dataclass(frozen=True)
class SweepSettings:
    """How a sweep runs its configurations: flags of the subcommand, and keys of a sweep file."""

    repeats: int = flag(1, 'Runs of each configuration.', lower_bound=1, unit='runs')
    timeout_secs: float | None = flag(
        None,
        'End a run that takes longer, and go on with the next.',
        lower_bound=0.1,
        unit='seconds',
    )
    find_batch_size: bool = flag(
        False,
        'Find the largest batch size of each configuration that fits in memory, with a few steps '
        'of each size.',
    )


@dataclass(frozen=True)
class SweepOptions(SweepSettings):
    """The flags of the subcommand. A sweep file may have the flags of SweepSettings, too."""

    grid: tuple[str, ...] = flag(
        (),
        'FLAG=VALUE,VALUE...: a flag of a run, or shape, and the values to compare, instead of a '
        'FILE. Use it once for each flag; sweep measures all combinations.',
    )
    output: str | None = flag(
        None,
        'New folder for the plan, results, logs and table; by default sweep-NAME-TIME in the '
        'current folder.',
        is_path=True,
    )
    resume: bool = flag(False, 'Continue an interrupted sweep: FILE is its folder.')
    dry_run: bool = flag(False, 'List the configurations and their commands; run nothing.')


@dataclass(frozen=True)
class Grid:
    """A grid: flags and shapes with their values. The sweep measures all combinations.

    Attributes:
      where: the table or flag that contains the grid; errors begin with it.
      published: the images/sec of a single combination in a published table.
      published_speed_up: its speed-up there.
    """

    where: str
    values: Mapping[str, tuple[Setting, ...]]
    published: float | None = None
    published_speed_up: float | None = None


@dataclass(frozen=True)
class SweepRequest:
    """What a file, or the flags of the subcommand, ask a sweep to measure.

    Attributes:
      name: part of the folder's name.
      source: the file, or the subcommand; errors begin with it.
      flags: the flags of all runs.
      grids: the sweep measures all combinations of each grid.
    """

    name: str
    title: str
    source: str
    flags: Mapping[str, Setting] = field(default_factory=dict)
    grids: Sequence[Grid] = ()
    settings: SweepSettings = field(default_factory=SweepSettings)
    published_in: str = ''


def read_settings(name: str, values: Sequence[object], where: str) -> tuple[Setting, ...]:
    """Reads the values of a flag, or of the shape. Errors begin with `where`: source and table."""
    if reason := _SET_BY_SWEEP.get(name):
        value = values[0] if len(values) == 1 else values
        remedy = f'use {_suggest_shapes(values, where)}' if name == 'num_gpus' else f'remove {name}'
        raise UsageError(f'{where} {format_key_value(name, value, where)}: {reason}; {remedy}')
    errors, settings = ErrorCollector(), list[Setting]()
    for value in values:
        with errors.collecting():
            settings.append(_read_setting(name, value, where))
    errors.raise_all()
    return tuple(settings)


def _suggest_shapes(num_gpus: Sequence[object], where: str) -> str:
    """Formats the shapes that replace --num_gpus in one process, as a flag or as in a file."""
    shapes = [f'1*{number}' for number in num_gpus if re.fullmatch('[1-9][0-9]*', str(number))] or [
        '1*2'
    ]
    if where.startswith('--'):
        return f'--grid={SHAPE}={",".join(shapes)}'
    return format_key_value(SHAPE, shapes[0] if len(shapes) == 1 else shapes)


def _read_setting(name: str, value: object, where: str) -> Setting:
    if name == SHAPE:
        try:
            return value if isinstance(value, Shape) else Shape.parse(str(value))
        except ValueError as error:
            raise UsageError(f'{where} {format_key_value(name, value, where)}: {error}') from None
    spec = FLAGS.get(name)
    if spec is None:
        near = nearest(name, [SHAPE, *SPECS])
        hint = f'did you mean {near}?' if near else 'tf_cnn_benchmarks --help=all lists all flags'
        raise UsageError(
            f'{where} {format_key_value(name, value, where)}: unknown flag --{name}; {hint}'
        )
    return read_value(spec, value, where)


def read_value(spec: FlagSpec, value: object, where: str) -> Value:
    try:
        setting = spec.read(value)
    except UsageError as error:
        # The error begins with the flag as on a command line; a file spells it differently.
        reason = str(error).removeprefix(f'{format_flag(spec.name, value)}: ')
        raise UsageError(f'{where} {format_key_value(spec.name, value, where)}: {reason}') from None
    if spec.name == MODES_FILE and setting:
        read_modes(str(setting))
    return setting


def mode_file_first(name: str) -> int:
    """Sort key that puts --variable_mgr_file first: it defines values of --variable_update."""
    return name != MODES_FILE


def format_key_value(name: str, value: object, where: str = '') -> str:
    """Formats a key and its value as in TOML, or as a flag if `where` is AFTER_DASHES."""
    if where == AFTER_DASHES:
        return format_flag(name, value)
    text = str(value) if isinstance(value, Shape) else value
    return f'{name} = {json.dumps(text, default=str, ensure_ascii=False)}'


def read_grid(texts: Sequence[str]) -> SweepRequest:
    """Reads the values of --grid, each '--batch_size=32,64' or 'batch_size=32,64'."""
    values: dict[str, tuple[Setting, ...]] = {}
    errors = ErrorCollector()
    for text in sorted(texts, key=lambda text: mode_file_first(text.lstrip('-').partition('=')[0])):
        where = f'--grid={text}:'
        name, equals, several = text.lstrip('-').partition('=')
        with errors.collecting():
            if not equals:
                raise UsageError(
                    f'{where} it must be FLAG=VALUE,VALUE..., such as --grid=--batch_size=32,64'
                )
            if name in values:
                raise UsageError(
                    f'{where} {name} appears twice; put all its values into one --grid'
                )
            values[name] = read_settings(name, several.split(','), where)
    errors.raise_all()
    return SweepRequest('grid', 'Grid', 'sweep', grids=[Grid('--grid', values)])


def override(
    request: SweepRequest, argv: Sequence[str], settings: Mapping[str, Any]
) -> SweepRequest:
    """Returns the request with the flags after -- added to all runs, and with these settings.

    Both replace what the request has. Raises UsageError if a grid varies one of the flags.
    """
    flags = dict(request.flags)
    for name, text in split_argv(argv).items():
        (value,) = read_settings(name, [text], AFTER_DASHES)
        for grid in request.grids:
            if name in grid.values:
                raise UsageError(
                    f'-- --{name}={text} conflicts with {grid.where} {name}: the '
                    'sweep compares its values; remove one of them'
                )
        flags[name] = value
    return replace(request, flags=flags, settings=replace(request.settings, **settings))


def add_device_cpu(request: SweepRequest) -> SweepRequest:
    """Returns the request for a machine without a GPU: with --device=cpu if runs need a --device.

    Runs on several devices, and runs with a controller, need one.
    """

    def values(name: str) -> list[Setting | None]:
        return [
            request.flags.get(name),
            *(value for grid in request.grids for value in grid.values.get(name, ())),
        ]

    has_towers = any(isinstance(shape, Shape) and shape.devices > 1 for shape in values(SHAPE))
    has_controller = any(
        mode.has_controller for name, mode in MODES.items() if name in values('variable_update')
    )
    if any(values('device')) or not (has_towers or has_controller):
        return request
    return replace(request, flags={**request.flags, 'device': 'cpu'})
