"""Compares throughputs: ratios with 95 % intervals, and whether a difference is significant.

The true ratio of two settings is the ratio of their expected wall seconds per image. Each run is
one value, since processes differ from each other more than their steps show (Kalibera and Jones
2013, Rigorous Benchmarking in Reasonable Time, section 4). Errors are relative: the variance of a
throughput is the variance of log(seconds per image), and intervals are symmetric on a logarithmic
scale. They use Student's t, with the degrees of freedom of Welch 1947, The Generalization of
Student's Problem, equation 29. A bootstrap of 3 to 5 runs would be far too narrow.
"""

import enum
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
# Fewer runs of a setting do not show its spread: Student's t is 12.7 for 2 runs, 4.3 for 3.
MIN_RUNS = 3

# One host in 1000 exceeds this normal quantile if all hosts have one spread.
_UNSTEADY = NormalDist().inv_cdf(0.999)

# Nodes and weights of the Gauss-Legendre rule on [-1, 1]; the integrand below is smooth.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
# The most steps of Newton's method; it usually takes 10.
_MAX_NEWTON_STEPS = 200


@dataclass(frozen=True)
class Estimate:
    """The throughput of one setting, and its uncertainty.

    Attributes:
      images_per_second: all images over all seconds; nan if no step was timed.
      variance: the variance of the relative error; nan for fewer than MIN_RUNS runs.
      is_short: whether a run was too short for a verdict.
    """

    images_per_second: float
    num_runs: int
    variance: float = math.nan
    degrees_of_freedom: float = math.nan
    is_short: bool = False

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in images/sec, (low, high); None for fewer than MIN_RUNS runs."""
        if self.num_runs < MIN_RUNS:
            return None
        return interval_around(self.images_per_second, self.variance, self.degrees_of_freedom)


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
        return Estimate(float(np.ravel(rates)[0]) if size == 1 else 1 / cost, size)
    deviations = weights / weights.mean() * (costs / cost - 1)
    return Estimate(
        1 / cost, size, float(np.sum(np.square(deviations))) / (size - 1) / size, size - 1
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


class Significance(enum.Enum):
    SAME = 'no significant difference'
    FASTER = 'faster'
    SLOWER = 'slower'
    FEW_RUNS = 'too few runs'
    TOO_SHORT = 'too short to judge'


@dataclass(frozen=True)
class Ratio:
    """Candidate throughput over baseline throughput; above 1 if the candidate is faster.

    Attributes:
      interval: the 95 % interval (low, high), or None if a side has fewer than MIN_RUNS runs.
      is_unsteady: whether the runs of a host differ far more than the runs of other hosts do, or
        earlier runs too much.
    """

    value: float
    interval: tuple[float, float] | None
    is_short: bool = False
    is_unsteady: bool = False

    @property
    def verdict(self) -> Significance:
        if self.is_short:
            return Significance.TOO_SHORT
        if self.interval is None:
            return Significance.FEW_RUNS
        low, high = self.interval
        return (
            Significance.FASTER
            if low > 1
            else Significance.SLOWER
            if high < 1
            else Significance.SAME
        )

    @property
    def is_significant(self) -> bool:
        return self.verdict in (Significance.FASTER, Significance.SLOWER)


def compare(baseline: Estimate, candidate: Estimate) -> Ratio:
    """Compares two throughputs, which must both be numbers: the ratio of `candidate` to
    `baseline`.
    """
    value = candidate.images_per_second / baseline.images_per_second
    return _with_interval(value, [baseline, candidate])


def geometric_mean(pairs: Sequence[tuple[Estimate, Estimate]]) -> Ratio:
    """Returns the geometric mean of the ratios of (baseline, candidate), each of equal weight.

    Unlike the arithmetic mean it does not depend on which side is the baseline: Fleming and Wallace
    1986, How Not to Lie with Statistics. Its logarithm is the mean of the ratios' logarithms, so
    its variance is the sum of all variances over the squared number of pairs, with the degrees of
    freedom of Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components.
    The interval is about these settings only: it does not include how other settings differ.
    """
    logarithms = [math.log(compare(*pair).value) for pair in pairs]
    value = math.exp(math.fsum(logarithms) / len(pairs))
    return _with_interval(value, [side for pair in pairs for side in pair])


def _with_interval(value: float, sides: Sequence[Estimate]) -> Ratio:
    """Returns the ratio of two throughputs, or the mean of several, with its interval.

    sides has both throughputs of each ratio.
    """
    is_short = any(side.is_short for side in sides)
    if min(side.num_runs for side in sides) < MIN_RUNS:
        return Ratio(value, None, is_short)
    total = sum(side.variance for side in sides)
    # Welch's degrees of freedom of a sum of variances.
    degrees = (
        1 / sum((side.variance / total) ** 2 / side.degrees_of_freedom for side in sides)
        if total
        else min(side.degrees_of_freedom for side in sides)
    )
    num_ratios = len(sides) / 2
    return Ratio(value, interval_around(value, total / num_ratios**2, degrees), is_short)


# ---- several hosts -------------------------------------------------------------------------------
#
# Hosts are equals, so each is held against the others and none against the first. Few runs of a
# host do not show its spread, so hosts share one spread. A host that another program disturbed must
# not decide for the others: medians stand for them, and a host with a much larger spread keeps it
# alone. docs/acceptance.md says how well this works.


def compare_with_others(
    estimates: Sequence[Estimate], medians: Sequence[float]
) -> list[tuple[Ratio, float]]:
    """Returns the ratio of each of three or more hosts, and the median rate of the others.

    Each host has MIN_RUNS runs or more of one setting. The variance of a run is pooled, as in
    Dunnett 1955, A Multiple Comparison Procedure for Comparing Several Treatments with a Control;
    the larger variance of a single host counts for this host. The level is shared among the hosts
    (Sidak 1967, Rectangular Confidence Regions). Of three hosts, one differs only if it differs
    from both others, so each pair has the whole level (Berger 1982, Multiparameter Hypothesis
    Testing and Acceptance Sampling).

    Args:
      estimates: the throughputs.
      medians: the median images/sec of each host's runs, which stands for an unsteady host.
    """
    num_hosts = len(estimates)
    num_runs = np.array([host.num_runs for host in estimates])
    degrees = np.array([host.degrees_of_freedom for host in estimates])
    # The variance of the relative error of a run.
    variances = np.array([host.variance for host in estimates]) * num_runs
    # The cube root of a variance is nearly normal: Wilson and Hilferty 1931, The Distribution of
    # Chi-Square.
    shift = 2 / (9 * degrees)
    typical = np.median(variances / (1 - shift) ** 3)
    is_unsteady = variances > typical * (1 - shift + _UNSTEADY * np.sqrt(shift)) ** 3
    steady_degrees = degrees[~is_unsteady]
    pooled = np.average(variances[~is_unsteady], weights=steady_degrees)
    variance_of_others = pooled * variance_of_median(num_hosts - 1 - num_hosts % 2)
    error_variances = np.maximum(variances, pooled) / num_runs + variance_of_others * np.mean(
        1 / num_runs
    )
    rates = np.where(is_unsteady, medians, [host.images_per_second for host in estimates])
    ordered = sorted(rates.tolist())
    confidence = CONFIDENCE ** (1 / num_hosts) if num_hosts > 3 else CONFIDENCE
    ratios = []
    for rate, variance, unsteady in zip(
        rates.tolist(), error_variances.tolist(), is_unsteady.tolist(), strict=True
    ):
        other_rates = [*ordered]
        other_rates.remove(rate)
        # Of an even number, the nearer of the two in the middle; it is a median, too, if the
        # farthest host on the other side is left out.
        median = min(
            max(rate, other_rates[(num_hosts - 2) // 2]), other_rates[(num_hosts - 1) // 2]
        )
        interval = interval_around(rate / median, variance, float(steady_degrees.sum()), confidence)
        ratios.append((Ratio(rate / median, interval, is_unsteady=unsteady), median))
    return ratios


@functools.cache
def variance_of_median(size: int) -> float:
    """Returns the variance of the median of an odd number of standard normal values.

    Integrates the density of an order statistic (David and Nagaraja 2003, Order Statistics,
    section 2.1); the sum over equal steps is exact to ten digits.
    """
    values = np.linspace(-9, 9, 721)
    below = np.array([NormalDist().cdf(value) for value in values])
    density = (below * (1 - below)) ** (size // 2) * np.exp(-np.square(values) / 2)
    return float(density @ np.square(values) / density.sum())
