"""The contents of a checkpoint: the names, dtypes, shapes and purposes of its tensors."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from errors import RunError

# (dtype, shape) by name.
Tensors = Mapping[str, tuple[str, Sequence[int]]]

# Names with this prefix are optional run state: any checkpoint may contain or omit them.
OPTIONAL = 'loss_scale/'


def read_contents(prefix: str) -> dict[str, tuple[str, Sequence[int]]]:
    """Returns (dtype, shape) of each tensor of a checkpoint; raises RunError if the index is missing or damaged."""
    try:
        reader = tf.train.load_checkpoint(prefix)
    except tf.errors.OpError as error:
        raise RunError(f'{prefix}.index: cannot be read ({cause(error)}); restore another checkpoint') from error
    dtypes = reader.get_variable_to_dtype_map()
    return {name: (dtypes[name].name, shape) for name, shape in reader.get_variable_to_shape_map().items()}


def is_of_model(name: str, names: Collection[str]) -> bool:
    """Whether a tensor is a trainable variable or a moving average of batch norm; names are all in the checkpoint.

    Other state of training has no layer (global_step) or starts with OPTIONAL, and the slots of an optimizer are below
    the name of a variable (conv1/kernel/momentum).
    """
    parent = name.rpartition('/')[0]
    return bool(parent) and parent not in names and not name.startswith(OPTIONAL)


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
