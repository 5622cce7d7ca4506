"""`compare --against`: checks new runs against earlier runs. Does not import TensorFlow.

The throughput is compared with the median of the last runs of the same setting on the same machine,
with a tolerance. docs/compare.md explains both, and the formats.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from tf_cnn.compare.measured import Measured
from tf_cnn.lab.differences import (
    Differences,
    format_differences,
    limit_differences,
    machine_differences,
)
from tf_cnn.lab.intervals import MIN_RUNS
from tf_cnn.lab.original_logs import Run
from tf_cnn.lab.ratios import Significance
from tf_cnn.lab.repeats import repeat_key, setting_key
from tf_cnn.results.advice import DOUBTFUL, is_short, noise_warnings
from tf_cnn.results.document import Result
from tf_cnn.results.statistics import spread
from tf_cnn.results.tables import (
    Column,
    abbreviate,
    escape_unprintable,
    format_interval,
    format_known,
    format_number,
)
from tf_cnn.system.errors import plural

# Only the last runs count, so that the median follows a machine that has changed.
MAX_RUNS = 10
# The memory layout of a process or the room temperature causes smaller differences.
_MIN_TOLERANCE = 0.02
# A larger tolerance would find no regressions.
_MAX_TOLERANCE = 0.5
# The tolerance as a multiple of the runs' spread, by the number of runs. In 400,000 simulated
# series of each length, one in 20 equal runs (normally distributed) exceeded it. The spread of 3
# runs is often far too small.
SPREAD_MULTIPLES = {3: 22.0, 4: 6.6, 5: 6.0, 6: 4.2, 7: 4.1, 8: 3.5, 9: 3.4, 10: 3.0}


@dataclass(frozen=True)
class RegressionCheck:
    """A row: the new runs of one setting, checked against the earlier runs.

    Attributes:
      new: the new runs.
      num_earlier: the number of earlier runs that count.
      num_compared: how many of them, the last ones, are compared.
      median: the median of their images/sec; None if they are too few.
      expected: the images/sec that count as unchanged, (low, high); None if the earlier runs are
        too few or differ too much.
      changes: the differences between the machines, versions and commits of the compared runs: name
        -> the values in the order of the runs, the new runs last.
      num_left_out: the number of earlier runs of the same setting on the same machine that do not
        count because of other limits or environment variables.
      left_out_differences: the differences between the last of these runs and the new runs.
    """

    new: Measured
    name: str
    num_earlier: int
    num_compared: int
    median: float | None
    expected: tuple[float, float] | None
    changes: Differences
    num_left_out: int = 0
    left_out_differences: Differences = field(default_factory=dict)

    @property
    def results(self) -> Sequence[Result]:
        return self.new.results

    @property
    def is_short(self) -> bool:
        return any(map(is_short, self.results))

    @property
    def ratio(self) -> float | None:
        return self.new.rate / self.median if self.median else None

    @property
    def has_verdict(self) -> bool:
        return self.expected is not None and not self.is_short

    @property
    def is_slower(self) -> bool:
        return self.expected is not None and self.new.rate < self.expected[0] and not self.is_short

    @property
    def verdict(self) -> str:
        if self.is_short:
            return Significance.TOO_SHORT.value
        if not self.num_earlier:
            return 'no run before this one'
        if self.median is None:
            return f'too few runs: {self.num_earlier} of {MIN_RUNS}'
        if self.expected is None:
            return 'the runs before differ too much'
        if self.expected[0] <= self.new.rate <= self.expected[1]:
            return 'as before'
        return (
            f'{"slower" if self.is_slower else "faster"} than the {self.num_compared} runs before'
        )


def expected_throughput(
    earlier: Sequence[float],
) -> tuple[float | None, tuple[float, float] | None]:
    """Returns the median and the interval of RegressionCheck from the last earlier images/sec."""
    rates = earlier[-MAX_RUNS:]
    if len(rates) < MIN_RUNS:
        return None, None
    median, tolerance = (
        statistics.median(rates),
        max(_MIN_TOLERANCE, SPREAD_MULTIPLES[len(rates)] * spread(rates)),
    )
    return median, None if tolerance > _MAX_TOLERANCE else (
        median * (1 - tolerance),
        median * (1 + tolerance),
    )


def check_regression(
    new: Sequence[Run], earlier: Sequence[Result], name: str = ''
) -> RegressionCheck:
    """Checks the runs of one setting on one machine against earlier runs, sorted by start time.

    The earlier runs may include other settings and machines, incomplete runs, the new runs, and
    later runs: these are skipped.
    """
    key, setting = repeat_key(new[0], across_versions=True), setting_key(new[0])
    new_ids = {result.id for result in new}
    # ISO 8601 texts in UTC sort by time.
    first_start = min(str(result.started_at) for result in new)
    of_setting = [
        result
        for result in earlier
        if result.is_complete
        and setting_key(result) == setting
        and result.id not in new_ids
        and str(result.started_at) <= first_start
        and result.images_per_second > 0
        and not is_short(result)
    ]
    comparable = [
        result for result in of_setting if repeat_key(result, across_versions=True) == key
    ]
    left_out = [result for result in of_setting if repeat_key(result, across_versions=True) != key]
    compared = comparable[-MAX_RUNS:]
    return RegressionCheck(
        Measured(tuple(new)),
        name,
        len(comparable),
        len(compared),
        *expected_throughput([result.images_per_second for result in compared]),
        _machine_changes([*compared, new[0]]),
        len(left_out),
        limit_differences([left_out[-1], new[0]]) if left_out else {},
    )


REGRESSION_COLUMNS: tuple[Column[RegressionCheck], ...] = (
    Column('run', lambda row: row.name, 'name', wraps=True),
    Column('shape', lambda row: row.new.runs[0].shape, 'shape'),
    Column('runs', lambda row: len(row.new.runs), 'num_runs', is_number=True),
    Column(
        'images/sec',
        lambda row: row.new.rate,
        'images_per_second',
        lambda row: row.new.rate_text,
        is_number=True,
    ),
    Column('', lambda row: row.num_earlier, 'num_earlier_runs'),
    Column('', lambda row: row.num_compared, 'num_runs_compared'),
    Column(
        'median before',
        lambda row: row.median,
        'median',
        lambda row: row.median and format_number(row.median),
        is_number=True,
    ),
    Column('expected', lambda row: format_interval(row.expected), is_number=True),
    Column('', lambda row: row.expected and row.expected[0], 'expected_low'),
    Column('', lambda row: row.expected and row.expected[1], 'expected_high'),
    Column(
        'ratio',
        lambda row: row.ratio,
        'ratio',
        lambda row: format_known('{:.3f}', row.ratio),
        is_number=True,
    ),
    Column('verdict', lambda row: row.verdict, 'verdict', wraps=True),
    Column('', lambda row: row.is_slower, 'is_regression'),
    Column('', lambda row: row.changes, 'different_machine'),
    Column('', lambda row: row.num_left_out, 'num_runs_left_out'),
    Column('', lambda row: row.left_out_differences, 'left_out_for'),
    DOUBTFUL,
)


def regression_notes(rows: Sequence[RegressionCheck]) -> list[str]:
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.changes:
            names.setdefault(_format_changes(row.changes), []).append(escape_unprintable(row.name))
    notes = [
        f'{abbreviate(row_names)}: since the runs before, {changes}'
        for changes, row_names in names.items()
    ]
    notes += [
        f'{escape_unprintable(row.name)}: {plural(row.num_left_out, "earlier run")} of '
        f'this setting {"does" if row.num_left_out == 1 else "do"} not count: '
        f'{_format_changes(row.left_out_differences)}'
        for row in rows
        if row.num_left_out
    ]
    return notes + noise_warnings([result for row in rows for result in row.results])


def _format_changes(changes: Differences) -> str:
    return escape_unprintable(format_differences(changes))


def _machine_changes(results: Sequence[Run]) -> Differences:
    """Returns the differences between machines: name -> known values in the order of the runs.

    A value that equals the value before is dropped.
    """
    changes = {}
    for name, values in machine_differences(results).items():
        known_values = [value for value in values if value is not None]
        changes[name] = tuple(
            value for i, value in enumerate(known_values) if not i or value != known_values[i - 1]
        )
    return changes
