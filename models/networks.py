"""Adds a network to the graph."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, NameTakenError, Tensor, VariableSource
from models.model_spec import Network
from tf_cnn.graph.variables import Initializer
from tf_cnn.system.errors import UsageError


class Logits(NamedTuple):
    """Logits [N, num_classes] float32; auxiliary is None in evaluation and without an auxiliary
    head.
    """

    logits: Tensor
    auxiliary: Tensor | None


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
    fused_batch_norm: bool = True,
    seed: int = 0,
    dtype: tf.DType = tf.float32,
) -> Logits:
    """Adds a network to the current graph. images are [N, H, W, C] float32 in either data format.

    See LayerBuilder for the other arguments. Raises UsageError if layers have equal names, for
    variables that the builder did not make, and without fused_batch_norm if the network has no
    batch norm.
    """
    cnn = LayerBuilder(
        variables,
        data_format,
        is_training=is_training,
        keep_statistics=keep_statistics,
        batch_norm=network.batch_norm,
        fused_batch_norm=fused_batch_norm,
        seed=seed,
        dtype=dtype,
    )
    build = network.builder
    if isinstance(build, str):
        build = resolve_name(f'{__package__}.{build}')
    num_global, num_local = len(tf.global_variables()), len(tf.local_variables())
    try:
        output = build(cnn, cnn.images(images), num_classes, **network.options)
    except NameTakenError as error:
        place = _place(network, traceback.extract_tb(error.__traceback__))
        raise UsageError(f'{place}: {error}') from error
    # The builder's variables are in no collection.
    if strange := tf.global_variables()[num_global:] + tf.local_variables()[num_local:]:
        raise UsageError(
            f'{_place(network, strange[0].op.traceback)}: the variable {strange[0].op.name} is not '
            'made by cnn, so that no mode would train it; use the layers of cnn, or TensorFlow '
            'operations without variables'
        )
    if not fused_batch_norm and not cnn.has_batch_norm:
        raise UsageError('--fused_batch_norm=False: the network has no batch norm; remove it')
    logits, auxiliary = _split_heads(output, images.shape[0], num_classes)
    # The softmax sums many exponentials and needs the precision of float32.
    return Logits(
        tf.cast(logits, tf.float32), None if auxiliary is None else tf.cast(auxiliary, tf.float32)
    )


def _place(network: Network, frames: Iterable[traceback.FrameSummary]) -> str:
    return network.file.place(frames) if network.file else 'the network'


def _split_heads(
    output: Any, batch_size: int | None, num_classes: int
) -> tuple[Tensor, Tensor | None]:
    heads = output if isinstance(output, tuple) else (output,)
    are_logits = [
        isinstance(head, tf.Tensor)
        and head.dtype.is_floating
        and head.shape.rank == 2
        and head.shape[1] == num_classes
        and head.shape[:1].is_compatible_with([batch_size])
        for head in heads
    ]
    if are_logits in ([True], [True, True]) or (are_logits == [True, False] and heads[1] is None):
        return heads[0], heads[-1] if len(heads) > 1 else None
    outputs = ', '.join(
        f'{head.dtype.name} {head.shape}' if isinstance(head, tf.Tensor) else type(head).__name__
        for head in heads
    )
    raise TypeError(
        f'it returns {outputs}; it must return floating-point logits '
        f'{[batch_size, num_classes]}, or a tuple of these and the logits of an auxiliary head'
    )


class NetworkValues:
    """A VariableSource of values that no step changes.

    Args:
      make_value: returns the value for the arguments of read(), called once for each name; the
        default makes placeholders, for graphs that are inspected and never run.

    Attributes:
      values: what the network has read, by name.
      trainable: the trainable ones among them.
    """

    def __init__(
        self,
        make_value: Callable[[str, Sequence[int], Initializer, bool], Tensor] = (
            lambda _name, shape, *_: tf.placeholder(tf.float32, shape)
        ),
    ) -> None:
        self.values: dict[str, Tensor] = {}
        self.trainable: dict[str, Tensor] = {}
        self._make_value = make_value

    def read(
        self, name: str, shape: Sequence[int], initializer: Initializer, *, trainable: bool = True
    ) -> Tensor:
        if name not in self.values:
            self.values[name] = self._make_value(name, shape, initializer, trainable)
            if trainable:
                self.trainable[name] = self.values[name]
        return self.values[name]

    def declare(self, name: str, shape: Sequence[int], initializer: Initializer) -> None:
        """Does nothing: the order of variables does not matter here."""

    def assign(self, name: str, value: Tensor) -> None:
        """Does nothing: no step changes a value."""


def network_in_training(
    network: Network, image_shape: Sequence[int], num_classes: int
) -> tuple[NetworkValues, Tensor]:
    """Returns the variables of a network in training, in the order of their first use, and its
    logits; image_shape is [H, W, C].

    Inference may lack some of the variables, such as those of an auxiliary head. Builds a separate
    graph.
    """
    variables = NetworkValues()
    with tf.Graph().as_default():
        images = tf.placeholder(tf.float32, [1, *image_shape])
        output = build_network(network, images, num_classes, variables, 'NHWC', is_training=True)
    return variables, output.logits


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
