"""References to compare with: optimizers in NumPy, and gradients without a variable manager."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from tf_cnn.training.optimizers import Adam, GradientDescent, Lars, Momentum, Optimizer, RmsProp

Weights = dict[str, np.ndarray]
# (variable, gradient, slots, learning rate, number of the step from 1) -> the amount to subtract
# from the variable. Changes the slots.
Update = Callable[[np.ndarray, np.ndarray, dict[str, Any], float, int], np.ndarray]


MOMENTUM, DECAY, EPSILON, BETAS, ETA, WEIGHT_DECAY = 0.9, 0.8, 0.01, (0.9, 0.999), 0.5, 0.01


def _momentum(is_nesterov: bool) -> Update:
    def update(value, gradient, slots, rate, step):
        slots['a'] = MOMENTUM * slots['a'] + gradient
        return rate * (gradient + MOMENTUM * slots['a'] if is_nesterov else slots['a'])

    return update


def _rmsprop(value, gradient, slots, rate, step):
    slots['s'] = DECAY * slots['s'] + (1 - DECAY) * gradient**2
    slots['m'] = MOMENTUM * slots['m'] + rate * gradient / np.sqrt(slots['s'] + EPSILON)
    return slots['m']


def _adam(value, gradient, slots, rate, step):
    beta1, beta2 = BETAS
    slots['m'] = beta1 * slots['m'] + (1 - beta1) * gradient
    slots['v'] = beta2 * slots['v'] + (1 - beta2) * gradient**2
    corrected_rate = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step)
    return corrected_rate * slots['m'] / (np.sqrt(slots['v']) + EPSILON)


def _lars(value, gradient, slots, rate, step):
    if value.ndim > 1:
        norm, gradient_norm = np.linalg.norm(value), np.linalg.norm(gradient)
        local_rate = (
            ETA * norm / (gradient_norm + WEIGHT_DECAY * norm) if norm and gradient_norm else 1.0
        )
        gradient = local_rate * (gradient + WEIGHT_DECAY * value)
    slots['v'] = MOMENTUM * slots['v'] + rate * gradient
    return slots['v']


@dataclass(frozen=True)
class OptimizerForms:
    """One update rule in three forms with the same constants: ours, TensorFlow's, as a function of
    the learning rate, and the textbook's formula, in float64. `slots` has the initial values of its
    slots.
    """

    ours: Optimizer
    tensorflow: Callable[[float], Any] | None
    update: Update
    slots: dict[str, float]

    def train(
        self,
        weights: Weights,
        gradients_at: Callable[[Weights, int], Weights],
        learning_rate: float,
        num_steps: int,
    ) -> Weights:
        """Returns the weights after steps by the formula. gradients_at gets the weights and the
        step's number from 0.
        """
        weights = {name: value.astype(np.float64) for name, value in weights.items()}
        slots: dict[str, dict[str, Any]] = {name: dict(self.slots) for name in weights}
        for step in range(num_steps):
            for name, gradient in gradients_at(dict(weights), step).items():
                value, gradient = weights[name], gradient.astype(np.float64)
                weights[name] = value - self.update(
                    value, gradient, slots[name], learning_rate, step + 1
                )
        return weights


# By the values of --optimizer.
OPTIMIZERS = {
    'sgd': OptimizerForms(
        GradientDescent(),
        tf.train.GradientDescentOptimizer,
        lambda value, gradient, slots, rate, step: rate * gradient,
        {},
    ),
    'momentum': OptimizerForms(
        Momentum(MOMENTUM, nesterov=True),
        lambda rate: tf.train.MomentumOptimizer(rate, MOMENTUM, use_nesterov=True),
        _momentum(is_nesterov=True),
        {'a': 0.0},
    ),
    # With --nonesterov.
    'plain_momentum': OptimizerForms(
        Momentum(MOMENTUM),
        lambda rate: tf.train.MomentumOptimizer(rate, MOMENTUM),
        _momentum(is_nesterov=False),
        {'a': 0.0},
    ),
    'rmsprop': OptimizerForms(
        RmsProp(DECAY, MOMENTUM, EPSILON),
        lambda rate: tf.train.RMSPropOptimizer(rate, DECAY, MOMENTUM, EPSILON),
        _rmsprop,
        {'s': 1.0, 'm': 0.0},
    ),
    'adam': OptimizerForms(
        Adam(*BETAS, EPSILON),
        lambda rate: tf.train.AdamOptimizer(rate, *BETAS, EPSILON),
        _adam,
        {'m': 0.0, 'v': 0.0},
    ),
    'lars': OptimizerForms(Lars(MOMENTUM, ETA, WEIGHT_DECAY), None, _lars, {'v': 0.0}),
}
