"""Rates of steps and their spread."""

import array
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Makes the median absolute deviation an estimate of the standard deviation of a normal distribution: 1 / Φ⁻¹(3/4).
# Rousseeuw and Croux 1993, Alternatives to the Median Absolute Deviation, section 1.
MAD_TO_STANDARD_DEVIATION = 1.4826


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
    values = np.asarray(rates, dtype=np.float64)
    return float(MAD_TO_STANDARD_DEVIATION * np.median(np.abs(values - np.median(values))))


def summarize(images_per_step: int, seconds: ArrayLike) -> Rate:
    """The rate over steps with these wall seconds, at least one step.

    images_per_second is all images over all seconds, not the mean of rates, so that a step counts by its duration.
    """
    values = np.asarray(seconds, dtype=np.float64)
    rates = step_rates(images_per_step, values)
    return Rate(throughput(images_per_step * values.size, float(values.sum())), standard_error(rates), jitter(rates))


class RunningRate:
    """The rate of the steps so far. Keeps their seconds in one array, so that long runs can print it often."""

    def __init__(self) -> None:
        self._seconds = array.array('d')

    def add(self, seconds: float) -> None:
        """Adds a step that took this long."""
        self._seconds.append(seconds)

    def over(self, images_per_step: int) -> Rate:
        """The rate of the steps so far, as summarize; requires a step."""
        # A copy, since an array of which there is a view cannot grow.
        return summarize(images_per_step, np.array(self._seconds))
