"""The contents of a checkpoint: the names, dtypes, shapes and purposes of its tensors."""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.system.errors import RunError
from tf_cnn.training.checkpoint_files import removal_advice

# (dtype, shape) by name.
Tensors = Mapping[str, tuple[str, Sequence[int]]]

# Names with this prefix are optional run state: any checkpoint may contain or omit them.
OPTIONAL_PREFIX = 'loss_scale/'
# The tensor of class names, [K] string: the names of labels 0, 1, ... of the training images. It is
# missing after training without class names, and in checkpoints of other programs.
CLASS_NAMES = 'class_names'
# The tensor of the images of a global step, int64: the steps before it may have had others. It is
# missing in checkpoints of other programs.
IMAGES_PER_STEP = 'images_per_step'
_DESCRIPTION_DTYPES = {CLASS_NAMES: tf.string, IMAGES_PER_STEP: tf.int64}
# The number of class names that a message lists.
_MAX_CLASSES = 8


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


def read_class_names(prefix: str) -> tuple[str, ...] | None:
    """Returns the class names in a checkpoint, or None; raises RunError if its files are missing or
    damaged.
    """
    reader = _open(prefix)
    if not _is_description(CLASS_NAMES, reader.get_variable_to_dtype_map()):
        return None
    try:
        return tuple(name.decode() for name in reader.get_tensor(CLASS_NAMES).ravel().tolist())
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        reason = (
            error_cause(error)
            if isinstance(error, tf.errors.OpError)
            else 'its class names are not UTF-8'
        )
        raise _unreadable(prefix, reason) from error


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
        raise _unreadable(prefix, error_cause(error)) from error


def _open(prefix: str) -> Any:
    try:
        return tf.train.load_checkpoint(prefix)
    except tf.errors.OpError as error:
        raise RunError(
            f'{prefix}.index: cannot be read ({error_cause(error)}); {removal_advice(prefix)}'
        ) from error


def _unreadable(prefix: str, reason: str) -> RunError:
    return RunError(f'{prefix}.data-*: cannot be read ({reason}); {removal_advice(prefix)}')


def _is_description(name: str, dtypes: Mapping[str, tf.DType]) -> bool:
    """Returns whether a tensor of this name describes the training, and is no variable."""
    return name in dtypes and dtypes[name] == _DESCRIPTION_DTYPES.get(name)


def check_classes(
    prefix: str, class_names: Sequence[str] | None, data_dir: str | None
) -> str | None:
    """Compares the class names in a checkpoint with the class names of the images that a run reads.

    Args:
      class_names: the names of labels 0, 1, ... in data_dir; None if it states none.
      data_dir: the folder of the images; None if they are synthetic. Then nothing is compared.

    Returns:
      One line if the names cannot be compared, else None.

    Raises:
      RunError: the names, or their order, differ; or the checkpoint cannot be read.
    """
    if data_dir is None:
        return None
    saved_names = read_class_names(prefix)
    if saved_names is not None and class_names is not None:
        if difference := class_difference(saved_names, class_names):
            raise RunError(
                f'{prefix}: this checkpoint has other classes than --data_dir={data_dir}: '
                f'{difference}; use the data that it was trained on, or another --train_dir'
            )
        return None
    # The folder may have a file of names that this data set does not read.
    reasons = [f'{prefix} has no class names'] if saved_names is None else []
    if class_names is None:
        reasons.append(f'the run reads no class names from --data_dir={data_dir}')
    return f'{" and ".join(reasons)}: only the number of classes is compared'


def class_difference(saved_names: Sequence[str], class_names: Sequence[str]) -> str | None:
    """Returns how the class names in a checkpoint differ from others; None if they are equal."""
    pairs = itertools.zip_longest(saved_names, class_names)
    for label, (there, here) in enumerate(pairs):
        if there != here:
            kind = 'another order' if sorted(saved_names) == sorted(class_names) else 'other names'
            names = (f'{label} is {"missing" if name is None else name}' for name in (there, here))
            return (
                f'{abbreviate_names(saved_names, _MAX_CLASSES)} in the checkpoint, and '
                f'{abbreviate_names(class_names, _MAX_CLASSES)} in the folder: {kind}, label '
                f'{" there, and ".join(names)} here'
            )
    return None


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


def error_cause(error: tf.errors.OpError) -> str:
    """Returns the cause from TensorFlow's message: the line above the name of the node, else the
    whole message.
    """
    above_node = re.search(r'(.+)\n\s*\[\[', error.message)
    return above_node[1].strip() if above_node else ' '.join(error.message.split())
