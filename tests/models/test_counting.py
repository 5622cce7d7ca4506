"""Counted parameters and multiply-adds equal the published ones, TensorFlow's own counts and the
stored table of costs.
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
from models.networks import NetworkValues, build_network
from models.registry import MODELS
from tests.support.files import read_rows
from tf_cnn.inputs.data_sets import DATA_SETS

pytestmark = pytest.mark.graph


# These take their numbers from the same lines of tables as another row: a depth, a width, or a
# place of the strides. The catalog has their options, and the stored costs of all resnet50* are
# counted below.
SAME_TABLES = {
    'official_resnet50',
    'official_resnet101',
    'resnet50',
    'resnet50_v1.5',
    'resnet50_v2.5',
    'resnet101_v2.5',
    'resnet152',
    'resnet152_v2.5',
    'resnet32',
    'resnet44',
    'resnet110',
    'densenet100_k12_paper',
    'vit_s16',
}


@pytest.mark.parametrize(
    'row',
    [
        pytest.param(
            row,
            marks=pytest.mark.all_modes if row['model'] in {'nasnetlarge', *SAME_TABLES} else (),
        )
        for row in read_rows('published_costs.csv')
    ],
    ids=lambda row: row['model'],
)
def test_a_model_costs_what_is_published(row):
    spec = MODELS.find_model(row['model'])
    data_set = DATA_SETS[spec.data_set]
    # Publications give ImageNet 1000 classes; here it has another one for the background.
    num_classes = min(1000, data_set.num_classes)
    shape = (spec.image_size, spec.image_size, data_set.channels)
    num_parameters, multiply_adds = network_cost(spec.network, shape, num_classes)
    if gmacs := row['gmacs']:
        assert multiply_adds / 1e9 == pytest.approx(float(gmacs), rel=0.02)
    if parameters := row['million_parameters']:
        _, _, digits = parameters.partition('.')
        assert f'{num_parameters / 1e6:.{len(digits)}f}' == parameters


def test_tensorflow_counts_twice_as_many_operations():
    """Its profiler counts a multiply-add as two operations."""

    def sample(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
        x = cnn.conv(x, 8, (3, 5), 'strided', strides=2, padding=1)
        x = cnn.depthwise_conv(cnn.conv(x, 12, 1, 'conv'), 3, 'depthwise', padding='VALID')
        return cnn.dense(cnn.dense(cnn.flatten(x), 9, 'hidden'), num_classes, 'logits')

    network, shape, num_classes = Network(sample), (31, 32, 3), 7
    with tf.Graph().as_default() as graph:
        images, variables = tf.zeros([1, *shape]), NetworkValues()
        build_network(network, images, num_classes, variables, 'NHWC', is_training=False)
        options = tf.profiler.ProfileOptionBuilder(
            tf.profiler.ProfileOptionBuilder.float_operation()
        )
        profile = tf.profiler.profile(graph, cmd='op', options=options.with_empty_output().build())
    counted = {}
    while profile.children:
        [profile] = profile.children
        counted[profile.name] = profile.float_ops
    products = [counted[kind] for kind in ('Conv2D', 'DepthwiseConv2dNative', 'MatMul')]
    assert min(products) > 0
    assert sum(products) == 2 * network_cost(network, shape, num_classes)[1]


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
        'trivial',
        'lenet',
        'mnist',
        'alexnet',
        'vgg16',
        'resnet50*',
        pytest.param('*', marks=pytest.mark.all_modes),
    ],
)
def test_the_stored_costs_equal_the_counted_ones(pattern):
    table = read_costs()
    for spec in MODELS.list_specs(pattern):
        key = spec.name, spec.data_set, spec.image_size
        assert table[key] == costs._count_cost(spec), spec
