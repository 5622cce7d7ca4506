"""`compare --against`: judges new runs by the earlier runs of the same setting on the same machine.

The rate is compared with the median of the last runs, with a tolerance. docs/compare.md explains both, and the formats.
Does not import TensorFlow.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from comparison.differences import Differences, machine_differences
from comparison.intervals import FEWEST_RUNS
from comparison.ratios import Clock, estimate, rate_of
from comparison.tables import Table, TableColumn, few, printable
from results.document import Record
from results.repeats import repeat_key
from results.statistics import spread

SCHEMA = 'tf_cnn_benchmarks.regression'
SCHEMA_VERSION = 2

# Only this many last runs count, so that the median follows a machine that has changed.
MOST_RUNS = 10
# Smaller differences come and go with the memory layout of a process or the temperature of a room.
LEAST_TOLERANCE = 0.02
# A larger tolerance would find no regressions.
MOST_TOLERANCE = 0.5
# The tolerance as a multiple of the runs' spread, by the number of runs. In 400,000 simulated histories of each length,
# one in 20 equal runs, normally distributed, was off by more. The spread of 3 runs is often far too small.
MULTIPLES = {3: 22.0, 4: 6.6, 5: 6.0, 6: 4.2, 7: 4.1, 8: 3.5, 9: 3.4, 10: 3.0}

# Facts that change with each run, or with the load of the machine.
_UNIMPORTANT = ('affinity',)
# The most values to list of a fact that differs from run to run.
_MOST_VALUES = 4

_COLUMNS = (
    TableColumn('run', wraps=True),
    TableColumn('shape'),
    TableColumn('runs', is_number=True),
    TableColumn('images/sec', is_number=True),
    TableColumn('median before', is_number=True),
    TableColumn('expected', is_number=True),
    TableColumn('ratio', is_number=True),
    TableColumn('verdict', wraps=True),
)


@dataclass(frozen=True)
class Expectation:
    """The expected rate of the next run of a setting, from its last runs.

    Attributes:
      median: the median of their rates, in images/sec.
      tolerance: the share of the median by which the next rate may differ from it.
    """

    median: float
    tolerance: float

    @property
    def interval(self) -> tuple[float, float] | None:
        """The images/sec that count as unchanged, (low, high); None if the runs differ too much."""
        if self.tolerance > MOST_TOLERANCE:
            return None
        return self.median * (1 - self.tolerance), self.median * (1 + self.tolerance)


@dataclass(frozen=True)
class Judgement:
    """New runs of one setting, judged by the earlier ones.

    Attributes:
      rate: images/sec of the new runs.
      num_new: the number of new runs.
      num_earlier: the number of earlier runs.
      num_compared: the number of earlier runs that count, the last ones.
      expectation: the expectation from these; None if they are too few.
      changes: the differences between the machines, versions and commits of the compared runs: name -> the values in
        the order of the runs, that of the new runs last.
    """

    rate: float
    num_new: int
    num_earlier: int
    num_compared: int
    expectation: Expectation | None
    changes: Differences

    @property
    def interval(self) -> tuple[float, float] | None:
        """The expected images/sec, (low, high); None if the earlier runs are too few, or differ too much."""
        return self.expectation.interval if self.expectation else None

    @property
    def ratio(self) -> float | None:
        """The rate over the median of the earlier runs; None if they are too few."""
        return self.rate / self.expectation.median if self.expectation else None

    @property
    def is_slower(self) -> bool:
        return self.interval is not None and self.rate < self.interval[0]

    @property
    def is_faster(self) -> bool:
        return self.interval is not None and self.rate > self.interval[1]

    @property
    def verdict(self) -> str:
        if not self.num_earlier:
            return 'no run before this one'
        if self.expectation is None:
            return f'too few runs: {self.num_earlier} of {FEWEST_RUNS}'
        if self.interval is None:
            return 'history too noisy to judge'
        if not self.is_slower and not self.is_faster:
            return 'as before'
        return f'{"slower" if self.is_slower else "faster"} than the {self.num_compared} runs before'


@dataclass(frozen=True)
class Judged:
    """A row: the runs of one setting of one argument, judged by the history."""

    name: str
    shape: str
    judgement: Judgement


def expectation(earlier: Sequence[float]) -> Expectation | None:
    """Returns the expectation for the next run from the last of these; None if there are fewer than FEWEST_RUNS.

    Args:
      earlier: images/sec of each run, above 0, in the order of the runs.
    """
    rates = earlier[-MOST_RUNS:]
    if len(rates) < FEWEST_RUNS:
        return None
    return Expectation(statistics.median(rates), max(LEAST_TOLERANCE, MULTIPLES[len(rates)] * spread(rates)))


def judge(new: Sequence[Record], history: Sequence[Record], clock: Clock = Clock.WALL) -> Judgement:
    """Judges the runs of one setting on one machine by their earlier runs in a history.

    Args:
      new: the runs to judge, at least one.
      history: runs of any setting and machine, in the order in which they started. Incomplete runs, the new runs
        themselves, and runs that started later are skipped.
      clock: the seconds that count.
    """
    earlier = _earlier(new, history, clock)
    compared = earlier[-MOST_RUNS:]
    return Judgement(
        estimate(new, clock).images_per_second,
        len(new),
        len(earlier),
        len(compared),
        expectation([rate_of(record, clock) for record in compared]),
        _changes([*compared, new[0]]),
    )


def make_table(rows: Sequence[Judged]) -> Table:
    """Makes the table of these rows."""
    return Table(_COLUMNS, [_cells(row) for row in rows])


def make_notes(rows: Sequence[Judged]) -> list[str]:
    """Returns the lines below the table: one for each set of differences, with the rows that have it."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.judgement.changes:
            changes = ', '.join(f'{name} {_chain(values)}' for name, values in row.judgement.changes.items())
            names.setdefault(printable(changes), []).append(printable(row.name))
    return [f'{few(found)}: since the runs before, {changes}' for changes, found in names.items()]


def make_document(rows: Sequence[Judged], clock: Clock) -> dict[str, Any]:
    """Makes the document; its rows are also the rows of CSV."""
    document = {'schema': SCHEMA, 'schema_version': SCHEMA_VERSION, 'clock': clock.value}
    return {**document, 'rows': [_as_object(row) for row in rows]}


def _earlier(new: Sequence[Record], history: Sequence[Record], clock: Clock) -> list[Record]:
    key = repeat_key(new[0], across_versions=True)
    known = {str(record.document['id']) for record in new}
    # Texts in ISO 8601 and UTC sort by time.
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


def _changes(records: Sequence[Record]) -> Differences:
    """Returns the differences between runs: name -> the known values in the order of the runs, without repetitions."""
    found = {}
    for name, values in machine_differences(records).items():
        known = [value for value in values if value is not None]
        if name not in _UNIMPORTANT:
            found[name] = tuple(value for i, value in enumerate(known) if not i or value != known[i - 1])
    return found


def _cells(row: Judged) -> tuple[str, ...]:
    found = row.judgement
    low, high = found.interval or (None, None)
    return (
        printable(row.name),
        printable(row.shape),
        str(found.num_new),
        f'{found.rate:.2f}',
        f'{found.expectation.median:.2f}' if found.expectation else '',
        '' if low is None else f'{low:.2f} to {high:.2f}',
        '' if found.ratio is None else f'{found.ratio:.3f}',
        found.verdict,
    )


def _chain(values: Sequence[object]) -> str:
    left_out = len(values) - _MOST_VALUES
    shown = [str(value) for value in values]
    if left_out > 0:
        shown[1 : left_out + 2] = [f'{left_out + 1} more']
    return ' -> '.join(shown)


def _as_object(row: Judged) -> dict[str, Any]:
    found = row.judgement
    low, high = found.interval or (None, None)
    return {
        'name': row.name,
        'shape': row.shape,
        'num_runs': found.num_new,
        'images_per_second': found.rate,
        'num_earlier_runs': found.num_earlier,
        'num_runs_compared': found.num_compared,
        'median': found.expectation.median if found.expectation else None,
        'expected_low': low,
        'expected_high': high,
        'ratio': found.ratio,
        'verdict': found.verdict,
        'is_regression': found.is_slower,
        'different_machine': {name: list(values) for name, values in found.changes.items()},
    }
