"""Reads a sweep from a TOML file: a user's, or one that comes with the program."""

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from errors import UsageError, nearest, read_regular
from params.spec import specs_of
from sweeps.request import Axes, Request, Setting, read_setting, read_value
from sweeps.settings import Settings

_SETTINGS = specs_of(Settings)
_TEXTS = ('title', 'published_in')
_KEYS = (*_TEXTS, 'flags', 'grid', 'grids', 'include', 'exclude', *_SETTINGS)
# The keys of a configuration in [[include]] for figures that others published, and what these are.
_PUBLISHED = {'published': 'images/sec', 'published_speed_up': 'the speed-up beside published'}
_FOLDER = Path(__file__).parent


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_FOLDER.glob('*.toml'))}


def find_file(name: str) -> Path:
    path, known = Path(name), shipped()
    if path.is_file():
        return path
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = f'did you mean {near}?' if near else f'write the path of a TOML file, or {", ".join(known)}'
    what = 'it is a folder' if path.is_dir() else 'there is no such file, and no sweep of this name'
    raise UsageError(f'{name}: {what}; {hint}')


def read_sweep_file(path: Path, source: str | None = None) -> Request:
    """Reads a sweep; errors name the file as `source`, by default its path."""
    table = _parse(path)
    source = source or str(path)
    for key, value in table.items():
        if key not in _KEYS:
            near = nearest(key, _KEYS)
            hint = f'did you mean {near}?' if near else f'keys are {", ".join(_KEYS)}; flags belong in [flags]'
            raise UsageError(f'{source}: {key}: there is no such key; {hint}')
        if key in _TEXTS and not isinstance(value, str):
            raise UsageError(f'{source}: {key} = {value}: it must be text')
    flags = {
        name: read_setting(name, value, f'{source}: [flags]') for name, value in _table(table, 'flags', source).items()
    }
    grids = [_axes(_table(table, 'grid', source), f'{source}: [grid]')] if 'grid' in table else []
    grids += [_axes(grid, f'{source}: [[grids]] {number}') for number, grid in _tables(table, 'grids', source)]
    include = [_axes(row, f'{source}: [[include]] {i}', one=True) for i, row in _tables(table, 'include', source)]
    if bool(table.get('published_in')) != any(axes.published for axes in include):
        raise UsageError(
            f'{source}: published in [[include]] and published_in, its source, need each other; write both'
        )
    return Request(
        name=path.stem,
        title=table.get('title', path.stem),
        source=source,
        flags=flags,
        grids=grids,
        include=include,
        exclude=[_axes(row, f'{source}: [[exclude]] {i}') for i, row in _tables(table, 'exclude', source)],
        settings=_settings(table, source),
        published_in=table.get('published_in', ''),
    )


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(path).decode('utf-8'))
    except UnicodeDecodeError:
        raise UsageError(f'{path}: it is not UTF-8 text; write a TOML file') from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f'{path}: it is no TOML ({" ".join(str(error).split())}); see docs/sweeps.md') from None
    except OSError as error:
        raise UsageError(f'{path}: it cannot be read ({error.strerror})') from None


def _table(table: Mapping[str, Any], key: str, source: str) -> Mapping[str, Any]:
    found = table.get(key, {})
    if not isinstance(found, dict):
        raise UsageError(f'{source}: {key} = {found}: it must be a table; write [{key}] above its lines')
    return found


def _tables(table: Mapping[str, Any], key: str, source: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = table.get(key, [])
    if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
        raise UsageError(f'{source}: {key}: it must be a list of tables; write [[{key}]] above the lines of each')
    return list(enumerate(found, start=1))


def _axes(table: Mapping[str, Any], where: str, *, one: bool = False) -> Axes:
    """Reads the values of each flag of a table: lists, or with `one` single values."""
    values: dict[str, tuple[Setting, ...]] = {}
    published: dict[str, float] = {}
    for name, value in table.items():
        if one and name in _PUBLISHED:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise UsageError(f'{where} {name} = {value}: it must be {_PUBLISHED[name]}, a number above 0')
            published[name] = float(value)
            continue
        if one and isinstance(value, list):
            raise UsageError(f'{where} {name} = {value}: it must be one value; write lists in [[grids]]')
        several = value if isinstance(value, list) else [value]
        if not several:
            raise UsageError(f'{where} {name} = []: it has no value; write one, or leave {name} out')
        values[name] = tuple(read_setting(name, item, where) for item in several)
    if not values:
        raise UsageError(f'{where}: it is empty; write flags and their values, such as batch_size = [32, 64]')
    if 'published' not in published and published:
        raise UsageError(f'{where}: published_speed_up needs published, the images/sec beside it; write both')
    return Axes(where, values, **published)


def _settings(table: Mapping[str, Any], source: str) -> Settings:
    values = {}
    for name, spec in _SETTINGS.items():
        if name in table:
            value = table[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            values[name] = read_value(spec, str(value) if spec.type is str and is_number else value, f'{source}:')
    # The spec of each field has read its value, which mypy cannot see.
    settings = Settings(**values)  # type: ignore[arg-type]
    try:
        settings.check()
    except UsageError as error:
        raise UsageError(f'{source}: {error}') from None
    return settings
