"""Formats what a sweep prints: its plan, and the table of its results. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tf_cnn.compare.differences import format_property, machine_differences
from tf_cnn.compare.ratios import compare, estimate
from tf_cnn.compare.repeats import baseline_indices, group_repeats
from tf_cnn.results.advice import doubt_mark, format_doubtful
from tf_cnn.results.document import Result
from tf_cnn.results.tables import DOUBTFUL, Table, ValueColumn, make_table
from tf_cnn.sweep.configurations import ExcludedCombination, SweepPlan, caption
from tf_cnn.sweep.folder import Outcome
from tf_cnn.sweep.runner import describe_outcome, succeeded
from tf_cnn.system.errors import plural

# How many of the combinations that are left out for the same reason are listed.
_MAX_LISTED = 3
_LARGEST_SIZE = 'largest batch size'
# Column titles of flags; other flags have their names.
_TITLES = {'batch_size': 'batch size', 'exchange_bytes': 'bytes', 'shape': 'W*G+P'}
_RATE_COLUMN = ValueColumn('images/sec', is_number=True, keys=('mark', 'rate'), form='{}{:.2f}')
_SPEED_UP_COLUMNS = (
    ValueColumn('speed-up', is_number=True, keys=('speed_up',), form='{:.2f}'),
    ValueColumn('verdict', keys=('verdict',)),
)
_REPEAT_COLUMNS = (
    ValueColumn('95 % interval', is_number=True, keys=('low', 'high'), form='{:.2f} to {:.2f}'),
    ValueColumn('runs', is_number=True, keys=('runs',)),
)
# The columns of --exchange_only, see docs/sweeps.md.
_EXCHANGE_COLUMNS = (
    ValueColumn('ms', is_number=True, keys=('mark', 'ms'), form='{}{:.3f}'),
    ValueColumn('algbw GB/s', is_number=True, keys=('algbw',), form='{:.4g}'),
    ValueColumn('busbw GB/s', is_number=True, keys=('busbw',), form='{:.4g}'),
)
_EMPTY_ROW = dict.fromkeys(
    ('mark', 'doubtful', 'rate', 'low', 'high', 'speed_up', 'verdict', 'ms', 'algbw', 'busbw')
)


def format_plan(plan: SweepPlan, num_remaining: int) -> str:
    count = len(plan.configurations)
    runs = (
        f'{plural(count, "configuration")}, {plural(plan.settings.repeats, "run")} of each; '
        f'{num_remaining} to be made'
    )
    if plan.settings.find_batch_size:
        runs = f'the largest batch size of {plural(num_remaining, "configuration")} is to be found'
    lines = [f'{plan.title}: {runs}']
    width = len(str(count))
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


def result_table(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Makes the table of configurations.

    The columns: the values that differ between rows; images/sec; with repeats, its 95 % interval
    and the number of runs; the speed-up over the row's baseline (see `baselines`); the verdict of
    `compare` on both; and the status if a row lacks runs. With --exchange_only, milliseconds and
    bandwidths replace images/sec.
    """
    rows: list[dict[str, Any]] = []
    result_groups: list[Sequence[Result]] = []
    for configuration in plan.configurations:
        row_outcomes = outcomes[configuration.id]
        results = [
            outcome
            for outcome in row_outcomes
            if isinstance(outcome, Result) and outcome.is_complete
        ]
        failed = next((outcome for outcome in row_outcomes if not succeeded(outcome)), None)
        status = describe_outcome(failed) if failed else 'ok' if row_outcomes else 'not run'
        if len(groups := group_repeats(results)) > 1:
            # The sweep was resumed on another machine or under another limit: only the newest runs
            # describe the machine as it is now.
            changes = machine_differences([groups[-2][-1], groups[-1][0]])
            change_text = ', '.join(
                f'{name} {" -> ".join(map(format_property, values))}'
                for name, values in changes.items()
            )
            status = (
                f'{len(results) - len(groups[-1])} of {plural(len(results), "run")} left out, no '
                f'repeats: {change_text}'
            )
            results = groups[-1]
        row = {
            **_EMPTY_ROW,
            **configuration.varied,
            _LARGEST_SIZE: None,
            'runs': len(results),
            'status': status,
        }
        if results:
            throughput = estimate(results)
            low, high = throughput.interval or (None, None)
            result_groups.append(results)
            row |= {
                'mark': doubt_mark(results),
                'doubtful': format_doubtful(results),
                'rate': throughput.images_per_second,
                'low': low,
                'high': high,
                _LARGEST_SIZE: results[-1].run.batch_size,
                **_exchange_values(results),
            }
        rows.append(row)
    measured_rows = [row for row in rows if row['rate'] is not None]
    for index, first in enumerate(baseline_indices([results[0] for results in result_groups])):
        ratio = compare(estimate(result_groups[first]), estimate(result_groups[index]))
        verdict = 'baseline' if index == first else ratio.verdict.value
        measured_rows[index] |= {'speed_up': ratio.value, 'verdict': verdict}
    value_columns: Sequence[ValueColumn] = _EXCHANGE_COLUMNS
    if not any(row['ms'] for row in rows):
        value_columns = (
            _RATE_COLUMN,
            *(_REPEAT_COLUMNS if any(row['runs'] > 1 for row in rows) else ()),
            *_SPEED_UP_COLUMNS,
        )
    statuses = ['status'] if any(row['status'] != 'ok' for row in rows) else []
    names = [*plan.columns, *([_LARGEST_SIZE] if plan.settings.find_batch_size else [])]
    columns = [
        *(ValueColumn(_TITLES.get(name, name), keys=(name,)) for name in names),
        *value_columns,
    ]
    return make_table(
        [*columns, DOUBTFUL, *(ValueColumn(name, keys=(name,)) for name in statuses)], rows
    )


def _exchange_values(results: Sequence[Result]) -> dict[str, float]:
    """Returns the mean milliseconds and the bandwidths of --exchange_only; empty for other runs.

    PERFORMANCE.md of github.com/NVIDIA/nccl-tests defines both: algbw is the bytes of one device
    over the seconds; busbw is algbw times 2 (n - 1) / n for n devices, the traffic on each link of
    a ring.
    """
    if results[0].run.role != 'exchange-only' or not (size := results[0].gradient_bytes):
        return {}
    cluster = results[0].cluster
    devices = cluster.num_workers * cluster.devices_per_worker
    steps = [seconds for result in results for seconds in result.step_seconds()]
    seconds = sum(steps) / len(steps)
    algbw = size / seconds / 1e9
    return {'ms': 1e3 * seconds, 'algbw': algbw, 'busbw': algbw * 2 * (devices - 1) / devices}
