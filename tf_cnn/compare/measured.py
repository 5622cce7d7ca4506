"""The runs of one setting, their throughput, and its ratio to a baseline, which every row of a
comparison has.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tf_cnn.lab.intervals import Estimate
from tf_cnn.lab.original_logs import Run, documents
from tf_cnn.lab.ratios import Ratio, compare, estimate
from tf_cnn.lab.repeats import baseline_indices
from tf_cnn.results.advice import doubt_mark
from tf_cnn.results.document import WALL_TIME, AnyResult, Result
from tf_cnn.results.tables import format_number


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
    def results(self) -> tuple[Result, ...]:
        """The runs whose steps are known."""
        return tuple(run for run in self.runs if isinstance(run, Result))

    @property
    def documents(self) -> list[AnyResult]:
        """The runs whose noise is known, also of other programs."""
        return documents(self.runs)

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
        return self.runs[0].unit if self.runs else Result.unit

    @property
    def is_wall_time(self) -> bool:
        """Whether the rate is in runs per second, and each run counts as one."""
        return self.unit == WALL_TIME

    def in_unit(self, rate: float) -> float:
        """Returns the rate, or the wall seconds that it stands for."""
        return 1 / rate if self.is_wall_time else rate

    def format_rate(self, rate: float) -> str:
        return f'{format_number(self.in_unit(rate))}{" s" * self.is_wall_time}'

    @property
    def rate_text(self) -> str | None:
        """The cell of a table: the rate after the mark of doubtful runs; None without runs."""
        return f'{doubt_mark(self.documents)}{self.format_rate(self.rate)}' if self.runs else None

    @property
    def interval(self) -> tuple[float, float] | None:
        return self.estimate.interval if self.estimate else None

    @property
    def is_baseline(self) -> bool:
        return self.baseline is not None and self.baseline.runs is self.runs

    @functools.cached_property
    def ratio(self) -> Ratio | None:
        """This throughput over the baseline's; None without a baseline, and for the baseline."""
        return None if self.is_baseline or not self.baseline else self.ratio_to(self.baseline)

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


def mean(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return statistics.fmean(known_values) if known_values else None


def joules_per_image(results: Iterable[Result]) -> float | None:
    return mean(result.energy.joules_per_image for result in results)
