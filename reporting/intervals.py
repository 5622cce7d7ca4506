"""Intervals of a mean from few values. Needs no SciPy."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Nodes and weights of the Gauss-Legendre rule on [-1, 1]; the integrand below is smooth, so that 128 nodes give
# 8 digits and more.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
# The widest bracket of the quantile, in units of Student's t for many degrees of freedom.
_FAR = 40.0
_HALVINGS = 100


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the mean of values drawn from a normal distribution, by Student's t; (low, high).

    Student 1908, The Probable Error of a Mean.

    Raises:
      ValueError: there are fewer than 2 values, which say nothing about their spread.
    """
    if len(values) < 2:
        raise ValueError(f'{len(values)} values have no interval')
    numbers = np.asarray(values, dtype=np.float64)
    error = float(numbers.std(ddof=1)) / math.sqrt(numbers.size)
    half = t_quantile(0.5 + confidence / 2, numbers.size - 1) * error
    mean = float(numbers.mean())
    return mean - half, mean + half


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The value which Student's t exceeds with probability 1 - `probability`.

    With t = √ν tan θ the density becomes proportional to cos^(ν-1) θ, which is integrated numerically from 0 and whose
    integral is inverted by bisection.

    Args:
      probability: above 0 and below 1. degrees_of_freedom: ν, at least 1; need not be whole.
    """
    if not (0 < probability < 1 and degrees_of_freedom >= 1):
        raise ValueError(f'probability {probability}, {degrees_of_freedom} degrees of freedom')
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    nu = degrees_of_freedom
    # Of cos^(ν-1) over (-π/2, π/2).
    scale = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi)

    def above_median(angle: float) -> float:
        angles: NDArray[np.float64] = angle / 2 * (_NODES + 1)
        return scale * angle / 2 * float(_WEIGHTS @ np.cos(angles) ** (nu - 1))

    low, high = 0.0, min(math.pi / 2, _FAR / math.sqrt(nu))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if above_median(middle) < probability - 0.5:
            low = middle
        else:
            high = middle
    return math.sqrt(nu) * math.tan((low + high) / 2)
