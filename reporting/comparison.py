"""Compares throughputs: rates and ratios with 95 % intervals, and whether a difference is significant.

The true ratio of two settings is that of their expected wall seconds per image. All errors are relative: the variance
of a rate is that of the logarithm of its seconds per image, and intervals are symmetric on a logarithmic scale.

- Repeats: each run is one value, since processes differ from each other more than their steps show (Kalibera and Jones
  2013, Rigorous Benchmarking in Reasonable Time, section 4). Student's t, with the degrees of freedom of Welch 1947,
  The Generalization of Student's Problem, equation 29; with 1 or 2 runs on a side, both share one variance (Student
  1908). A bootstrap of 2 to 5 runs would be too narrow by far.
- Single runs: the steps, see reporting/long_run.py. This interval holds for these two processes. To call two single
  runs different, their difference must also exceed what two processes of one setting show, a Spread, and what other
  processes may have taken from one of them.
"""

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reporting.intervals import t_quantile
from reporting.long_run import mean_error
from reporting.original_logs import printed_spread
from reporting.record import Record

CONFIDENCE = 0.95

# A setting with fewer runs does not say how much they differ; both sides of a ratio then share one variance.
_MIN_RUNS = 3

# The spread of runs of which none is known: as large as that of single steps, with this uncertainty. On a noisy machine
# of 2 cores 2 of 54 pairs of runs of lenet were called different: benchmarks/equal_runs.py.
_ASSUMED_DEGREES = 4.0
# The logarithm of the largest factor: an interval that wide says nothing, and exp() must not overflow.
_MOST = math.log(1e6)
# With less left for the run, its rate says nothing.
_MOST_OF_OTHERS = 0.95
# Of a spread that the user knows.
_KNOWN_DEGREES = 1e6


class Clock(enum.Enum):
    """The seconds that count: WALL with what lies between steps, evaluations excepted; STEPS those of steps alone."""

    WALL = 'wall'
    STEPS = 'steps'


class Verdict(enum.Enum):
    """What a ratio and its interval say."""

    SAME = 'no significant difference'
    FASTER = 'faster'
    SLOWER = 'slower'
    UNKNOWN = 'unknown: too few steps'


@dataclass(frozen=True)
class Estimate:
    """The throughput of one setting.

    Attributes:
      images_per_second: images over seconds; nan if no step was timed.
      num_runs, num_steps: what was measured; num_steps over all runs.
      variance: of the relative error; nan if too little was measured. degrees_of_freedom: of that variance.
      run_variance: of the relative differences between runs; None for a single run.
      step_spread: the standard deviation of step seconds over their mean; nan if unknown.
      share_of_others: the part of the cores that other processes and machines took from a run on CPUs; 0 if unknown.
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
    def has_interval(self) -> bool:
        return math.isfinite(self.variance)

    @property
    def basis(self) -> str | None:
        """What the interval is computed from: 'runs' or 'steps'; None without an interval."""
        if not self.has_interval:
            return None
        return 'steps' if self.run_variance is None else 'runs'

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval in images/sec, (low, high)."""
        return _around(self.images_per_second, self.variance, self.degrees_of_freedom)


@dataclass(frozen=True)
class Spread:
    """How much runs of one setting differ.

    Attributes:
      relative: the standard deviation of their rates, relative to the rate. degrees_of_freedom: how well it is known.
      source: where it comes from, in words. includes_others: whether it includes that other processes disturb a run.
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
      interval: of 95 %, (low, high); None if too little was measured.
      basis: what the interval is computed from, 'runs' or 'steps'.
      verdict: whether the difference is significant.
      spread: for single runs, the assumed difference between processes. threshold: for single runs, the factor that
        the ratio must exceed, or fall below the inverse of, to be significant.
    """

    value: float
    interval: tuple[float, float] | None
    basis: str | None
    verdict: Verdict
    spread: Spread | None = None
    threshold: float | None = None

    @property
    def is_significant(self) -> bool:
        return self.verdict in (Verdict.FASTER, Verdict.SLOWER)


def estimate(records: Sequence[Record], clock: Clock = Clock.WALL) -> Estimate:
    """The throughput of the runs of one setting, at least one run."""
    num_steps = sum(record.step_seconds().size for record in records)
    rates = [_rate(record, clock) for record in records]
    if len(records) == 1:
        return _estimate_of_steps(records[0], rates[0], clock)
    seconds = 1 / np.asarray(rates)
    mean = float(seconds.mean())
    run_variance = float(seconds.var(ddof=1)) / mean**2
    size = len(records)
    spreads = [spread for record in records if math.isfinite(spread := _step_spread(record, clock))]
    step_spread = float(np.sqrt(np.mean(np.square(spreads)))) if spreads else math.nan
    return Estimate(1 / mean, size, num_steps, run_variance / size, size - 1, run_variance, step_spread)


def compare(baseline: Estimate, other: Estimate, spread: Spread | None = None) -> Ratio:
    """The ratio of two throughputs, which must both be numbers.

    Args:
      spread: how much runs differ, used if both are single runs; by default it is assumed from their steps.
    """
    value = other.images_per_second / baseline.images_per_second
    pair = (baseline, other)
    if not all(side.has_interval for side in pair) and not known_spread(pair):
        return Ratio(value, None, None, Verdict.UNKNOWN)
    pooled = known_spread(pair)
    if pooled and min(side.num_runs for side in pair) < _MIN_RUNS:
        variance = pooled.relative**2 * sum(1 / side.num_runs for side in pair)
        degrees = pooled.degrees_of_freedom
    else:
        variance = baseline.variance + other.variance
        degrees = _welch(pair)
    interval = _around(value, variance, degrees)
    if pooled:
        return Ratio(value, interval, 'runs', _verdict(value, interval))
    spread = spread or _assumed_spread(pair)
    of_runs = t_quantile(0.5 + CONFIDENCE / 2, spread.degrees_of_freedom) * spread.relative * math.sqrt(2)
    of_steps = t_quantile(0.5 + CONFIDENCE / 2, degrees) * math.sqrt(variance)
    # Without the other processes a run could have been faster by as much.
    share = 0.0 if spread.includes_others else max(side.share_of_others for side in pair)
    threshold = _factor(math.hypot(of_runs, of_steps) - math.log1p(-share))
    return Ratio(value, interval, 'steps', _verdict(value, interval, threshold), spread, threshold)


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
    error = mean_error(seconds)
    if error is None:
        return Estimate(rate, 1, int(seconds.size), step_spread=spread)
    variance = error.variance / float(seconds.mean()) ** 2
    share = _share_of_others(record)
    return Estimate(rate, 1, int(seconds.size), variance, error.degrees_of_freedom, None, spread, share)


def _rate(record: Record, clock: Clock) -> float:
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
    return total**2 / sum(side.variance**2 / side.degrees_of_freedom for side in pair)


def _around(value: float, variance: float, degrees: float) -> tuple[float, float] | None:
    if not math.isfinite(variance) or not math.isfinite(value):
        return None
    factor = _factor(t_quantile(0.5 + CONFIDENCE / 2, degrees) * math.sqrt(variance))
    return value / factor, value * factor


def _factor(logarithm: float) -> float:
    return math.exp(min(logarithm, _MOST))


def _verdict(value: float, interval: tuple[float, float] | None, threshold: float | None = None) -> Verdict:
    if interval is None:
        return Verdict.UNKNOWN
    low, high = interval
    if low <= 1 <= high or (threshold and 1 / threshold <= value <= threshold):
        return Verdict.SAME
    return Verdict.FASTER if value > 1 else Verdict.SLOWER
