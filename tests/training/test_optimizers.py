"""Every optimizer takes the steps of its textbook formulas and of TensorFlow's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import open_session
from tests.support.oracles import OPTIMIZERS, PLAIN_MOMENTUM, Weights
from tf_cnn.graph.variables import create_variable
from tf_cnn.training.optimizers import GradientDescent, Momentum, Optimizer, OptimizerStep

pytestmark = pytest.mark.graph

SHAPES: dict[str, list[int]] = {'kernel': [3, 2], 'bias': [4], 'scalar': []}
LEARNING_RATE, NUM_STEPS = 0.1, 5
START: Weights = {
    name: np.random.default_rng(1).normal(size=shape) for name, shape in SHAPES.items()
}
START['zeros'] = np.zeros([2, 2])
FORMS = {**OPTIMIZERS, 'plain momentum': PLAIN_MOMENTUM}


def gradients_at(weights: Weights, step: int) -> Weights:
    """They depend on the weights, as real ones do, and differ in size and sign from step to
    step.
    """
    return {
        name: np.asarray(value * (step + 1) - 0.5 * (-1) ** step) for name, value in weights.items()
    }


def trained(
    optimizer: Optimizer,
    start: Weights,
    *,
    gradient_clip: float | None = None,
    gradients_at: Callable[[Weights, int], Weights] = gradients_at,
) -> Weights:
    """The weights after all steps of ours."""
    with tf.Graph().as_default(), open_session() as session:
        step, rate = tf.placeholder(tf.int64, []), tf.placeholder(tf.float32, [])
        variables = {
            name: create_variable(name, value.shape, scope='v', device='/cpu:0', trainable=True)
            for name, value in start.items()
        }
        gradients = {name: tf.placeholder(tf.float32, value.shape) for name, value in start.items()}
        optimizer_step = OptimizerStep(optimizer, rate, step, gradient_clip)
        apply = [optimizer_step.apply(gradients[name], variables[name]) for name in start]
        initial = [
            variables[name].assign(tf.constant(value, tf.float32)) for name, value in start.items()
        ]
        values = {name: variables[name].value for name in start}
        session.run([initial, optimizer_step.initializers])
        for number in range(NUM_STEPS):
            now = gradients_at(session.run(values), number)
            session.run(
                apply,
                {step: number, rate: LEARNING_RATE}
                | {gradients[name]: now[name] for name in start},
            )
        return session.run(values)


def trained_by_tensorflow(optimizer: Any, start: Weights) -> Weights:
    with tf.Graph().as_default(), open_session() as session:
        variables = {
            name: tf.get_variable(
                name, initializer=tf.constant(value, tf.float32), use_resource=True
            )
            for name, value in start.items()
        }
        gradients = {name: tf.placeholder(tf.float32, value.shape) for name, value in start.items()}
        apply = optimizer.apply_gradients([(gradients[name], variables[name]) for name in start])
        session.run(tf.global_variables_initializer())
        for number in range(NUM_STEPS):
            now = gradients_at(session.run(variables), number)
            session.run(apply, {gradients[name]: now[name] for name in start})
        return session.run(variables)


def assert_equal(weights: Weights, expected: Weights) -> None:
    for name in expected:
        np.testing.assert_allclose(
            weights[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize('name', FORMS)
def test_five_steps_follow_the_textbook_formulas_and_tensorflow(name: str) -> None:
    forms = FORMS[name]
    found = trained(forms.ours, START)
    assert_equal(found, forms.numpy.train(START, gradients_at, LEARNING_RATE, NUM_STEPS))
    if forms.tensorflow:
        assert_equal(found, trained_by_tensorflow(forms.tensorflow(LEARNING_RATE), START))


def test_without_a_gradient_lars_trusts_the_weight_decay() -> None:
    forms = OPTIMIZERS['lars']
    still = {'kernel': np.zeros([3, 2])}
    expected = forms.numpy.train(
        {'kernel': START['kernel']}, lambda *_: still, LEARNING_RATE, NUM_STEPS
    )
    assert_equal(
        trained(forms.ours, {'kernel': START['kernel']}, gradients_at=lambda *_: still), expected
    )


def test_every_element_of_a_gradient_is_clipped_on_both_sides() -> None:
    start = {'kernel': np.array([[-7.0, -0.4], [0.2, 9.0]])}
    weights = start['kernel']
    for step in range(NUM_STEPS):
        gradient = gradients_at({'kernel': weights}, step)['kernel']
        weights = weights - LEARNING_RATE * np.clip(gradient, -0.6, 0.6)
    assert_equal(trained(GradientDescent(), start, gradient_clip=0.6), {'kernel': weights})


@pytest.mark.parametrize(
    'optimizer', [GradientDescent(), Momentum(0.9), Momentum(0.9, nesterov=True)], ids=repr
)
def test_without_fused_kernels_16_bits_get_the_same_bits(
    optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPUs have no fused kernels for bfloat16."""
    random = np.random.default_rng(6)
    start, *gradients = (random.normal(size=1000).astype(np.float32) for _ in range(4))

    def end(*, is_fused: bool) -> np.ndarray:
        monkeypatch.setattr(
            'tf_cnn.training.optimizers.has_fused_kernels', lambda learning_rate: is_fused
        )
        with tf.Graph().as_default() as graph, open_session() as session:
            gradient = tf.placeholder(tf.float32, [1000])
            own = create_variable(
                'kernel', [1000], scope='v', device='/cpu:0', trainable=True, dtype=tf.bfloat16
            )
            step = OptimizerStep(
                optimizer, tf.constant(LEARNING_RATE), tf.constant(0, tf.int64), None
            )
            applied = step.apply(gradient, own)
            types = {op.type for op in graph.get_operations()}
            assert any(name.startswith('ResourceApply') for name in types) is is_fused
            session.run([own.assign(tf.constant(start, tf.bfloat16)), step.initializers])
            for values in gradients:
                session.run(applied, {gradient: values})
            return np.asarray(session.run(tf.cast(own.read_again(), tf.float32)))

    np.testing.assert_array_equal(end(is_fused=False), end(is_fused=True))
