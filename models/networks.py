"""Every network of the catalog, and how a tower builds one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from models.inception import BATCH_NORM as INCEPTION_BATCH_NORM
from models.inception import inception3, inception3_aux
from models.layers import BatchNorm, LayerBuilder, Tensor, VariableSource
from models.registry import registered_network
from models.resnet import resnet
from models.small import alexnet, lenet, trivial
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
    'vgg16': Network(partial(vgg, depth=16)),
    'inception3': Network(inception3, INCEPTION_BATCH_NORM),
    'inception3_aux': Network(inception3_aux, INCEPTION_BATCH_NORM),
    'resnet50': Network(partial(resnet, depth=50, version='v1')),
    'resnet50_v1.5': Network(partial(resnet, depth=50, version='v1.5')),
    'resnet50_v2': Network(partial(resnet, depth=50, version='v2')),
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
) -> Logits:
    """Adds a network of the catalog to the graph.

    Args:
      name: a name of NETWORKS (ModelFacts.network), or of register_model.
      images: [N, H, W, C] float32, whatever the data format.
      num_classes: how many logits an image gets.
      variables, data_format, is_training, keep_statistics, seed: see LayerBuilder.
    """
    network = NETWORKS.get(name) or _registered(name)
    cnn = LayerBuilder(
        variables,
        data_format,
        is_training=is_training,
        keep_statistics=keep_statistics,
        batch_norm=network.batch_norm,
        seed=seed,
    )
    built = network.build(cnn, cnn.images(images), num_classes)
    return Logits(*built) if isinstance(built, tuple) else Logits(built, None)


def _registered(name: str) -> Network:
    network = registered_network(name)
    return Network(network, network.batch_norm)
