"""Initial values have the distributions of their papers, and follow from the seed."""

import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import constant, glorot_normal, he_normal, he_normal_fan_out, truncated_normal
from tests.support.graphs import open_session
from training.variables import Initializer

pytestmark = pytest.mark.graph


def initial(initializer: Initializer, shape: list[int], seed: int = 1) -> np.ndarray:
    with tf.Graph().as_default(), open_session() as session:
        return session.run(initializer(shape, seed))


# The standard deviation of a standard normal distribution that is cut at two: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)).
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


def test_a_constant_initializer_fills_the_variable() -> None:
    np.testing.assert_array_equal(initial(constant(0.25), [2, 3]), np.full([2, 3], 0.25, np.float32))


def test_initial_values_follow_from_the_seed() -> None:
    values = initial(he_normal, [20, 30], seed=3)
    np.testing.assert_array_equal(initial(he_normal, [20, 30], seed=3), values)
    assert np.abs(initial(he_normal, [20, 30], seed=4) - values).max() > 0.1
