"""Reads a sweep from a TOML file: a user's, or one that comes with the program."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from tf_cnn.flags.spec import specs_of
from tf_cnn.sweep.request import Axes, Request, Settings, files_first, read_settings, read_value
from tf_cnn.system.documents import read_toml
from tf_cnn.system.errors import UsageError, nearest

_FOLDER = Path(__file__).parent
# The keys of a grid for figures that others published: images/sec, and the speed-up beside it.
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


def shipped() -> dict[str, Path]:
    return {path.stem: path for path in sorted(_FOLDER.glob('*.toml'))}


def find_file(name: str) -> Path:
    path, known = Path(name), shipped()
    if path.is_file():
        return path
    if name in known:
        return known[name]
    near = nearest(name, known)
    hint = (
        f'did you mean {near}?' if near else f'write the path of a TOML file, or {", ".join(known)}'
    )
    raise UsageError(f'{name}: there is no such file, and no sweep of this name; {hint}')


def read_sweep_file(path: Path) -> Request:
    try:
        file = read_toml(path, _File)
        # Read first, since --variable_mgr_file defines values of --variable_update.
        flags = {
            name: read_settings(name, [value], f'{path}: [flags]')[0]
            for name, value in file.flags.items()
        }
        grids = [('[grid]', file.grid)] if file.grid else []
        grids += [(f'[[grids]] {number}', grid) for number, grid in enumerate(file.grids, 1)]
        grids += [(f'[[include]] {number}', row) for number, row in enumerate(file.include, 1)]
        axes = [_axes(grid, f'{path}: {where}') for where, grid in grids]
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UsageError(
            f'{path}: it is no sweep ({" ".join(str(error).split())}); see docs/sweeps.md'
        ) from None
    settings = {
        name: read_value(spec, getattr(file, name), f'{path}:')
        for name, spec in specs_of(Settings).items()
        if getattr(file, name) is not None
    }
    return Request(
        name=path.stem,
        title=file.title or path.stem,
        source=str(path),
        flags=flags,
        axes=axes,
        # The spec of each field has read its value, which mypy cannot see.
        settings=Settings(**settings),  # type: ignore[arg-type]
        published_in=file.published_in,
    )


def _axes(table: Mapping[str, Any], where: str) -> Axes:
    """Reads the values of each flag of a table: one, or a list."""
    values, published = {}, {}
    for name in sorted(table, key=files_first):
        value = table[name]
        if name in _PUBLISHED:
            published[name] = msgspec.convert(value, Annotated[float, Meta(gt=0)])
            continue
        if not (several := value if isinstance(value, list) else [value]):
            raise UsageError(
                f'{where} {name} = []: it has no value; write one, or leave {name} out'
            )
        values[name] = read_settings(name, several, where)
    return Axes(where, values, **published)
