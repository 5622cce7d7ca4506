"""Constants of a graph that all of its records share."""

import weakref

import numpy as np
import tensorflow.compat.v1 as tf
from numpy.typing import ArrayLike

_constants: weakref.WeakKeyDictionary[tf.Graph, dict[tuple[object, ...], tf.Tensor]] = weakref.WeakKeyDictionary()


def shared(value: ArrayLike, dtype: tf.DType = tf.int32) -> tf.Tensor:
    """Returns a constant that all records of a graph share.

    A step starts by running its constants one after the other. With separate constants for each record, all cores but
    one would be idle meanwhile.
    """
    array = np.asarray(value, dtype.as_numpy_dtype)
    constants = _constants.setdefault(tf.get_default_graph(), {})
    key = (dtype, array.shape, array.tobytes())
    if key not in constants:
        with tf.control_dependencies(None):
            constants[key] = tf.constant(array, dtype)
    return constants[key]
