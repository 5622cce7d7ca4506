"""Compares throughputs: rates and ratios with 95 % intervals, and whether a difference is significant.

The true ratio of two settings is that of their expected wall seconds per image. All errors are relative: the variance
of a rate is that of the logarithm of its seconds per image, and intervals are symmetric on a logarithmic scale.

- Repeats: each run is one value, since processes differ from each other more than their steps show (Kalibera and Jones
  2013, Rigorous Benchmarking in Reasonable Time, section 4). Intervals use Student's t, with the degrees of freedom of
  Welch 1947, The Generalization of Student's Problem, equation 29. With 1 or 2 runs on a side, both sides share one
  variance (Student 1908), which needs at least 3 runs on one side. A bootstrap of 3 to 5 runs would be far too narrow.
- Single runs: the interval comes from the steps (comparison/intervals.py) and holds for these two processes only. Two
  single runs count as different only if their difference also exceeds the usual difference between processes of one
  setting, a Spread, and the share that other processes may have taken from one of them.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from comparison.intervals import FEWEST_RUNS, WIDEST, Estimate, estimate_runs, half_width, interval_around, mean_error
from comparison.original_logs import printed_spread
from results.document import Record

# If the spread of runs is unknown, it is assumed to equal that of single steps, with these degrees of freedom. On a
# noisy machine with 2 cores this called 2 of 54 pairs of equal runs of lenet different.
_ASSUMED_DEGREES = 4.0
# If others took a larger share, the rate of the run is meaningless.
_MOST_OF_OTHERS = 0.95
# The degrees of freedom of a spread that the user gives, which counts as exact.
_KNOWN_DEGREES = 1e6


class Clock(enum.Enum):
    """The seconds that count: WALL includes the time between steps except evaluations, STEPS only the steps."""

    WALL = 'wall'
    STEPS = 'steps'


class Significance(enum.Enum):
    """The verdict on a ratio, from its interval."""

    SAME = 'no significant difference'
    FASTER = 'faster'
    SLOWER = 'slower'
    FEW_RUNS = 'unknown: too few runs'
    FEW_STEPS = 'unknown: too few steps'
    DISTURBED = 'unknown: too disturbed'


@dataclass(frozen=True)
class Spread:
    """The spread of runs of one setting.

    Attributes:
      relative: the standard deviation of their rates, relative to the rate.
      degrees_of_freedom: the degrees of freedom of this estimate.
      source: its source in words.
      includes_others: whether it includes disturbance by other processes.
    """

    relative: float
    degrees_of_freedom: float
    source: str
    includes_others: bool = False


@dataclass(frozen=True)
class Ratio:
    """The throughput of one setting relative to that of another.

    Attributes:
      value: the ratio; above 1 if the setting is faster than the baseline.
      interval: the 95 % interval, (low, high); None if too little was measured, or it would be too wide.
      basis: the data behind the verdict, 'runs' or 'steps'; None if too little was measured.
      verdict: whether the difference is significant.
      spread: for single runs, the assumed difference between processes.
      threshold: for single runs, the factor that the ratio or its inverse must exceed to be significant; None if it
        would be too large.
    """

    value: float
    interval: tuple[float, float] | None
    basis: str | None
    verdict: Significance
    spread: Spread | None = None
    threshold: float | None = None

    @property
    def plus_minus(self) -> float | None:
        """Half of the width of the interval over the ratio; None without an interval."""
        return (self.interval[1] - self.interval[0]) / 2 / self.value if self.interval else None

    @property
    def is_significant(self) -> bool:
        return self.verdict in (Significance.FASTER, Significance.SLOWER)


def estimate(records: Sequence[Record], clock: Clock = Clock.WALL) -> Estimate:
    """Estimates the throughput of the runs of one setting, at least one run: see estimate_runs."""
    rates = [rate_of(record, clock) for record in records]
    if len(records) == 1:
        return _estimate_of_steps(records[0], rates[0], clock)
    images = [record.images for record in records]
    found = estimate_runs(rates, images if all(number > 0 for number in images) else None)
    spreads = [spread for record in records if math.isfinite(spread := _step_spread(record, clock))]
    return replace(
        found,
        num_steps=sum(record.step_seconds().size for record in records),
        step_spread=float(np.sqrt(np.mean(np.square(spreads)))) if spreads else math.nan,
    )


def compare(baseline: Estimate, other: Estimate, spread: Spread | None = None) -> Ratio:
    """Compares two throughputs, which must both be numbers.

    Args:
      baseline: the throughput by which `other` is divided.
      other: the throughput to judge.
      spread: the spread of runs, used if both are single runs; by default assumed from their steps.
    """
    value = other.images_per_second / baseline.images_per_second
    pair = (baseline, other)
    pooled = known_spread(pair)
    if not pooled and any(side.basis is None for side in pair):
        few_runs = any(side.num_runs > 1 for side in pair)
        return Ratio(value, None, None, Significance.FEW_RUNS if few_runs else Significance.FEW_STEPS)
    if pooled and min(side.num_runs for side in pair) < FEWEST_RUNS:
        variance = pooled.relative**2 * sum(1 / side.num_runs for side in pair)
        degrees = pooled.degrees_of_freedom
    else:
        variance = baseline.variance + other.variance
        degrees = _welch(pair)
    interval = interval_around(value, variance, degrees)
    least = half_width(variance, degrees)
    if pooled:
        return Ratio(value, interval, 'runs', _verdict(value, least))
    spread = spread or _assumed_spread(pair)
    of_runs = half_width(2 * spread.relative**2, spread.degrees_of_freedom)
    # Without the other processes, a run could have been faster by their share.
    share = 0.0 if spread.includes_others else max(side.share_of_others for side in pair)
    least = math.hypot(of_runs, least) - math.log1p(-share)
    threshold = math.exp(least) if least <= math.log(WIDEST) else None
    return Ratio(value, interval, 'steps', _verdict(value, least), spread, threshold)


def known_spread(estimates: Iterable[Estimate]) -> Spread | None:
    """Returns the spread of runs, pooled over the settings that were repeated; None if none was."""
    repeated = [(found.run_variance, found.num_runs) for found in estimates if found.run_variance is not None]
    if not repeated:
        return None
    degrees = sum(num_runs - 1 for _, num_runs in repeated)
    variance = sum(variance * (num_runs - 1) for variance, num_runs in repeated) / degrees
    return Spread(math.sqrt(variance), degrees, 'the repeats of other settings')


def given_spread(relative: float) -> Spread:
    """Returns a spread of runs that the user gives."""
    return Spread(relative, _KNOWN_DEGREES, '--run_spread', includes_others=True)


def _estimate_of_steps(record: Record, rate: float, clock: Clock) -> Estimate:
    seconds = _seconds(record, clock)
    spread = _step_spread(record, clock)
    error, mean = mean_error(seconds), float(np.mean(seconds)) if seconds.size else 0.0
    # A clock that was set back can make the mean negative.
    if error is None or not mean > 0:
        return Estimate(rate, 1, int(seconds.size), step_spread=spread)
    variance = error.variance / mean**2
    share = _share_of_others(record)
    return Estimate(rate, 1, int(seconds.size), variance, error.degrees_of_freedom, None, spread, share)


def rate_of(record: Record, clock: Clock) -> float:
    """Returns the images/sec of one run."""
    return record.images_per_second if clock is Clock.WALL else record.images_per_second_of_steps


def _seconds(record: Record, clock: Clock) -> NDArray[np.float64]:
    return record.means_of_runs(record.wall_seconds() if clock is Clock.WALL else record.step_seconds())


def _step_spread(record: Record, clock: Clock) -> float:
    printed = printed_spread(record)
    if printed is not None:
        return printed
    seconds = _seconds(record, clock)
    return float(seconds.std(ddof=1) / seconds.mean()) if seconds.size > 1 else math.nan


def _share_of_others(record: Record) -> float:
    found = record.document.get('disturbance') or {}
    if record.run.get('device') != 'cpu':
        return 0.0
    shares = (found.get('other_cpu_share') or 0.0, found.get('steal_share') or 0.0)
    return float(min(max(sum(shares), 0.0), _MOST_OF_OTHERS))


def _assumed_spread(pair: Sequence[Estimate]) -> Spread:
    relative = math.sqrt(sum(side.step_spread**2 for side in pair) / len(pair))
    return Spread(relative, _ASSUMED_DEGREES, 'assumed, the spread of single steps')


def _welch(pair: Sequence[Estimate]) -> float:
    """Returns the degrees of freedom of a sum of variances."""
    total = sum(side.variance for side in pair)
    if not total:
        return min(side.degrees_of_freedom for side in pair)
    return 1 / sum((side.variance / total) ** 2 / side.degrees_of_freedom for side in pair)


def _verdict(value: float, least: float) -> Significance:
    """Returns the verdict on a ratio that is significant if the size of its logarithm exceeds `least`."""
    if not abs(math.log(value)) > least:
        return Significance.SAME if least <= math.log(WIDEST) else Significance.DISTURBED
    return Significance.FASTER if value > 1 else Significance.SLOWER
