"""The contents of a checkpoint: the names, dtypes, shapes and purposes of its tensors."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.op_errors import error_cause
from tf_cnn.system.errors import RunError
from tf_cnn.training.checkpoint_files import removal_advice

# (dtype, shape) by name.
Tensors = Mapping[str, tuple[str, Sequence[int]]]

# Names with this prefix are optional run state: any checkpoint may contain or omit them.
OPTIONAL_PREFIX = 'loss_scale/'
# The tensor of the images of a global step, int64: the steps before it may have had others. It is
# missing in checkpoints of other programs.
IMAGES_PER_STEP = 'images_per_step'
# Earlier versions saved the class names, which nothing compares.
_DESCRIPTION_DTYPES = {'class_names': tf.string, IMAGES_PER_STEP: tf.int64}


def read_contents(prefix: str) -> dict[str, tuple[str, Sequence[int]]]:
    """Returns (dtype, shape) of each variable of a checkpoint; raises RunError if the index is
    missing or damaged.
    """
    reader = _open(prefix)
    dtypes = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return {
        name: (dtypes[name].name, shape)
        for name, shape in shapes.items()
        if not _is_description(name, dtypes)
    }


def read_images_per_step(prefix: str) -> int | None:
    """Returns the images of a global step of the run that saved a checkpoint; None if unknown.

    Raises RunError if its files are missing or damaged.
    """
    reader = _open(prefix)
    if not _is_description(IMAGES_PER_STEP, reader.get_variable_to_dtype_map()):
        return None
    try:
        return int(reader.get_tensor(IMAGES_PER_STEP))
    except tf.errors.OpError as error:
        raise RunError(
            f'{prefix}.data-*: cannot be read ({error_cause(error)}); {removal_advice(prefix)}'
        ) from error


def _open(prefix: str) -> Any:
    try:
        return tf.train.load_checkpoint(prefix)
    except tf.errors.OpError as error:
        raise RunError(
            f'{prefix}.index: cannot be read ({error_cause(error)}); {removal_advice(prefix)}'
        ) from error


def _is_description(name: str, dtypes: Mapping[str, tf.DType]) -> bool:
    """Returns whether a tensor of this name describes the training, and is no variable."""
    return name in dtypes and dtypes[name] == _DESCRIPTION_DTYPES.get(name)


def is_model_tensor(name: str, names: Collection[str]) -> bool:
    """Returns whether a tensor is a trainable variable or a moving average of batch norm; names are
    all names in the checkpoint.

    All other tensors are state of the training: names without a layer (global_step), names that
    start with OPTIONAL_PREFIX, and optimizer slots, below the name of their variable
    (conv1/kernel/momentum).
    """
    parent = name.rpartition('/')[0]
    return bool(parent) and parent not in names and not name.startswith(OPTIONAL_PREFIX)


def content_difference(expected: Tensors, actual: Tensors) -> str:
    """Describes how two sets of tensors differ; empty if they are equal."""
    changed = [
        f'{name} ({actual[name][0]} {list(actual[name][1])}, here {dtype} {list(shape)})'
        for name, (dtype, shape) in expected.items()
        if name in actual and (actual[name][0], list(actual[name][1])) != (dtype, list(shape))
    ]
    differences = {
        'missing': expected.keys() - actual.keys(),
        'unexpected': actual.keys() - expected.keys(),
        'with another shape or dtype': changed,
    }
    return '; '.join(
        f'{problem}: {abbreviate_names(sorted(names))}'
        for problem, names in differences.items()
        if names
    )


def abbreviate_names(names: Sequence[str], count: int = 3) -> str:
    more = f' and {len(names) - count} more' if len(names) > count else ''
    return ', '.join(names[:count]) + more
