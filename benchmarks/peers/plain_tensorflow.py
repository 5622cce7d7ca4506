"""ResNet-50 in a TensorFlow graph loop, as small and fast as one writes it by hand.

    python benchmarks/peers/plain_tensorflow.py --batch_size=32 --precision=bf16

Nothing of this program is in the graph: operations of tf.nn on resource variables, tf.gradients, and the fused update.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')

import tensorflow.compat.v1 as tf

from benchmarks.peers.document import IMAGE_SIZE, LEARNING_RATE, NUM_CLASSES, WEIGHT_DECAY
from benchmarks.peers.measuring import BLOCKS, parse_flags, run_steps

_MOMENTUM, _EPSILON = 0.9, 1e-5


class Network:
    """The layers, in NHWC; variables are float32, and cast to the dtype of the activations."""

    def __init__(self, *, is_training: bool) -> None:
        self.kernels: list[tf.Variable] = []
        self.others: list[tf.Variable] = []
        self.updates: list[tf.Operation] = []
        self._is_training = is_training

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        """The logits [N, NUM_CLASSES] float32 of images [N, H, W, 3]."""
        x = tf.nn.relu(self._conv(x, 64, 7, 2))
        x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, 'VALID')
        for stage, num_blocks in enumerate(BLOCKS):
            for index in range(num_blocks):
                x = self._block(x, 64 << stage, 2 if stage and not index else 1, project=not index)
        x = tf.reduce_mean(x, [1, 2])
        weights = self._kernel([int(x.shape[1]), NUM_CLASSES], 0.01)
        return tf.cast(tf.matmul(x, tf.cast(weights, x.dtype)), tf.float32) + self._vector(NUM_CLASSES, 0.0)

    def _block(self, x: tf.Tensor, width: int, strides: int, *, project: bool) -> tf.Tensor:
        shortcut = self._conv(x, 4 * width, 1, strides) if project else x
        x = tf.nn.relu(self._conv(x, width, 1, strides))
        x = tf.nn.relu(self._conv(x, width, 3, 1))
        return tf.nn.relu(self._conv(x, 4 * width, 1, 1) + shortcut)

    def _conv(self, x: tf.Tensor, filters: int, size: int, strides: int) -> tf.Tensor:
        """A convolution and its batch norm."""
        channels, pad = int(x.shape[3]), size // 2
        kernel = self._kernel([size, size, channels, filters], (2 / (size * size * channels)) ** 0.5)
        # Explicit padding slows the gradients down, and in bf16 by a factor.
        if strides > 1 and pad:
            x = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]])
        x = tf.nn.conv2d(x, tf.cast(kernel, x.dtype), strides, 'SAME' if strides == 1 else 'VALID')
        scale, offset = self._vector(filters, 1.0), self._vector(filters, 0.0)
        mean, variance = (self._vector(filters, start, trainable=False) for start in (0.0, 1.0))
        found = tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=_EPSILON,
            exponential_avg_factor=1 - _MOMENTUM,
            is_training=self._is_training,
        )
        if self._is_training:
            self.updates += [mean.assign(found.batch_mean).op, variance.assign(found.batch_variance).op]
        return found.y

    def _kernel(self, shape: list[int], deviation: float) -> tf.Variable:
        self.kernels.append(tf.Variable(tf.random.truncated_normal(shape, stddev=deviation), use_resource=True))
        return self.kernels[-1]

    def _vector(self, size: int, value: float, *, trainable: bool = True) -> tf.Variable:
        made = tf.Variable(tf.fill([size], value), trainable=trainable, use_resource=True)
        if trainable:
            self.others.append(made)
        return made


def make_step(batch_size: int, precision: str, *, forward_only: bool) -> Callable[[], float]:
    """What takes a step and returns the loss, in a session of its own."""
    with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
        pixels = tf.random.uniform([batch_size, IMAGE_SIZE, IMAGE_SIZE, 3], -1, 1)
        images = tf.Variable(pixels, trainable=False, use_resource=True)
        labels = tf.random.uniform([batch_size], 0, NUM_CLASSES, tf.int32)
        labels = tf.Variable(labels, trainable=False, use_resource=True)
        network = Network(is_training=not forward_only)
        logits = network.logits(tf.cast(images, tf.bfloat16 if precision == 'bf16' else tf.float32))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels))
        updates = network.updates
        if not forward_only:
            decay = WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(kernel) for kernel in network.kernels])
            variables = [*network.kernels, *network.others]
            gradients = tf.gradients(loss + decay, variables)
            updates = [
                *updates,
                *(
                    tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=LEARNING_RATE, delta=gradient)
                    for variable, gradient in zip(variables, gradients, strict=True)
                ),
            ]
        initialize = tf.global_variables_initializer()
    session = tf.Session(graph=graph)
    session.run(initialize)
    run = session.make_callable([loss, *updates])
    return lambda: float(run()[0])


def main() -> None:
    args = parse_flags('ResNet-50 in a plain TensorFlow graph loop.')
    step = make_step(args.batch_size, args.precision, forward_only=args.forward_only)
    run_steps(args, 'plain TensorFlow', {'tensorflow': tf.version.VERSION}, step)


if __name__ == '__main__':
    main()
