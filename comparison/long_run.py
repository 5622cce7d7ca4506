"""How far the mean of consecutive steps may be off, although neighbouring steps resemble each other.

The steps of a run are not independent: a slow one is often followed by slow ones. s/√n is then too small, and so is a
bootstrap over blocks of so few steps (docs/compare.md has figures). The estimate here is the mean power
of the series at its lowest frequencies, the "equal-weighted cosine" estimate of the long-run variance: Lazarus, Lewis,
Stock and Watson 2018, HAR Inference: Recommendations for Practice, equations 8 to 10. Each frequency adds one degree of
freedom, and with few of them slow waves in the speed of the machine count in full.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from results.statistics import MAD_TO_STANDARD_DEVIATION

# With fewer steps no interval is given: there would be fewer than 2 degrees of freedom.
MIN_STEPS = 6

# At most 1.2 √n frequencies, and n/3: for 1000 steps as many as the source advises (0.4 n^(2/3), section 5), for 100
# steps more, since bursts of slow steps would else make intervals needlessly wide. At least 4, or all of them are wide.
_MOST_PER_ROOT = 1.2
_STEPS_PER_FREQUENCY = 3
_LEAST = 4
# The power of the highest frequency used may be lower than that of frequency 0 by this share.
_BIAS = 0.2
# Steps further from the median, in robust standard deviations, are bursts and tell nothing about the others.
_OUTLYING = 3.0
_MOST_CORRELATED = 0.99


@dataclass(frozen=True)
class MeanError:
    """How far a mean may be off: its variance, in squared units of the values, and the degrees of freedom of that."""

    variance: float
    degrees_of_freedom: float


def mean_error(values: ArrayLike) -> MeanError | None:
    """The error of the mean of [n] values in the order in which they were measured.

    Returns:
      None if there are fewer than MIN_STEPS values.
    """
    series = np.asarray(values, dtype=np.float64)
    if series.size < MIN_STEPS:
        return None
    count = _num_frequencies(series)
    return MeanError(float(np.mean(_powers(series, count))) / series.size, count)


def correlation(values: ArrayLike) -> float:
    """How much [n] values resemble their predecessors, from 0 to 0.99, without regard to bursts.

    The correlation with the predecessor, (1 + 3ρ)/n higher because the estimate is too low by that: Kendall 1954, Note
    on bias in the estimation of autocorrelation, equation 20.
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


def _num_frequencies(series: NDArray[np.float64]) -> int:
    """As many as possible while the power is nearly that of frequency 0, if each step depends on its predecessor.

    The power of such a series at the frequency ω is in proportion to 1 / (1 + ρ² - 2ρ cos ω).
    """
    most = min(int(_MOST_PER_ROOT * math.sqrt(series.size)), series.size // _STEPS_PER_FREQUENCY)
    rho = correlation(series)
    if not rho:
        return most
    cosine = 1 - (1 - rho) ** 2 / (2 * rho) * _BIAS / (1 - _BIAS)
    highest = math.acos(max(cosine, -1.0))
    return max(min(int(highest * series.size / math.pi), most), min(_LEAST, most))


def _powers(series: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The squared products of [n] values with the first [count] cosines."""
    size = series.size
    moments = (np.arange(size) + 0.5) / size
    cosines = math.sqrt(2 / size) * np.cos(np.pi * np.outer(np.arange(1, count + 1), moments))
    return np.asarray(cosines @ (series - series.mean())) ** 2
