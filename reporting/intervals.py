"""The rate of repeated runs and its interval, from few runs. Needs no SciPy."""

import math
from collections.abc import Sequence

import numpy as np

# Nodes and weights of the Gauss-Legendre rule on [-1, 1]; the integrand below is smooth.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
# Of Newton's method, at most; usually 10.
_STEPS = 200


def mean_rate(rates: Sequence[float]) -> float:
    """The rate of runs of equal work, one after the other: their images over their seconds, not the mean of rates."""
    return 1 / float(np.mean(1 / np.asarray(rates, dtype=np.float64)))


def rate_interval(rates: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of mean_rate over repeated runs, by Student's t on their relative errors; (low, high), above 0.

    Student 1908, The Probable Error of a Mean. Symmetric on a logarithmic scale, as errors of durations are.

    Raises:
      ValueError: there are fewer than 2 rates, which say nothing about their spread.
    """
    if len(rates) < 2:
        raise ValueError(f'{len(rates)} values have no interval')
    seconds = 1 / np.asarray(rates, dtype=np.float64)
    relative_error = float(seconds.std(ddof=1) / seconds.mean()) / math.sqrt(seconds.size)
    factor = math.exp(t_quantile(0.5 + confidence / 2, seconds.size - 1) * relative_error)
    rate = mean_rate(rates)
    return rate / factor, rate * factor


def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The value which Student's t exceeds with probability 1 - `probability`.

    With t = √ν tan θ the probability of |T| <= t is C ∫ cos^(ν-1) over [0, θ], where C = 2 Γ((ν+1)/2) / (√π Γ(ν/2)):
    Abramowitz and Stegun 1964, 26.7.1. It is concave in θ, so that Newton's method from 0 never overshoots.

    Args:
      probability: above 0 and below 1. degrees_of_freedom: ν, at least 1; need not be whole.
    """
    if not (0 < probability < 1 and degrees_of_freedom >= 1):
        raise ValueError(f'probability {probability}, {degrees_of_freedom} degrees of freedom')
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    power = degrees_of_freedom - 1
    gammas = math.lgamma((degrees_of_freedom + 1) / 2) - math.lgamma(degrees_of_freedom / 2)
    area = (2 * probability - 1) * math.sqrt(math.pi) / 2 / math.exp(gammas)
    theta = 0.0
    for _ in range(_STEPS):
        found = theta / 2 * float(_WEIGHTS @ np.cos(theta / 2 * (_NODES + 1)) ** power)
        step = (area - found) / math.cos(theta) ** power
        theta += step
        if abs(step) <= 1e-14 * theta:
            break
    return math.sqrt(degrees_of_freedom) * math.tan(theta)
