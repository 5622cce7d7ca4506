"""The contents of a checkpoint: the names, dtypes, shapes and purposes of its tensors."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError

# (dtype, shape) by name.
Tensors = Mapping[str, tuple[str, Sequence[int]]]

# The trainable variables, batch norm's moving averages, the slots of the optimizer, and all other training state.
MODEL, STATISTICS, OPTIMIZER, TRAINING = GROUPS = ('model', 'statistics', 'optimizer', 'training')
# Names with this prefix are optional run state: any checkpoint may contain or omit them.
OPTIONAL = 'loss_scale/'


def open_checkpoint(prefix: str) -> tf.train.NewCheckpointReader:
    """Returns a reader of the tensors of a checkpoint; raises RunError if the index is missing or damaged."""
    try:
        return tf.train.load_checkpoint(prefix)
    except tf.errors.OpError as error:
        raise RunError(f'{prefix}.index: cannot be read ({cause(error)}); restore another checkpoint') from error


def read_contents(prefix: str) -> dict[str, tuple[str, Sequence[int]]]:
    """Returns (dtype, shape) of each tensor of a checkpoint; raises RunError if the index is missing or damaged."""
    reader = open_checkpoint(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    return {name: (dtypes[name].name, shape) for name, shape in reader.get_variable_to_shape_map().items()}


def group_of(name: str, names: Collection[str]) -> str:
    """Returns the group, one of GROUPS, of a tensor; names are all those in the checkpoint.

    Names without a layer (global_step) and names that start with OPTIONAL are TRAINING; names below the name of a
    variable (conv1/kernel/momentum) are OPTIMIZER; names moving_* in a layer are STATISTICS; all others are MODEL.
    """
    parent, _, own = name.rpartition('/')
    if not parent or name.startswith(OPTIONAL):
        return TRAINING
    if parent in names:
        return OPTIMIZER
    return STATISTICS if own.startswith('moving_') else MODEL


def content_difference(expected: Tensors, found: Tensors) -> str:
    """Describes how two sets of tensors differ; empty if they are equal."""
    changed = [
        f'{name} ({found[name][0]} {list(found[name][1])}, here {dtype} {list(shape)})'
        for name, (dtype, shape) in expected.items()
        if name in found and (found[name][0], list(found[name][1])) != (dtype, list(shape))
    ]
    parts = {
        'missing': expected.keys() - found.keys(),
        'unexpected': found.keys() - expected.keys(),
        'with another shape or dtype': changed,
    }
    return '; '.join(f'{problem}: {first_names(names)}' for problem, names in parts.items() if names)


def first_names(names: Iterable[str], count: int = 3) -> str:
    listed = sorted(names)
    return ', '.join(listed[:count]) + (f' and {len(listed) - count} more' if len(listed) > count else '')


def cause(error: tf.errors.OpError) -> str:
    """Returns the cause from TensorFlow's message: the line above the name of the node, else the whole message."""
    above_node = re.search(r'(.+)\n\s*\[\[', error.message)
    return above_node[1].strip() if above_node else ' '.join(error.message.split())
