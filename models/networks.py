"""Every network of the catalog, and how a tower builds one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from models.convnext import convnext_tiny
from models.densenet import densenet
from models.efficientnet import BATCH_NORM as EFFICIENTNET_BATCH_NORM
from models.efficientnet import efficientnet_b0
from models.googlenet import googlenet
from models.inception import BATCH_NORM as INCEPTION_BATCH_NORM
from models.inception import inception3, inception3_aux
from models.inception4 import inception4
from models.layers import BatchNorm, LayerBuilder, Tensor, VariableSource
from models.mobilenet import BATCH_NORM as MOBILENET_BATCH_NORM
from models.mobilenet import mobilenet_v2
from models.nasnet import BATCH_NORM as NASNET_BATCH_NORM
from models.nasnet import nasnet
from models.registry import registered_network
from models.resnet import BLOCKS, OFFICIAL_BATCH_NORM, resnet, resnet_cifar
from models.small import alexnet, alexnet_cifar, lenet, overfeat, trivial
from models.vgg import vgg


class Logits(NamedTuple):
    """[N, num_classes] float32 each; auxiliary is None for a network without such a head, and when not training."""

    logits: Tensor
    auxiliary: Tensor | None


@dataclass(frozen=True)
class Network:
    """How a network is built: (builder, images in its data format, num_classes) -> logits or (logits, auxiliary)."""

    build: Callable[[LayerBuilder, Tensor, int], Tensor | tuple[Tensor, Tensor | None]]
    batch_norm: BatchNorm | None = None


NETWORKS = {
    'trivial': Network(trivial),
    'lenet': Network(partial(lenet, units=512)),
    'mnist': Network(partial(lenet, units=1024)),
    'alexnet': Network(alexnet),
    'alexnet_cifar': Network(alexnet_cifar),
    'overfeat': Network(overfeat),
    'vgg11': Network(partial(vgg, depth=11)),
    'vgg16': Network(partial(vgg, depth=16)),
    'vgg19': Network(partial(vgg, depth=19)),
    'googlenet': Network(googlenet),
    'inception3': Network(inception3, INCEPTION_BATCH_NORM),
    'inception3_aux': Network(inception3_aux, INCEPTION_BATCH_NORM),
    'inception4': Network(inception4, INCEPTION_BATCH_NORM),
    'resnet50': Network(partial(resnet, depth=50, version='v1')),
    'resnet50_v1.5': Network(partial(resnet, depth=50, version='v1.5')),
    'resnet50_v2': Network(partial(resnet, depth=50, version='v2')),
    'resnet101': Network(partial(resnet, depth=101, version='v1')),
    'resnet101_v2': Network(partial(resnet, depth=101, version='v2')),
    'resnet152': Network(partial(resnet, depth=152, version='v1')),
    'resnet152_v2': Network(partial(resnet, depth=152, version='v2')),
    **{
        f'official_resnet{depth}{suffix}': Network(
            partial(resnet, depth=depth, version=version, pool_padding='SAME'), OFFICIAL_BATCH_NORM
        )
        for depth in BLOCKS
        for suffix, version in (('', 'v1.5'), ('_v2', 'v2'))
    },
    **{
        f'resnet{depth}{suffix}': Network(partial(resnet_cifar, depth=depth, version=version))
        for depth in (20, 32, 44, 56, 110)
        for suffix, version in (('', 'v1'), ('_v2', 'v2'))
    },
    **{
        f'densenet{depth}_k{growth_rate}': Network(
            partial(
                densenet,
                blocks=[(depth - 4) // 3] * 3,
                growth_rate=growth_rate,
                bottleneck=False,
                compression=1.0,
                stem_filters=16,
                small_images=True,
            )
        )
        for depth, growth_rate in ((40, 12), (100, 12), (100, 24))
    },
    'mobilenet': Network(mobilenet_v2, MOBILENET_BATCH_NORM),
    'nasnet': Network(
        partial(nasnet, num_cells=4, penultimate_filters=1056, stem_filters=32, skip_reduction=False), NASNET_BATCH_NORM
    ),
    'nasnetlarge': Network(
        partial(nasnet, num_cells=6, penultimate_filters=4032, stem_filters=96, skip_reduction=True), NASNET_BATCH_NORM
    ),
    'densenet121': Network(
        partial(
            densenet,
            blocks=(6, 12, 24, 16),
            growth_rate=32,
            bottleneck=True,
            compression=0.5,
            stem_filters=64,
            small_images=False,
        )
    ),
    'efficientnet_b0': Network(efficientnet_b0, EFFICIENTNET_BATCH_NORM),
    'convnext_tiny': Network(convnext_tiny),
}


def build_network(
    name: str,
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
    """Adds a network of the catalog to the graph.

    Args:
      name: a name of NETWORKS (ModelFacts.network), or of register_model.
      images: [N, H, W, C] float32, whatever the data format.
      num_classes: how many logits an image gets.
      variables, data_format, is_training, keep_statistics, seed, dtype: see LayerBuilder.
    """
    network = NETWORKS.get(name) or _registered(name)
    cnn = LayerBuilder(
        variables,
        data_format,
        is_training=is_training,
        keep_statistics=keep_statistics,
        batch_norm=network.batch_norm,
        seed=seed,
        dtype=dtype,
    )
    built = network.build(cnn, cnn.images(images), num_classes)
    logits, auxiliary = built if isinstance(built, tuple) else (built, None)
    # The softmax and what follows are in float32: sums of many exponentials need the digits.
    return Logits(tf.cast(logits, tf.float32), None if auxiliary is None else tf.cast(auxiliary, tf.float32))


def is_among_best(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label of an image is among its k best logits: [N, K] float32, [N] int32 -> [N] bool.

    Of equal logits the first ones are the better ones, as for np.argmax, so that k guesses are k; 16 bits leave many
    equal. With a logit that is no number there is no guess.
    """
    best = tf.math.top_k(logits, min(k, int(logits.shape[1]))).indices
    is_there = tf.reduce_any(tf.equal(best, labels[:, tf.newaxis]), axis=1)
    return tf.logical_and(is_there, tf.reduce_all(tf.math.is_finite(logits), axis=1))


def _registered(name: str) -> Network:
    network = registered_network(name)
    return Network(network, network.batch_norm)
