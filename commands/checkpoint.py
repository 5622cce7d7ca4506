"""`tf_cnn_benchmarks.py checkpoint`: lists the tensors of a checkpoint. Starts without TensorFlow."""

import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands.options import Arguments, Declaration
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
    examples=('RUN', 'RUN/model.ckpt-100 --json'),
    details="The groups are the model's variables, the moving averages of batch norm (statistics), the optimizer's own "
    'variables, and those of training, such as the global step.',
    positional='A --train_dir, whose newest checkpoint is listed, or one checkpoint: the name of its files without '
    '.index or .data-*.',
    takes_paths=True,
)


@DECLARATION.main
def main(arguments: Arguments[CheckpointOptions]) -> int:
    [path] = arguments.positional
    # Imported here because it imports TensorFlow.
    from training.checkpoint_files import all_checkpoints, find_checkpoint, has_ended

    prefix = find_checkpoint(path, path)
    folder: dict[str, Any] = {}
    if os.path.isdir(path):
        others = [other for other in all_checkpoints(path) if not os.path.samefile(f'{other}.index', f'{prefix}.index')]
        folder = {'checkpoints': [*others, prefix], 'ended': has_ended(path)}
    step, tensors = _read(prefix)
    totals: dict[str, dict[str, int]] = {}
    for tensor in tensors:
        total = totals.setdefault(tensor['group'], {'tensors': 0, 'size': 0, 'bytes': 0})
        for key, number in (('tensors', 1), ('size', tensor['size']), ('bytes', tensor['bytes'])):
            total[key] += number
    if arguments.options.json:
        print(json.dumps({'checkpoint': prefix, 'step': step, **folder, 'tensors': tensors, 'totals': totals}))
        return 0
    if folder:
        names = ', '.join(Path(other).name for other in folder['checkpoints'])
        state = 'training has ended' if folder['ended'] else 'training has not ended, or goes on'
        print(f'{path}: {names} (the newest); {state}')
    _print_table(prefix if step is None else f'{prefix}, step {step}', tensors, totals)
    return 0


def _read(prefix: str) -> tuple[int | None, list[dict[str, Any]]]:
    """Returns the global step (None if the checkpoint has none), and all tensors, sorted by group and name."""
    import tensorflow.compat.v1 as tf

    from training.contents import GROUPS, group_of, open_checkpoint, read_contents

    contents = read_contents(prefix)
    tensors: list[dict[str, Any]] = []
    for name, (dtype, shape) in contents.items():
        size = math.prod(shape)
        # Checkpoints of other programs may contain strings, whose size in bytes is unknown here.
        width = 0 if dtype == 'string' else tf.as_dtype(dtype).size
        facts = {'name': name, 'group': group_of(name, contents), 'dtype': dtype, 'shape': shape}
        tensors.append({**facts, 'size': size, 'bytes': size * width})
    tensors.sort(key=lambda tensor: (GROUPS.index(tensor['group']), tensor['name']))
    try:
        return int(open_checkpoint(prefix).get_tensor('global_step')), tensors
    except (tf.errors.OpError, TypeError, ValueError):
        return None, tensors


def _print_table(title: str, tensors: Sequence[dict[str, Any]], totals: dict[str, dict[str, int]]) -> None:
    titles = ('group', 'name', 'dtype', 'shape', 'size', 'bytes')
    columns = [TableColumn(title, is_number=number > 2) for number, title in enumerate(titles)]
    rows, sums = list[tuple[str, ...]](), list[int]()
    for group, total in totals.items():
        for tensor in (tensor for tensor in tensors if tensor['group'] == group):
            shape = ' x '.join(map(str, tensor['shape']))
            rows.append((group, tensor['name'], tensor['dtype'], shape, f'{tensor["size"]:,}', f'{tensor["bytes"]:,}'))
        sums.append(len(rows))
        rows.append((group, f'total of {total["tensors"]:,}', '', '', f'{total["size"]:,}', f'{total["bytes"]:,}'))
    print(Table(columns, rows, title, sums).as_text(sys.stdout, _COLUMNS))
    parameters = totals.get('model', {'size': 0})['size']
    print(f'{parameters:,} parameters; {sum(total["bytes"] for total in totals.values()):,} bytes in all')
