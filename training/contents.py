"""What a checkpoint holds: names, types and shapes, and what each is there for."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError

# (dtype, shape) by name.
Tensors = Mapping[str, tuple[str, Sequence[int]]]

# The variables that a model trains, batch norm's moving averages, what an optimizer has beside them, and the rest.
MODEL, STATISTICS, OPTIMIZER, TRAINING = GROUPS = ('model', 'statistics', 'optimizer', 'training')
# What has this in front is no part of the model and its training, but of how one run computed: a checkpoint may have it
# or lack it, whoever reads it.
OPTIONAL = 'loss_scale/'


def open_checkpoint(prefix: str) -> tf.train.NewCheckpointReader:
    """A reader of single tensors of a checkpoint.

    Raises:
      RunError: its index is gone or damaged.
    """
    try:
        return tf.train.load_checkpoint(prefix)
    except tf.errors.OpError as error:
        raise RunError(f'{prefix}.index: it cannot be read ({cause(error)}); restore another checkpoint') from error


def read_contents(prefix: str) -> dict[str, tuple[str, Sequence[int]]]:
    """The types and shapes of all tensors of a checkpoint.

    Raises:
      RunError: as open_checkpoint.
    """
    reader = open_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    return {name: (dtypes[name].name, shape) for name, shape in reader.get_variable_to_shape_map().items()}


def group_of(name: str, names: Collection[str]) -> str:
    """Which of GROUPS a tensor is in, by its name among those of a checkpoint.

    What has no layer (global_step) belongs to training alone, as does OPTIONAL; an optimizer's slot stands under the
    name of its variable (conv1/kernel/momentum); batch norm's moving averages are called so.
    """
    parent, _, own = name.rpartition('/')
    if not parent or name.startswith(OPTIONAL):
        return TRAINING
    if parent in names:
        return OPTIMIZER
    return STATISTICS if own.startswith('moving_') else MODEL


def difference(expected: Tensors, found: Tensors) -> str:
    """What tells two sets of tensors apart; empty if nothing does."""
    changed = [
        f'{name} ({found[name][0]} {list(found[name][1])}, here {dtype} {list(shape)})'
        for name, (dtype, shape) in expected.items()
        if name in found and (found[name][0], list(found[name][1])) != (dtype, list(shape))
    ]
    parts = {
        'missing': expected.keys() - found.keys(),
        'left over': found.keys() - expected.keys(),
        'of another shape or type': changed,
    }
    return '; '.join(f'{what}: {some(names)}' for what, names in parts.items() if names)


def some(names: Iterable[str], count: int = 3) -> str:
    """The first names, and how many more there are."""
    listed = sorted(names)
    return ', '.join(listed[:count]) + (f' and {len(listed) - count} more' if len(listed) > count else '')


def cause(error: tf.errors.OpError) -> str:
    """The line of TensorFlow's message that tells what went wrong: the one above the name of the node, or all of it."""
    above_node = re.search(r'(.+)\n\s*\[\[', error.message)
    return above_node[1].strip() if above_node else ' '.join(error.message.split())
