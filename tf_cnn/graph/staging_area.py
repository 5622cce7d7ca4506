"""Queues in device memory, through which one step passes tensors to the next."""

import uuid
from collections.abc import Sequence

import tensorflow.compat.v1 as tf


class StagingArea:
    """A queue of tuples of tensors in device memory. put never waits; get waits until there is a
    tuple.

    name: the name on its device, for an area that outlives this process there; by default a new
      one.
    """

    def __init__(self, device: str, like: Sequence[tf.Tensor], name: str | None = None) -> None:
        self.device = device
        self._dtypes = [tensor.dtype for tensor in like]
        self._shapes = [tensor.shape for tensor in like]
        # A server shares the staging areas of one name among all clients and graphs.
        self._name = name or f'staging_area_{uuid.uuid4().hex}'

    def put(self, tensors: Sequence[tf.Tensor]) -> tf.Operation:
        with tf.device(self.device):
            return tf.raw_ops.Stage(values=list(tensors), shared_name=self._name)

    def get(self) -> list[tf.Tensor]:
        with tf.device(self.device):
            tensors = tf.raw_ops.Unstage(dtypes=self._dtypes, shared_name=self._name)
        for tensor, shape in zip(tensors, self._shapes, strict=True):
            tensor.set_shape(shape)
        return list(tensors)

    def size(self) -> tf.Tensor:
        with tf.device(self.device):
            return tf.raw_ops.StageSize(dtypes=self._dtypes, shared_name=self._name)

    def clear(self) -> tf.Operation:
        with tf.device(self.device):
            return tf.raw_ops.StageClear(dtypes=self._dtypes, shared_name=self._name)
