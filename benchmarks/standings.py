"""Formats the results of contestants, and ratios with their 95 % intervals, as Markdown tables.

The intervals are those of `compare` (comparison/ratios.py). If each turn has a process of its own, a turn is a run, so
a ratio compares two groups of repeated runs, and `compare` prints the same for their result files. Turns within one
process form pairs, one turn of each contestant in each round. What disturbs both turns cancels: the interval is that of
the differences within pairs.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from benchmarks.turns import Outcome, Turns, load, outcomes
from comparison import ratios as comparison
from comparison.intervals import FEWEST_RUNS, Estimate, estimate_runs
from comparison.ratios import Ratio, Significance
from comparison.tables import Table, TableColumn
from hardware.surroundings import machine_facts
from results.document import Record

_VERDICTS = {
    Significance.SAME: 'no significant difference',
    Significance.FEW_RUNS: 'too few turns',
}


@dataclass(frozen=True)
class Measure(Generic[Outcome]):
    """A number to compare between outcomes.

    Attributes:
      title: its name with the unit.
      value: returns the number of an outcome.
      is_cost: whether less is better; a ratio is always that of the numbers.
      is_paired: whether the turns of a round were taken in one process.
      decimals: the number of decimals to print.
      published: ratios of pairs (ours, theirs) that others published, to print beside ours.
    """

    title: str
    value: Callable[[Outcome], float]
    is_cost: bool = False
    is_paired: bool = False
    decimals: int = 2
    published: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def estimate(self, found: Sequence[Outcome]) -> Estimate:
        """Estimates the number from at least one turn; for a cost, its inverse."""
        return estimate_runs(1 / self._costs(found))

    def ratio(self, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> Ratio:
        """Compares the turns of two contestants, in the order of the rounds: our number over theirs."""
        first, second = (theirs, ours) if self.is_cost else (ours, theirs)
        if self.is_paired:
            return paired_ratio(self._costs(first), self._costs(second))
        return comparison.compare(self.estimate(second), self.estimate(first))

    def median_ratio(self, ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> float:
        """Returns the median of the ratios within rounds, which single slow turns do not change."""
        ratios = [self.value(mine) / self.value(other) for mine, other in zip(ours, theirs, strict=True)]
        return statistics.median(ratios)

    def cells(self, found: Sequence[Outcome]) -> list[str]:
        """Formats the number and its interval."""
        estimate = self.estimate(found)
        ends = estimate.interval
        if self.is_cost:
            ends = ends and (1 / ends[1], 1 / ends[0])
            return [f'{1 / estimate.images_per_second:.{self.decimals}f}', format_interval(ends, self.decimals)]
        return [f'{estimate.images_per_second:.{self.decimals}f}', format_interval(ends, self.decimals)]

    def _costs(self, found: Sequence[Outcome]) -> np.ndarray:
        values = np.array([self.value(outcome) for outcome in found], dtype=np.float64)
        return values if self.is_cost else 1 / values


@dataclass(frozen=True)
class Throughput(Measure[Record]):
    """The total of runs, estimated like `compare` does."""

    title: str = 'images/sec'
    value: Callable[[Record], float] = lambda record: record.images_per_second

    def estimate(self, found: Sequence[Record]) -> Estimate:
        return comparison.estimate(found)


def paired_ratio(costs: Sequence[float] | np.ndarray, baseline: Sequence[float] | np.ndarray) -> Ratio:
    """Returns the throughput of one contestant over that of another.

    Both arguments are [n] costs of equal work, such as seconds, in the same n rounds. The relative error of the ratio
    of two means is the mean difference of their relative deviations, round by round.
    """
    ours, theirs = (np.asarray(values, dtype=np.float64) for values in (costs, baseline))
    size, rate, other_rate = ours.size, 1 / float(ours.mean()), 1 / float(theirs.mean())
    differences = ours * rate - theirs * other_rate
    if size < FEWEST_RUNS:
        return Ratio(rate / other_rate, None)
    # The differences contain the errors of both, so the baseline counts as exact.
    exact, variance = Estimate(other_rate, size, 0, 0.0, size - 1), float(differences.var(ddof=1)) / size
    return comparison.compare(exact, Estimate(rate, size, 0, variance, size - 1))


def contestants_table(turns: Turns[Outcome], measures: Sequence[Measure[Outcome]]) -> str:
    """Formats each contestant's number in each measure, and how many of its turns others disturbed."""
    titles = ['']
    for measure in measures:
        titles += [measure.title, '95 %']
    rows = []
    for name, taken in turns.items():
        cells = [cell for measure in measures for cell in measure.cells(outcomes(taken))]
        rows.append([name, *cells, str(len(taken)), str(sum(turn.is_disturbed for turn in taken))])
    return _table([*titles, 'turns', 'disturbed'], rows)


def ratios_table(turns: Turns[Outcome], measures: Sequence[Measure[Outcome]], pairs: Sequence[tuple[str, str]]) -> str:
    """Formats the ratios of pairs of contestants (ours, theirs) in each measure, and their medians over the rounds."""
    rows, published = [], any(measure.published for measure in measures)
    for measure in measures:
        for names in pairs:
            ours, theirs = (outcomes(turns[name]) for name in names)
            ratio, median = measure.ratio(ours, theirs), measure.median_ratio(ours, theirs)
            verdict = _VERDICTS.get(ratio.verdict, 'more' if ratio.value > 1 else 'less')
            cells = [f'{ratio.value:.3f}', format_interval(ratio.interval, 3), f'{median:.3f}', verdict]
            if published:
                cells.append(f'{measure.published[names]:.2f}' if names in measure.published else '')
            rows.append([' / '.join(names), measure.title, *cells])
    titles = ['ours / theirs', 'of', 'ratio', '95 %', 'median', 'verdict', *(['published'] if published else [])]
    return _table(titles, rows)


def format_report(
    turns: Turns[Outcome],
    measures: Sequence[Measure[Outcome]],
    pairs: Sequence[tuple[str, str]],
    ratios_of: Sequence[Measure[Outcome]] | None = None,
) -> str:
    """Formats the machine, the numbers of each contestant, and the ratios of pairs in ratios_of, or in all measures."""
    ratios = ratios_table(turns, measures if ratios_of is None else ratios_of, pairs)
    return '\n\n'.join([machine_line(), contestants_table(turns, measures), ratios])


def machine_line() -> str:
    """Formats the machine, the versions and the load, which belong to every table."""
    machine: Mapping[str, Any] = machine_facts()
    versions = ', '.join(f'{name} {version}' for name, version in machine['versions'].items() if version)
    return f'{machine["cpu_model"]}, {versions}; {load()}'


def format_interval(ends: tuple[float, float] | None, decimals: int) -> str:
    """Formats an interval; the text is empty if it is unknown."""
    if ends is None or not all(map(math.isfinite, ends)):
        return ''
    return f'{ends[0]:.{decimals}f} to {ends[1]:.{decimals}f}'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    columns = [
        TableColumn(title, is_number=bool(i) and title not in ('of', 'verdict')) for i, title in enumerate(titles)
    ]
    return Table(columns, rows).as_markdown()
