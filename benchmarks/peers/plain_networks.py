"""The networks of some models of this program, written directly with the ops of tf.nn, in NHWC.

They use reference variables, the default of TensorFlow 1: an update changes a variable in place,
even while other ops read it.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from benchmarks.peers.measuring import BLOCKS, IMAGE_SIZE, NUM_CLASSES

_MOMENTUM, _EPSILON = 0.9, 1e-5


class Layers:
    """The layers of a network. Variables are float32, cast to the dtype of the activations."""

    def __init__(self, *, is_training: bool) -> None:
        self.kernels: list[tf.Variable] = []
        self.vectors: list[tf.Variable] = []
        self.updates: list[tf.Operation] = []
        self._is_training = is_training

    def conv(
        self, x: tf.Tensor, filters: int, size: tuple[int, int], strides: int, padding: str
    ) -> tf.Tensor:
        inputs = int(x.shape[3])
        kernel = self._kernel([*size, inputs, filters], (2 / (size[0] * size[1] * inputs)) ** 0.5)
        return tf.nn.conv2d(x, tf.cast(kernel, x.dtype), strides, padding)

    def bias(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(x, tf.cast(self._vector(int(x.shape[-1]), 0.0), x.dtype))

    def batch_norm(self, x: tf.Tensor) -> tf.Tensor:
        size = int(x.shape[3])
        mean, variance = (self._vector(size, start, trainable=False) for start in (0.0, 1.0))
        normalised = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=self._vector(size, 1.0),
            offset=self._vector(size, 0.0),
            mean=mean,
            variance=variance,
            epsilon=_EPSILON,
            exponential_avg_factor=1 - _MOMENTUM,
            is_training=self._is_training,
        )
        if self._is_training:
            self.updates += [
                mean.assign(normalised.batch_mean).op,
                variance.assign(normalised.batch_variance).op,
            ]
        return normalised.y

    def dense(self, x: tf.Tensor, units: int, deviation: float = 0.01) -> tf.Tensor:
        weights = self._kernel([int(x.shape[1]), units], deviation)
        return self.bias(tf.matmul(x, tf.cast(weights, x.dtype)))

    def _kernel(self, shape: list[int], deviation: float) -> tf.Variable:
        self.kernels.append(
            tf.Variable(tf.random.truncated_normal(shape, stddev=deviation), use_resource=False)
        )
        return self.kernels[-1]

    def _vector(self, size: int, value: float, *, trainable: bool = True) -> tf.Variable:
        variable = tf.Variable(tf.fill([size], value), trainable=trainable, use_resource=False)
        if trainable:
            self.vectors.append(variable)
        return variable


def _resnet50(layers: Layers, x: tf.Tensor, num_classes: int) -> tf.Tensor:
    """He et al. 2015 (arXiv:1512.03385), table 1."""
    conv = functools.partial(_normalised_conv, layers)

    def block(x: tf.Tensor, width: int, strides: int, *, project: bool) -> tf.Tensor:
        shortcut = conv(x, 4 * width, 1, strides) if project else x
        x = tf.nn.relu(conv(x, width, 1, strides))
        x = tf.nn.relu(conv(x, width, 3, 1))
        return tf.nn.relu(conv(x, 4 * width, 1, 1) + shortcut)

    x = tf.nn.relu(conv(x, 64, 7, 2))
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, 'VALID')
    for stage, num_blocks in enumerate(BLOCKS):
        for index in range(num_blocks):
            x = block(x, 64 << stage, 2 if stage and not index else 1, project=not index)
    return layers.dense(tf.reduce_mean(x, [1, 2]), num_classes)


def _normalised_conv(
    layers: Layers, x: tf.Tensor, filters: int, size: int, strides: int
) -> tf.Tensor:
    pad, padding = size // 2, 'SAME'
    # Explicit padding in the convolution slows the gradients down, several times in bf16.
    if strides > 1 and pad:
        x, padding = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]]), 'VALID'
    return layers.batch_norm(layers.conv(x, filters, (size, size), strides, padding))


def _lenet(layers: Layers, x: tf.Tensor, num_classes: int) -> tf.Tensor:
    """After LeCun et al. 1998 (doi:10.1109/5.726791), with max pooling and ReLU."""
    for filters in (32, 64):
        x = tf.nn.relu(layers.bias(layers.conv(x, filters, (5, 5), 1, 'SAME')))
        x = tf.nn.max_pool2d(x, 2, 2, 'VALID')
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    return layers.dense(tf.nn.relu(layers.dense(x, 512, 0.03)), num_classes)


def _trivial(layers: Layers, x: tf.Tensor, num_classes: int) -> tf.Tensor:
    x = tf.reshape(x, [-1, x.shape[1:].num_elements()])
    for units in (1, 4096):
        x = tf.nn.relu(layers.dense(x, units))
    return layers.dense(x, num_classes)


class PlainNetwork(NamedTuple):
    """A network: (layers, images [N, H, W, 3], number of classes) -> logits."""

    build: Callable[[Layers, tf.Tensor, int], tf.Tensor]
    image_size: int
    num_classes: int = NUM_CLASSES


NETWORKS = {
    'resnet50': PlainNetwork(_resnet50, IMAGE_SIZE),
    'lenet': PlainNetwork(_lenet, 28),
    'trivial': PlainNetwork(_trivial, 227),
}
