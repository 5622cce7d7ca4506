"""Layers compute what NumPy and SciPy compute from their papers' formulas, in both data formats.

Initial values have the distributions of their papers, and follow from the seed.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import scipy.special
import tensorflow.compat.v1 as tf

from models.layers import (
    LayerBuilder,
    constant,
    glorot_normal,
    he_normal,
    he_normal_fan_out,
    truncated_normal,
)
from models.model_spec import BatchNorm
from models.small import lenet
from tests.support.graphs import DATA_FORMATS, open_session
from tests.support.networks import (
    BATCH,
    load,
    one_tower,
    random_images,
    random_weight,
    relative_error,
)
from tests.support.oracles import Weights
from tf_cnn.graph.variables import Initializer
from tf_cnn.training.optimizers import GradientDescent, OptimizerStep
from variable_mgr import TowerVariables

pytestmark = pytest.mark.graph


def every_layer(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """A network of every layer that depends on the data format, with every kind of padding."""
    x = cnn.conv(x, 8, (3, 5), 'conv1', strides=2, padding=1, use_bias=False)
    x = cnn.max_pool(cnn.relu(cnn.batch_norm(x, 'conv1/bn')), 3, 2, padding=1)
    x = cnn.concat([cnn.conv(x, 4, 3, 'conv2'), cnn.avg_pool(x, 3, 1, 'SAME')])
    x = cnn.batch_norm(x, 'bn')
    x = cnn.local_response_norm(cnn.pad_channels(x, 14), radius=1, bias=1.0, alpha=0.5, beta=0.75)
    x = cnn.max_pool(cnn.conv(x, 6, 2, 'conv3', padding='VALID'), 2, 1, 'SAME')
    return cnn.dense(cnn.flatten(x), num_classes, 'of_all') + cnn.dense(
        cnn.global_avg_pool(x), num_classes, 'of_mean'
    )


def every_modern_layer(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """Like every_layer, with the layers of networks since 2017: odd and even sizes, depthwise
    strides, gates.
    """
    x = cnn.swish(cnn.depthwise_conv(cnn.conv(x, 8, 3, 'conv1'), 3, 'depthwise1', strides=2))
    x = cnn.layer_scale(cnn.layer_norm(x, 'ln'), 'scale', 0.5) + cnn.depthwise_conv(
        x, 5, 'depthwise2', padding=2
    )
    x = cnn.gate(x, cnn.dense(cnn.global_avg_pool(x), 8, 'gate'))
    x = cnn.pad_same(cnn.gelu(x), 3, 2)
    x = cnn.concat([cnn.max_pool(x, 3, 2), cnn.avg_pool(x, 3, 2)])
    x = cnn.concat([cnn.relu6(4 * x), cnn.shift(x)])
    assert cnn.shape(x) == (7, 7, 32)
    return cnn.dense(cnn.layer_norm(cnn.flatten(x), 'final_ln'), num_classes, 'logits')


def train_in(data_format: str, network: Callable[..., Any], images: np.ndarray) -> Weights:
    """Returns all variables after four steps of gradient descent. The loss must fall."""
    with tf.Graph().as_default(), open_session(has_nchw=True) as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            cnn = LayerBuilder(variables, data_format, is_training=True)
            logits = network(cnn, cnn.images(tf.constant(images)), 7)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=tf.range(BATCH))
        )
        trainable = manager.trainable_variables_on_device(0)
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        optimizer = OptimizerStep(
            GradientDescent(), tf.constant(0.01), tf.constant(0, tf.int64), None
        )
        step = [
            optimizer.apply(gradient, variable)
            for gradient, variable in zip(gradients, trainable, strict=True)
        ] + manager.assign_ops()
        session.run(manager.initializers)
        losses = [session.run([loss, step])[0] for _ in range(4)]
        assert losses[-1] < 0.9 * losses[0]
        return session.run(
            {name: variable.value for name, variable in manager.savable_variables().items()}
        )


def infer_in(
    data_format: str, network: Callable[..., Any], images: np.ndarray, weights: Weights
) -> np.ndarray:
    with tf.Graph().as_default(), open_session(has_nchw=True) as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            cnn = LayerBuilder(variables, data_format, is_training=False)
            logits = network(cnn, cnn.images(tf.constant(images)), 7)
        load(session, manager, weights)
        return session.run(logits)


@pytest.mark.parametrize(
    'network',
    [every_layer, every_modern_layer, functools.partial(lenet, units=512)],
    ids=['every layer', 'every modern layer', 'lenet'],
)
def test_weights_trained_in_one_data_format_are_used_in_the_other(
    network: Callable[..., Any],
) -> None:
    images = random_images((28, 28, 3))
    weights = train_in('NCHW', network, images)
    for name, value in train_in('NHWC', network, images).items():
        np.testing.assert_allclose(weights[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    new_images = images[::-1] * 0.5
    logits = {form: infer_in(form, network, new_images, weights) for form in DATA_FORMATS}
    assert relative_error(logits['NHWC'], logits['NCHW']) < 1e-4


@pytest.mark.parametrize('data_format', DATA_FORMATS)
@pytest.mark.parametrize('scale', [True, False])
def test_batch_norm_normalises_and_keeps_averages_like_numpy(data_format: str, scale: bool) -> None:
    config = BatchNorm(decay=0.8, epsilon=0.01, scale=scale)
    random = np.random.default_rng(4)
    batches = random.normal(3, 2, size=(2, 4, 3, 5, 6)).astype(np.float32)
    weights = {
        f'bn/{name}': random_weight(name, (6,))
        for name in ('beta', 'moving_mean', 'moving_variance')
    }
    if scale:
        weights['bn/gamma'] = random_weight('gamma', (6,))
    mean, variance = (weights[f'bn/moving_{name}'] for name in ('mean', 'variance'))

    def normalised(x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        return (x - mean) / np.sqrt(variance + 0.01) * weights.get('bn/gamma', 1) + weights[
            'bn/beta'
        ]

    with tf.Graph().as_default(), open_session(has_nchw=True) as session:
        manager, x = one_tower(), tf.placeholder(tf.float32, batches.shape[1:])
        outputs = {}
        with manager.create_outer_variable_scope(0) as variables:
            for is_training in (True, False):
                cnn = LayerBuilder(
                    variables, data_format, is_training=is_training, batch_norm=config
                )
                y = cnn.batch_norm(cnn.images(x), 'bn')
                outputs[is_training] = y if data_format == 'NHWC' else tf.transpose(y, [0, 2, 3, 1])
        assert sorted(manager.savable_variables()) == sorted(weights)
        load(session, manager, weights)
        assigned = manager.assign_ops()
        for batch in batches:
            output, _ = session.run([outputs[True], assigned], {x: batch})
            expected = normalised(batch, batch.mean((0, 1, 2)), batch.var((0, 1, 2)))
            np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
            mean = 0.8 * mean + 0.2 * batch.mean((0, 1, 2))
            variance = 0.8 * variance + 0.2 * batch.var((0, 1, 2), ddof=1)
        kept = session.run(
            {name: variable.value for name, variable in manager.savable_variables().items()}
        )
        np.testing.assert_allclose(kept['bn/moving_mean'], mean, rtol=1e-5)
        np.testing.assert_allclose(kept['bn/moving_variance'], variance, rtol=1e-5)
        inferred = session.run(outputs[False], {x: batches[0]})
        np.testing.assert_allclose(
            inferred, normalised(batches[0], mean, variance), rtol=1e-4, atol=1e-5
        )


def reference_depthwise(x: np.ndarray, kernel: np.ndarray, strides: int) -> np.ndarray:
    """SciPy's correlation with zeros around the image. 'SAME' puts the extra zero of an even size
    at the end.
    """
    channels = [
        scipy.ndimage.correlate(x[..., channel], kernel[None, ..., channel, 0], mode='constant')
        for channel in range(x.shape[-1])
    ]
    rows, columns = (0 if pixels % strides else strides - 1 for pixels in x.shape[1:3])
    return np.stack(channels, -1)[:, rows::strides, columns::strides]


def layer_normalised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


# By name: a layer, and its formula for x, [N, H, W, C], and the variables by name.
FORMULAS: dict[
    str, tuple[Callable[[LayerBuilder, Any], Any], Callable[[np.ndarray, Weights], np.ndarray]]
] = {
    'depthwise convolution': (
        lambda cnn, x: cnn.depthwise_conv(x, 3, 'conv'),
        lambda x, weights: reference_depthwise(x, weights['conv/kernel'], 1) + weights['conv/bias'],
    ),
    'depthwise convolution with strides': (
        lambda cnn, x: cnn.depthwise_conv(x, 5, 'conv', strides=2, use_bias=False),
        lambda x, weights: reference_depthwise(x, weights['conv/kernel'], 2),
    ),
    'layer norm': (
        lambda cnn, x: cnn.layer_norm(x, 'ln'),
        lambda x, weights: layer_normalised(x) * weights['ln/gamma'] + weights['ln/beta'],
    ),
    'layer scale': (
        lambda cnn, x: cnn.layer_scale(x, 'ls', 0.1),
        lambda x, weights: x * weights['ls/gamma'],
    ),
    'gate': (
        lambda cnn, x: cnn.gate(x, cnn.global_avg_pool(x)),
        lambda x, weights: x * scipy.special.expit(x.mean((1, 2), keepdims=True)),
    ),
    'ReLU6': (lambda cnn, x: cnn.relu6(x), lambda x, weights: np.clip(x, 0, 6)),
    'swish': (lambda cnn, x: cnn.swish(x), lambda x, weights: x * scipy.special.expit(x)),
    'GELU': (lambda cnn, x: cnn.gelu(x), lambda x, weights: x * scipy.special.ndtr(x)),
    'local response normalisation': (
        lambda cnn, x: cnn.local_response_norm(x, radius=1, bias=2.0, alpha=0.5, beta=0.75),
        lambda x, weights: (
            x / (2 + 0.5 * 3 * scipy.ndimage.uniform_filter1d(x**2, 3, mode='constant')) ** 0.75
        ),
    ),
    'channels of zeros': (
        lambda cnn, x: cnn.pad_channels(x, 7),
        lambda x, weights: np.pad(x, [(0, 0), (0, 0), (0, 0), (0, 2)]),
    ),
    'shift': (
        lambda cnn, x: cnn.shift(x),
        lambda x, weights: np.pad(x, [(0, 0), (0, 1), (0, 1), (0, 0)])[:, 1:, 1:],
    ),
    'padding': (
        lambda cnn, x: cnn.pad_same(x, 3, 2),
        lambda x, weights: np.pad(x, [(0, 0), (0, 1), (1, 1), (0, 0)]),
    ),
}


@pytest.mark.parametrize('data_format', DATA_FORMATS)
def test_layers_compute_their_formulas(data_format: str) -> None:
    images = 4 * np.random.default_rng(5).normal(size=(2, 6, 7, 5)).astype(np.float32)
    for name, (layer, formula) in FORMULAS.items():
        with tf.Graph().as_default(), open_session(has_nchw=True) as session:
            manager = one_tower()
            with manager.create_outer_variable_scope(0) as variables:
                cnn = LayerBuilder(variables, data_format, is_training=False)
                y = layer(cnn, cnn.images(tf.constant(images)))
            savable = manager.savable_variables()
            weights = {
                name: random_weight(name, tuple(variable.shape))
                for name, variable in savable.items()
            }
            load(session, manager, weights)
            output = session.run(y if data_format == 'NHWC' else tf.transpose(y, [0, 2, 3, 1]))
        np.testing.assert_allclose(
            output, formula(images, weights), rtol=1e-4, atol=1e-4, err_msg=name
        )


@pytest.mark.parametrize('data_format', DATA_FORMATS)
def test_padding_is_never_the_maximum_and_gets_no_gradient(data_format: str) -> None:
    # All values are negative and distinct, also in bfloat16.
    images = (
        -np.random.default_rng(6)
        .permutation(np.arange(1, 2 * 7 * 8 + 1))
        .reshape(2, 7, 8, 1)
        .astype(np.float32)
    )
    expected = scipy.ndimage.maximum_filter(images, (1, 3, 3, 1), mode='constant', cval=-np.inf)[
        :, ::2, ::2
    ]
    # A value gets the gradient, 1, of each window whose maximum it is.
    expected_gradient = np.array([(expected == value).sum() for value in images.flat]).reshape(
        images.shape
    )
    for dtype in (tf.float32, tf.bfloat16):
        for is_training in (True, False):
            with tf.Graph().as_default(), open_session(has_nchw=True) as session:
                cnn = LayerBuilder(
                    TowerVariables(one_tower(), 0),
                    data_format,
                    is_training=is_training,
                    dtype=dtype,
                )
                x = tf.constant(images)
                y = cnn.max_pool(cnn.images(x), 3, 2, padding=1)
                (gradient,) = tf.gradients(y, [x])
                y = y if data_format == 'NHWC' else tf.transpose(y, [0, 2, 3, 1])
                output, gradient = session.run([tf.cast(y, tf.float32), gradient])
            np.testing.assert_array_equal(output, expected)
            np.testing.assert_array_equal(gradient, expected_gradient)


def check_independent(masks: list[np.ndarray], rate: float) -> None:
    """Checks that a mask, of units that were kept, says nothing about another one."""
    for number, mask in enumerate(masks):
        assert 1 - mask.mean() == pytest.approx(rate, abs=0.04)
        for other in masks[:number]:
            # The share of the units on which independent masks agree.
            assert (mask == other).mean() == pytest.approx(rate**2 + (1 - rate) ** 2, abs=0.05)


@pytest.mark.parametrize('data_format', DATA_FORMATS)
@pytest.mark.parametrize(
    ('layer', 'kept_shape'), [('dropout', [200, 4, 2, 5]), ('drop_path', [8000, 1, 1, 1])]
)
def test_units_or_whole_images_are_dropped_independently_in_every_layer_tower_and_step(
    data_format: str, layer: str, kept_shape: list[int]
) -> None:
    shape = [kept_shape[0], 4, 2, 5]
    with tf.Graph().as_default(), open_session() as session, tf.device('/cpu:0'):
        variables = TowerVariables(one_tower(), 0)
        towers = [
            LayerBuilder(variables, data_format, is_training=True, seed=seed) for seed in (0, 1000)
        ]
        dropped = [getattr(tower, layer)(tf.ones(shape), 0.3) for tower in towers for _ in range(2)]
        outputs = [*session.run(dropped), *session.run(dropped)]
    masks = [output[tuple(map(slice, kept_shape))] != 0 for output in outputs]
    for output, mask in zip(outputs, masks, strict=True):
        np.testing.assert_allclose(output, np.broadcast_to(mask / 0.7, shape), rtol=1e-6)
    check_independent(masks, 0.3)


def initial(initializer: Initializer, shape: list[int], seed: int = 1) -> np.ndarray:
    with tf.Graph().as_default(), open_session() as session:
        return session.run(initializer(shape, seed))


# The standard deviation of a standard normal distribution that is cut at two: sqrt(1 - 4 phi(2) /
# (2 Phi(2) - 1)).
CUT_STDDEV = math.sqrt(1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2)))


@pytest.mark.parametrize(
    ('initializer', 'shape', 'stddev'),
    [
        (truncated_normal(0.1), [400, 300], 0.1 * CUT_STDDEV),
        (he_normal, [3, 3, 64, 128], math.sqrt(2 / (3 * 3 * 64))),
        (he_normal, [1, 7, 96, 200], math.sqrt(2 / (7 * 96))),
        (he_normal, [400, 300], math.sqrt(2 / 400)),
        (glorot_normal, [3, 3, 64, 128], math.sqrt(2 / (3 * 3 * (64 + 128)))),
        (glorot_normal, [400, 300], math.sqrt(2 / 700)),
        (he_normal_fan_out, [3, 3, 64, 128], math.sqrt(2 / (3 * 3 * 128))),
        (he_normal_fan_out, [7, 7, 3000, 1], math.sqrt(2 / (7 * 7))),
    ],
)
def test_initial_values_have_the_standard_deviation_of_their_papers(
    initializer: Initializer, shape: list[int], stddev: float
) -> None:
    values = initial(initializer, shape)
    assert values.shape == tuple(shape)
    assert values.std() == pytest.approx(stddev, rel=0.01)
    assert abs(values.mean()) < 0.01 * stddev
    cut = 2 * stddev / CUT_STDDEV
    assert 0.98 * cut < np.abs(values).max() <= cut * 1.0001


def test_initial_values_follow_from_the_seed_and_a_constant_fills_the_variable() -> None:
    values = initial(he_normal, [20, 30], seed=3)
    np.testing.assert_array_equal(initial(he_normal, [20, 30], seed=3), values)
    assert np.abs(initial(he_normal, [20, 30], seed=4) - values).max() > 0.1
    np.testing.assert_array_equal(
        initial(constant(0.25), [2, 3]), np.full([2, 3], 0.25, np.float32)
    )
