"""The plan of a sweep and its results, as text and rows. format_* functions return text."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from comparison.intervals import Estimate
from comparison.ratios import estimate
from comparison.tables import Table, TableColumn
from errors import counted
from results.document import Record
from results.repeats import as_key
from sweeps.configurations import LeftOut, SweepPlan, caption
from sweeps.durations import format_seconds
from sweeps.folder import Outcome
from sweeps.runner import describe, succeeded

# The most combinations to list that are left out for one reason.
_MOST_SHOWN = 3
_FOUND_SIZE = 'largest batch size'
# The titles of flags whose names say too little.
_TITLES = {'batch_size': 'batch size', 'shape': 'W*G+P'}


@dataclass(frozen=True)
class SweepRow:
    """A configuration in the table of a sweep.

    Attributes:
      varied: the text of each flag that differs between rows, and of the shape.
      estimate: the rate of the complete runs, None if there are none.
      problem: why runs are missing, or None.
      work: a key of the work that its runs did; only rows with equal keys are compared.
    """

    varied: Mapping[str, str]
    estimate: Estimate | None = None
    problem: str | None = None
    work: str = ''


def format_plan(plan: SweepPlan, num_left: int, seconds: float | None, basis: str) -> str:
    """Formats the lines of a dry run.

    Args:
      plan: the plan.
      num_left: the most runs that are still to be made.
      seconds: how long these will take, None if unknown.
      basis: the basis of that estimate, in words.
    """
    count = len(plan.configurations)
    if plan.settings.find_batch_size:
        runs = f'the largest batch size of {counted(num_left, "configuration")} is to be found'
    else:
        repeats = plan.settings.num_repeats
        at_most = 'at most ' if plan.settings.until_interval else ''
        runs = f'{counted(count, "configuration")}, {at_most}{counted(repeats, "run")} of each; {num_left} to be made'
    lines = [f'{plan.title}: {runs}']
    width = len(str(count))
    for number, one in enumerate(plan.configurations, start=1):
        lines.append(f'  {number:{width}}. {one.caption}')
        lines.append(f'  {"":{width}}  {shlex.join(["tf_cnn_benchmarks", *one.command()])}')
    lines += format_left_out(plan.left_out)
    if seconds is not None:
        lines.append(f'about {format_seconds(seconds)} ({basis})')
    return '\n'.join(lines)


def format_left_out(left_out: Sequence[LeftOut]) -> list[str]:
    """Formats one line for each reason why combinations are not measured."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(caption(one.varied))
    lines = []
    for reason, captions in by_reason.items():
        shown = captions[:_MOST_SHOWN] + (
            [f'{len(captions) - _MOST_SHOWN} more'] if len(captions) > _MOST_SHOWN else []
        )
        lines.append(f'left out {counted(len(captions), "combination")}: {reason} ({"; ".join(shown)})')
    return lines


def rows_of(plan: SweepPlan, outcomes: Mapping[str, Sequence[Outcome]]) -> tuple[list[str], list[SweepRow]]:
    """Returns the columns and the rows of the table of results, in the order of the plan."""
    rows = []
    for one in plan.configurations:
        found = outcomes[one.id]
        records = [outcome for outcome in found if isinstance(outcome, Record) and outcome.is_complete]
        failed = next((outcome for outcome in found if not succeeded(outcome)), None)
        problem = describe(failed) if failed else (None if found else 'not run')
        varied = dict(one.varied)
        if plan.settings.find_batch_size and records and isinstance(found[-1], Record):
            varied[_FOUND_SIZE] = str(found[-1].run['batch_size'])
        work = as_key(records[0].work) if records else ''
        rows.append(SweepRow(varied, estimate(records) if records else None, problem, work))
    columns = [*plan.columns, *([_FOUND_SIZE] if plan.settings.find_batch_size else [])]
    return columns, rows


def format_results(columns: Sequence[str], rows: Sequence[SweepRow]) -> str:
    """Formats the table of configurations in Markdown with aligned columns.

    The columns are the values that differ between rows, images/sec, its 95 % interval if there are repeats, the
    speed-up over the first row of the same work that has a rate, and problems if there are any.
    """
    bases = {row.work: row.estimate.images_per_second for row in reversed(rows) if row.estimate}
    has_intervals = any(row.estimate and row.estimate.num_runs > 1 for row in rows)
    has_problems = any(row.problem for row in rows)
    numbers = ['images/sec', *(['95 % interval', 'runs'] if has_intervals else []), 'speed-up']
    titles = [
        *(TableColumn(_TITLES.get(name, name)) for name in columns),
        *(TableColumn(title, is_number=True) for title in numbers),
        *([TableColumn('status')] if has_problems else []),
    ]
    cells = []
    for row in rows:
        found = row.estimate
        rate = found.images_per_second if found else None
        cells.append(
            [
                *(row.varied.get(name, '') for name in columns),
                '' if rate is None else f'{rate:.2f}',
                *([_interval(found), str(found.num_runs if found else 0)] if has_intervals else []),
                '' if rate is None else f'{rate / bases[row.work]:.2f}',
                *([row.problem or 'ok'] if has_problems else []),
            ]
        )
    return Table(titles, cells).as_markdown()


def _interval(found: Estimate | None) -> str:
    if not found or found.basis != 'runs':
        return ''
    return f'{found.interval[0]:.2f} to {found.interval[1]:.2f}' if found.interval else 'too disturbed'
