"""What a sweep prints: its plan, and the table of its results. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from tf_cnn.compare.differences import format_fact, machine_differences
from tf_cnn.compare.ratios import compare, estimate
from tf_cnn.results.advice import count_doubtful, mark
from tf_cnn.results.document import Result
from tf_cnn.results.repeats import baselines, grouped
from tf_cnn.results.tables import DOUBTFUL, Table, ValueColumn, table_of
from tf_cnn.sweep.configurations import LeftOut, SweepPlan, caption
from tf_cnn.sweep.folder import Outcome
from tf_cnn.sweep.runner import describe, succeeded
from tf_cnn.system.errors import plural

# The most combinations to list that are left out for one reason.
_MOST_SHOWN = 3
_FOUND_SIZE = 'largest batch size'
# The titles of flags whose names say too little.
_TITLES = {'batch_size': 'batch size', 'exchange_bytes': 'bytes', 'shape': 'W*G+P'}
_RATE = ValueColumn('images/sec', is_number=True, keys=('mark', 'rate'), form='{}{:.2f}')
_SPEED_UP = (
    ValueColumn('speed-up', is_number=True, keys=('speed_up',), form='{:.2f}'),
    ValueColumn('verdict', keys=('verdict',)),
)
_OF_REPEATS = (
    ValueColumn('95 % interval', is_number=True, keys=('low', 'high'), form='{:.2f} to {:.2f}'),
    ValueColumn('runs', is_number=True, keys=('runs',)),
)
# What docs/sweeps.md says about exchanges alone.
_OF_EXCHANGES = (
    ValueColumn('ms', is_number=True, keys=('mark', 'ms'), form='{}{:.3f}'),
    ValueColumn('algbw GB/s', is_number=True, keys=('algbw',), form='{:.4g}'),
    ValueColumn('busbw GB/s', is_number=True, keys=('busbw',), form='{:.4g}'),
)
_NOTHING = dict.fromkeys(
    ('mark', 'doubtful', 'rate', 'low', 'high', 'speed_up', 'verdict', 'ms', 'algbw', 'busbw')
)


def format_plan(plan: SweepPlan, num_left: int) -> str:
    count = len(plan.configurations)
    runs = (
        f'{plural(count, "configuration")}, {plural(plan.settings.repeats, "run")} of each; '
        f'{num_left} to be made'
    )
    if plan.settings.find_batch_size:
        runs = f'the largest batch size of {plural(num_left, "configuration")} is to be found'
    lines = [f'{plan.title}: {runs}']
    width = len(str(count))
    for number, one in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {one.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *one.command])}')
    return '\n'.join([*lines, *format_left_out(plan.left_out)])


def format_left_out(left_out: Sequence[LeftOut]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(caption(one.varied))
    lines = []
    for reason, captions in by_reason.items():
        shown = captions[:_MOST_SHOWN]
        if (others := len(captions) - _MOST_SHOWN) > 0:
            shown.append(f'{others} more')
        lines.append(
            f'left out {plural(len(captions), "combination")}: {reason} ({"; ".join(shown)})'
        )
    return lines


def result_table(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> Table:
    """Makes the table of configurations.

    The columns are the values that differ between rows, images/sec, its 95 % interval if there are
    repeats, the speed-up over another row (see baselines), what `compare` concludes about both, and
    the status if a row lacks runs. Exchanges alone have their milliseconds and bandwidths instead
    of images/sec.
    """
    rows: list[dict[str, Any]] = []
    counting: list[Sequence[Result]] = []
    for one in plan.configurations:
        found = outcomes[one.id]
        results = [
            outcome for outcome in found if isinstance(outcome, Result) and outcome.is_complete
        ]
        failed = next((outcome for outcome in found if not succeeded(outcome)), None)
        status = describe(failed) if failed else 'ok' if found else 'not run'
        if len(groups := grouped(results)) > 1:
            # A sweep that went on elsewhere, or under another limit; the newest runs are those of
            # the machine as it is.
            changes = machine_differences([groups[-2][-1], groups[-1][0]])
            shown = ', '.join(
                f'{name} {" -> ".join(map(format_fact, values))}'
                for name, values in changes.items()
            )
            status = (
                f'{len(results) - len(groups[-1])} of {plural(len(results), "run")} left out, no '
                f'repeats: {shown}'
            )
            results = groups[-1]
        row = {**_NOTHING, **one.varied, _FOUND_SIZE: None, 'runs': len(results), 'status': status}
        if results:
            measured = estimate(results)
            low, high = measured.interval or (None, None)
            counting.append(results)
            row |= {
                'mark': mark(results),
                'doubtful': count_doubtful(results),
                'rate': measured.images_per_second,
                'low': low,
                'high': high,
                _FOUND_SIZE: results[-1].run.batch_size,
                **_exchange(results),
            }
        rows.append(row)
    measured_rows = [row for row in rows if row['rate'] is not None]
    for index, first in enumerate(baselines([results[0] for results in counting])):
        ratio = compare(estimate(counting[first]), estimate(counting[index]))
        verdict = 'baseline' if index == first else ratio.verdict.value
        measured_rows[index] |= {'speed_up': ratio.value, 'verdict': verdict}
    numbers: Sequence[ValueColumn] = _OF_EXCHANGES
    if not any(row['ms'] for row in rows):
        numbers = (
            _RATE,
            *(_OF_REPEATS if any(row['runs'] > 1 for row in rows) else ()),
            *_SPEED_UP,
        )
    statuses = ['status'] if any(row['status'] != 'ok' for row in rows) else []
    names = [*plan.columns, *([_FOUND_SIZE] if plan.settings.find_batch_size else [])]
    columns = [*(ValueColumn(_TITLES.get(name, name), keys=(name,)) for name in names), *numbers]
    return table_of(
        [*columns, DOUBTFUL, *(ValueColumn(name, keys=(name,)) for name in statuses)], rows
    )


def _exchange(results: Sequence[Result]) -> dict[str, float]:
    """Returns the mean milliseconds of an exchange alone and its bandwidths; nothing for other
    runs.

    algbw and busbw are defined in PERFORMANCE.md of github.com/NVIDIA/nccl-tests: the bytes of one
    device over the seconds, and this times 2 (n - 1) / n for n devices, which is what each link of
    a ring carries.
    """
    if results[0].run.role != 'exchange-only' or not (size := results[0].gradient_bytes):
        return {}
    cluster = results[0].cluster
    devices = cluster.num_workers * cluster.devices_per_worker
    steps = [seconds for result in results for seconds in result.step_seconds()]
    seconds = sum(steps) / len(steps)
    algbw = size / seconds / 1e9
    return {'ms': 1e3 * seconds, 'algbw': algbw, 'busbw': algbw * 2 * (devices - 1) / devices}
