"""Estimates throughputs of repeated runs with 95 % intervals (docs/results.md), without SciPy."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
# Fewer runs of a setting do not show its spread: Student's t is 12.7 for 2 runs, 4.3 for 3.
MIN_RUNS = 3

# Nodes and weights of the Gauss-Legendre rule on [-1, 1]; the integrand below is smooth.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
# The most steps of Newton's method; it usually takes 10.
_MAX_NEWTON_STEPS = 200


@dataclass(frozen=True)
class Estimate:
    """The throughput of one setting, and its uncertainty.

    Attributes:
      images_per_second: all images over all seconds; nan if no step was timed.
      num_steps: the steps of all runs.
      variance: the variance of the relative error; nan for fewer than MIN_RUNS runs.
      step_spread: the standard deviation of step seconds over their mean; nan if unknown.
      is_short: whether a run was too short for a verdict.
    """

    images_per_second: float
    num_runs: int
    num_steps: int
    variance: float = math.nan
    degrees_of_freedom: float = math.nan
    step_spread: float = math.nan
    is_short: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in images/sec, (low, high); None for fewer than MIN_RUNS runs."""
        if self.num_runs < MIN_RUNS:
            return None
        return interval_around(self.images_per_second, self.variance, self.degrees_of_freedom)

    @property
    def plus_minus(self) -> float | None:
        """Half of the interval's width over the throughput: 0.02 is printed as "+/- 2.0 %"."""
        low, high = self.interval or (math.nan, math.nan)
        return (high - low) / 2 / self.images_per_second if self.interval else None


def estimate_runs(rates: ArrayLike, images: Sequence[float] | None = None) -> Estimate:
    """Estimates the throughput of repeated runs from their images/sec, all above 0.

    The interval is Student's t (1908, The Probable Error of a Mean) on the relative errors of the
    seconds per image. Runs of unequal length count by their images (Cochran 1977, Sampling
    Techniques, equation 6.13, the variance of a ratio). The interval is symmetric on a logarithmic
    scale, as errors of durations are.
    """
    costs = 1 / np.asarray(rates, dtype=np.float64)
    weights = np.ones(costs.size) if images is None else np.asarray(images, dtype=np.float64)
    cost = float(np.average(costs, weights=weights))
    size = costs.size
    if size < MIN_RUNS:
        # 1 / (1 / rate) may differ from a rate in its last digit.
        return Estimate(float(np.ravel(rates)[0]) if size == 1 else 1 / cost, size, 0)
    deviations = weights / weights.mean() * (costs / cost - 1)
    return Estimate(
        1 / cost, size, 0, float(np.sum(np.square(deviations))) / (size - 1) / size, size - 1
    )


def interval_around(
    value: float, variance: float, degrees_of_freedom: float, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Returns the interval (low, high) of a throughput or ratio.

    variance is the variance of its relative error.
    """
    half = t_quantile(degrees_of_freedom, confidence) * math.sqrt(variance)
    return value * math.exp(-half), value * math.exp(half)


@functools.cache
def t_quantile(degrees_of_freedom: float, confidence: float = CONFIDENCE) -> float:
    """Returns the value that |T| exceeds with probability 1 - confidence; T is Student's t.

    With t = √ν tan θ the probability of |T| <= t is C ∫ cos^(ν-1) over [0, θ], where C = 2
    Γ((ν+1)/2) / (√π Γ(ν/2)): Abramowitz and Stegun 1964, 26.7.1. It is concave in θ, so Newton's
    method from 0 never overshoots. The degrees of freedom ν are at least 1, and may be fractional.
    """
    power = degrees_of_freedom - 1
    gammas = math.lgamma((degrees_of_freedom + 1) / 2) - math.lgamma(degrees_of_freedom / 2)
    area = confidence * math.sqrt(math.pi) / 2 / math.exp(gammas)
    theta = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        integral = theta / 2 * float(_WEIGHTS @ np.cos(theta / 2 * (_NODES + 1)) ** power)
        step = (area - integral) / math.cos(theta) ** power
        theta += step
        if abs(step) <= 1e-14 * theta:
            break
    return math.sqrt(degrees_of_freedom) * math.tan(theta)
