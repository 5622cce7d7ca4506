"""The conformance table: each network with its Keras counterpart, and a function that gives both the same weights."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.data_sets import DATA_SETS
from models.model_facts import ModelFacts
from models.networks import Logits, build_network
from models.registry import MODELS
from tests.support.keras_networks import (
    Naming,
    convnext_names,
    densenet_names,
    efficientnet_names,
    inception_names,
    keras_alexnet,
    keras_alexnet_cifar,
    keras_densenet_cifar,
    keras_efficientnet_b0,
    keras_googlenet,
    keras_inception4,
    keras_lenet,
    keras_overfeat,
    keras_resnet,
    keras_resnet_cifar,
    keras_trivial,
    keras_vgg11,
    mobilenet_names,
    nasnet_names,
    published,
    resnet_names,
    same_names,
    vgg_names,
    weight_name,
    weighted_layers,
)
from tests.support.oracles import Weights
from tests.support.single_tower import random_weight
from variable_mgr import VariableMgr


@dataclass(frozen=True)
class Case:
    """A row of the conformance table.

    counterpart makes the Keras model from (shape of an image, number of classes). num_parameters counts the trainable
    parameters with images of image_size. Logits are compared at that size, or at smaller_size to save time. data_set is
    None for the model's default one.
    """

    model: str
    counterpart: Callable[[tuple[int, ...], int], Any]
    naming: Naming
    image_size: int
    num_parameters: int
    smaller_size: int | None = None
    data_set: str | None = None

    @property
    def facts(self) -> ModelFacts:
        return MODELS.find_model(self.model, self.data_set)


RESNET_18 = partial(keras_resnet, num_blocks=(2, 2, 2, 2), bottleneck=False, same_pool=True)
RESNET_50_V2 = partial(keras_resnet, pre_activation=True)
DENSENET_40 = partial(keras_densenet_cifar, num_layers=12, growth_rate=12)
RESNET_20 = partial(keras_resnet_cifar, num_blocks=3)

# The counts are with 1001 classes (cifar10, mnist: 10) and without the biases that batch norm makes useless. Most are
# the published ones for 1000 classes plus one more column of the last layer: from Keras; torchvision (whose AlexNet has
# other filters); Caffe's model zoo (GoogLeNet); timm (Inception v4, where 31,584 normalised channels have factors);
# TensorFlow's tutorials (AlexNet for CIFAR-10, of 24x24 pixels). The official ResNet of 18 layers has 64 x 64 + 2 x 64
# more than torchvision's, for a projection in its first stage, and version 2 does not normalise the projections.
CONFORMANCE = (
    Case('trivial', keras_trivial, same_names, 227, 4_263_877),
    Case('trivial', keras_trivial, same_names, 32, 3073 + 2 * 4096 + 4097 * 10, data_set='cifar10'),
    Case('lenet', partial(keras_lenet, units=512), same_names, 28, 2_173_353),
    Case('mnist', partial(keras_lenet, units=1024), same_names, 28, 3_274_634),
    Case('alexnet', keras_alexnet, same_names, 227, 61_838_248 + 4097, 131),
    Case('alexnet', keras_alexnet_cifar, same_names, 32, 1_068_298 + (8 * 8 - 6 * 6) * 64 * 384, data_set='cifar10'),
    Case('overfeat', keras_overfeat, same_names, 231, 145_920_872 + 4097, 119),
    Case('vgg11', keras_vgg11, same_names, 224, 132_863_336 + 4097, 64),
    Case('vgg16', partial(published, 'VGG16'), vgg_names, 224, 138_357_544 + 4097, 64),
    Case('vgg19', partial(published, 'VGG19'), vgg_names, 224, 143_667_240 + 4097, 64),
    Case('googlenet', keras_googlenet, inception_names, 224, 6_998_552 + 1025, 64),
    Case('inception3', partial(published, 'InceptionV3'), inception_names, 299, 23_817_352 + 2049, 139),
    Case('inception4', keras_inception4, inception_names, 299, 42_679_816 - 31_584 + 1537, 107),
    Case('resnet50', partial(published, 'ResNet50'), resnet_names, 224, 25_557_032 + 2049, 64),
    Case('resnet50_v1.5', partial(keras_resnet, pre_activation=False), same_names, 224, 25_557_032 + 2049, 64),
    Case('resnet50_v2', partial(RESNET_50_V2, stride_first=True), same_names, 224, 25_549_352 + 2049, 64),
    Case('resnet50_v2.5', RESNET_50_V2, same_names, 224, 25_549_352 + 2049, 64),
    Case('resnet101', partial(published, 'ResNet101'), resnet_names, 224, 44_549_160 + 2049, 64),
    Case('resnet152', partial(published, 'ResNet152'), resnet_names, 224, 60_192_808 + 2049, 64),
    Case('official_resnet18', partial(RESNET_18, pre_activation=False), same_names, 224, 11_693_736 + 513, 64),
    Case('official_resnet18_v2', partial(RESNET_18, pre_activation=True), same_names, 224, 11_691_816 + 513, 64),
    Case('resnet20', partial(RESNET_20, pre_activation=False), same_names, 32, 269_722),
    Case('resnet20_v2', partial(RESNET_20, pre_activation=True), same_names, 32, 269_722),
    # The original program's has 11 classes of 168 channels and a bias each.
    Case('densenet40_k12', partial(DENSENET_40, transition=24), same_names, 32, 357_491 - 169),
    Case('densenet40_k12_paper', DENSENET_40, same_names, 32, 1_019_722),
    Case('mobilenet', partial(published, 'MobileNetV2'), mobilenet_names, 224, 3_504_872 + 1281, 96),
    Case('nasnet', partial(published, 'NASNetMobile'), nasnet_names, 224, 5_289_978 + 1057, 96),
    Case('nasnetlarge', partial(published, 'NASNetLarge'), nasnet_names, 331, 88_753_150 + 4033, 75),
    Case('densenet121', partial(published, 'DenseNet121'), densenet_names, 224, 7_978_856 + 1025, 75),
    Case('efficientnet_b0', keras_efficientnet_b0, efficientnet_names, 224, 5_288_548 + 1281, 75),
    Case(
        'convnext_tiny',
        partial(published, 'ConvNeXtTiny', include_preprocessing=False),
        convnext_names,
        224,
        28_589_128 + 769,
        96,
    ),
)


def build(
    model: str,
    manager: VariableMgr,
    images: Any,
    data_format: str = 'NHWC',
    *,
    is_training: bool = False,
    data_set: str | None = None,
) -> Logits:
    """Builds a network on images. Networks with the same manager share variables of the same name."""
    facts = MODELS.find_model(model, data_set)
    num_classes = DATA_SETS[facts.data_set].num_classes
    with manager.create_outer_variable_scope(0) as variables:
        return build_network(facts.network, images, num_classes, variables, data_format, is_training=is_training)


def count(manager: VariableMgr, *, trainable: bool) -> int:
    """The number of parameters in the trainable or in the non-trainable variables."""
    variables = manager.savable_variables().values()
    return sum(math.prod(variable.shape) for variable in variables if variable.trainable == trainable)


def give_weights(model: Any, case: Case, ours: dict[str, Any]) -> tuple[Weights, dict[bool, int]]:
    """Gives a Keras model random weights; returns them by our names, and their number by whether they are trainable.

    ours are our variables by name. Convolution biases that our network does not have are set to zero and not returned.
    """
    our_layers = list(dict.fromkeys(name.rpartition('/')[0] for name in ours))
    weighted = list(weighted_layers(model))
    naming = case.naming([layer.name for layer in weighted], our_layers)
    weights: Weights = {}
    counts = {True: 0, False: 0}
    for layer in weighted:
        trainable = {id(weight) for weight in layer.trainable_weights}
        for weight in layer.weights:
            name = f'{naming[layer.name]}/{weight_name(layer, weight)}'
            if name not in ours and isinstance(layer, tf.keras.layers.Conv2D) and weight.name == 'bias':
                weight.assign(np.zeros(weight.shape))
                continue
            weights[name] = random_weight(name, tuple(ours[name].shape))
            # A pointwise convolution here may be a dense layer there, or the reverse.
            weight.assign(weights[name].reshape(weight.shape))
            counts[id(weight) in trainable] += weights[name].size
    return weights, counts
