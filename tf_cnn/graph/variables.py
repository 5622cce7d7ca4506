"""Variables made of raw resource ops.

tf.Variable adds ops and Python objects that no step uses; for eight towers with a copy of every
variable, they take seconds to build. The raw resource ops are the same in every supported
TensorFlow version.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

Tensor = Any
# Computes the first value of a variable: (shape, seed) -> float32 tensor of that shape.
Initializer = Callable[[Sequence[int], int], Tensor]


@dataclass(frozen=True)
class Variable:
    """A variable on one device.

    Attributes:
      name: its name in the model, which is the same on every tower.
      scope: distinguishes it from the variables of the same name on other towers.
      value: the result of the single read per step, which all users share.
    """

    name: str
    scope: str
    shape: tuple[int, ...]
    trainable: bool
    device: str
    handle: Tensor
    value: Tensor

    @property
    def has_weight_decay(self) -> bool:
        """Whether it has weight decay: kernels do, biases and batch norm do not (He et al. 2018,
        arXiv:1812.01187, 3.1).
        """
        return len(self.shape) > 1

    def read_again(self) -> Tensor:
        """Returns the result of another read, on the variable's device, after the current control
        dependencies.
        """
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self.value.dtype)
        value.set_shape(self.shape)
        return value

    def assign(self, value: Tensor) -> tf.Operation:
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
    """Adds a variable, the resource scope/name, to the current graph. It has no value before the
    first assignment.
    """
    with tf.device(device):
        handle = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=shape, shared_name=f'{scope}/{name}', name=f'{scope}/{name}'
        )
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    value.set_shape(shape)
    return Variable(name, scope, tuple(shape), trainable, device, handle, value)


def ops_before(tensors: Sequence[Tensor]) -> set[tf.Operation]:
    """Returns the ops that tensors depend on by their values; control inputs do not count."""
    ops: set[tf.Operation] = set()
    pending = [tensor.op for tensor in tensors]
    while pending:
        op = pending.pop()
        if op not in ops:
            ops.add(op)
            pending += [tensor.op for tensor in op.inputs]
    return ops


def num_bytes(shape: Sequence[int]) -> int:
    """Returns the bytes of a float32 tensor."""
    return 4 * math.prod(shape)
