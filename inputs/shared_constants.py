"""Constants of a graph, each once."""

import weakref

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import ArrayLike

_constants: weakref.WeakKeyDictionary[tf.Graph, dict[tuple[object, ...], tf.Tensor]] = weakref.WeakKeyDictionary()


def shared(value: ArrayLike, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Returns the constant of this value in the current graph, which may be a function's.

    The function of an image (inputs/each_image.py) runs its constants for each image, before its other ops, so few are
    best.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    constants = _constants.setdefault(tf.get_default_graph(), {})
    key = (dtype, array.shape, array.tobytes())
    if key not in constants:
        with tf.control_dependencies(None):
            constants[key] = tf.constant(array, dtype)
    return constants[key]
