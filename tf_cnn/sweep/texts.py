"""Formats what a sweep prints: its plan, and the table of its results. Pure."""

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tf_cnn.compare.differences import format_differences, machine_differences
from tf_cnn.compare.measured import Measured, find_baselines
from tf_cnn.compare.repeats import group_repeats
from tf_cnn.results.advice import DOUBTFUL, doubt_mark
from tf_cnn.results.document import Result
from tf_cnn.results.tables import Column, Table, format_known, format_number
from tf_cnn.sweep.configurations import Configuration, ExcludedCombination, SweepPlan, caption
from tf_cnn.sweep.duration import format_seconds, least_seconds
from tf_cnn.sweep.folder import Outcome
from tf_cnn.sweep.runner import describe_outcome, succeeded
from tf_cnn.system.errors import plural

# How many of the combinations that are left out for the same reason are listed.
_MAX_LISTED = 3
# Column titles of flags; other flags have their names.
_TITLES = {'batch_size': 'batch size', 'exchange_bytes': 'bytes', 'shape': 'W*G+P'}


def format_length(plan: SweepPlan, num_remaining: int) -> str:
    """Formats how many runs a sweep makes, and how long the remaining ones take at least."""
    count = len(plan.configurations)
    if plan.settings.find_batch_size:
        return (
            f'{plan.title}: the largest batch size of {plural(num_remaining, "configuration")} is '
            'to be found'
        )
    share = num_remaining / (count * plan.settings.repeats)
    return (
        f'{plan.title}: {plural(count, "configuration")}, '
        f'{plural(plan.settings.repeats, "run")} of each; {num_remaining} to be made, in at least '
        f'{format_seconds(share * least_seconds(plan))}'
    )


def format_plan(plan: SweepPlan, num_remaining: int) -> str:
    lines = [format_length(plan, num_remaining)]
    width = len(str(len(plan.configurations)))
    for number, configuration in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {configuration.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *configuration.command])}')
    return '\n'.join([*lines, *format_excluded(plan.left_out)])


def format_excluded(left_out: Sequence[ExcludedCombination]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for combination in left_out:
        by_reason.setdefault(combination.reason, []).append(caption(combination.varied))
    lines = []
    for reason, captions in by_reason.items():
        listed = captions[:_MAX_LISTED]
        if (num_more := len(captions) - _MAX_LISTED) > 0:
            listed.append(f'{num_more} more')
        lines.append(
            f'left out {plural(len(captions), "combination")}: {reason} ({"; ".join(listed)})'
        )
    return lines


@dataclass(frozen=True)
class _Row(Measured):
    """A configuration and its complete results.

    Attributes:
      status: 'ok', or why runs are missing.
    """

    varied: Mapping[str, str]
    status: str

    @functools.cached_property
    def exchange(self) -> tuple[float, float, float] | None:
        """The milliseconds, algbw and busbw of --exchange_only; None for other runs."""
        return _exchange_values(self.results) if self.results else None


def _format_rate(row: _Row) -> str | None:
    return f'{doubt_mark(row.results)}{format_number(row.rate)}' if row.runs else None


def _format_milliseconds(row: _Row) -> str | None:
    return row.exchange and f'{doubt_mark(row.results)}{row.exchange[0]:.3f}'


def _flag_column(name: str) -> Column[_Row]:
    return Column(_TITLES.get(name, name), lambda row: row.varied.get(name))


_LARGEST_SIZE: Column[_Row] = Column(
    'largest batch size', lambda row: row.results[-1].run.batch_size if row.results else None
)
_REPEAT_COLUMNS: tuple[Column[_Row], ...] = (
    Column(
        '95 % interval',
        lambda row: row.interval and ' to '.join(map(format_number, row.interval)),
        is_number=True,
    ),
    Column('runs', lambda row: len(row.results), is_number=True),
)
_RATE_COLUMNS: tuple[Column[_Row], ...] = (
    Column('images/sec', _format_rate, is_number=True),
    *_REPEAT_COLUMNS,
    Column(
        'speed-up',
        lambda row: format_known('{:.2f}', row.speed_up),
        is_number=True,
        is_optional=True,
    ),
    Column('verdict', lambda row: row.verdict, is_optional=True),
)
# The columns of --exchange_only, see docs/sweeps.md.
_EXCHANGE_COLUMNS: tuple[Column[_Row], ...] = (
    Column('ms', _format_milliseconds, is_number=True),
    Column('algbw GB/s', lambda row: row.exchange and f'{row.exchange[1]:.4g}', is_number=True),
    Column('busbw GB/s', lambda row: row.exchange and f'{row.exchange[2]:.4g}', is_number=True),
)
_STATUS: Column[_Row] = Column('status', lambda row: row.status)


def result_table(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Makes the table of configurations.

    The columns: the values that differ between rows; images/sec; with repeats, its 95 % interval
    and the number of runs; the speed-up over the row's baseline (see find_baselines); the verdict
    of `compare` on both; and the status if a row lacks runs. With --exchange_only, milliseconds and
    bandwidths replace images/sec.
    """
    rows = [
        _make_row(configuration, outcomes[configuration.id])
        for configuration in plan.configurations
    ]
    baselines = find_baselines([row for row in rows if row.runs])
    rows = [replace(row, baseline=baselines.get(id(row))) for row in rows]
    is_exchange = any(row.exchange for row in rows)
    columns = [
        *map(_flag_column, plan.columns),
        *([_LARGEST_SIZE] if plan.settings.find_batch_size else []),
        *(_EXCHANGE_COLUMNS if is_exchange else _RATE_COLUMNS),
    ]
    if all(len(row.results) <= 1 for row in rows):
        columns = [column for column in columns if column not in _REPEAT_COLUMNS]
    statuses = [_STATUS] if any(row.status != 'ok' for row in rows) else []
    return Table([*columns, DOUBTFUL, *statuses], rows)


def _make_row(configuration: Configuration, outcomes: Sequence[Outcome]) -> _Row:
    results = [
        outcome for outcome in outcomes if isinstance(outcome, Result) and outcome.is_complete
    ]
    failed = next((outcome for outcome in outcomes if not succeeded(outcome)), None)
    status = describe_outcome(failed) if failed else 'ok' if outcomes else 'not run'
    if len(groups := group_repeats(results)) > 1:
        # The sweep was resumed on another machine or under another limit: only the newest runs
        # describe the machine as it is now.
        changes = machine_differences([groups[-2][-1], groups[-1][0]])
        change_text = format_differences(changes)
        status = (
            f'{len(results) - len(groups[-1])} of {plural(len(results), "run")} left out, no '
            f'repeats: {change_text}'
        )
        results = groups[-1]
    return _Row(tuple(results), configuration.varied, status)


def _exchange_values(results: Sequence[Result]) -> tuple[float, float, float] | None:
    """Returns the mean milliseconds and the bandwidths of --exchange_only; None for other runs.

    PERFORMANCE.md of github.com/NVIDIA/nccl-tests defines both: algbw is the bytes of one device
    over the seconds; busbw is algbw times 2 (n - 1) / n for n devices, the traffic on each link of
    a ring.
    """
    size = results[0].gradient_bytes
    if results[0].run.role != 'exchange-only' or not size:
        return None
    cluster = results[0].cluster
    devices = cluster.num_workers * cluster.devices_per_worker
    steps = [seconds for result in results for seconds in result.step_seconds()]
    seconds = sum(steps) / len(steps)
    algbw = size / seconds / 1e9
    return 1e3 * seconds, algbw, algbw * 2 * (devices - 1) / devices
