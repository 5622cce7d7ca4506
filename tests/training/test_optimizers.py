"""Every optimizer takes the steps of its textbook formulas and of TensorFlow's own."""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import assert_close, open_session
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.graph.variables import create_variable
from tf_cnn.training.optimizers import GradientDescent, Momentum, Optimizer, OptimizerStep

pytestmark = pytest.mark.graph

LEARNING_RATE, NUM_STEPS = 0.1, 5
START: Weights = {
    name: np.random.default_rng(1).normal(size=shape)
    for name, shape in {'kernel': (3, 2), 'bias': (4,), 'scalar': ()}.items()
} | {'zeros': np.zeros([2, 2])}


@pytest.fixture(autouse=True)
def _new_graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def gradients_at(weights: Weights, step: int) -> Weights:
    """Returns gradients that depend on the weights, with other sizes and signs in each step."""
    return {
        name: np.float64(value) * (step + 1) - 0.5 * (-1) ** step for name, value in weights.items()
    }


def trained(
    optimizer: Optimizer,
    start: Weights = START,
    gradients_at: Callable[[Weights, int], Weights] = gradients_at,
    *,
    gradient_clip: float | None = None,
    dtype: tf.DType = tf.float32,
) -> Weights:
    """Returns the weights after all steps of our optimizer."""
    step = tf.placeholder(tf.int64, [])
    optimizer_step = OptimizerStep(optimizer, tf.constant(LEARNING_RATE), step, gradient_clip)
    values, fed, ops = {}, {}, []
    for name, value in start.items():
        variable = create_variable(
            name, value.shape, scope='v', device='/cpu:0', trainable=True, dtype=dtype
        )
        fed[name], values[name] = tf.placeholder(tf.float32, value.shape), variable.value
        ops += optimizer_step.apply_slices([(fed[name], variable)])
        optimizer_step.initializers.append(variable.assign(tf.constant(value, dtype)))
    with open_session() as session:
        session.run(optimizer_step.initializers)
        for number in range(NUM_STEPS):
            gradients = gradients_at(session.run(values), number)
            session.run(ops, {step: number, **{fed[name]: gradients[name] for name in fed}})
        return session.run(values)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_five_steps_follow_the_textbook_formulas_and_tensorflow(name):
    forms = OPTIMIZERS[name]
    weights = trained(forms.ours)
    oracles = [forms.train(START, gradients_at, LEARNING_RATE, NUM_STEPS)]
    if forms.tensorflow:
        values = {
            key: tf.get_variable(key, initializer=tf.constant(value, tf.float32), use_resource=True)
            for key, value in START.items()
        }
        fed = {key: tf.placeholder(tf.float32, value.shape) for key, value in START.items()}
        optimizer = forms.tensorflow(LEARNING_RATE)
        apply = optimizer.apply_gradients([(fed[key], values[key]) for key in START])
        with open_session() as session:
            session.run(tf.global_variables_initializer())
            for number in range(NUM_STEPS):
                gradients = gradients_at(session.run(values), number)
                session.run(apply, {fed[key]: gradients[key] for key in fed})
            oracles.append(session.run(values))
    for expected, variable in itertools.product(oracles, START):
        np.testing.assert_allclose(
            weights[variable], expected[variable], rtol=2e-5, atol=1e-6, err_msg=variable
        )


def test_without_a_gradient_lars_trusts_the_weight_decay():
    lars, start = OPTIMIZERS['lars'], {'kernel': START['kernel']}
    no_gradient = {'kernel': np.zeros([3, 2])}
    expected = lars.train(start, lambda *_: no_gradient, LEARNING_RATE, NUM_STEPS)
    assert_close(trained(lars.ours, start, lambda *_: no_gradient), expected)


def test_every_element_of_a_gradient_is_clipped_on_both_sides():
    def clipped(weights: Weights, step: int) -> Weights:
        return {'kernel': np.clip(gradients_at(weights, step)['kernel'], -0.6, 0.6)}

    start = {'kernel': np.array([[-7.0, -0.4], [0.2, 9.0]])}
    expected = OPTIMIZERS['sgd'].train(start, clipped, LEARNING_RATE, NUM_STEPS)
    assert_close(trained(GradientDescent(), start, gradient_clip=0.6), expected)


@pytest.mark.parametrize(
    'optimizer', [GradientDescent(), Momentum(0.9), Momentum(0.9, nesterov=True)], ids=repr
)
def test_without_fused_kernels_16_bits_get_the_same_bits(optimizer, monkeypatch):
    """GPUs have no fused kernels for bfloat16."""
    start = {'kernel': np.random.default_rng(6).normal(size=1000)}
    ends = []
    for is_fused in (False, True):
        monkeypatch.setattr(
            'tf_cnn.training.optimizers.has_fused_kernels', lambda *_, fused=is_fused: fused
        )
        with tf.Graph().as_default() as graph:
            ends.append(trained(optimizer, start, dtype=tf.bfloat16)['kernel'])
        types = {op.type for op in graph.get_operations()}
        assert any(name.startswith('ResourceApply') for name in types) is is_fused
    np.testing.assert_array_equal(ends[0], ends[1])
