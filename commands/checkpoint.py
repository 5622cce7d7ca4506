"""`tf_cnn_benchmarks.py checkpoint`: lists the tensors of a checkpoint. Starts without TensorFlow."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from commands.options import Arguments, Declaration, Positional
from comparison.tables import Table, TableColumn
from params.spec import flag

# The width of the table if standard output is not a terminal: enough for the names of all models.
_COLUMNS = 160


@dataclass(frozen=True)
class CheckpointOptions:
    json: bool = flag(
        False,
        'Print an object: checkpoint, step, tensors (name, group, dtype, shape, size, bytes), totals by group '
        '(tensors, size, bytes) and, for a folder, checkpoints (the newest last) and ended (whether training is over).',
    )


DECLARATION = Declaration(
    'checkpoint',
    CheckpointOptions,
    "Lists the tensors of a checkpoint: the model's variables, the moving averages of batch norm (statistics), the "
    "optimizer's own variables, and the global step.",
    examples=('RUN', 'RUN/model.ckpt-100 --json'),
    positional=Positional(
        'PATH',
        'A --train_dir, whose newest checkpoint is listed, or one checkpoint: the name of its files without .index or '
        '.data-*.',
        is_path=True,
    ),
)


@dataclass(frozen=True)
class Entry:
    """A tensor of a checkpoint; its group is one of training.contents.GROUPS, its size the number of elements."""

    name: str
    group: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    bytes: int


def main(argv: Sequence[str]) -> int:
    return DECLARATION.run(argv, _list)


def _list(arguments: Arguments[CheckpointOptions]) -> int:
    [path] = arguments.positional
    # Imported here because it imports TensorFlow.
    from training.checkpoint_files import all_checkpoints, find_checkpoint, has_ended

    prefix = find_checkpoint(path, path)
    folder: dict[str, object] = {}
    if os.path.isdir(path):
        others = [other for other in all_checkpoints(path) if not os.path.samefile(f'{other}.index', f'{prefix}.index')]
        folder = {'checkpoints': [*others, prefix], 'ended': has_ended(path)}
    step, entries = _read(prefix)
    if arguments.options.json:
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


def _read(prefix: str) -> tuple[int | None, list[Entry]]:
    """Returns the global step (None if the checkpoint has none), and all tensors, sorted by group and name."""
    import tensorflow.compat.v1 as tf

    from training.contents import GROUPS, group_of, open_checkpoint, read_contents

    contents = read_contents(prefix)
    entries = []
    for name, (dtype, shape) in contents.items():
        size = math.prod(shape)
        # Checkpoints of other programs may contain strings, whose size in bytes is unknown here.
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
    columns = (
        *(TableColumn(title) for title in ('group', 'name', 'dtype')),
        *(TableColumn(title, is_number=True) for title in ('shape', 'size', 'bytes')),
    )
    rows: list[tuple[str, ...]] = []
    sums = []
    for group, total in _totals(entries).items():
        for entry in (entry for entry in entries if entry.group == group):
            shape = ' x '.join(map(str, entry.shape))
            rows.append((group, entry.name, entry.dtype, shape, f'{entry.size:,}', f'{entry.bytes:,}'))
        count, *sizes = (f'{number:,}' for number in total.values())
        sums.append(len(rows))
        rows.append((group, f'total of {count}', '', '', *sizes))
    title = prefix if step is None else f'{prefix}, step {step}'
    print(Table(columns, rows, title, sums).as_text(sys.stdout, _COLUMNS))
    parameters = _totals(entries).get('model', {'size': 0})['size']
    print(f'{parameters:,} parameters; {sum(entry.bytes for entry in entries):,} bytes in all')
