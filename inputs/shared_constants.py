"""Constants of a graph, each once."""

import weakref

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import ArrayLike

# By graph: the names of its constants. Tensors would keep their graph.
_names: weakref.WeakKeyDictionary[tf.Graph, dict[tuple[object, ...], str]] = weakref.WeakKeyDictionary()


def shared(value: ArrayLike, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Returns the constant of this value in the current graph, which may be a function's.

    The function of an image (inputs/each_image.py) runs its constants for each image, before its other ops, so few are
    best.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    graph = tf.get_default_graph()
    names = _names.setdefault(graph, {})
    key = (dtype, array.shape, array.tobytes())
    if key in names:
        return graph.get_tensor_by_name(names[key])
    with tf.control_dependencies(None):
        made = tf.constant(array, dtype)
    names[key] = made.name
    return made
