"""Compares throughputs: ratios with 95 % intervals, and whether a difference is significant.

The true ratio of two settings is the ratio of their expected wall seconds per image. Each run is
one value, since processes differ from each other more than their steps show (Kalibera and Jones
2013, Rigorous Benchmarking in Reasonable Time, section 4). Errors are relative: the variance of a
throughput is the variance of log(seconds per image), and intervals are symmetric on a logarithmic
scale. They use Student's t, with the degrees of freedom of Welch 1947, The Generalization of
Student's Problem, equation 29. A bootstrap of 3 to 5 runs would be far too narrow.
"""

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tf_cnn.lab.intervals import MIN_RUNS, Estimate, estimate_runs, interval_around
from tf_cnn.lab.original_logs import Run, documents
from tf_cnn.results.advice import is_short
from tf_cnn.results.document import Result


class Significance(enum.Enum):
    SAME = 'no significant difference'
    FASTER = 'faster'
    SLOWER = 'slower'
    FEW_RUNS = 'too few runs'
    TOO_SHORT = 'too short to judge'


@dataclass(frozen=True)
class Ratio:
    """Candidate throughput over baseline throughput; above 1 if the candidate is faster.

    interval is the 95 % interval (low, high), or None if a side has fewer than MIN_RUNS runs.
    """

    value: float
    interval: tuple[float, float] | None
    is_short: bool = False

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


def estimate(runs: Sequence[Run]) -> Estimate:
    """Estimates the throughput of one setting from one or more runs; see estimate_runs."""
    images, results = [run.images for run in runs], documents(runs)
    throughput = estimate_runs(
        [run.images_per_second for run in runs],
        images if all(number > 0 for number in images) else None,
    )
    benchmarks = [result for result in results if isinstance(result, Result)]
    spreads = [spread for result in benchmarks if math.isfinite(spread := _step_spread(result))]
    return replace(
        throughput,
        num_steps=sum(result.step_seconds().size for result in benchmarks),
        is_short=any(is_short(result) for result in results),
        step_spread=float(np.sqrt(np.mean(np.square(spreads)))) if spreads else math.nan,
    )


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


def _step_spread(result: Result) -> float:
    seconds = result.mean_seconds_per_call(result.step_seconds())
    return (
        float(seconds.std(ddof=1) / seconds.mean())
        if seconds.size > 1 and seconds.any()
        else math.nan
    )
