"""The counted parameters and multiply-adds of networks are the published ones, and those that
TensorFlow counts.

The stored table of costs agrees with what is counted.
"""

import json
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from models import costs
from models.catalog import CATALOG_FILE, read_costs, to_row
from models.counting import model_cost, network_cost
from models.layers import LayerBuilder
from models.model_spec import Network
from models.networks import build_network
from models.registry import MODELS
from tests.support.graphs import one_tower
from tf_cnn.inputs.data_sets import DATA_SETS

pytestmark = pytest.mark.graph


# By model: the published multiply-adds of an image in units of 1e9, and parameters in units of 1e6,
# with their digits.
PUBLISHED: dict[str, tuple[float | None, str | None]] = {
    # torchvision.models, tables of weights: "GFLOPS", which are multiply-adds, and "Params". Its
    # ResNets are v1.5.
    'vgg11': (7.61, '132.9'),
    'vgg16': (15.47, '138.4'),
    'vgg19': (19.63, '143.7'),
    'inception3': (5.71, None),
    'official_resnet18': (1.81, '11.7'),
    'official_resnet34': (3.66, '21.8'),
    'resnet50_v1.5': (4.09, '25.6'),
    'official_resnet50': (4.09, '25.6'),
    'official_resnet101': (7.80, '44.5'),
    'official_resnet152': (11.51, '60.2'),
    'mobilenet': (0.300, '3.5'),
    'densenet121': (2.83, '8.0'),
    'efficientnet_b0': (0.39, '5.3'),
    'convnext_tiny': (4.46, '28.6'),
    # With the two products of attention, 12 * 2 * 197 * 197 * 768; without them it would be 16.85.
    'vit_b16': (17.56, '86.567656'),
    # Wightman, PyTorch Image Models, results/benchmark-infer-*.csv: "infer_gmacs" and
    # "param_count".
    # Without the factors of 31,584 normalised channels.
    'inception4': (12.28, '42.648232'),
    'resnet50_v2.5': (4.11, '25.5'),
    'resnet101_v2.5': (7.83, '44.5'),
    'resnet152_v2.5': (11.55, '60.2'),
    'official_resnet200': (15.07, '64.7'),
    'vit_s16': (4.61, '22.05'),
    # He et al. 2015 (arXiv:1512.03385), table 1.
    'resnet50': (3.8, None),
    'resnet101': (7.6, '44.5'),
    'resnet152': (11.3, None),
    # Szegedy et al. 2014 (arXiv:1409.4842), table 1: the sum of all rows, but of the first, which
    # says 34M, what a 7x7 convolution to 64 channels takes. Parameters: Caffe's model zoo.
    'googlenet': (1.502 - 0.034 + 7 * 7 * 3 * 64 * 112**2 / 1e9, '6.998552'),
    # Sermanet et al. 2014 (arXiv:1312.6229), table 4: the connections of the fast model.
    'overfeat': (2.810, '145.920872'),
    # torchvision's table says 0.71. Its fourth convolution has 256 filters, here it has 384.
    'alexnet': (0.71 + (384 * 384 - 256 * 256) * 9 * 13**2 / 1e9, '61.838248'),
    # He et al. 2015, table 6 for the parameters. Multiply-adds: Li et al. 2017 (arXiv:1608.08710),
    # table 1, for 56 and 110; for 20 to 44: Chen, PyTorch CIFAR Models (github.com/chenyaofo),
    # minus the 0.26M of its two projections.
    'resnet20': (0.04081 - 0.00026, '0.27'),
    'resnet32': (0.06912 - 0.00026, '0.46'),
    'resnet44': (0.09744 - 0.00026, '0.66'),
    'resnet56': (0.125, '0.85'),
    'resnet110': (0.253, '1.7'),
    # Huang et al. 2017 (arXiv:1608.06993), table 2, for the parameters. The arithmetic of one of
    # them is in Liu et al. 2017 (arXiv:1708.06519), table 1, where a multiply-add is two
    # operations.
    # The original program's network, which has another class of 168 weights and a bias.
    'densenet40_k12': (None, '0.357322'),
    'densenet40_k12_paper': (0.533 / 2, '1.0'),
    'densenet100_k12_paper': (None, '7.0'),
    'densenet100_k24_paper': (None, '27.2'),
    # Zoph et al. 2018 (arXiv:1707.07012), tables 3 (mobile) and 2 (large).
    'nasnet': (0.564, '5.3'),
    'nasnetlarge': (23.8, None),
}


@pytest.mark.parametrize(
    'model',
    [
        pytest.param(model, marks=pytest.mark.all_modes if model.startswith('nasnet') else ())
        for model in PUBLISHED
    ],
)
def test_a_model_costs_what_is_published(model):
    spec, (gmacs, parameters) = MODELS.find_model(model), PUBLISHED[model]
    data_set = DATA_SETS[spec.data_set]
    # Publications give ImageNet 1000 classes; here it has another one for the background.
    num_classes = min(1000, data_set.num_classes)
    shape = (spec.image_size, spec.image_size, data_set.channels)
    num_parameters, multiply_adds = network_cost(spec.network, shape, num_classes)
    if gmacs is not None:
        assert multiply_adds / 1e9 == pytest.approx(gmacs, rel=0.02)
    if parameters is not None:
        _, _, digits = parameters.partition('.')
        assert f'{num_parameters / 1e6:.{len(digits)}f}' == parameters


@pytest.mark.parametrize(
    ('model', 'data_set'),
    [('lenet', None), ('alexnet', 'cifar10'), ('mobilenet', None), ('googlenet', None)],
)
def test_tensorflow_counts_twice_as_many_operations(model, data_set):
    """Its profiler counts a multiply-add as two operations."""
    network, shape, num_classes = MODELS.find_model(model, data_set).network, (96, 96, 3), 7
    with tf.Graph().as_default() as graph:
        with one_tower().create_outer_variable_scope(0) as variables:
            build_network(
                network, tf.zeros([1, *shape]), num_classes, variables, 'NHWC', is_training=False
            )
        options = tf.profiler.ProfileOptionBuilder(
            tf.profiler.ProfileOptionBuilder.float_operation()
        )
        profile = tf.profiler.profile(graph, cmd='op', options=options.with_empty_output().build())
    counted = {}
    while profile.children:
        [profile] = profile.children
        counted[profile.name] = profile.float_ops
    products = sum(counted.get(kind, 0) for kind in ('Conv2D', 'DepthwiseConv2dNative', 'MatMul'))
    assert products == 2 * network_cost(network, shape, num_classes)[1] > 0


@pytest.mark.parametrize(
    ('function', 'multiply_adds'),
    # Functions of images [1, 8, 8, 6]: with groups; depthwise, to twice as many channels; with the
    # left side transposed; products of a batch; an op that no result depends on.
    [
        (lambda x: tf.nn.conv2d(x, tf.zeros([3, 3, 2, 9]), 2, 'SAME'), (4 * 4 * 9) * (3 * 3 * 2)),
        (
            lambda x: tf.nn.depthwise_conv2d(x, tf.zeros([3, 2, 6, 2]), [1, 1, 1, 1], 'VALID'),
            (6 * 7 * 12) * (3 * 2),
        ),
        (lambda x: tf.matmul(x[0, 0], tf.zeros([8, 5]), transpose_a=True), (6 * 5) * 8),
        (lambda x: tf.matmul(x, x, transpose_a=True), 8 * (6 * 6) * 8),
        (lambda x: (tf.matmul(tf.zeros([2, 3]), tf.zeros([3, 4])), x)[1], 0),
    ],
)
def test_multiply_adds_of_an_operation(function, multiply_adds):
    def sample(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
        # Logits that depend on the result of the operation.
        return tf.reduce_sum(function(x)) + tf.zeros([1, num_classes])

    assert network_cost(Network(sample), (8, 8, 6), 10) == (0, multiply_adds)


def test_an_auxiliary_head_has_parameters_and_takes_no_arithmetic_of_a_forward_pass():
    parameters, multiply_adds = model_cost(MODELS.find_model('inception3'))
    head = (768 * 128 + 128) + (5 * 5 * 128 * 768 + 768) + (768 * 1001 + 1001)
    with_head = model_cost(MODELS.find_model('inception3_aux'))
    assert with_head == (parameters + head, multiply_adds)


def test_the_catalog_has_the_models_that_the_functions_declare():
    counts = read_costs()
    declared = [
        to_row(spec, *counts.get((spec.name, spec.data_set, spec.image_size), (0, 0)))
        for spec in costs.declared_models()
    ]
    rows = json.loads(CATALOG_FILE.read_text())
    assert declared == rows, 'write them anew with: python -m models.costs'


@pytest.mark.parametrize(
    'pattern',
    [
        *('trivial', 'lenet', 'mnist', 'alexnet', 'vgg16', 'resnet50*'),
        pytest.param('*', marks=pytest.mark.all_modes),
    ],
)
def test_the_table_of_costs_is_what_is_counted(pattern):
    table = read_costs()
    for spec in MODELS.list_specs(pattern):
        key = spec.name, spec.data_set, spec.image_size
        assert table[key] == costs._count_cost(spec), spec
