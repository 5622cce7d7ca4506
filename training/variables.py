"""A variable as the ops it is made of, and nothing more.

tf.Variable adds ops and Python objects to each variable that no step runs; with a copy of every variable on each of
eight towers they take seconds to build. These raw resource ops are the same on every supported TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

Tensor = Any

# Where everything lives that belongs to no tower.
HOST_DEVICE = '/cpu:0'


@dataclass(frozen=True)
class Variable:
    """A variable on one device.

    Attributes:
      name: its name in the model, which is the same on every tower.
      scope: what tells it from the variables of that name on other towers.
      shape: its shape.
      trainable: whether gradients change it.
      device: where it lives.
      handle: the resource that names it to ops.
      value: the one read of it in a step; every user of the variable shares it.
    """

    name: str
    scope: str
    shape: tuple[int, ...]
    trainable: bool
    device: str
    handle: Tensor
    value: Tensor

    def assign(self, value: Tensor) -> tf.Operation:
        """An op on the variable's device that sets it."""
        with tf.device(self.device):
            return tf.raw_ops.AssignVariableOp(resource=self.handle, value=value)


def create_variable(
    name: str,
    shape: Sequence[int],
    *,
    scope: str,
    device: str,
    trainable: bool = False,
    dtype: tf.DType = tf.float32,
) -> Variable:
    """Adds a variable to the current graph, as the resource scope/name. It has no value until one is assigned."""
    with tf.device(device):
        handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=f'{scope}/{name}', name=f'{scope}/{name}')
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return Variable(name, scope, tuple(shape), trainable, device, handle, value)


def num_bytes(shape: Sequence[int]) -> int:
    """The bytes of a float32 tensor."""
    size = 4
    for length in shape:
        size *= length
    return size
