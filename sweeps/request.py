"""What a sweep is asked to measure: values of flags, checked one by one, before they are combined."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.shape import Shape
from errors import UsageError, nearest, spelled
from params.older_names import OLDER_NAMES
from params.spec import FlagSpec, Value
from params.table import SPECS
from sweeps.settings import Settings

SHAPE = 'shape'
Setting = Value | Shape

# Flags that the sweep itself gives to each run or process, and where their values come from instead.
_GIVEN_BY_SWEEP = {
    'num_gpus': 'write shape = "1*2" for 2 devices',
    'result_file': 'the sweep keeps each result in its folder',
    'repeat': 'write repeats = 3',
    **dict.fromkeys(
        ('job_name', 'task_index', 'ps_hosts', 'worker_hosts', 'controller_host', 'num_ps'),
        'the shape says which processes there are, as in shape = "2*1+1"',
    ),
}


@dataclass(frozen=True)
class Axes:
    """Flags and shapes with their values, all combinations of which are meant.

    Attributes:
      where: where they stand, for errors. published: images/sec that others published for a single combination.
    """

    where: str
    values: Mapping[str, tuple[Setting, ...]]
    published: float | None = None


@dataclass(frozen=True)
class Request:
    """What a file, or the flags of the subcommand, ask for.

    Attributes:
      name: for the name of the folder. title: for people. source: the file, or the subcommand; begins each error.
      flags: those of all runs. grids: products of values, in this order. include: single configurations to add.
      exclude: a configuration with one of the values of each of these flags is left out.
      published_in: where the published rates come from.
    """

    name: str
    title: str
    source: str
    flags: Mapping[str, Setting] = field(default_factory=dict)
    grids: Sequence[Axes] = ()
    include: Sequence[Axes] = ()
    exclude: Sequence[Axes] = ()
    settings: Settings = field(default_factory=Settings)
    published_in: str = ''

    @property
    def axes(self) -> tuple[Axes, ...]:
        """Those of all configurations, in order."""
        return (*self.grids, *self.include)


def read_setting(name: str, value: object, where: str) -> Setting:
    """Reads the value of a flag, or of a shape.

    Args:
      where: the source and the table, for errors.

    Raises:
      UsageError: the flag is unknown, belongs to the sweep, or refuses the value.
    """
    if name in _GIVEN_BY_SWEEP:
        raise UsageError(f'{where} {shown(name, value)}: {_GIVEN_BY_SWEEP[name]}; leave {name} out')
    if name == SHAPE:
        try:
            return value if isinstance(value, Shape) else Shape.parse(str(value))
        except ValueError as error:
            raise UsageError(f'{where} {shown(name, value)}: {error}') from None
    spec = find_spec(name)
    if spec is None:
        near = nearest(name, [SHAPE, *SPECS])
        hint = f'did you mean {near}?' if near else 'tf_cnn_benchmarks --help lists all flags'
        raise UsageError(f'{where} {shown(name, value)}: there is no flag --{name}; {hint}')
    return read_value(spec, value, where)


def read_value(spec: FlagSpec, value: object, where: str) -> Value:
    """Reads the value of a flag; raises UsageError if the flag refuses it."""
    try:
        return spec.read(value)
    except UsageError as error:
        # The text begins with the flag as a command line has it, and the file has it in its own way.
        reason = str(error).removeprefix(f'{spelled(spec.name, value)}: ')
        raise UsageError(f'{where} {shown(spec.name, value)}: {reason}') from None


def find_spec(name: str) -> FlagSpec | None:
    """The flag of a run, also by an older name."""
    return SPECS.get(name) or OLDER_NAMES.get(name)


def shown(name: str, value: object) -> str:
    """A key and its value as TOML has them."""
    text = str(value) if isinstance(value, Shape) else value
    return f'{name} = {json.dumps(text, default=str, ensure_ascii=False)}'
