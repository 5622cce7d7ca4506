"""Makes the plan of a sweep: the configurations to measure, and the combinations left out. Pure."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.shape import Shape
from errors import UsageError, format_flag
from models.registry import MODELS
from params import Params, parse_argv
from params.modes import MODES, Place
from params.table import SPECS, outputs_that_are
from sweeps.request import SHAPE, Axes, Request, Setting, shown
from sweeps.settings import Settings

# (settings, whether one process runs alone): raises UsageError if the settings cannot be run.
Check = Callable[[Params, bool], None]

_NO_NAME = re.compile(r'[^A-Za-z0-9.+_-]+')
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Configuration:
    """One row of the sweep's table.

    Attributes:
      id: a unique name, used in file names.
      varied: the text of each flag that differs between configurations, and of the shape.
      in_cluster: whether there is more than one process.
      given: the flags in argv by name, each as it is written.
      batch_size: images per step on each device; 0 for the model's default.
      published: images/sec that others published, which `report` shows beside those of the run.
      launch: further flags of `cluster`, such as its hosts.
    """

    id: str
    varied: Mapping[str, str]
    shape: Shape
    in_cluster: bool
    argv: tuple[str, ...]
    given: Mapping[str, str]
    model: str
    variable_update: str
    batch_size: int
    published: float | None = field(default=None, compare=False)
    published_speed_up: float | None = field(default=None, compare=False)
    launch: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        return caption(self.varied)

    def command(self, *more: str) -> tuple[str, ...]:
        """Returns the words after the program's name, with more flags of the run, which override earlier ones."""
        if not self.in_cluster:
            return (*self.argv, *more)
        servers = [format_flag('ps', self.shape.num_ps)] if self.shape.num_ps else []
        return ('cluster', *self.launch, format_flag('workers', self.shape.workers), *servers, '--', *self.argv, *more)


@dataclass(frozen=True)
class LeftOut:
    varied: Mapping[str, str]
    reason: str


@dataclass(frozen=True)
class SweepPlan:
    """The plan of a sweep.

    columns are the flags that differ between configurations, and the shape, in the order of the table; published_in is
    the source of the published rates, or empty.
    """

    name: str
    title: str
    settings: Settings
    configurations: tuple[Configuration, ...]
    left_out: tuple[LeftOut, ...] = ()
    columns: tuple[str, ...] = field(default=(SHAPE,))
    published_in: str = ''


def caption(varied: Mapping[str, str]) -> str:
    """Formats the values that distinguish a configuration: 'batch_size=32 shape=1*2'."""
    return ' '.join(f'{name}={value}' for name, value in varied.items())


def make_sweep_plan(request: Request, check: Check) -> SweepPlan:
    """Combines the values of a request, in its order.

    A combination that cannot run, such as parameter servers for a mode without any, is left out with the reason.
    Raises UsageError if no combination of a grid can run, or an included configuration cannot.
    """
    if not request.grids and not request.include:
        raise UsageError(f'{request.source}: it names nothing to compare; add a [grid] such as batch_size = [32, 64]')
    _check_settings(request)
    _check_models(request)
    # With --find_batch_size the batch size is a result, so no configuration has one.
    columns = (*(name for name in _varied_names(request) if name != SHAPE), SHAPE)
    found: dict[tuple[str, ...], Configuration] = {}
    left_out: list[LeftOut] = []
    for axes in request.axes:
        num_usable, reason = 0, ''
        for combination in _product(axes):
            values = {**request.flags, **combination}
            shape = values.pop(SHAPE, Shape(1, 1))
            varied = {name: _text(name, {**values, SHAPE: shape}) for name in columns}
            try:
                made = None if _excluded(request.exclude, values, shape) else _configure(values, shape, varied, check)
            except _ImpossibleError as error:
                reason = str(error)
                left_out.append(LeftOut(varied, reason))
                continue
            num_usable += 1
            if made is None:
                left_out.append(LeftOut(varied, 'it is excluded'))
                continue
            key = (*made.argv, str(shape))
            if key in found:
                left_out.append(LeftOut(varied, 'it is in the sweep already'))
            quoted = replace(made, published=axes.published, published_speed_up=axes.published_speed_up)
            found.setdefault(key, quoted)
        if not num_usable:
            if any(reason.startswith(f'{format_flag(name, value)}:') for name, value in request.flags.items()):
                raise UsageError(f'{request.source}: {reason}')
            what = ' '.join(f'{name} = {_text(name, combination)}' for name in combination)
            raise UsageError(f'{axes.where} {what}: it cannot run: {reason}; change one of them')
    if not found:
        raise UsageError(f'{request.source}: all configurations are excluded; change [[exclude]]')
    configurations = tuple(
        replace(one, id=_id(number, one, len(found))) for number, one in enumerate(found.values(), start=1)
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


class _ImpossibleError(Exception):
    """A combination cannot run; the text says why."""


def _check_settings(request: Request) -> None:
    if not request.settings.find_batch_size:
        return
    for axes in request.axes:
        if 'batch_size' in axes.values:
            raise UsageError(
                f'{axes.where} {shown("batch_size", list(axes.values["batch_size"]))} clashes with --find_batch_size, '
                'which finds the batch size; leave one out'
            )


def _check_models(request: Request) -> None:
    """Raises UsageError for an unknown model: this is a mistake, not a combination that cannot run."""
    rows = request.axes
    if 'model_file' in request.flags or any('model_file' in axes.values for axes in rows):
        # The file of --model_file may define the model.
        return
    for axes in rows:
        for model in axes.values.get('model', ()):
            try:
                MODELS.find_model(str(model))
            except UsageError as error:
                reason = str(error).removeprefix(f'{format_flag("model", model)}: ')
                raise UsageError(f'{axes.where} {shown("model", model)}: {reason}') from None


def _varied_names(request: Request) -> Iterator[str]:
    """Yields the flags that have more than one value, in the order of their first appearance."""
    rows = request.axes
    for name in dict.fromkeys(name for axes in rows for name in axes.values):
        default = request.flags.get(name, SPECS[name].default if name in SPECS else None)
        values = {str(value) for axes in rows for value in axes.values.get(name, (default,))}
        if len(values) > 1:
            yield name


def _product(axes: Axes) -> Iterator[dict[str, Setting]]:
    for combination in itertools.product(*axes.values.values()):
        yield dict(zip(axes.values, combination, strict=True))


def _text(name: str, values: Mapping[str, object]) -> str:
    value = values.get(name, SPECS[name].default if name in SPECS else None)
    if isinstance(value, bool):
        return str(value).lower()
    return 'default' if value is None or (name == 'batch_size' and not value) else str(value)


def _excluded(exclude: Sequence[Axes], values: Mapping[str, Setting], shape: Setting) -> bool:
    own = {**{name: spec.default for name, spec in SPECS.items()}, **values, SHAPE: shape}
    return any(all(own.get(name) in wanted for name, wanted in row.values.items()) for row in exclude)


def _configure(values: Mapping[str, Setting], shape: Setting, varied: Mapping[str, str], check: Check) -> Configuration:
    assert isinstance(shape, Shape)
    argv = tuple(format_flag(name, value) for name, value in {**values, 'num_gpus': shape.devices}.items())
    mode = MODES[str(values.get('variable_update', SPECS['variable_update'].default))]
    if reason := shape.why_not(mode):
        raise _ImpossibleError(reason)
    alone = shape.place(mode) is Place.ALONE
    try:
        params = parse_argv(argv).params
        for name in outputs_that_are():
            if getattr(params, name) and not (params.eval and name == 'train_dir'):
                written = format_flag(name, getattr(params, name))
                raise UsageError(f'{written}: all runs of the sweep would use the same path; leave it out')
        check(params, alone)
    except UsageError as error:
        raise _ImpossibleError(str(error)) from None
    return Configuration(
        id='',
        varied=varied,
        shape=shape,
        in_cluster=not alone,
        argv=argv,
        given=dict(params.given),
        model=params.model,
        variable_update=params.variable_update,
        batch_size=params.batch_size,
    )


def _id(number: int, one: Configuration, count: int) -> str:
    words = '-'.join(value.replace('*', 'x') for value in one.varied.values())
    return f'{number:0{len(str(count))}d}-{_NO_NAME.sub("_", words)[:_LONGEST_NAME]}'
