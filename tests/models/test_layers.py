"""Layers beyond the comparison of networks with Keras: batch norm in training, padding, dropout,
and initial values.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.ndimage
import tensorflow.compat.v1 as tf

from models.layers import (
    LayerBuilder,
    glorot_normal,
    he_normal,
    he_normal_fan_out,
    truncated_normal,
)
from models.model_spec import BatchNorm
from models.networks import NetworkValues, build_network
from models.registry import MODELS
from tests.support.graphs import (
    DATA_FORMATS,
    evaluate,
    one_tower,
    open_session,
    random_weight,
)
from tests.support.oracles import Weights
from tests.support.outputs import refused
from variable_mgr import TowerVariables

pytestmark = pytest.mark.graph

BOTH_FORMATS = pytest.mark.parametrize('data_format', DATA_FORMATS)
Layer = Callable[[LayerBuilder, Any], Any]


class Computed(NamedTuple):
    """The output [N, H, W, C] of a layer, the gradient of its sum by the images, and the values of
    its variables before and after.
    """

    output: np.ndarray
    gradient: np.ndarray
    weights: Weights
    updated: Weights


def compute(
    data_format: str,
    layer: Layer,
    images: np.ndarray,
    is_training: bool = False,
    **settings: Any,
) -> Computed:
    """Runs a layer with weights that follow from the names of the variables."""
    with tf.Graph().as_default(), open_session(has_nchw=True) as session:
        manager, x = one_tower(), tf.constant(images)
        with manager.create_outer_variable_scope(0) as variables:
            cnn = LayerBuilder(variables, data_format, is_training=is_training, **settings)
            y = layer(cnn, cnn.images(x))
        y = y if data_format == 'NHWC' else tf.transpose(y, [0, 2, 3, 1])
        saved = manager.savable_variables()
        values = {name: variable.value for name, variable in saved.items()}
        weights = {name: random_weight(name, tuple(value.shape)) for name, value in values.items()}
        session.run([saved[name].assign(tf.constant(value)) for name, value in weights.items()])
        fetches = [tf.cast(y, tf.float32), tf.gradients(y, x)[0], manager.assign_ops()]
        output, gradient, _ = session.run(fetches)
        return Computed(output, gradient, weights, session.run(values))


@BOTH_FORMATS
@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('scale', [True, False])
def test_batch_norm_trains_with_the_batch_and_updates_its_averages(data_format, scale, fused):
    images = np.random.default_rng(4).normal(3, 2, [4, 3, 5, 6]).astype(np.float32)
    mean, variance = images.mean((0, 1, 2)), images.var((0, 1, 2))
    norm = BatchNorm(decay=0.8, epsilon=0.01, scale=scale)
    layer = compute(
        data_format,
        lambda cnn, x: cnn.batch_norm(x, 'bn'),
        images,
        True,
        batch_norm=norm,
        fused_batch_norm=fused,
    )
    assert ('bn/gamma' in layer.weights) == scale
    factor = layer.weights.get('bn/gamma', 1) / np.sqrt(variance + 0.01)
    expected = (images - mean) * factor + layer.weights['bn/beta']
    np.testing.assert_allclose(layer.output, expected, rtol=1e-4, atol=1e-5)
    unbiased = images.var((0, 1, 2), ddof=1)
    for name, value in (('bn/moving_mean', mean), ('bn/moving_variance', unbiased)):
        average = 0.8 * layer.weights[name] + 0.2 * value
        np.testing.assert_allclose(layer.updated[name], average, rtol=1e-5)


def test_a_network_without_batch_norm_refuses_to_compute_it_by_several_ops():
    network = MODELS.find_model('trivial').network
    with refused('--fused_batch_norm=False', 'no batch norm'), tf.Graph().as_default():
        build_network(
            network,
            tf.zeros([2, 8, 8, 3]),
            10,
            NetworkValues(),
            'NHWC',
            is_training=True,
            fused_batch_norm=False,
        )


@BOTH_FORMATS
@pytest.mark.parametrize(
    'layer',
    [
        lambda cnn, x: cnn.depthwise_conv(x, 3, 'depthwise'),
        lambda cnn, x: cnn.dense(cnn.tokens(x), 5, 'dense'),
    ],
    ids=['depthwise', 'tokens'],
)
def test_the_gradient_of_a_bias_in_bfloat16_counts_every_pixel(data_format, layer):
    with tf.Graph().as_default(), open_session(has_nchw=True) as session:
        manager, x = one_tower(), tf.zeros([4, 64, 64, 3])
        with manager.create_outer_variable_scope(0) as variables:
            cnn = LayerBuilder(variables, data_format, is_training=True, dtype=tf.bfloat16)
            y = layer(cnn, cnn.images(x))
        bias = manager.trainable_variables_on_device(0)[-1]
        [gradient] = tf.gradients(y, [bias.value])
        session.run(manager.initializers)
        assert {*session.run(gradient)} == {4 * 64 * 64}


@BOTH_FORMATS
@pytest.mark.parametrize(
    ('layer', 'rows', 'columns', 'first'),
    [
        # It moves images up and left.
        (lambda cnn, x: cnn.shift(x), (0, 1), (0, 1), 1),
        # TensorFlow's padding, for a window of 3 with a stride of 2.
        (lambda cnn, x: cnn.pad_same(x, 3, 2), (0, 1), (1, 1), 0),
    ],
    ids=['shift', 'pad_same'],
)
def test_places_outside_of_an_image_are_zero(data_format, layer, rows, columns, first):
    images = np.random.default_rng(5).normal(size=(2, 6, 7, 5)).astype(np.float32)
    expected = np.pad(images, [(0, 0), rows, columns, (0, 0)])[:, first:, first:]
    np.testing.assert_array_equal(compute(data_format, layer, images).output, expected)


@BOTH_FORMATS
@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
@pytest.mark.parametrize('is_training', [True, False])
def test_padding_is_never_the_maximum_and_gets_no_gradient(data_format, dtype, is_training):
    # All values are negative and distinct, also in bfloat16.
    values = -1.0 - np.random.default_rng(6).permutation(2 * 7 * 8)
    images = values.reshape(2, 7, 8, 1).astype(np.float32)
    largest = scipy.ndimage.maximum_filter(images, (1, 3, 3, 1), mode='constant', cval=-np.inf)
    layer = compute(
        data_format, lambda cnn, x: cnn.max_pool(x, 3, 2, 1), images, is_training, dtype=dtype
    )
    np.testing.assert_array_equal(layer.output, largest[:, ::2, ::2])
    # A value gets the gradient, 1, of each window that has it as its maximum.
    expected = [(layer.output == value).sum() for value in images.flat]
    np.testing.assert_array_equal(layer.gradient.ravel(), expected)


@BOTH_FORMATS
@pytest.mark.parametrize(
    ('layer', 'mask_shape'), [('dropout', [200, 4, 2, 5]), ('drop_path', [8000, 1, 1, 1])]
)
def test_every_layer_tower_and_step_drops_other_units_or_images(data_format, layer, mask_shape):
    shape = [mask_shape[0], 4, 2, 5]
    with tf.Graph().as_default(), open_session() as session, tf.device('/cpu:0'):
        variables = TowerVariables(one_tower(), 0)
        towers = [
            LayerBuilder(variables, data_format, is_training=True, seed=seed) for seed in (0, 1000)
        ]
        dropped = [getattr(tower, layer)(tf.ones(shape), 0.3) for tower in towers for _ in range(2)]
        outputs = [*session.run(dropped), *session.run(dropped)]
    masks = [output[tuple(map(slice, mask_shape))] != 0 for output in outputs]
    for output, mask in zip(outputs, masks, strict=True):
        np.testing.assert_allclose(output, np.broadcast_to(mask / 0.7, shape), rtol=1e-6)
        assert 1 - mask.mean() == pytest.approx(0.3, abs=0.04)
    for mask, other in itertools.combinations(masks, 2):
        # Independent masks agree on this share of the units.
        assert (mask == other).mean() == pytest.approx(0.3**2 + 0.7**2, abs=0.05)


@pytest.mark.parametrize(
    ('initializer', 'shape', 'variance'),
    [
        # The variance of a standard normal distribution cut at two is 1 - 4 phi(2) / (2 Phi(2) -
        # 1).
        (truncated_normal(0.1), [400, 300], 0.1**2 * 0.7737413),
        (he_normal, [3, 3, 64, 128], 2 / (3 * 3 * 64)),
        (he_normal, [1, 7, 96, 200], 2 / (7 * 96)),
        (he_normal, [400, 300], 2 / 400),
        (glorot_normal, [3, 3, 64, 128], 2 / (3 * 3 * (64 + 128))),
        (glorot_normal, [400, 300], 2 / 700),
        (he_normal_fan_out, [3, 3, 64, 128], 2 / (3 * 3 * 128)),
        (he_normal_fan_out, [7, 7, 3000, 1], 2 / (7 * 7)),
    ],
)
def test_initial_values_have_the_variance_of_their_papers(initializer, shape, variance):
    values = evaluate(lambda: initializer(shape, 1))
    assert values.var() == pytest.approx(variance, rel=0.02)
    assert abs(values.mean()) < 0.01 * variance**0.5
    cut = 2 * (variance / 0.7737413) ** 0.5
    assert 0.98 * cut < np.abs(values).max() <= cut * 1.0001
