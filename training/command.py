"""`tf_cnn_benchmarks.py checkpoint`: tells what a checkpoint holds. Starts without TensorFlow."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from absl import flags

from errors import UsageError
from flag_spec import read_flags

_USAGE = """\
Lists the tensors of a checkpoint: the variables of the model, batch norm's moving averages (statistics), what the
optimizer has beside them, and the global step.

  tf_cnn_benchmarks.py checkpoint RUN
  tf_cnn_benchmarks.py checkpoint RUN/model.ckpt-100 --json

  PATH: a --train_dir, of which the newest checkpoint is listed, or a checkpoint: its files without .index and .data-*.
  --json: Print an object: checkpoint, step, tensors (name, group, dtype, shape, size, bytes), totals by group (tensors,
    size, bytes) and, of a folder, checkpoints (the newest last) and ended: whether the training there is over.
"""
# Where no terminal tells: wide enough for the names of every model.
_COLUMNS = 160


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint: size is how many numbers it has."""

    name: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    bytes: int


def main(argv: Sequence[str]) -> int:
    """Runs `checkpoint` with the words in argv; returns the exit code.

    Raises:
      UsageError: the flags do not fit, or there is no such folder or checkpoint.
      RunError: the folder holds no checkpoint, or it cannot be read.
    """
    values, paths = _parse(argv)
    if values['help'].value:
        print(_USAGE, end='')
        return 0
    if len(paths) != 1:
        given = f'{paths[1]}: checkpoint lists one at a time' if paths else 'checkpoint: it takes one to list'
        raise UsageError(f'{given}; write checkpoint PATH, see checkpoint --help')
    [path] = paths
    # TensorFlow tells about the machine on standard error when it is imported; that is of no use here.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    from training.checkpoints import all_checkpoints, find_checkpoint, has_ended

    prefix = find_checkpoint(path, path)
    folder: dict[str, object] = {}
    if os.path.isdir(path):
        others = [other for other in all_checkpoints(path) if not os.path.samefile(f'{other}.index', f'{prefix}.index')]
        folder = {'checkpoints': [*others, prefix], 'ended': has_ended(path)}
    step, entries = _read(prefix)
    if values.json:
        tensors = [asdict(entry) for entry in entries]
        print(
            json.dumps({'checkpoint': prefix, 'step': step, **folder, 'tensors': tensors, 'totals': _totals(entries)})
        )
        return 0
    if folder:
        names = ', '.join(Path(other).name for other in [*others, prefix])
        state = 'training has ended' if folder['ended'] else 'training has not ended, or goes on'
        print(f'{path}: {names} (the newest); {state}')
    _print_table(prefix, step, entries)
    return 0


def _parse(argv: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    values = flags.FlagValues()
    values.set_gnu_getopt(True)
    flags.DEFINE_boolean('json', False, '', flag_values=values)
    flags.DEFINE_boolean('help', False, '', short_name='h', flag_values=values)
    return values, read_flags(values, 'checkpoint', argv)


def _read(prefix: str) -> tuple[int | None, list[Entry]]:
    """The global step, if there is one, and all tensors, group by group."""
    import tensorflow.compat.v1 as tf

    from training.contents import GROUPS, group_of, open_checkpoint, read_contents

    contents = read_contents(prefix)
    entries = []
    for name, (dtype, shape) in contents.items():
        size = math.prod(shape)
        # Texts, which checkpoints of other programs have, are of no size known here.
        width = 0 if dtype == 'string' else tf.as_dtype(dtype).size
        entries.append(Entry(name, group_of(name, contents), dtype, tuple(shape), size, size * width))
    entries.sort(key=lambda entry: (GROUPS.index(entry.group), entry.name))
    try:
        return int(open_checkpoint(prefix).get_tensor('global_step')), entries
    except (tf.errors.OpError, TypeError, ValueError):
        return None, entries


def _totals(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for entry in entries:
        total = totals.setdefault(entry.group, {'tensors': 0, 'size': 0, 'bytes': 0})
        total['tensors'] += 1
        total['size'] += entry.size
        total['bytes'] += entry.bytes
    return totals


def _print_table(prefix: str, step: int | None, entries: Sequence[Entry]) -> None:
    # Only a table needs it.
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, title=prefix if step is None else f'{prefix}, step {step}', title_justify='left')
    for title in ('group', 'name', 'dtype'):
        table.add_column(title, no_wrap=True)
    for title in ('shape', 'size', 'bytes'):
        table.add_column(title, no_wrap=True, justify='right')
    for group, total in _totals(entries).items():
        for entry in (entry for entry in entries if entry.group == group):
            shape = ' x '.join(map(str, entry.shape))
            table.add_row(group, entry.name, entry.dtype, shape, f'{entry.size:,}', f'{entry.bytes:,}')
        count, *sums = (f'{number:,}' for number in total.values())
        table.add_row(group, f'total of {count}', '', '', *sums, style='bold')
        table.add_section()
    Console(width=None if sys.stdout.isatty() else _COLUMNS, markup=False, highlight=False).print(table)
    parameters = _totals(entries).get('model', {'size': 0})['size']
    print(f'{parameters:,} parameters; {sum(entry.bytes for entry in entries):,} bytes in all')
