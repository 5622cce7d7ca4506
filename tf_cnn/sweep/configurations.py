"""Makes the plan of a sweep: the configurations to measure, and the combinations left out. Pure."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tf_cnn.cluster.topology import Shape
from tf_cnn.managers.modes import Topology
from tf_cnn.plan.params import SPECS, Params, output_flags
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.sweep.request import SHAPE, Setting, SweepRequest, SweepSettings
from tf_cnn.system.errors import UsageError, format_flag

# (settings, whether one process runs alone): raises UsageError if the settings cannot be run.
SettingsCheck = Callable[[Params, bool], None]

_UNSAFE_CHARACTERS = re.compile(r'[^A-Za-z0-9.+_-]+')
_MAX_NAME_LENGTH = 80


@dataclass(frozen=True)
class Configuration:
    """One row of the sweep's table.

    Attributes:
      id: a unique name, used in file names.
      varied: the values that distinguish it, as text: each flag that differs between
        configurations, and the shape.
      in_cluster: whether there is more than one process.
      given: the flags in argv by name, each as written.
      published: images/sec from a published table; `report` shows it beside the measured value.
      launch: further flags of `cluster`, such as its hosts.
    """

    id: str
    varied: Mapping[str, str]
    shape: Shape
    in_cluster: bool
    argv: tuple[str, ...]
    given: Mapping[str, str]
    variable_update: str
    published: float | None = field(default=None, compare=False)
    published_speed_up: float | None = field(default=None, compare=False)
    launch: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        return caption(self.varied)

    @property
    def command(self) -> tuple[str, ...]:
        """The words after the program's name."""
        if not self.in_cluster and not self.launch:
            return self.argv
        has_servers = self.shape.num_ps or not self.in_cluster
        servers = [format_flag('ps', self.shape.num_ps)] if has_servers else []
        return (
            'cluster',
            *self.launch,
            format_flag('workers', self.shape.workers),
            *servers,
            '--',
            *self.argv,
        )


@dataclass(frozen=True)
class ExcludedCombination:
    varied: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep.

    Attributes:
      columns: the flags that differ between configurations, and the shape, in the table's order.
      published_in: the source of the published rates, or empty.
    """

    name: str
    title: str
    settings: SweepSettings
    configurations: tuple[Configuration, ...]
    left_out: tuple[ExcludedCombination, ...] = ()
    columns: tuple[str, ...] = field(default=(SHAPE,))
    published_in: str = ''


def caption(varied: Mapping[str, str]) -> str:
    """Formats the values that distinguish a configuration: 'batch_size=32 shape=1*2'."""
    return ' '.join(f'{name}={value}' for name, value in varied.items())


def make_sweep_plan(request: SweepRequest, check: SettingsCheck) -> SweepPlan:
    """Makes a configuration of each combination of values, in the order of the request.

    Leaves out each combination that cannot run, such as parameter servers for a mode without any,
    and stores the reason. Raises UsageError if no combination of a grid can run.
    """
    if not request.grids:
        raise UsageError(
            f'{request.source}: nothing to compare; add a [grid], such as batch_size = [32, 64]'
        )
    columns = (*(name for name in _varied_names(request) if name != SHAPE), SHAPE)
    configurations_by_command: dict[tuple[str, ...], Configuration] = {}
    left_out: list[ExcludedCombination] = []
    for grid in request.grids:
        num_usable, reason = 0, ''
        for combination in itertools.product(*grid.values.values()):
            values = {**request.flags, **dict(zip(grid.values, combination, strict=True))}
            shape = values.pop(SHAPE, Shape(1, 1))
            varied = {name: _format_setting(name, {**values, SHAPE: shape}) for name in columns}
            try:
                configuration = _configure(values, shape, varied, check)
            except UsageError as error:
                reason = str(error)
                left_out.append(ExcludedCombination(varied, reason))
                continue
            num_usable += 1
            with_published_rate = replace(
                configuration, published=grid.published, published_speed_up=grid.published_speed_up
            )
            configurations_by_command.setdefault(
                (*configuration.argv, str(shape)), with_published_rate
            )
        if not num_usable:
            raise UsageError(
                f'{grid.where}: no combination can run: {reason}; '
                'change the grid, or the flags of all runs'
            )
    configurations = tuple(
        replace(unnumbered, id=_make_id(number, unnumbered, len(configurations_by_command)))
        for number, unnumbered in enumerate(configurations_by_command.values(), start=1)
    )
    return SweepPlan(
        request.name,
        request.title,
        request.settings,
        configurations,
        tuple(left_out),
        columns,
        request.published_in,
    )


def _varied_names(request: SweepRequest) -> Iterator[str]:
    """Yields the flags with more than one value, in the order of their first appearance."""
    grids = request.grids
    for name in dict.fromkeys(name for grid in grids for name in grid.values):
        default = request.flags.get(name, SPECS[name].default if name in SPECS else None)
        values = {str(value) for grid in grids for value in grid.values.get(name, (default,))}
        if len(values) > 1:
            yield name


def _format_setting(name: str, values: Mapping[str, object]) -> str:
    value = values.get(name, SPECS[name].default if name in SPECS else None)
    if isinstance(value, bool):
        return str(value).lower()
    return 'default' if value is None or (name == 'batch_size' and not value) else str(value)


def _configure(
    values: Mapping[str, Setting], shape: Setting, varied: Mapping[str, str], check: SettingsCheck
) -> Configuration:
    assert isinstance(shape, Shape)
    argv = tuple(
        format_flag(name, value) for name, value in {**values, 'num_gpus': shape.devices}.items()
    )
    params = parse_argv(argv).params
    mode = params.variables.mode
    if reason := shape.unsupported_reason(mode):
        raise UsageError(reason)
    if 'all_reduce_spec' in varied and params.variables.is_nccl_on_cpu(params):
        raise UsageError(f'{params.flag_text("all_reduce_spec")}: NCCL sums between GPUs')
    is_single_process = shape.topology(mode) is Topology.LOCAL
    for name in output_flags():
        if params.value(name) and not (params.evaluation.eval and name == 'train_dir'):
            flag_text = format_flag(name, params.value(name))
            raise UsageError(
                f'{flag_text}: all runs of the sweep would use the same path; remove it'
            )
    check(params, is_single_process)
    return Configuration(
        id='',
        varied=varied,
        shape=shape,
        in_cluster=not is_single_process,
        argv=argv,
        given=dict(params.given_flags),
        variable_update=params.variables.variable_update,
    )


def _make_id(number: int, configuration: Configuration, count: int) -> str:
    words = '-'.join(value.replace('*', 'x') for value in configuration.varied.values())
    return f'{number:0{len(str(count))}d}-{_UNSAFE_CHARACTERS.sub("_", words)[:_MAX_NAME_LENGTH]}'
