"""Compares throughputs: rates and ratios with 95 % intervals, and whether a difference is significant.

The true ratio of two settings is that of their expected wall seconds per image. All errors are relative: the variance
of a rate is that of the logarithm of its seconds per image, and intervals are symmetric on a logarithmic scale.

- Repeats: each run is one value, since processes differ from each other more than their steps show (Kalibera and Jones
  2013, Rigorous Benchmarking in Reasonable Time, section 4). Student's t, with the degrees of freedom of Welch 1947,
  The Generalization of Student's Problem, equation 29; with 1 or 2 runs on a side, both share one variance (Student
  1908), which needs at least 3 runs of one of them. A bootstrap of 3 to 5 runs would be too narrow by far.
- Single runs: the steps, see comparison/intervals.py. This interval holds for these two processes. To call two single
  runs different, their difference must also exceed what two processes of one setting show, a Spread, and what other
  processes may have taken from one of them.
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

# The spread of runs of which none is known: as large as that of single steps, with this uncertainty. On a noisy machine
# of 2 cores 2 of 54 pairs of equal runs of lenet were called different.
_ASSUMED_DEGREES = 4.0
# With less left for the run, its rate says nothing.
_MOST_OF_OTHERS = 0.95
# Of a spread that the user knows.
_KNOWN_DEGREES = 1e6


class Clock(enum.Enum):
    """The seconds that count: WALL with what lies between steps, evaluations excepted; STEPS those of steps alone."""

    WALL = 'wall'
    STEPS = 'steps'


class Significance(enum.Enum):
    """What a ratio and its interval say."""

    SAME = 'no significant difference'
    FASTER = 'faster'
    SLOWER = 'slower'
    FEW_RUNS = 'unknown: too few runs'
    FEW_STEPS = 'unknown: too few steps'
    DISTURBED = 'unknown: too disturbed'


@dataclass(frozen=True)
class Spread:
    """How much runs of one setting differ.

    Attributes:
      relative: the standard deviation of their rates, relative to the rate.
      degrees_of_freedom: how well it is known.
      source: where it comes from, in words.
      includes_others: whether it includes that other processes disturb a run.
    """

    relative: float
    degrees_of_freedom: float
    source: str
    includes_others: bool = False


@dataclass(frozen=True)
class Ratio:
    """The throughput of one setting relative to that of another.

    Attributes:
      value: above 1 if it is faster than the baseline.
      interval: of 95 %, (low, high); None if too little was measured, or it would say nothing.
      basis: what the verdict is computed from, 'runs' or 'steps'; None if too little was measured.
      verdict: whether the difference is significant.
      spread: for single runs, the assumed difference between processes.
      threshold: for single runs, the factor that the ratio must exceed, or fall below the inverse of, to be
        significant; None if it would say nothing.
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
    """The throughput of the runs of one setting, at least one run: see estimate_runs."""
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
    """The ratio of two throughputs, which must both be numbers.

    Args:
      spread: how much runs differ, used if both are single runs; by default it is assumed from their steps.
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
    # Without the other processes a run could have been faster by as much.
    share = 0.0 if spread.includes_others else max(side.share_of_others for side in pair)
    least = math.hypot(of_runs, least) - math.log1p(-share)
    threshold = math.exp(least) if least <= math.log(WIDEST) else None
    return Ratio(value, interval, 'steps', _verdict(value, least), spread, threshold)


def known_spread(estimates: Iterable[Estimate]) -> Spread | None:
    """The spread of runs, pooled over those settings that were repeated; None if none was."""
    repeated = [(found.run_variance, found.num_runs) for found in estimates if found.run_variance is not None]
    if not repeated:
        return None
    degrees = sum(num_runs - 1 for _, num_runs in repeated)
    variance = sum(variance * (num_runs - 1) for variance, num_runs in repeated) / degrees
    return Spread(math.sqrt(variance), degrees, 'the repeats of other settings')


def given_spread(relative: float) -> Spread:
    """The spread of runs that the user knows."""
    return Spread(relative, _KNOWN_DEGREES, '--run_spread', includes_others=True)


def _estimate_of_steps(record: Record, rate: float, clock: Clock) -> Estimate:
    seconds = _seconds(record, clock)
    spread = _step_spread(record, clock)
    error, mean = mean_error(seconds), float(np.mean(seconds)) if seconds.size else 0.0
    # Clocks that were set back make such means, too.
    if error is None or not mean > 0:
        return Estimate(rate, 1, int(seconds.size), step_spread=spread)
    variance = error.variance / mean**2
    share = _share_of_others(record)
    return Estimate(rate, 1, int(seconds.size), variance, error.degrees_of_freedom, None, spread, share)


def rate_of(record: Record, clock: Clock) -> float:
    """Images/sec of one run."""
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
    """The degrees of freedom of a sum of variances."""
    total = sum(side.variance for side in pair)
    if not total:
        return min(side.degrees_of_freedom for side in pair)
    return 1 / sum((side.variance / total) ** 2 / side.degrees_of_freedom for side in pair)


def _verdict(value: float, least: float) -> Significance:
    """What a ratio says that is significant if its logarithm is beyond `least`."""
    if not abs(math.log(value)) > least:
        return Significance.SAME if least <= math.log(WIDEST) else Significance.DISTURBED
    return Significance.FASTER if value > 1 else Significance.SLOWER
