"""Reads the request of a sweep, or changes to one, from the flags of the subcommand."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

from cluster.shape import Shape
from errors import UsageError
from params.parsing import split_argv
from sweeps.request import SHAPE, Axes, Request, Setting, read_setting
from sweeps.settings import Settings


def read_grid(texts: Sequence[str]) -> Request:
    """Reads the values of --grid, each '--batch_size=32,64' or 'batch_size=32,64'.

    Raises:
      UsageError: a flag is unknown, is given twice, or refuses a value.
    """
    values: dict[str, tuple[Setting, ...]] = {}
    for text in texts:
        where = f'--grid={text}:'
        name, equals, several = text.lstrip('-').partition('=')
        if not equals:
            raise UsageError(f'{where} it must be FLAG=VALUE,VALUE..., such as --grid=--batch_size=32,64')
        if name in values:
            raise UsageError(f'{where} {name} was given before; write all of its values in one --grid')
        values[name] = tuple(read_setting(name, value, where) for value in several.split(','))
    return Request('grid', 'Grid', 'sweep', grids=[Axes('--grid:', values)])


def override(request: Request, argv: Sequence[str], settings: Mapping[str, object]) -> Request:
    """Overrides the flags of all runs by those after --, and the settings by those on the command line.

    Raises:
      UsageError: a flag is unknown, refuses its value, or is one that the sweep varies.
    """
    flags = dict(request.flags)
    for name, text in split_argv(argv).items():
        value = read_setting(name, text, '--:')
        for axes in request.axes:
            if name in axes.values:
                raise UsageError(
                    f'-- --{name}={text} clashes with {axes.where} {name}, of which the sweep compares several values; '
                    'leave one out'
                )
        flags[name] = value
    # The spec of each field has read its value, which mypy cannot see.
    merged = replace(request.settings, **settings)  # type: ignore[arg-type]
    merged.check()
    return replace(request, flags=flags, settings=merged)


def on_cpu(request: Request) -> Request:
    """Adapts a request to a machine without a GPU: adds --device=cpu if it has several devices but no --device."""
    if any('device' in row for row in (request.flags, *(axes.values for axes in request.axes))):
        return request
    shapes = [request.flags.get(SHAPE), *(shape for axes in request.axes for shape in axes.values.get(SHAPE, ()))]
    if not any(isinstance(shape, Shape) and shape.devices > 1 for shape in shapes):
        return request
    return replace(request, flags={**request.flags, 'device': 'cpu'})


def settings_given(options: Settings, given: frozenset[str]) -> dict[str, object]:
    """Returns the settings that were given on the command line, by name."""
    return {field.name: getattr(options, field.name) for field in fields(Settings) if field.name in given}
