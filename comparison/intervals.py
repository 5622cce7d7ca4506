"""Rates with their 95 % intervals, as docs/measurement.md defines them: of repeated runs, and of the steps of one run.

The steps of a run are not independent: slow steps often follow a slow step. Then s/√n is too small, and so is a
bootstrap over blocks of so few steps (docs/compare.md has figures). For steps, mean_error is the mean power of the
series at its lowest frequencies, the "equal-weighted cosine" estimate of the long-run variance: Lazarus, Lewis, Stock
and Watson 2018, HAR Inference: Recommendations for Practice, equations 8 to 10. Each frequency adds one degree of
freedom; with few frequencies, slow waves in the speed of the machine count in full. Does not need SciPy.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from results.statistics import MAD_TO_STANDARD_DEVIATION

CONFIDENCE = 0.95
# Fewer runs of a setting do not show its spread: Student's t is 12.7 for 2 runs, 4.3 for 3.
FEWEST_RUNS = 3
# An interval that reaches beyond this many times the value, or its inverse, is too wide to report.
WIDEST = 2.0

# With fewer steps there would be fewer than 2 degrees of freedom, and no interval is reported.
MIN_STEPS = 6

# At most 1.2 √n and n/3 frequencies. For 1000 steps this is the number that the source advises (0.4 n^(2/3), section
# 5); for 100 steps it is more, since bursts of slow steps would otherwise make intervals needlessly wide. At least 4,
# since with fewer all intervals are wide.
_MOST_PER_ROOT = 1.2
_STEPS_PER_FREQUENCY = 3
_LEAST = 4
# The power of the highest frequency used may be lower than that of frequency 0 by this share.
_BIAS = 0.2
# Steps further from the median than this, in robust standard deviations, are bursts that say nothing about the others.
_OUTLYING = 3.0
_MOST_CORRELATED = 0.99

# Nodes and weights of the Gauss-Legendre rule on [-1, 1]; the integrand below is smooth.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
# The most steps of Newton's method; it usually takes 10.
_STEPS = 200


@dataclass(frozen=True)
class Estimate:
    """The throughput of one setting, and its uncertainty.

    Attributes:
      images_per_second: all images over all seconds; nan if no step was timed.
      num_runs: the number of runs.
      num_steps: the number of steps of all runs.
      variance: the variance of the relative error; nan if too little was measured.
      degrees_of_freedom: the degrees of freedom of that variance.
      run_variance: the variance of the relative differences between runs; None for fewer than FEWEST_RUNS runs.
      step_spread: the standard deviation of step seconds over their mean; nan if unknown.
      share_of_others: the share of the cores that other processes and machines took from a run on CPUs; 0 if unknown.
    """

    images_per_second: float
    num_runs: int
    num_steps: int
    variance: float = math.nan
    degrees_of_freedom: float = math.nan
    run_variance: float | None = None
    step_spread: float = math.nan
    share_of_others: float = 0.0

    @property
    def basis(self) -> str | None:
        """The data from which its error is computed: 'runs' or 'steps'; None if too little was measured."""
        if not math.isfinite(self.variance):
            return None
        return 'steps' if self.run_variance is None else 'runs'

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in images/sec, (low, high); None if too little was measured, or it would be too wide."""
        return interval_around(self.images_per_second, self.variance, self.degrees_of_freedom)

    @property
    def plus_minus(self) -> float | None:
        """Half of the interval's width over the rate: 0.02 is printed as "+/- 2.0 %"; None without an interval."""
        low, high = self.interval or (math.nan, math.nan)
        return (high - low) / 2 / self.images_per_second if self.interval else None


@dataclass(frozen=True)
class MeanError:
    """The error of a mean.

    Attributes:
      variance: its variance, in squared units of the values.
      degrees_of_freedom: the degrees of freedom of that variance.
    """

    variance: float
    degrees_of_freedom: float


def estimate_runs(rates: ArrayLike, images: ArrayLike | None = None) -> Estimate:
    """Estimates the rate of runs of one setting: all their images over all their seconds.

    The interval is Student's t (1908, The Probable Error of a Mean) on the relative errors of the seconds per image.
    Runs of unequal length count by their images (Cochran 1977, Sampling Techniques, equation 6.13, the variance of a
    ratio). The interval is symmetric on a logarithmic scale, as errors of durations are.

    Args:
      rates: images/sec of each run, at least one, all above 0.
      images: the images of each run; by default the same number.

    Returns:
      The estimate, with a variance if there are at least FEWEST_RUNS runs.
    """
    costs = 1 / np.asarray(rates, dtype=np.float64)
    weights = np.ones(costs.size) if images is None else np.asarray(images, dtype=np.float64)
    cost = float(np.average(costs, weights=weights))
    size = costs.size
    if size < FEWEST_RUNS:
        return Estimate(1 / cost, size, 0)
    deviations = weights / weights.mean() * (costs / cost - 1)
    run_variance = float(np.sum(np.square(deviations))) / (size - 1)
    return Estimate(1 / cost, size, 0, run_variance / size, size - 1, run_variance)


def mean_error(values: ArrayLike) -> MeanError | None:
    """Estimates the error of the mean of [n] values, in the order in which they were measured.

    Returns:
      The error, or None for fewer than MIN_STEPS values.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.size < MIN_STEPS:
        return None
    count = _num_frequencies(series)
    return MeanError(float(np.mean(_powers(series, count))) / series.size, count)


def correlation(values: ArrayLike) -> float:
    """Returns the correlation of [n] values with their predecessors, from 0 to 0.99, ignoring bursts.

    Adds (1 + 3ρ)/n, the bias of the usual estimate: Kendall 1954, Note on bias in the estimation of autocorrelation,
    equation 20.
    """
    series = np.asarray(values, dtype=np.float64)
    distance = np.abs(series - np.median(series))
    usual = (distance <= _OUTLYING * MAD_TO_STANDARD_DEVIATION * np.median(distance)).astype(np.float64)
    centred = (series - np.average(series, weights=usual)) * usual
    variance = np.sum(centred**2) / np.sum(usual)
    num_pairs = np.sum(usual[1:] * usual[:-1])
    if not variance or not num_pairs:
        return 0.0
    found = float(np.sum(centred[1:] * centred[:-1]) / num_pairs / variance)
    return min(max(found + (1 + 3 * found) / series.size, 0.0), _MOST_CORRELATED)


def interval_around(value: float, variance: float, degrees_of_freedom: float) -> tuple[float, float] | None:
    """Returns the 95 % interval of a rate or ratio from the variance of its relative error.

    Returns:
      (low, high), or None if the variance is unknown or the interval would reach beyond WIDEST times the value.
    """
    if not math.isfinite(variance) or not math.isfinite(value):
        return None
    half = half_width(variance, degrees_of_freedom)
    return None if half > math.log(WIDEST) else (value * math.exp(-half), value * math.exp(half))


def half_width(variance: float, degrees_of_freedom: float) -> float:
    """Returns half of the width of the 95 % interval on a logarithmic scale."""
    return t_quantile(0.5 + CONFIDENCE / 2, degrees_of_freedom) * math.sqrt(variance)


@functools.cache
def t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Returns the value that Student's t exceeds with probability 1 - `probability`.

    With t = √ν tan θ the probability of |T| <= t is C ∫ cos^(ν-1) over [0, θ], where C = 2 Γ((ν+1)/2) / (√π Γ(ν/2)):
    Abramowitz and Stegun 1964, 26.7.1. It is concave in θ, so Newton's method from 0 never overshoots.

    Args:
      probability: a number between 0 and 1.
      degrees_of_freedom: ν, at least 1; may be fractional.
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


def _num_frequencies(series: NDArray[np.float64]) -> int:
    """Returns the largest number of frequencies whose power is nearly that of frequency 0.

    Assumes that each step depends on its predecessor only; then the power at the frequency ω is in proportion to
    1 / (1 + ρ² - 2ρ cos ω).
    """
    most = min(int(_MOST_PER_ROOT * math.sqrt(series.size)), series.size // _STEPS_PER_FREQUENCY)
    rho = correlation(series)
    if not rho:
        return most
    cosine = 1 - (1 - rho) ** 2 / (2 * rho) * _BIAS / (1 - _BIAS)
    highest = math.acos(max(cosine, -1.0))
    return max(min(int(highest * series.size / math.pi), most), min(_LEAST, most))


def _powers(series: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Returns the squared products of [n] values with the first [count] cosines."""
    size = series.size
    moments = (np.arange(size) + 0.5) / size
    cosines = math.sqrt(2 / size) * np.cos(np.pi * np.outer(np.arange(1, count + 1), moments))
    return np.asarray(cosines @ (series - series.mean())) ** 2
