"""Rates of steps, the distribution of their seconds, and their spread."""

import array
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Makes the median absolute deviation an estimate of the standard deviation of a normal distribution: 1 / Φ⁻¹(3/4).
# Rousseeuw and Croux 1993, Alternatives to the Median Absolute Deviation, section 1.
MAD_TO_STANDARD_DEVIATION = 1.4826
# Steps slower than the median by more than this many robust standard deviations are outliers. Of normal step times, one
# in 3.5 million is.
OUTLIER_DEVIATIONS = 5.0
_PERCENTILES = (50, 90, 95, 99)
# Shorter blocks are nearly as alike as single steps.
_MIN_BLOCK = 4


@dataclass(frozen=True)
class Rate:
    """Throughput over some steps, with the spread of the rates of single steps; all in images/sec."""

    images_per_second: float
    standard_error: float
    jitter: float


def throughput(images: int, seconds: float) -> float:
    """Images over wall seconds, in images/sec; nan if no time was measured."""
    return images / seconds if seconds > 0 else math.nan


def step_rates(images_per_step: int, seconds: ArrayLike) -> NDArray[np.float64]:
    """The rate of each step in images/sec: [num_steps] float64, from the wall seconds of each, [num_steps], all > 0."""
    return images_per_step / np.asarray(seconds, dtype=np.float64)


def standard_error(rates: ArrayLike) -> float:
    """The standard error of the mean of [num_steps] rates: their sample standard deviation over √n; 0 for one step."""
    values = np.asarray(rates, dtype=np.float64)
    return float(np.std(values, ddof=1) / math.sqrt(values.size)) if values.size > 1 else 0.0


def jitter(rates: ArrayLike) -> float:
    """1.4826 times the median absolute deviation of [num_steps] rates, at least one; robust against outliers."""
    return MAD_TO_STANDARD_DEVIATION * mad(rates)


def summarize(
    images_per_step: int, seconds: ArrayLike, newest_weight: float | None = None, num_steps: ArrayLike = 1
) -> Rate:
    """The rate over steps with these wall seconds, at least one step.

    images_per_second is all images over all seconds, not the mean of rates, so that a step counts by its duration.

    Args:
      num_steps: of how many steps each of the seconds is the mean.
      newest_weight: if above 0, images_per_second is the images of a step over the exponentially weighted mean of the
        seconds, where a step has 1 - newest_weight times the weight of the next one (Roberts 1959, Control Chart Tests
        Based on Geometric Moving Averages, with the sum of the weights made 1).
    """
    values = np.asarray(seconds, dtype=np.float64)
    rates = step_rates(images_per_step, values)
    if newest_weight:
        mean = float(np.average(values, weights=(1 - newest_weight) ** np.arange(values.size)[::-1]))
        speed = throughput(images_per_step, mean)
    else:
        counts = np.broadcast_to(num_steps, values.shape)
        speed = throughput(images_per_step * int(counts.sum()), float((counts * values).sum()))
    return Rate(speed, standard_error(rates), jitter(rates))


class RunningRate:
    """The rate of the steps so far. Keeps their seconds in one array, so that long runs can print it often."""

    def __init__(self) -> None:
        self._seconds = array.array('d')
        self._num_steps = array.array('q')

    def add(self, seconds: float, num_steps: int = 1) -> None:
        """Adds a step that took this long; or, as one value, several that took this long on average."""
        self._seconds.append(seconds)
        self._num_steps.append(num_steps)

    def over(self, images_per_step: int, newest_weight: float | None = None) -> Rate:
        """The rate of the steps so far, as summarize; requires a step."""
        # A copy, since an array of which there is a view cannot grow.
        return summarize(images_per_step, np.array(self._seconds), newest_weight, np.array(self._num_steps))


def mad(values: ArrayLike) -> float:
    """The median absolute deviation from the median of [num_values] numbers, at least one, in their unit."""
    numbers = np.asarray(values, dtype=np.float64)
    return float(np.median(np.abs(numbers - np.median(numbers))))


def spread(values: ArrayLike) -> float:
    """The robust standard deviation over the median of [num_values] numbers, at least one; 0.02 is 2 %."""
    middle = float(np.median(np.asarray(values, dtype=np.float64)))
    return MAD_TO_STANDARD_DEVIATION * mad(values) / middle if middle else math.nan


def outliers(seconds: ArrayLike) -> NDArray[np.bool_]:
    """Which of [num_steps] steps are much slower than most: [num_steps] bool. Fast steps are no outliers."""
    values = np.asarray(seconds, dtype=np.float64)
    if not values.size:
        return np.zeros(0, dtype=bool)
    return values > np.median(values) + OUTLIER_DEVIATIONS * MAD_TO_STANDARD_DEVIATION * mad(values)


def drift(seconds: ArrayLike) -> float | None:
    """The rate of the second half of [num_steps] steps over that of the first, minus 1; None under 4 steps."""
    values = np.asarray(seconds, dtype=np.float64)
    half = values.size // 2
    return float(values[:half].mean() / values[half:].mean() - 1) if values.size > 3 else None


def drift_deviations(seconds: ArrayLike, num_blocks: int = 5) -> float:
    """How far the halves of [num_steps] steps differ, in standard errors; positive if the second half is slower.

    Steps near each other in time are alike, so that their own variance would understate that of a half. Means of
    blocks that are longer than this likeness lasts are nearly independent (batch means: Law, Simulation Modeling and
    Analysis, chapter 9). The variance comes from differences between neighbouring blocks of a half (von Neumann 1941,
    Distribution of the Ratio of the Mean Square Successive Difference to the Variance), so that a trend, which is what
    is looked for, does not count as noise.

    Args:
      num_blocks: in each half.

    Returns:
      nan with fewer than 4 steps in each block.
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


def modified_z_scores(values: ArrayLike) -> NDArray[np.float64]:
    """How far each of [num_values] numbers is from their median, in units of what the MAD says is usual.

    Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers, section 3.3. Infinite where most values are equal.
    """
    numbers = np.asarray(values, dtype=np.float64)
    distances = numbers - np.median(numbers)
    scale = MAD_TO_STANDARD_DEVIATION * mad(numbers)
    with np.errstate(divide='ignore', invalid='ignore'):
        return np.where(distances == 0, 0.0, distances / scale)


def describe(seconds: ArrayLike) -> dict[str, Any]:
    """The distribution of the seconds of [num_steps] steps, as the object "statistics" of a result has it.

    Percentiles are interpolated linearly. Without steps all but the counts are None.
    """
    values = np.asarray(seconds, dtype=np.float64)
    names = ('mean', 'median', 'mad', 'min', 'max', *(f'p{percent}' for percent in _PERCENTILES))
    numbers: list[float | None] = [None] * len(names)
    if values.size:
        middle = float(np.median(values))
        found = np.percentile(values, _PERCENTILES)
        numbers = [float(values.mean()), middle, mad(values), float(values.min()), float(values.max()), *found.tolist()]
    return {
        'num_steps': int(values.size),
        'step_seconds': dict(zip(names, numbers, strict=True)),
        'drift': drift(values),
        'num_outliers': int(outliers(values).sum()),
    }
