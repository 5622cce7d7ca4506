"""Adds a network to the graph."""

from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, Tensor, VariableSource
from models.model_spec import Network
from tf_cnn.graph.variables import Initializer
from tf_cnn.system.errors import plural


class Logits(NamedTuple):
    """Logits [N, num_classes] float32; auxiliary is None in evaluation and without an auxiliary
    head.
    """

    logits: Tensor
    auxiliary: Tensor | None


class NotLogitsError(ValueError):
    def __init__(self, network_output: Any, num_classes: int) -> None:
        outputs = network_output if isinstance(network_output, tuple) else (network_output,)
        number = (
            f'{"a tuple of " * isinstance(network_output, tuple)}{plural(len(outputs), "output")}'
        )
        shapes = ', '.join(
            str(output.shape) if tf.is_tensor(output) else type(output).__name__
            for output in outputs
        )
        super().__init__(
            f'its network returns {number}: {shapes}; it must return logits [N, {num_classes}], or '
            'a tuple of these and the logits of an auxiliary head'
        )


# The arguments of LayerBuilder, with a network and its images.
def build_network(
    network: Network,
    images: Tensor,
    num_classes: int,
    variables: VariableSource,
    data_format: str,
    *,
    is_training: bool,
    keep_statistics: bool = True,
    seed: int = 0,
    dtype: tf.DType = tf.float32,
) -> Logits:
    """Adds a network to the current graph. images are [N, H, W, C] float32 in either data format.

    See LayerBuilder for the other arguments. Raises NotLogitsError.
    """
    cnn = LayerBuilder(
        variables,
        data_format,
        is_training=is_training,
        keep_statistics=keep_statistics,
        batch_norm=network.batch_norm,
        seed=seed,
        dtype=dtype,
    )
    build = network.builder
    if isinstance(build, str):
        build = resolve_name(f'{__package__}.{build}')
    logits, auxiliary = _split_heads(
        build(cnn, cnn.images(images), num_classes, **network.options), num_classes
    )
    # The softmax sums many exponentials and needs the precision of float32.
    return Logits(
        tf.cast(logits, tf.float32), None if auxiliary is None else tf.cast(auxiliary, tf.float32)
    )


def _split_heads(network_output: Any, num_classes: int) -> tuple[Tensor, Tensor | None]:
    heads = network_output if isinstance(network_output, tuple) else (network_output, None)
    if len(heads) == 2 and _are_logits(heads[0], num_classes):
        logits, auxiliary = heads
        if auxiliary is None or _are_logits(auxiliary, num_classes):
            return logits, auxiliary
    raise NotLogitsError(network_output, num_classes)


def _are_logits(head: Any, num_classes: int) -> bool:
    return tf.is_tensor(head) and head.shape.rank == 2 and head.shape.as_list()[1] == num_classes


class PlaceholderVariables:
    """A VariableSource of placeholders, for graphs that are inspected and never run. Values are
    float32, by name.
    """

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}
        self.trainable: dict[str, Tensor] = {}

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        del initializer
        if name not in self.values:
            self.values[name] = tf.placeholder(tf.float32, shape)
            if trainable:
                self.trainable[name] = self.values[name]
        return self.values[name]

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Does nothing: the order of variables does not matter here."""

    def assign(self, name: str, value: Tensor) -> None:
        """Does nothing: the graph never runs."""


def variables_in_training(
    network: Network, image_shape: Sequence[int], num_classes: int
) -> PlaceholderVariables:
    """Returns the variables of a network in training, in the order of their first use; image_shape
    is [H, W, C].

    Inference may lack some of them, such as the variables of an auxiliary head. Builds a separate
    graph.
    """
    variables = PlaceholderVariables()
    with tf.Graph().as_default():
        images = tf.placeholder(tf.float32, [1, *image_shape])
        build_network(network, images, num_classes, variables, 'NHWC', is_training=True)
    return variables


def label_ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns how many classes precede the label of each image: logits [N, K] float32, labels [N]
    int32 -> [N] float32.

    A class with a larger logit precedes the label. Of equal logits, which are frequent in 16 bits,
    the first class precedes, as in np.argmax. The rank is inf if the sum of the logits of the image
    is not finite, or if its label is negative.
    """
    num_classes = int(logits.shape[1])
    # GPUs compute with floats; TensorFlow copies 32-bit integers to the host.
    label = tf.cast(labels, tf.float32)[:, tf.newaxis]
    label_logit = tf.gather(logits, tf.cast(tf.nn.relu(label), tf.int32), batch_dims=1)
    # Below 1, so that it orders equal logits only. Floats are faster than booleans: operations on
    # booleans are not vectorised.
    tie_break = (label - np.arange(num_classes, dtype=np.float32)) / num_classes
    # 1 for a class that precedes the label, -1 for one that follows it, and 0 for the label.
    precedes = tf.sign(tf.sign(logits - label_logit) + tie_break)
    rank = (tf.reduce_sum(precedes, axis=1) + (num_classes - 1)) / 2
    is_ranked = tf.logical_and(tf.math.is_finite(tf.reduce_sum(logits, axis=1)), label[:, 0] >= 0)
    return tf.where_v2(is_ranked, rank, float('inf'))
