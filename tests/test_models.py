"""Every network computes what its counterpart in Keras computes from the same weights, in both data formats."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from keras_networks import (
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
from oracles import Weights
from sessions import DATA_FORMATS, open_session
from single_tower import load, one_tower, random_images, random_weight, relative_error

from data_sets import DATA_SETS
from models.catalog import ModelFacts, find_model, list_models
from models.counting import cost_of
from models.networks import NETWORKS, Logits, build_network
from variable_mgr import VariableMgr

pytestmark = pytest.mark.graph


@dataclass(frozen=True)
class Case:
    """A row of the conformance table.

    counterpart makes the Keras model of (shape of an image, number of classes), num_parameters are those that train
    with images of image_size. Logits are compared for these, or for smaller ones to save time. data_set is None for the
    model's default one.
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
        return find_model(self.model, self.data_set)


RESNET_18 = partial(keras_resnet, num_blocks=(2, 2, 2, 2), bottleneck=False, same_pool=True)
RESNET_20 = partial(keras_resnet_cifar, num_blocks=3)

# The counts are with 1001 classes (cifar10, mnist: 10) and without the biases that batch norm makes useless. Most are
# the published ones for 1000 classes and one more column of the last layer: of Keras; torchvision (whose AlexNet has
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
    Case('resnet50_v2', partial(keras_resnet, pre_activation=True), same_names, 224, 25_549_352 + 2049, 64),
    Case('resnet101', partial(published, 'ResNet101'), resnet_names, 224, 44_549_160 + 2049, 64),
    Case('resnet152', partial(published, 'ResNet152'), resnet_names, 224, 60_192_808 + 2049, 64),
    Case('official_resnet18', partial(RESNET_18, pre_activation=False), same_names, 224, 11_693_736 + 513, 64),
    Case('official_resnet18_v2', partial(RESNET_18, pre_activation=True), same_names, 224, 11_691_816 + 513, 64),
    Case('resnet20', partial(RESNET_20, pre_activation=False), same_names, 32, 269_722),
    Case('resnet20_v2', partial(RESNET_20, pre_activation=True), same_names, 32, 269_722),
    Case('densenet40_k12', partial(keras_densenet_cifar, num_layers=12, growth_rate=12), same_names, 32, 1_019_722),
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


# Networks that differ from another one in the lengths and widths that their tables have.
LIKE = {
    'resnet101_v2': 'resnet50_v2',
    'resnet152_v2': 'resnet50_v2',
    **{
        f'{family}{deep}{version}': f'{family}{shallow}{version}'
        for family, shallow, deeper in (
            ('official_resnet', 18, (34, 50, 101, 152, 200)),
            ('resnet', 20, (32, 44, 56, 110)),
        )
        for deep in deeper
        for version in ('', '_v2')
    },
    'densenet100_k12': 'densenet40_k12',
    'densenet100_k24': 'densenet40_k12',
}


def build(
    model: str,
    manager: VariableMgr,
    images: Any,
    data_format: str = 'NHWC',
    *,
    is_training: bool = False,
    data_set: str | None = None,
) -> Logits:
    """A network on images. Networks with one manager share the variables that have the same names."""
    facts = find_model(model, data_set)
    num_classes = DATA_SETS[facts.data_set].num_classes
    with manager.create_outer_variable_scope(0) as variables:
        return build_network(facts.network, images, num_classes, variables, data_format, is_training=is_training)


def count(manager: VariableMgr, *, trainable: bool) -> int:
    """How many numbers there are in the variables that train, or in those that do not."""
    variables = manager.savable_variables().values()
    return sum(math.prod(variable.shape) for variable in variables if variable.trainable == trainable)


@dataclass(frozen=True)
class Compared:
    """A network beside its counterpart: the numbers of parameters (trainable or not), and logits by data format."""

    case: Case
    ours: dict[bool, int]
    theirs: dict[bool, int]
    logits: dict[str, np.ndarray]
    expected: np.ndarray


def give_weights(model: Any, case: Case, ours: dict[str, Any]) -> tuple[Weights, dict[bool, int]]:
    """Gives a Keras model random weights, and returns them by our names, with how many numbers they are.

    ours are our variables by name. Biases of convolutions that we do without are zero and not among them.
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
            # A pointwise convolution is a dense layer somewhere, and the other way round.
            weight.assign(weights[name].reshape(weight.shape))
            counts[id(weight) in trainable] += weights[name].size
    return weights, counts


# Of many layers, by the code that made the shallower ones.
DEEPEST = ('resnet152', 'nasnetlarge')


@pytest.fixture(
    scope='module',
    params=[pytest.param(case, marks=pytest.mark.all_modes if case.model in DEEPEST else ()) for case in CONFORMANCE],
    ids=lambda case: case.facts.network,
)
def compared(request: pytest.FixtureRequest) -> Iterator[Compared]:
    case: Case = request.param
    data_set = DATA_SETS[case.facts.data_set]
    size = case.smaller_size or case.image_size
    shape = (size, size, data_set.channels)
    images = random_images(shape)
    graph, manager = tf.Graph(), one_tower()
    with graph.as_default():
        built = {
            form: build(case.model, manager, tf.constant(images), form, data_set=case.data_set).logits
            for form in DATA_FORMATS
        }
    counterpart = case.counterpart(shape, data_set.num_classes)
    weights, theirs = give_weights(counterpart, case, manager.savable_variables())
    expected = np.asarray(counterpart(images, training=False))
    del counterpart
    with graph.as_default(), open_session(has_nchw=True) as session:
        load(session, manager, weights)
        yield Compared(
            case=case,
            ours={kind: count(manager, trainable=kind) for kind in (True, False)},
            theirs=theirs,
            logits={form: session.run(logits) for form, logits in built.items()},
            expected=expected,
        )
    tf.keras.backend.clear_session()


def test_a_network_has_the_parameters_of_its_counterpart(compared: Compared) -> None:
    assert compared.ours == compared.theirs
    cost = cost_of(compared.case.facts)
    assert cost.parameters == compared.case.num_parameters
    if compared.case.smaller_size is None:
        assert cost.parameters == compared.ours[True]


@pytest.mark.parametrize('data_format', DATA_FORMATS)
def test_a_network_gives_the_logits_of_its_counterpart(compared: Compared, data_format: str) -> None:
    assert relative_error(compared.logits[data_format], compared.expected) < 2e-5
    first, second = compared.expected
    assert relative_error(first, second) > 0.01, 'the images must matter, or this says little'


@pytest.mark.parametrize(
    ('model', 'name'),
    [('resnet50_v1.5', 'ResNet50'), ('resnet50_v2', 'ResNet50V2'), ('resnet101_v2', 'ResNet101V2')],
)
def test_a_resnet_has_the_parameters_of_the_published_one(model: str, name: str) -> None:
    """keras.applications place the strides of these elsewhere, which changes the logits alone."""
    theirs = published(name, (32, 32, 3), 1001)
    biases = sum(
        layer.bias.shape[0] for layer in theirs.layers if isinstance(layer, tf.keras.layers.Conv2D) and layer.use_bias
    )
    trainable = sum(math.prod(weight.shape) for weight in theirs.trainable_weights) - biases
    assert trainable == cost_of(find_model(model)).parameters


def test_there_is_a_network_for_every_model_of_the_catalog_and_each_has_a_test() -> None:
    networks = {find_model(case.model, case.data_set).network for case in CONFORMANCE} | {*LIKE, 'inception3_aux'}
    assert {*NETWORKS} == networks
    assert {*list_models()} == networks - {'alexnet_cifar'}
    for case in CONFORMANCE:
        assert case.image_size == case.facts.image_size


@pytest.mark.parametrize('model', LIKE)
def test_a_deeper_network_is_made_as_the_one_that_is_held_against_keras(model: str) -> None:
    deep, held = (NETWORKS[name] for name in (model, LIKE[model]))
    assert deep.batch_norm == held.batch_norm
    assert isinstance(deep.build, partial)
    assert isinstance(held.build, partial)
    assert deep.build.func is held.build.func
    sizes = {'depth', 'blocks', 'growth_rate'}
    assert deep.build.keywords.keys() == held.build.keywords.keys()
    assert {key: value for key, value in deep.build.keywords.items() if key not in sizes} == {
        key: value for key, value in held.build.keywords.items() if key not in sizes
    }


def test_inception3_aux_is_inception3_with_another_head_while_training() -> None:
    head = (768 * 128 + 128) + (5 * 5 * 128 * 768 + 768) + (768 * 1001 + 1001)
    images = random_images((299, 299, 3))
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        plain = build('inception3', manager, tf.constant(images), is_training=True)
        num_parameters = count(manager, trainable=True)
        both = build('inception3_aux', manager, tf.constant(images), is_training=True)
        assert count(manager, trainable=True) == num_parameters + head
        assert build('inception3_aux', manager, tf.constant(images)).auxiliary is None
        assert plain.auxiliary is None
        session.run(manager.initializers)
        expected, logits, auxiliary = session.run([plain.logits, both.logits, both.auxiliary])
    assert relative_error(logits, expected) < 1e-4
    assert auxiliary.shape == expected.shape
    assert relative_error(auxiliary, expected) > 0.1
    assert np.ptp(auxiliary) > 0


@pytest.mark.parametrize(
    ('model', 'num_layers'),
    [('alexnet', 2), ('overfeat', 2), ('vgg16', 2), ('lenet', 0), ('googlenet', 1), ('inception4', 1)],
)
def test_networks_drop_units_while_training_alone(model: str, num_layers: int) -> None:
    facts = find_model(model)
    for is_training in (True, False):
        with tf.Graph().as_default() as graph:
            images = tf.zeros([1, facts.image_size, facts.image_size, 3])
            build(model, one_tower(), images, is_training=is_training)
            draws = [op for op in graph.get_operations() if op.type == 'RandomUniform']
        assert len(draws) == (num_layers if is_training else 0)
