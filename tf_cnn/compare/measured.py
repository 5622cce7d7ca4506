"""The runs of one setting, their throughput, and its ratio to a baseline, which every row of a
comparison has.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tf_cnn.compare.intervals import Estimate
from tf_cnn.compare.original_logs import Run, documents
from tf_cnn.compare.ratios import Ratio, compare, estimate
from tf_cnn.compare.repeats import baseline_indices
from tf_cnn.results.advice import doubt_mark
from tf_cnn.results.document import WALL_TIME, AnyResult, Result
from tf_cnn.results.tables import Column, format_number


@dataclass(frozen=True)
class Measured:
    """The repeats of one setting on one machine; none for a setting that failed.

    Attributes:
      baseline: what the setting is compared with: other runs, or the same ones; None if nothing.
      published_speed_up: the speed-up that a published table has for the setting, if any.
    """

    runs: tuple[Run, ...]
    baseline: 'Measured | None' = field(default=None, kw_only=True)
    published_speed_up: float | None = field(default=None, kw_only=True)

    @functools.cached_property
    def results(self) -> tuple[AnyResult, ...]:
        """The runs with known noise."""
        return tuple(documents(self.runs))

    @property
    def benchmark_results(self) -> list[Result]:
        """The runs of this program, with known steps."""
        return [run for run in self.runs if isinstance(run, Result)]

    @functools.cached_property
    def estimate(self) -> Estimate | None:
        """The throughput; None if no run timed a step."""
        timed = [run for run in self.runs if run.images_per_second > 0]
        return estimate(timed) if timed else None

    @property
    def rate(self) -> float:
        """Images/sec; nan if no run timed a step."""
        return self.estimate.images_per_second if self.estimate else math.nan

    @property
    def unit(self) -> str:
        """What a rate counts, 'images/sec'; WALL_TIME if each run counts as one."""
        return self.runs[0].unit if self.runs else ''

    def in_unit(self, rate: float) -> float:
        """Returns the rate, or the wall seconds that it stands for."""
        return 1 / rate if self.unit == WALL_TIME else rate

    def format_rate(self, rate: float) -> str:
        return f'{format_number(self.in_unit(rate))}{" s" if self.unit == WALL_TIME else ""}'

    @property
    def rate_text(self) -> str | None:
        """The cell of a table: the rate after the mark of doubtful runs; None without runs."""
        return f'{doubt_mark(self.results)}{self.format_rate(self.rate)}' if self.runs else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.estimate.interval if self.estimate else None

    def convert_interval(self, interval: tuple[float, float] | None) -> tuple[float, float] | None:
        """Returns an interval of rates in the unit of in_unit()."""
        ends = sorted(map(self.in_unit, interval or ()))
        return (ends[0], ends[1]) if ends else None

    @property
    def interval_in_unit(self) -> tuple[float, float] | None:
        return self.convert_interval(self.interval)

    @property
    def is_baseline(self) -> bool:
        return self.baseline is not None and self.baseline.runs is self.runs

    @functools.cached_property
    def ratio(self) -> Ratio | None:
        """This throughput over the baseline's; None without a baseline, for the baseline, and for a
        wall time beside a rate.
        """
        if self.is_baseline or not self.baseline:
            return None
        different_units = {self.unit} ^ {self.baseline.unit}
        return None if WALL_TIME in different_units else self.ratio_to(self.baseline)

    @property
    def speed_up(self) -> float | None:
        if self.is_baseline:
            return 1.0
        return self.ratio.value if self.ratio else None

    @property
    def verdict(self) -> str | None:
        if self.is_baseline:
            return 'baseline'
        return self.ratio.verdict.value if self.ratio else None

    def ratio_to(self, baseline: 'Measured') -> Ratio:
        """Returns this throughput over another one; both must be known."""
        assert self.estimate
        assert baseline.estimate
        return compare(baseline.estimate, self.estimate)


def name_rates(columns: Iterable[Column[Any]], rows: Iterable[Measured]) -> list[Column[Any]]:
    """Returns the columns; the one of images/sec has the unit of the rows, if it is another one."""
    units = {row.unit for row in rows if row.runs}
    title = units.pop() if len(units) == 1 else Result.unit
    return [
        replace(column, title=title) if column.title == Result.unit else column
        for column in columns
    ]


def find_baselines(rows: Sequence[Measured]) -> dict[int, Measured]:
    """Returns the baseline of each row, see baseline_indices, by the row's id(); nothing for a row
    that is the baseline of no other row.
    """
    indices = baseline_indices(
        [row.runs[0] for row in rows],
        published_speed_ups=[row.published_speed_up for row in rows],
    )
    return {
        id(row): rows[index]
        for row, index in zip(rows, indices, strict=True)
        if indices.count(index) > 1
    }
