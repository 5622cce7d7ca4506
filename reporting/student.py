"""Quantiles of Student's t distribution, without SciPy."""

import functools
import math

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_STEPS = 200


@functools.lru_cache(maxsize=4096)
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """The value below which a t-distributed number lies with this probability.

    With t = √ν tan θ the probability of |T| <= t is C ∫ cos^(ν-1) over [0, θ], where C = 2 Γ((ν+1)/2) / (√π Γ(ν/2)):
    Abramowitz and Stegun 1964, 26.7.1. It is concave in θ, so that Newton's method from 0 never overshoots.

    Args:
      probability: above 0 and below 1.
      degrees_of_freedom: at least 1; need not be an integer (Welch's are not).
    """
    if not (0 < probability < 1 and degrees_of_freedom >= 1):
        raise ValueError(f'no t quantile for {probability} and {degrees_of_freedom}')
    if probability < 0.5:
        return -t_quantile(1 - probability, degrees_of_freedom)
    inside, power = 2 * probability - 1, degrees_of_freedom - 1
    gammas = math.lgamma((degrees_of_freedom + 1) / 2) - math.lgamma(degrees_of_freedom / 2)
    scale = 2 / math.sqrt(math.pi) * math.exp(gammas)
    theta = 0.0
    for _ in range(_STEPS):
        middle = theta / 2
        area = middle * float(np.sum(_WEIGHTS * np.cos(middle * (_NODES + 1)) ** power))
        step = (inside / scale - area) / math.cos(theta) ** power
        theta += step
        if abs(step) <= 1e-14 * theta:
            break
    return math.sqrt(degrees_of_freedom) * math.tan(theta)
