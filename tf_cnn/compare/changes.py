"""Makes the rows, columns and notes of `compare`; docs/compare.md describes them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tf_cnn.compare.differences import Differences, find_varying_names, format_differences
from tf_cnn.compare.intervals import MIN_RUNS, Estimate
from tf_cnn.compare.ratios import Ratio, Significance
from tf_cnn.compare.repeats import outlier_rates, workload_differences
from tf_cnn.compare.run_sets import (
    SEPARATE_COLUMNS,
    Group,
    RunSet,
    name_groups,
    pair_with_baselines,
)
from tf_cnn.results.advice import (
    DOUBTFUL,
    SUMMARIZED_CODES,
    doubtful_codes,
    group_warnings,
    noise_warnings,
)
from tf_cnn.results.document import WALL_TIME
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.tables import (
    Column,
    abbreviate,
    escape_unprintable,
    format_interval,
    format_number,
)
from tf_cnn.system.errors import UsageError, plural

_MAX_LINES = 8
_TOO_FEW_RUNS = f'an interval needs {MIN_RUNS} runs or more (--repeat={MIN_RUNS})'


def make_rows(run_sets: Sequence[RunSet], *, force: bool = False) -> list[Group]:
    """Compares all runs with the first run set.

    Raises UsageError if runs did different work, unless force is set.
    """
    groups = pair_with_baselines(name_groups(run_sets), across_work=force)
    flags = [
        name
        for name in find_varying_names([group.flag_values for group in groups])
        if name not in SEPARATE_COLUMNS
    ]
    partners = {id(group.baseline) for group in groups if group.ratio}
    rows = []
    for group in groups:
        # In a single folder, all runs must have done the same work.
        other = groups[0] if len(run_sets) == 1 else group.baseline
        if other and not force and (work := workload_differences(other.first, group.first)):
            changes = ', '.join(
                f'{name} {before} and {after}' for name, (before, after) in work.items()
            )
            raise UsageError(
                f'{other.first.source} and {group.first.source}: they measured different work: '
                f'{changes}; compare runs of the same work, or use --force'
            )
        remarks = [f'incomplete: {group.reason}'] if group.reason else []
        if not group.ratio and id(group.baseline) not in partners:
            remarks.append('only here' if len(run_sets) > 1 else 'no other of its batch size')
        row_flags = {name: group.flag_values.get(name) for name in flags}
        rows.append(replace(group, remark='; '.join(remarks), flags=row_flags))
    excluded = [run for run_set in run_sets for run in run_set.excluded_runs]
    return [*rows, *excluded]


def format_runs(throughput: Estimate) -> str:
    rate = format_number(throughput.images_per_second)
    runs = plural(throughput.num_runs, 'run')
    line = f'rate of {runs}: {rate} images/sec (all images / all seconds)'
    if throughput.plus_minus is None:
        return f'{line}; {_TOO_FEW_RUNS}'
    return (
        f'{line}, 95 % interval {format_interval(throughput.interval)} (+/- '
        f'{100 * throughput.plus_minus:.1f} %)'
    )


def format_ratio(ratio: Ratio) -> str:
    interval = None if ratio.is_short else format_interval(ratio.interval, '{:.3f}'.format)
    return f'B / A {ratio.value:.3f}, {f"95 % {interval}" if interval else ratio.verdict.value}'


def format_outliers(rates_by_run: Mapping[str, float]) -> str:
    run_labels = [
        f'{escape_unprintable(name)} ({format_number(rate)})' for name, rate in rates_by_run.items()
    ]
    return (
        f'far from the others: {abbreviate(run_labels)}; something disturbed the machine, '
        'or changed on it'
    )


def work_notes(rows: Sequence[Group]) -> list[str]:
    """Returns a line for each difference in work between a row and its baseline."""
    return [*_difference_lines('different work', [(row, row.work_changes) for row in rows])]


def explain_missing_pairs(run_sets: Sequence[RunSet]) -> str:
    """Returns the sentence of a comparison without a ratio: which values the sides do not share."""
    first, *candidates = run_sets
    reasons = [
        f'{run_set.argument} has no run with a throughput'
        for run_set in run_sets
        if not run_set.groups
    ]
    for candidate in candidates if not reasons else ():
        sides = [[group.properties for group in side.groups] for side in (first, candidate)]
        names = dict.fromkeys(name for side in sides for name in find_varying_names(side))
        values = {
            name: [list(dict.fromkeys(str(row.get(name)) for row in side)) for side in sides]
            for name in names
        }
        separating = {name: pair for name, pair in values.items() if {*pair[0]}.isdisjoint(pair[1])}
        differences = [
            f'{name} is {abbreviate(before)} there and {abbreviate(after)} here'
            for name, (before, after) in separating.items()
        ] or [f'the combinations of {abbreviate([*names])} differ']
        reasons.append(
            f'{first.argument} and {candidate.argument} have no setting in common: '
            f'{abbreviate(differences)}'
        )
    return escape_unprintable(
        f'nothing was compared: {"; ".join(reasons)}; give results of the same settings, or as the '
        'first a result of one setting, the baseline of all others'
    )


def make_notes(rows: Sequence[Group], problems: Sequence[str]) -> list[str]:
    return [
        *work_notes(rows),
        *_difference_lines('flags', [(row, row.flag_changes) for row in rows]),
        *_difference_lines('machine', [(row, row.machine_changes) for row in rows]),
        *(
            f'{escape_unprintable(row.name)}: {format_outliers(outliers)}'
            for row in rows
            if (outliers := _outliers(row))
        ),
        *_warning_lines(rows),
        *noise_warnings([result for row in rows for result in row.results]),
        *_doubtful_run_lines(rows),
        *(f'not read: {escape_unprintable(problem)}' for problem in problems),
        *_advice(rows),
    ]


def _difference_lines(
    title: str, changes_of_rows: Sequence[tuple[Group, Differences]]
) -> Iterator[str]:
    """Yields a line for each set of changes; it names the rows, unless all rows have the set."""
    by_text: dict[str, list[str]] = {}
    compared = [(row, changes) for row, changes in changes_of_rows if row.ratio]
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


def _doubtful_run_lines(rows: Sequence[Group]) -> Iterator[str]:
    """Yields a line for each row of several runs that names its doubtful runs."""
    for row in rows:
        doubtful = [result for result in row.results if doubtful_codes(result)]
        if doubtful and len(row.results) > 1:
            run_labels = [
                f'{escape_unprintable(result.source)} ('
                f'{row.format_rate(result.images_per_second)}, {", ".join(doubtful_codes(result))})'
                for result in doubtful
            ]
            yield f'{escape_unprintable(row.name)}: doubtful: {abbreviate(run_labels)}'


def _warning_lines(rows: Sequence[Group]) -> Iterator[str]:
    for warning, names, is_equal in group_warnings(
        (escape_unprintable(row.name), _warnings(row)) for row in rows
    ):
        if warning.code not in SUMMARIZED_CODES:
            first = '' if is_equal else f', in {names[0]}'
            yield f'warning: {abbreviate(names)}{first}: {escape_unprintable(warning.text)}'


def _advice(rows: Sequence[Group]) -> Iterator[str]:
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


def _format_interval(row: Group) -> str | None:
    """Formats the interval of repeats, or the spread of a single run's steps."""
    if row.estimate and row.estimate.num_runs == 1 and math.isfinite(row.estimate.step_spread):
        return f'steps +/- {100 * row.estimate.step_spread:.1f} %'
    return format_interval(row.interval_in_unit)


def _format_verdict(row: Group) -> str:
    remark = row.remark if row.runs else f'left out: {row.remark}'
    return '; '.join(filter(None, (row.verdict, remark)))


def _outliers(row: Group) -> Mapping[str, float]:
    """Returns images/sec, or wall seconds, of the runs far from the others, by file."""
    return outlier_rates({run.source: row.in_unit(run.images_per_second) for run in row.runs})


def _warnings(row: Group) -> Sequence[WarningRow]:
    by_text = {warning.text: warning for result in row.results for warning in result.warnings}
    return [*by_text.values()]


def _doubtful_runs(row: Group) -> Mapping[str, Sequence[str]]:
    return {result.source: codes for result in row.results if (codes := doubtful_codes(result))}


COMPARISON_COLUMNS: tuple[Column[Group], ...] = (
    Column('run', lambda row: row.name, 'name', wraps=True),
    Column('', lambda row: row.argument, 'argument'),
    Column('', lambda row: row.files, 'files'),
    Column('', lambda row: row.status, 'status'),
    Column('', lambda row: row.remark or None, 'remark'),
    Column('', lambda row: row.is_baseline, 'is_baseline'),
    Column('', lambda row: row.ratio and row.baseline and row.baseline.name, 'baseline'),
    Column('shape', lambda row: row.shape, 'shape'),
    Column('', lambda row: row.flags, 'flags'),
    Column(
        'runs',
        lambda row: len(row.runs),
        'num_runs',
        lambda row: len(row.runs) or None,
        is_number=True,
    ),
    Column('', lambda row: row.estimate.num_steps if row.estimate else 0, 'num_steps'),
    Column(
        'images/sec',
        lambda row: None if row.unit == WALL_TIME else row.rate,
        'images_per_second',
        lambda row: row.rate_text,
        is_number=True,
    ),
    Column('', lambda row: 1 / row.rate if row.unit == WALL_TIME else None, 'wall_seconds'),
    Column('95 %', _format_interval, is_number=True),
    Column('', lambda row: row.interval_in_unit and row.interval_in_unit[0], 'low'),
    Column('', lambda row: row.interval_in_unit and row.interval_in_unit[1], 'high'),
    Column('', lambda row: row.estimate and row.estimate.step_spread, 'step_spread'),
    Column(
        'ratio',
        lambda row: row.ratio and row.ratio.value,
        'ratio',
        lambda row: row.ratio and f'{row.ratio.value:.3f}',
        is_number=True,
    ),
    Column(
        'ratio 95 %',
        lambda row: row.ratio and format_interval(row.ratio.interval, '{:.3f}'.format),
        is_number=True,
    ),
    Column('', lambda row: _ratio_bound(row, 0), 'ratio_low'),
    Column('', lambda row: _ratio_bound(row, 1), 'ratio_high'),
    Column(
        'verdict', lambda row: row.ratio and row.verdict, 'verdict', _format_verdict, wraps=True
    ),
    Column('', lambda row: row.ratio and row.ratio.is_significant, 'is_significant'),
    Column('', lambda row: row.work_changes, 'different_work'),
    Column('', lambda row: row.flag_changes, 'different_flags'),
    Column('', lambda row: row.machine_changes, 'different_machine'),
    Column('', _outliers, 'outliers'),
    Column('', _doubtful_runs, 'doubtful_runs'),
    Column('', _warnings, 'warnings'),
    DOUBTFUL,
)


def _ratio_bound(row: Group, index: int) -> float | None:
    return row.ratio.interval[index] if row.ratio and row.ratio.interval else None
