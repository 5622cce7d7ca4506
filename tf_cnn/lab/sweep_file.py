"""Reads a sweep from a TOML file: a user's, or one that comes with the program."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tf_cnn.flags.spec import specs_of
from tf_cnn.sweep.request import (
    Grid,
    SweepRequest,
    SweepSettings,
    mode_file_first,
    read_settings,
    read_value,
)
from tf_cnn.system.documents import read_toml
from tf_cnn.system.errors import UsageError, nearest

_FOLDER = Path(__file__).parent
# The keys for the images/sec and the speed-up of a published table.
_PUBLISHED = ('published', 'published_speed_up')


class _File(Struct, forbid_unknown_fields=True):
    title: str | None = None
    published_in: str = ''
    flags: Mapping[str, Any] = {}
    grid: Mapping[str, Any] = {}
    grids: Sequence[Mapping[str, Any]] = ()
    include: Sequence[Mapping[str, Any]] = ()
    repeats: Any = None
    timeout_secs: Any = None
    find_batch_size: Any = None


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


def read_sweep_file(path: Path) -> SweepRequest:
    try:
        file = read_toml(path, _File)
        # The flags come first: --variable_mgr_file defines values of --variable_update.
        flags = {
            name: read_settings(name, [value], f'{path}: [flags]')[0]
            for name, value in file.flags.items()
        }
        tables = [('[grid]', file.grid)] if file.grid else []
        tables += [(f'[[grids]] {number}', grid) for number, grid in enumerate(file.grids, 1)]
        tables += [(f'[[include]] {number}', row) for number, row in enumerate(file.include, 1)]
        grids = [_read_grid_table(grid, f'{path}: {where}') for where, grid in tables]
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f'{path}: it is not a sweep ({" ".join(str(error).split())}); see docs/sweeps.md'
        ) from None
    settings: dict[str, Any] = {
        name: read_value(spec, getattr(file, name), f'{path}:')
        for name, spec in specs_of(SweepSettings).items()
        if getattr(file, name) is not None
    }
    return SweepRequest(
        name=path.stem,
        title=file.title or path.stem,
        source=str(path),
        flags=flags,
        grids=grids,
        settings=SweepSettings(**settings),
        published_in=file.published_in,
    )


def _read_grid_table(table: Mapping[str, Any], where: str) -> Grid:
    """Reads the flags of a table; each has one value, or a list."""
    values, published = {}, {}
    for name in sorted(table, key=mode_file_first):
        value = table[name]
        if name in _PUBLISHED:
            published[name] = msgspec.convert(value, Annotated[float, Meta(gt=0)])
            continue
        if not (several := value if isinstance(value, list) else [value]):
            raise UsageError(f'{where} {name} = []: it has no value; add one, or remove {name}')
        values[name] = read_settings(name, several, where)
    return Grid(where, values, **published)
