"""The runs of one setting and their throughput, which every row of a comparison has."""

import functools
import math
from dataclasses import dataclass

from tf_cnn.compare.intervals import Estimate
from tf_cnn.compare.original_logs import Run, documents
from tf_cnn.compare.ratios import Ratio, compare, estimate
from tf_cnn.results.document import Result


@dataclass(frozen=True)
class Measured:
    """The repeats of one setting on one machine; none for a setting that failed."""

    runs: tuple[Run, ...]

    @functools.cached_property
    def results(self) -> tuple[Result, ...]:
        """The runs whose steps are known."""
        return tuple(documents(self.runs))

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
    def interval(self) -> tuple[float, float] | None:
        return self.estimate.interval if self.estimate else None

    def ratio_to(self, baseline: 'Measured') -> Ratio:
        """Returns this throughput over the throughput of the baseline; both must be known."""
        assert self.estimate
        assert baseline.estimate
        return compare(baseline.estimate, self.estimate)

    def verdict_against(self, baseline: 'Measured | None') -> str | None:
        """Returns the verdict of `compare`; None without a baseline."""
        if baseline is None:
            return None
        is_same = baseline.runs is self.runs
        return 'baseline' if is_same else self.ratio_to(baseline).verdict.value
