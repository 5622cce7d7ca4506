"""Judges new runs against the earlier runs of the same setting on the same machine."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from comparison.change_points import MIN_LEVEL, change_points
from comparison.differences import Differences, machine_differences
from comparison.intervals import WIDEST, half_width
from comparison.ratios import Clock, estimate, rate_of
from results.document import Record
from results.repeats import repeat_key

# Of runs on one machine, what changes with each run or is a matter of the machine's load.
_UNIMPORTANT = ('affinity',)


@dataclass(frozen=True)
class Change:
    """Where a new level began: when, at which commit, by which ratio, and what differed from the run before."""

    started_at: str
    git_commit: str | None
    ratio: float
    changes: Differences


@dataclass(frozen=True)
class Judgement:
    """New runs of one setting compared with the last level of the earlier ones.

    Attributes:
      rate: images/sec of the new runs. num_new, num_earlier: runs. num_level: earlier runs since the last change.
      median: of those, in images/sec; None if they are too few. expected: the interval in which the rate of runs like
        those lies with 95 % probability, (low, high); None if they are too few, or differ too much.
      ratio: rate over median.
      verdict: in words. is_slower, is_faster: whether the rate lies outside of the interval.
      last_change: the change that began the level, if there was one.
    """

    rate: float
    num_new: int
    num_earlier: int
    num_level: int
    median: float | None
    expected: tuple[float, float] | None
    ratio: float | None
    is_slower: bool
    is_faster: bool
    last_change: Change | None

    @property
    def verdict(self) -> str:
        if not self.num_earlier:
            return 'no run before this one'
        if self.median is None:
            return f'too few runs: {self.num_earlier} of {MIN_LEVEL}'
        if not self.is_slower and not self.is_faster:
            return 'as before' if self.expected else 'history too noisy to judge'
        return f'{"slower" if self.is_slower else "faster"} than the {self.num_level} runs before'


def judge(new: Sequence[Record], history: Sequence[Record], clock: Clock = Clock.WALL) -> Judgement:
    """Judges the runs of one setting on one machine by what a history holds of these.

    The earlier runs are split where their level changed, and the last part gives a prediction interval for the mean of
    the new runs: Student's t on the logarithms of the rates, whose variance is s² (1/n + 1/m) for n earlier and m new
    runs (Hahn and Meeker 1991, Statistical Intervals, section 4.8).

    Args:
      new: at least one run. history: runs of any setting and machine, in the order in which they started; those that
        are incomplete, are among the new ones, or started later are passed over.
    """
    earlier = _earlier(new, history, clock)
    rates = [rate_of(record, clock) for record in earlier]
    rate = estimate(new, clock).images_per_second
    starts = change_points(rates) if len(rates) >= MIN_LEVEL else []
    first = starts[-1] if starts else 0
    level = np.asarray(rates[first:])
    last_change = _change(earlier, rates, starts) if starts else None
    if level.size < MIN_LEVEL:
        return Judgement(rate, len(new), len(rates), int(level.size), None, None, None, False, False, None)
    median = float(np.median(level))
    logs = np.log(level)
    deviation = float(logs.std(ddof=1)) * math.sqrt(1 / level.size + 1 / len(new))
    half = half_width(deviation**2, level.size - 1)
    middle = float(logs.mean())
    return Judgement(
        rate,
        len(new),
        len(rates),
        int(level.size),
        median,
        (math.exp(middle - half), math.exp(middle + half)) if half <= math.log(WIDEST) else None,
        rate / median,
        math.log(rate) < middle - half,
        math.log(rate) > middle + half,
        last_change,
    )


def _earlier(new: Sequence[Record], history: Sequence[Record], clock: Clock) -> list[Record]:
    key = repeat_key(new[0], across_versions=True)
    known = {str(record.document['id']) for record in new}
    # ISO 8601 in UTC sorts by time.
    begin = min(record.started_at for record in new)
    return [
        record
        for record in history
        if record.is_complete
        and repeat_key(record, across_versions=True) == key
        and str(record.document['id']) not in known
        and record.started_at <= begin
        and rate_of(record, clock) > 0
    ]


def _change(records: Sequence[Record], rates: Sequence[float], starts: Sequence[int]) -> Change:
    """The last change, with the ratio of the levels' medians."""
    before, start = ([0, *starts][-2], starts[-1])
    after, previous = records[start], records[start - 1]
    found = machine_differences([previous, after])
    return Change(
        after.started_at,
        (after.document.get('program') or {}).get('git_commit'),
        float(np.median(rates[start:]) / np.median(rates[before:start])),
        {name: change for name, change in found.items() if name not in _UNIMPORTANT},
    )
