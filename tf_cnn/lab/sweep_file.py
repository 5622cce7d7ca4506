"""Reads the values that a command compares: from --grid, or from a TOML file, a user's or one that
comes with the program. Does not import TensorFlow.
"""

import dataclasses
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.cluster.topology import Shape
from tf_cnn.lab.config import SweepOptions
from tf_cnn.lab.configurations import SHAPE, Axes
from tf_cnn.machine.run_environment import is_library_variable
from tf_cnn.plan.original_flags import FLAGS
from tf_cnn.plan.params import SPECS
from tf_cnn.system.documents import read_toml
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, nearest

_FOLDER = Path(__file__).parent
_NAME = re.compile(r'[A-Za-z_][\w.-]*', re.ASCII)
# The flags that a grid cannot have.
_SET_BY_SWEEP = {
    'num_gpus': 'the shape sets the devices of each worker; use shape=1*2',
    'result_file': 'each result is kept in the folder; use --output',
    'repeat': 'use --repeats=3, or repeats = 3 in a file',
    **dict.fromkeys((*ROLE_FLAGS, 'num_ps'), 'the shape sets the processes; use shape=2*1+1'),
}


class SweepFile(Struct, forbid_unknown_fields=True):
    """The keys of a sweep file."""

    title: str | None = None
    command: str | None = None
    rate: str | tuple[str, ...] = ()
    secs: str | tuple[str, ...] = ()
    record: str | tuple[str, ...] = ()
    flags: Mapping[str, Any] = {}
    grid: Mapping[str, Any] = {}
    grids: Sequence[Mapping[str, Any]] = ()
    include: Sequence[Mapping[str, Any]] = ()
    repeats: int | None = None
    timeout_secs: float | None = None

    def fill(self, options: SweepOptions, given_flags: Container[str]) -> SweepOptions:
        """Returns the options with the keys of this file for options that are not given."""
        keys: dict[str, Any] = {}
        for name in ('command', 'rate', 'secs', 'record', 'repeats', 'timeout_secs'):
            key = getattr(self, name)
            if key and name not in given_flags:
                keys[name] = (key,) if isinstance(key, str) else key
        return dataclasses.replace(options, **keys)


def list_shipped_sweeps() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_FOLDER.glob('*.toml'))}


def find_sweep_file(name: str) -> Path:
    path, shipped_sweeps = Path(name), list_shipped_sweeps()
    if path.is_file():
        return path
    if name in shipped_sweeps:
        return shipped_sweeps[name]
    near = nearest(name, shipped_sweeps)
    hint = (
        f'did you mean {near}?'
        if near
        else f'use the path of a TOML file, or {", ".join(shipped_sweeps)}'
    )
    raise UsageError(f'{name}: no such file, and no sweep of this name; {hint}')


def read_sweep_file(path: Path) -> SweepFile:
    try:
        file = read_toml(path, SweepFile)
        if any(value is not None and value <= 0 for value in (file.repeats, file.timeout_secs)):
            raise ValueError('repeats and timeout_secs must be above 0')
        if file.command and file.flags:
            raise ValueError('[flags] are of this program; put those of the command into it')
    except (OSError, ValueError) as error:
        raise UsageError(
            f'{path}: it is not a sweep ({" ".join(str(error).split())}); see docs/compare.md'
        ) from None
    if not (file.grid or file.grids or file.include):
        raise UsageError(f'{path}: nothing to compare; add a [grid], such as batch_size = [32, 64]')
    return file


def axes_of(file: SweepFile, source: str) -> Axes:
    tables = {'[grid]': file.grid} if file.grid else {}
    for key, more in (('[[grids]]', file.grids), ('[[include]]', file.include)):
        tables |= {f'{key} {number}': table for number, table in enumerate(more, 1)}
    for where, table in tables.items():
        for name, value in table.items():
            if value == []:
                raise UsageError(f'{source} {where} {name} = []: it has no value; add one')
    return [
        {
            name: [*map(as_text, value if isinstance(value, list) else [value])]
            for name, value in table.items()
        }
        for table in tables.values()
    ]


def read_grid(texts: Sequence[str]) -> Axes:
    """Reads the values of --grid, each NAME=VALUE,VALUE... or --NAME=VALUE,VALUE..."""
    axis: dict[str, list[str]] = {}
    errors = ErrorCollector()
    for text in texts:
        name, equals, values = text.lstrip('-').partition('=')
        flag_text = format_flag('grid', text)
        if not equals or not _NAME.fullmatch(name):
            errors.add(
                f'{flag_text}: it must be NAME=VALUE,VALUE..., such as --grid=batch_size=32,64'
            )
        elif name in axis:
            errors.add(f'{flag_text}: {name} appears twice; put all its values into one --grid')
        axis[name] = values.split(',')
    errors.raise_all()
    return [axis]


def check_values(axes: Axes, where: str, argv_flags: Mapping[str, object]) -> None:
    """Raises UsageError for all wrong names and values of this program's flags.

    Args:
      where: the source of the axes; errors begin with it.
      argv_flags: the flags of all runs, which a grid cannot have, too.
    """
    errors = ErrorCollector()
    for name, values in ((name, axis[name]) for axis in axes for name in axis):
        text = f'{where} {name}={",".join(values)}'
        if reason := _refuse_name(name):
            errors.add(f'{text}: {reason}')
        elif name in argv_flags:
            errors.add(
                f'{text}: it conflicts with {format_flag(name, argv_flags[name])}; remove one'
            )
        else:
            for value in values if not name.isupper() else ():
                try:
                    _ = Shape.parse(value) if name == SHAPE else FLAGS[name].read(value)
                except (UsageError, ValueError) as error:
                    problem = str(error).removeprefix(f'{format_flag(name, value)}: ')
                    errors.add(f'{where} {name}={value}: {problem}')
    errors.raise_all()


def _refuse_name(name: str) -> str | None:
    if name.isupper():
        hint = 'results do not record this variable; use one of a library, or a flag'
        return None if is_library_variable(name) else hint
    if name in FLAGS or name == SHAPE:
        return _SET_BY_SWEEP.get(name)
    near = nearest(name, [SHAPE, *SPECS])
    hint = f'did you mean {near}?' if near else 'tf_cnn_benchmarks --help=all lists all flags'
    return f'unknown flag --{name}; {hint}'


def flag_words(flags: Mapping[str, Any]) -> Iterator[str]:
    """Yields the flags of [flags] as on a command line."""
    for name, value in flags.items():
        if reason := _SET_BY_SWEEP.get(name):
            raise UsageError(f'[flags] {name} = {value}: {reason}')
        yield format_flag(name, as_text(value))


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
