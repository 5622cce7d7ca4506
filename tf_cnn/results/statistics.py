"""Rates of steps, the distribution of their seconds, and their spread."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The median absolute deviation times this factor estimates the standard deviation of a normal
# distribution. The factor is 1 / Φ⁻¹(3/4): Rousseeuw and Croux 1993, Alternatives to the Median
# Absolute Deviation, section 1.
MAD_TO_STANDARD_DEVIATION = 1.4826
# Steps slower than the median by more than this many robust standard deviations are outliers: one
# step in 3.5 million if step times are normally distributed.
OUTLIER_DEVIATIONS = 5.0
# Shorter blocks are nearly as correlated as single steps.
_MIN_BLOCK = 4


@dataclass(frozen=True)
class Rate:
    """Throughput over some steps, and the spread of the rates of single steps; all in images/sec.

    Attributes:
      images_per_second: all images over all seconds.
      standard_error: of the mean of the rates: their sample standard deviation over √n; 0 for one
        step.
      jitter: 1.4826 times the median absolute deviation of the rates; robust against outliers.
    """

    images_per_second: float
    standard_error: float
    jitter: float


def throughput(images: int, seconds: float) -> float:
    """Returns images over wall seconds, in images/sec; nan if no time was measured."""
    return images / seconds if seconds > 0 else math.nan


def summarize(
    images_per_step: int,
    seconds: ArrayLike,
    newest_weight: float | None = None,
    num_steps: ArrayLike = 1,
) -> Rate:
    """Returns the rate over steps with these wall seconds, at least one step.

    images_per_second is all images over all seconds, not the mean of rates, so that each step
    counts by its duration.

    Args:
      num_steps: how many steps each value of seconds averages.
      newest_weight: if above 0, images_per_second is the images of a step over the exponentially
        weighted mean of the seconds, where a step has 1 - newest_weight times the weight of the
        next one (Roberts 1959, Control Chart Tests Based on Geometric Moving Averages, with weights
        that sum to 1).
    """
    values = np.asarray(seconds, dtype=np.float64)
    rates = images_per_step / values
    if newest_weight:
        mean = float(
            np.average(values, weights=(1 - newest_weight) ** np.arange(values.size)[::-1])
        )
        speed = throughput(images_per_step, mean)
    else:
        counts = np.broadcast_to(num_steps, values.shape)
        speed = throughput(images_per_step * int(counts.sum()), float((counts * values).sum()))
    error = float(np.std(rates, ddof=1) / math.sqrt(rates.size)) if rates.size > 1 else 0.0
    return Rate(speed, error, MAD_TO_STANDARD_DEVIATION * mad(rates))


def mad(values: ArrayLike) -> float:
    """Returns the median absolute deviation of [num_values] numbers, 1 or more, in their unit."""
    numbers = np.asarray(values, dtype=np.float64)
    return float(np.median(np.abs(numbers - np.median(numbers))))


def spread(values: ArrayLike) -> float:
    """Returns the robust standard deviation over the median of [num_values] numbers, at least one;
    0.02 is 2 %.
    """
    middle = float(np.median(np.asarray(values, dtype=np.float64)))
    return MAD_TO_STANDARD_DEVIATION * mad(values) / middle if middle else math.nan


def outliers(seconds: ArrayLike) -> NDArray[np.bool_]:
    """Returns which of [num_steps] steps are much slower than most, [num_steps] bool. Fast steps
    are not outliers.
    """
    values = np.asarray(seconds, dtype=np.float64)
    if not values.size:
        return np.zeros(0, dtype=bool)
    return values > np.median(values) + OUTLIER_DEVIATIONS * MAD_TO_STANDARD_DEVIATION * mad(values)


def drift(seconds: ArrayLike) -> float | None:
    """Returns the throughput of the second half of [num_steps] steps over the first half, minus 1;
    None under 4 steps.
    """
    values = np.asarray(seconds, dtype=np.float64)
    half = values.size // 2
    return float(values[:half].mean() / values[half:].mean() - 1) if values.size > 3 else None


def drift_deviations(seconds: ArrayLike, num_blocks: int = 5) -> float:
    """Returns how far the halves of [num_steps] steps differ, in standard errors; positive if the
    second is slower.

    nan with fewer than 4 steps in each of the num_blocks blocks of a half.

    Steps close in time are correlated, so the variance of single steps would understate the
    variance of a half. Means of blocks longer than this correlation are nearly independent (batch
    means: Law, Simulation Modeling and Analysis, chapter 9). The variance is estimated from
    differences between neighbouring blocks of a half (von Neumann 1941, Distribution of the Ratio
    of the Mean Square Successive Difference to the Variance), so that the trend does not count as
    noise.
    """
    values = np.asarray(seconds, dtype=np.float64)
    size = values.size // (2 * num_blocks)
    if size < _MIN_BLOCK:
        return math.nan
    blocks = values[-2 * num_blocks * size :].reshape(2, num_blocks, size).mean(axis=2)
    variances = np.square(np.diff(blocks, axis=1)).mean(axis=1) / 2
    error = math.sqrt(float(variances.sum()) / num_blocks)
    difference = float(blocks[1].mean() - blocks[0].mean())
    if error:
        return difference / error
    return math.copysign(math.inf, difference) if difference else 0.0
