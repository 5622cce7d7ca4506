"""The rows of `compare`, as a table with notes or as a document; docs/compare.md describes both."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from tf_cnn.compare.differences import flag_differences, format_fact, machine_differences, varying
from tf_cnn.compare.intervals import FEWEST_RUNS, Estimate
from tf_cnn.compare.ratios import Ratio, Significance, compare, estimate
from tf_cnn.compare.sides import OTHER_COLUMNS, Group, Pair, Side, Unmatched, group_names, pairs
from tf_cnn.results.advice import SUMMED_UP, count_doubtful, doubtful_codes, doubts, mark
from tf_cnn.results.document import Result
from tf_cnn.results.repeats import far_from_others, work_differences
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.tables import DOUBTFUL, Table, ValueColumn, abbreviate, printable, table_of
from tf_cnn.system.errors import UsageError, plural

Changes = Mapping[str, tuple[Any, ...]]

SCHEMA = 'tf_cnn_benchmarks.comparison'
SCHEMA_VERSION = 1

# The keys are those of _as_object and _as_shown.
_COLUMNS = (
    ValueColumn('run', wraps=True, keys=('name',)),
    ValueColumn('shape', keys=('shape',)),
    ValueColumn('runs', is_number=True, keys=('shown_runs',)),
    ValueColumn('images/sec', is_number=True, keys=('mark', 'images_per_second'), form='{}{:.2f}'),
    ValueColumn('95 %', is_number=True, keys=('spread',)),
    ValueColumn('ratio', is_number=True, keys=('ratio',), form='{:.3f}'),
    ValueColumn('95 %', is_number=True, keys=('ratio_low', 'ratio_high'), form='{:.3f} to {:.3f}'),
    ValueColumn('verdict', wraps=True, keys=('conclusion',)),
    DOUBTFUL,
)
_MOST_LINES = 8
# The advice where too little was measured.
_TOO_FEW_RUNS = f'an interval needs {FEWEST_RUNS} runs or more (--repeat={FEWEST_RUNS})'


@dataclass(frozen=True)
class ChangeRow:
    """A row of the comparison.

    Attributes:
      name: the argument, and the values that distinguish the group from the argument's other
        groups.
      status: 'complete', 'incomplete' or 'left out'.
      remark: why it is incomplete, left out, or has no ratio.
      flags: the values of the flags that vary between rows.
      baseline: the name of the row with which it is compared.
      flag_changes: the flags that differ from the baseline, with the values before and after;
        others likewise.
      outliers: the runs that are far from the others, with their images/sec, if there are many
        runs.
    """

    name: str
    argument: str
    files: tuple[str, ...]
    shape: str
    status: str
    remark: str = ''
    flags: Mapping[str, Any] = field(default_factory=dict)
    is_baseline: bool = False
    baseline: str | None = None
    estimate: Estimate | None = None
    ratio: Ratio | None = None
    flag_changes: Changes = field(default_factory=dict)
    machine_changes: Changes = field(default_factory=dict)
    work_changes: Changes = field(default_factory=dict)
    warnings: tuple[WarningRow, ...] = ()
    outliers: Mapping[str, float] = field(default_factory=dict)
    results: tuple[Result, ...] = ()


def make_rows(sides: Sequence[Side], *, force: bool = False) -> list[ChangeRow]:
    """Compares the runs of the sides with the first side. UsageError if the runs did different
    work, without force.
    """
    paired = pairs(sides, across_work=force)
    estimates = {id(pair.group): estimate(pair.group.results) for pair in paired}
    flags = [
        name for name in varying([pair.group.facts for pair in paired]) if name not in OTHER_COLUMNS
    ]
    names = group_names(sides)
    matched = {id(pair.baseline) for pair in paired if pair.baseline}
    alone = 'only here' if len(sides) > 1 else 'no other of its batch size'
    rows = []
    for pair in paired:
        # A single folder with different work is refused as a whole.
        other = pair.baseline if len(sides) > 1 else paired[0].group
        if other and (work := work_differences(other.first, pair.group.first)) and not force:
            raise UsageError(_refusal(other, pair.group, work))
        rows.append(
            _row(pair, names, estimates, flags, has_partner=id(pair.group) in matched, alone=alone)
        )
    return rows + [_left_out(left) for side in sides for left in side.left_out]


def format_runs(found: Estimate) -> str:
    line = (
        f'rate of {plural(found.num_runs, "run")}: {found.images_per_second:.2f} images/sec (all '
        'images / all seconds)'
    )
    if found.plus_minus is None:
        return f'{line}; {_TOO_FEW_RUNS}'
    return f'{line}, 95 % interval {_interval(found, 2)} (+/- {100 * found.plus_minus:.1f} %)'


def format_ratio(ratio: Ratio) -> str:
    is_judged = ratio.interval is not None and not ratio.is_short
    return (
        f'B / A {ratio.value:.3f}, '
        f'{f"95 % {_interval(ratio, 3)}" if is_judged else ratio.verdict.value}'
    )


def format_outliers(found: Mapping[str, float]) -> str:
    named = [f'{printable(name)} ({rate:.2f})' for name, rate in found.items()]
    return (
        f'far from the others: {abbreviate(named)}; something disturbed the machine, or changed '
        'on it'
    )


def make_table(rows: Sequence[ChangeRow]) -> Table:
    return table_of(_COLUMNS, [_as_shown(row) for row in rows])


def make_document(rows: Sequence[ChangeRow], problems: Sequence[str]) -> dict[str, Any]:
    """Makes the document of a comparison; its rows are also the rows of CSV."""
    return {
        'schema': SCHEMA,
        'schema_version': SCHEMA_VERSION,
        'rows': [_as_object(row) for row in rows],
        'problems': list(problems),
    }


def work_notes(rows: Sequence[ChangeRow]) -> list[str]:
    """Returns a line for each difference between the work of a row and of its baseline."""
    return [*_difference_lines('different work', [(row, row.work_changes) for row in rows])]


def make_notes(rows: Sequence[ChangeRow], problems: Sequence[str]) -> list[str]:
    return [
        *work_notes(rows),
        *_difference_lines('flags', [(row, row.flag_changes) for row in rows]),
        *_difference_lines('machine', [(row, row.machine_changes) for row in rows]),
        *(
            f'{printable(row.name)}: {format_outliers(row.outliers)}'
            for row in rows
            if row.outliers
        ),
        *_warnings(rows),
        *doubts([result for row in rows for result in row.results]),
        *_doubtful_runs(rows),
        *(f'not read: {printable(problem)}' for problem in problems),
        *_advice(rows),
    ]


def _row(
    pair: Pair,
    names: Mapping[int, str],
    estimates: Mapping[int, Estimate],
    flags: Sequence[str],
    *,
    has_partner: bool,
    alone: str,
) -> ChangeRow:
    group, baseline = pair.group, pair.baseline
    ratio = compare(estimates[id(baseline)], estimates[id(group)]) if baseline else None
    remarks = [f'incomplete: {group.reason}'] if group.reason else []
    remarks += [] if baseline or (pair.is_baseline and has_partner) else [alone]
    warnings = {warning.text: warning for result in group.results for warning in result.warnings}
    compared = [baseline.first, group.first] if baseline else []
    return ChangeRow(
        name=names[id(group)],
        argument=group.argument,
        files=tuple(result.source for result in group.results),
        shape=group.first.shape,
        status='incomplete' if group.reason else 'complete',
        remark='; '.join(remarks),
        flags={name: group.facts.get(name) for name in flags},
        is_baseline=pair.is_baseline,
        baseline=names[id(baseline)] if baseline else None,
        estimate=estimates[id(group)],
        ratio=ratio,
        flag_changes=flag_differences(compared),
        machine_changes=machine_differences(compared),
        work_changes=work_differences(baseline.first, group.first) if baseline else {},
        warnings=tuple(warnings.values()),
        outliers=far_from_others(
            {result.source: result.images_per_second for result in group.results}
        ),
        results=group.results,
    )


def _left_out(left: Unmatched) -> ChangeRow:
    return ChangeRow(
        left.name,
        left.argument,
        (left.name,),
        left.shape,
        'left out',
        left.reason,
        dict(left.given),
    )


def _refusal(before: Group, after: Group, work: Changes) -> str:
    changes = ', '.join(f'{name} {first} and {second}' for name, (first, second) in work.items())
    return (
        f'{before.first.source} and {after.first.source}: they measured different work: {changes}; '
        'compare runs of the same work, or write --force'
    )


def _difference_lines(title: str, found: Sequence[tuple[ChangeRow, Changes]]) -> Iterator[str]:
    """Yields a line for each set of changes, with the rows that have it unless all have."""
    by_text: dict[str, list[str]] = {}
    compared = [(row, changes) for row, changes in found if row.baseline is not None]
    for row, changes in compared:
        if changes:
            text = ', '.join(
                f'{name} {" -> ".join(map(format_fact, values))}'
                for name, values in changes.items()
            )
            by_text.setdefault(text, []).append(printable(row.name))
    for number, (text, names) in enumerate(by_text.items()):
        if number == _MOST_LINES:
            yield (
                f'{title}: {plural(len(by_text) - number, "more difference")}; --format=json has '
                'all of them'
            )
            return
        yield (
            f'{title}: {printable(text)}'
            if len(names) == len(compared)
            else f'{title} of {abbreviate(names)}: {printable(text)}'
        )


def _doubtful_runs(rows: Sequence[ChangeRow]) -> Iterator[str]:
    """Yields a line for each row of several runs, some of them doubtful, with these."""
    for row in rows:
        doubtful = [result for result in row.results if doubtful_codes(result)]
        if doubtful and len(row.results) > 1:
            named = [
                f'{printable(result.source)} ({result.images_per_second:.2f}, '
                f'{", ".join(doubtful_codes(result))})'
                for result in doubtful
            ]
            yield f'{printable(row.name)}: doubtful: {abbreviate(named)}'


def _warnings(rows: Sequence[ChangeRow]) -> Iterator[str]:
    by_code: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for warning in (warning for warning in row.warnings if warning.code not in SUMMED_UP):
            by_code.setdefault(warning.code, []).append(
                (printable(row.name), printable(warning.text))
            )
    for found in by_code.values():
        names = list(dict.fromkeys(name for name, _ in found))
        yield f'warning: {abbreviate(names)}: {found[0][1]}'


def _advice(rows: Sequence[ChangeRow]) -> Iterator[str]:
    names = [
        printable(row.name)
        for row in rows
        if row.ratio and row.ratio.verdict is Significance.FEW_RUNS
    ]
    if names:
        yield (
            f'{abbreviate(names)}: too few runs: {_TOO_FEW_RUNS} on both sides; or run both in '
            'turns with compare --run=FLAGS --run=FLAGS'
        )


def _interval(found: Estimate | Ratio, decimals: int) -> str:
    if found.interval is None:
        # A single run does not know how much the next one will differ, only its steps.
        spread = (
            found.step_spread if isinstance(found, Estimate) and found.num_runs == 1 else math.nan
        )
        return f'steps +/- {100 * spread:.1f} %' if math.isfinite(spread) else ''
    low, high = found.interval
    return f'{low:.{decimals}f} to {high:.{decimals}f}'


def _as_shown(row: ChangeRow) -> dict[str, Any]:
    """The object of a row, with what only the table says."""
    found, ratio = row.estimate, row.ratio
    verdict = ratio.verdict.value if ratio else 'baseline' if row.is_baseline else ''
    reasons = verdict, f'left out: {row.remark}' if found is None else row.remark
    return {
        **_as_object(row),
        'mark': mark(row.results),
        'doubtful': count_doubtful(row.results),
        'shown_runs': found.num_runs if found else None,
        'spread': _interval(found, 2) if found else None,
        'conclusion': '; '.join(filter(None, reasons)),
    }


def _as_object(row: ChangeRow) -> dict[str, Any]:
    found, ratio = row.estimate, row.ratio
    low, high = (found.interval if found else None) or (None, None)
    ratio_low, ratio_high = (ratio.interval if ratio else None) or (None, None)
    return {
        'name': row.name,
        'argument': row.argument,
        'files': list(row.files),
        'status': row.status,
        'remark': row.remark or None,
        'is_baseline': row.is_baseline,
        'baseline': row.baseline,
        'shape': row.shape,
        'flags': dict(row.flags),
        'num_runs': found.num_runs if found else 0,
        'num_steps': found.num_steps if found else 0,
        'images_per_second': _number(found.images_per_second if found else None),
        'low': low,
        'high': high,
        'step_spread': _number(found.step_spread if found else None),
        'ratio': ratio.value if ratio else None,
        'ratio_low': ratio_low,
        'ratio_high': ratio_high,
        'verdict': ratio.verdict.value if ratio else None,
        'is_significant': ratio.is_significant if ratio else None,
        'different_work': _as_lists(row.work_changes),
        'different_flags': _as_lists(row.flag_changes),
        'different_machine': _as_lists(row.machine_changes),
        'outliers': dict(row.outliers),
        'doubtful_runs': {
            result.source: codes for result in row.results if (codes := doubtful_codes(result))
        },
        'warnings': [asdict(warning) for warning in row.warnings],
    }


def _as_lists(changes: Changes) -> Mapping[str, list[Any]]:
    return {name: list(pair) for name, pair in changes.items()}


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
