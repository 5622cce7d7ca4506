"""Makes the table, notes and document of `compare`; docs/compare.md describes them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from tf_cnn.compare.differences import (
    find_varying_names,
    flag_differences,
    format_differences,
    machine_differences,
)
from tf_cnn.compare.intervals import MIN_RUNS, Estimate
from tf_cnn.compare.measured import Measured
from tf_cnn.compare.ratios import Ratio, Significance
from tf_cnn.compare.repeats import outlier_rates, workload_differences
from tf_cnn.compare.run_sets import (
    SEPARATE_COLUMNS,
    Comparison,
    ExcludedRun,
    Group,
    RunSet,
    group_names,
    pair_with_baselines,
)
from tf_cnn.results.advice import (
    DOUBTFUL,
    SUMMARIZED_CODES,
    doubt_mark,
    doubtful_codes,
    noise_warnings,
)
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.tables import (
    Column,
    abbreviate,
    escape_unprintable,
    format_known,
    format_number,
)
from tf_cnn.system.errors import UsageError, plural

Changes = Mapping[str, tuple[Any, ...]]

SCHEMA = 'tf_cnn_benchmarks.comparison'
SCHEMA_VERSION = 1

_MAX_LINES = 8
_TOO_FEW_RUNS = f'an interval needs {MIN_RUNS} runs or more (--repeat={MIN_RUNS})'


@dataclass(frozen=True)
class ComparisonRow(Measured):
    """A row of the comparison; a run that is left out has no runs.

    Attributes:
      name: the argument, and the values that distinguish the group from the argument's other
        groups.
      status: 'complete', 'incomplete' or 'left out'.
      remark: why the row is incomplete, left out, or has no ratio.
      flags: the values of the flags that vary between rows.
      baseline: the name of the baseline's row.
      flag_changes: the flags that differ from the baseline: name -> (value before, value after).
      machine_changes: the same for the machine and its software.
      work_changes: the same for the work.
      outliers: images/sec of the runs far from the others, by file; empty if there are few runs.
    """

    name: str
    argument: str
    files: tuple[str, ...]
    shape: str
    status: str
    remark: str = ''
    flags: Mapping[str, object] = field(default_factory=dict)
    is_baseline: bool = False
    baseline: str | None = None
    ratio: Ratio | None = None
    flag_changes: Changes = field(default_factory=dict)
    machine_changes: Changes = field(default_factory=dict)
    work_changes: Changes = field(default_factory=dict)
    warnings: tuple[WarningRow, ...] = ()
    outliers: Mapping[str, float] = field(default_factory=dict)


def make_rows(run_sets: Sequence[RunSet], *, force: bool = False) -> list[ComparisonRow]:
    """Compares all runs with the first run set.

    Raises UsageError if runs did different work, unless force is set.
    """
    comparisons = pair_with_baselines(run_sets, across_work=force)
    flags = [
        name
        for name in find_varying_names([pair.group.flag_values for pair in comparisons])
        if name not in SEPARATE_COLUMNS
    ]
    names = group_names(run_sets)
    matched = {id(pair.baseline) for pair in comparisons if pair.baseline}
    no_partner_remark = 'only here' if len(run_sets) > 1 else 'no other of its batch size'
    rows = []
    for pair in comparisons:
        # In a single folder, all runs must have done the same work.
        other = pair.baseline if len(run_sets) > 1 else comparisons[0].group
        if other and (work := workload_differences(other.first, pair.group.first)) and not force:
            raise UsageError(_different_work_message(other, pair.group, work))
        rows.append(
            _make_row(
                pair,
                names,
                flags,
                has_partner=id(pair.group) in matched,
                no_partner_remark=no_partner_remark,
            )
        )
    return rows + [_make_excluded_row(run) for run_set in run_sets for run in run_set.excluded_runs]


def format_runs(throughput: Estimate) -> str:
    rate = format_number(throughput.images_per_second)
    runs = plural(throughput.num_runs, 'run')
    line = f'rate of {runs}: {rate} images/sec (all images / all seconds)'
    if throughput.plus_minus is None:
        return f'{line}; {_TOO_FEW_RUNS}'
    return (
        f'{line}, 95 % interval {_format_interval(throughput)} (+/- '
        f'{100 * throughput.plus_minus:.1f} %)'
    )


def format_ratio(ratio: Ratio) -> str:
    has_verdict = ratio.interval is not None and not ratio.is_short
    return (
        f'B / A {ratio.value:.3f}, '
        f'{f"95 % {_format_interval(ratio)}" if has_verdict else ratio.verdict.value}'
    )


def format_outliers(rates_by_run: Mapping[str, float]) -> str:
    run_labels = [
        f'{escape_unprintable(name)} ({format_number(rate)})' for name, rate in rates_by_run.items()
    ]
    return (
        f'far from the others: {abbreviate(run_labels)}; something disturbed the machine, '
        'or changed on it'
    )


def make_document(rows: Sequence[ComparisonRow], problems: Sequence[str]) -> dict[str, Any]:
    """Returns the comparison as a JSON object; CSV has the same rows."""
    return {
        'schema': SCHEMA,
        'schema_version': SCHEMA_VERSION,
        'rows': [_document_row(row) for row in rows],
        'problems': list(problems),
    }


def work_notes(rows: Sequence[ComparisonRow]) -> list[str]:
    """Returns a line for each difference in work between a row and its baseline."""
    return [*_difference_lines('different work', [(row, row.work_changes) for row in rows])]


def make_notes(rows: Sequence[ComparisonRow], problems: Sequence[str]) -> list[str]:
    return [
        *work_notes(rows),
        *_difference_lines('flags', [(row, row.flag_changes) for row in rows]),
        *_difference_lines('machine', [(row, row.machine_changes) for row in rows]),
        *(
            f'{escape_unprintable(row.name)}: {format_outliers(row.outliers)}'
            for row in rows
            if row.outliers
        ),
        *_warning_lines(rows),
        *noise_warnings([result for row in rows for result in row.results]),
        *_doubtful_run_lines(rows),
        *(f'not read: {escape_unprintable(problem)}' for problem in problems),
        *_advice(rows),
    ]


def _make_row(
    comparison: Comparison,
    names: Mapping[int, str],
    flags: Sequence[str],
    *,
    has_partner: bool,
    no_partner_remark: str,
) -> ComparisonRow:
    group, baseline = comparison.group, comparison.baseline
    remarks = [f'incomplete: {group.incomplete_reason}'] if group.incomplete_reason else []
    remarks += [] if baseline or (comparison.is_baseline and has_partner) else [no_partner_remark]
    warnings = {warning.text: warning for result in group.results for warning in result.warnings}
    compared = [baseline.first, group.first] if baseline else []
    return ComparisonRow(
        group.runs,
        name=names[id(group)],
        argument=group.argument,
        files=tuple(run.source for run in group.runs),
        shape=group.first.shape,
        status='incomplete' if group.incomplete_reason else 'complete',
        remark='; '.join(remarks),
        flags={name: group.flag_values.get(name) for name in flags},
        is_baseline=comparison.is_baseline,
        baseline=names[id(baseline)] if baseline else None,
        ratio=group.ratio_to(baseline) if baseline else None,
        flag_changes=flag_differences(compared),
        machine_changes=machine_differences(compared),
        work_changes=workload_differences(baseline.first, group.first) if baseline else {},
        warnings=tuple(warnings.values()),
        outliers=outlier_rates({run.source: run.images_per_second for run in group.runs}),
    )


def _make_excluded_row(excluded_run: ExcludedRun) -> ComparisonRow:
    return ComparisonRow(
        (),
        excluded_run.name,
        excluded_run.argument,
        (excluded_run.name,),
        excluded_run.shape,
        'left out',
        excluded_run.reason,
        dict(excluded_run.flag_texts),
    )


def _different_work_message(before: Group, after: Group, work: Changes) -> str:
    changes = ', '.join(f'{name} {first} and {second}' for name, (first, second) in work.items())
    return (
        f'{before.first.source} and {after.first.source}: they measured different work: {changes}; '
        'compare runs of the same work, or use --force'
    )


def _difference_lines(
    title: str, changes_of_rows: Sequence[tuple[ComparisonRow, Changes]]
) -> Iterator[str]:
    """Yields a line for each set of changes; it names the rows, unless all rows have the set."""
    by_text: dict[str, list[str]] = {}
    compared = [(row, changes) for row, changes in changes_of_rows if row.baseline is not None]
    for row, changes in compared:
        if changes:
            text = format_differences(changes)
            by_text.setdefault(text, []).append(escape_unprintable(row.name))
    for number, (text, names) in enumerate(by_text.items()):
        if number == _MAX_LINES:
            yield (
                f'{title}: {plural(len(by_text) - number, "more difference")}; --format=json '
                'prints all of them'
            )
            return
        yield (
            f'{title}: {escape_unprintable(text)}'
            if len(names) == len(compared)
            else f'{title} of {abbreviate(names)}: {escape_unprintable(text)}'
        )


def _doubtful_run_lines(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yields a line for each row of several runs that names its doubtful runs."""
    for row in rows:
        doubtful = [result for result in row.results if doubtful_codes(result)]
        if doubtful and len(row.results) > 1:
            run_labels = [
                f'{escape_unprintable(result.source)} ({format_number(result.images_per_second)}, '
                f'{", ".join(doubtful_codes(result))})'
                for result in doubtful
            ]
            yield f'{escape_unprintable(row.name)}: doubtful: {abbreviate(run_labels)}'


def _warning_lines(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    by_code: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for warning in (
            warning for warning in row.warnings if warning.code not in SUMMARIZED_CODES
        ):
            by_code.setdefault(warning.code, []).append(
                (escape_unprintable(row.name), escape_unprintable(warning.text))
            )
    for texts_by_row in by_code.values():
        names = list(dict.fromkeys(name for name, _ in texts_by_row))
        yield f'warning: {abbreviate(names)}: {texts_by_row[0][1]}'


def _advice(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    names = [
        escape_unprintable(row.name)
        for row in rows
        if row.ratio and row.ratio.verdict is Significance.FEW_RUNS
    ]
    if names:
        yield (
            f'{abbreviate(names)}: too few runs: {_TOO_FEW_RUNS} on both sides; or run both in '
            'turns with compare --run=FLAGS --run=FLAGS'
        )


def _format_interval(quantity: Estimate | Ratio) -> str:
    if quantity.interval is None:
        # A single run shows the spread of its steps, not the spread of repeats.
        spread = (
            quantity.step_spread
            if isinstance(quantity, Estimate) and quantity.num_runs == 1
            else math.nan
        )
        return f'steps +/- {100 * spread:.1f} %' if math.isfinite(spread) else ''
    form = '{:.3f}'.format if isinstance(quantity, Ratio) else format_number
    return ' to '.join(map(form, quantity.interval))


def _format_rate(row: ComparisonRow) -> str | None:
    if row.estimate is None:
        return None
    return f'{doubt_mark(row.results)}{format_number(row.rate)}'


def _format_verdict(row: ComparisonRow) -> str:
    verdict = row.ratio.verdict.value if row.ratio else 'baseline' if row.is_baseline else ''
    remark = row.remark if row.estimate else f'left out: {row.remark}'
    return '; '.join(filter(None, (verdict, remark)))


COMPARISON_COLUMNS: tuple[Column[ComparisonRow], ...] = (
    Column('run', lambda row: row.name, wraps=True),
    Column('shape', lambda row: row.shape),
    Column('runs', lambda row: row.estimate and row.estimate.num_runs, is_number=True),
    Column('images/sec', _format_rate, is_number=True),
    Column('95 %', lambda row: row.estimate and _format_interval(row.estimate), is_number=True),
    Column('ratio', lambda row: row.ratio and f'{row.ratio.value:.3f}', is_number=True),
    Column(
        '95 %',
        lambda row: format_known(
            '{:.3f} to {:.3f}', *((row.ratio and row.ratio.interval) or (None,))
        ),
        is_number=True,
    ),
    Column('verdict', _format_verdict, wraps=True),
    DOUBTFUL,
)


def _document_row(row: ComparisonRow) -> dict[str, Any]:
    throughput, ratio = row.estimate, row.ratio
    low, high = (throughput.interval if throughput else None) or (None, None)
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
        'num_runs': throughput.num_runs if throughput else 0,
        'num_steps': throughput.num_steps if throughput else 0,
        'images_per_second': _number(throughput.images_per_second if throughput else None),
        'low': low,
        'high': high,
        'step_spread': _number(throughput.step_spread if throughput else None),
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
