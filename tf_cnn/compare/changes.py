"""Makes the answer, the table and the notes of `compare`; docs/compare.md describes them."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tf_cnn.compare.measured import joules_per_image
from tf_cnn.compare.run_sets import (
    FIRST_NAMES,
    Group,
    RunSet,
    name_groups,
    pair_with_baselines,
)
from tf_cnn.lab.differences import Differences, find_varying_names, format_differences
from tf_cnn.lab.intervals import MIN_RUNS, Estimate
from tf_cnn.lab.ratios import Ratio, Significance, geometric_mean
from tf_cnn.lab.repeats import outlier_rates, workload_differences
from tf_cnn.results.advice import (
    SUMMARIZED_CODES,
    doubtful_codes,
    doubtful_note,
    format_doubtful,
    group_warnings,
    noise_warnings,
)
from tf_cnn.results.document import WALL_TIME, AnyResult
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.tables import (
    Column,
    Table,
    abbreviate,
    escape_unprintable,
    format_interval,
    format_known,
    format_number,
)
from tf_cnn.system.errors import UsageError, plural

_MAX_NOTES = 6
# The longest title of a side, in characters.
_MAX_TITLE = 14
_TOO_FEW_RUNS = f'an interval needs {MIN_RUNS} runs or more (--repeat={MIN_RUNS})'


@dataclass(frozen=True)
class Comparison:
    """A row: a setting on both sides or on one, a run that is left out, or the geometric mean.

    Attributes:
      setting: its name; the file of a run that is left out.
      baseline, candidate: the runs of each side; None for a side without them.
      ratio: candidate over baseline, or the mean of all ratios.
      remark: why there is no ratio, or why runs are incomplete or left out.
    """

    setting: str
    baseline: Group | None = None
    candidate: Group | None = None
    ratio: Ratio | None = None
    remark: str = ''

    @property
    def groups(self) -> list[Group]:
        return [group for group in (self.baseline, self.candidate) if group]

    @property
    def results(self) -> list[AnyResult]:
        return [result for group in self.groups for result in group.documents]

    @property
    def status(self) -> str:
        if not self.groups:
            return 'geometric mean'
        statuses = [group.status for group in self.groups]
        return next((status for status in statuses if status != 'complete'), 'complete')

    @property
    def verdict(self) -> Significance | None:
        return self.ratio.verdict if self.ratio else None

    @property
    def energy_ratio(self) -> float | None:
        """The candidate's joules per image over the baseline's; None if one is unknown, or if only
        one is of a GPU: RAPL measures processors, NVML GPUs.
        """
        sources = {result.energy.source for group in self.groups for result in group.results}
        if len(self.groups) < 2 or len(sources) > 1:
            return None
        before, after = (joules_per_image(group.results) for group in self.groups)
        return after / before if before and after else None


@dataclass(frozen=True)
class ComparisonTable:
    """What `compare` says about run sets.

    Attributes:
      answer: the first line, a sentence.
      rows: the most important ones first.
      common: what all rows have in common, as text, by its name.
      units: the units of the rates, as text.
      notes: lines about the runs, the most important ones first.
    """

    answer: str
    rows: Sequence[Comparison]
    common: Mapping[str, str]
    units: str
    table: Table
    notes: Sequence[str]

    @property
    def pairs(self) -> list[Comparison]:
        """The rows with both sides."""
        return [row for row in self.rows if len(row.groups) == 2]

    @property
    def common_line(self) -> str:
        common = f'All: {", ".join(self.common.values())}; ' if self.common else ''
        return f'{common or self.units[:1].upper()}{self.units[not common :]}.'

    @property
    def first_notes(self) -> Sequence[str]:
        """The notes for people; --format=json has all of them."""
        if len(self.notes) <= _MAX_NOTES:
            return self.notes
        first = self.notes[: _MAX_NOTES - 1]
        return [*first, f'{len(self.notes) - len(first)} more notes: --format=json prints them']


def compare_run_sets(run_sets: Sequence[RunSet], *, force: bool = False) -> ComparisonTable:
    """Compares all runs with the first run set, or the settings of a single one with each other.

    Raises UsageError if runs did different work, unless force is set.
    """
    groups = make_rows(run_sets, force=force)
    titles = side_titles([run_set.argument for run_set in run_sets])
    rows = sorted(_make_comparisons(groups, titles), key=_importance)
    pairs = [row for row in rows if row.ratio]
    answer = _format_answer(rows, pairs, titles) if pairs else _explain_missing_pairs(run_sets)
    if len(run_sets) == 2:
        rows += _mean_row(pairs)
    common = _common_properties([group for group in groups if group.runs], titles)
    problems = [problem for run_set in run_sets for problem in run_set.problems]
    table = Table([*_columns(rows, titles, common)], rows)
    units = ', '.join(sorted({group.unit for group in groups if group.runs}))
    if WALL_TIME in units:
        sides = titles.values() if len(titles) == 2 else ('the baseline', 'the other')
        units += ", ratio = {}'s time / {}'s time".format(*sides)
    return ComparisonTable(answer, rows, common, units, table, _make_notes(rows, problems))


def make_rows(run_sets: Sequence[RunSet], *, force: bool = False) -> list[Group]:
    """Returns all runs with their baselines; those that are left out come last.

    Raises UsageError if runs did different work, unless force is set, and for a wall time beside a
    rate.
    """
    groups = pair_with_baselines(name_groups(run_sets), across_work=force)
    for group in groups:
        # In a single folder, all runs must have done the same work.
        other = groups[0] if len(run_sets) == 1 else group.baseline
        work = workload_differences(other.first, group.first) if other else {}
        # A wall time is no rate, even with --force.
        if other and ('unit' in work or (work and not force)):
            changes = ', '.join(
                f'{name} {before} and {after}' for name, (before, after) in work.items()
            )
            hint = ', or use --force' * ('unit' not in work)
            raise UsageError(
                f'{other.first.source} and {group.first.source}: they measured different work: '
                f'{changes}; compare runs of the same work{hint}'
            )
    return [*groups, *(run for run_set in run_sets for run in run_set.excluded_runs)]


def side_titles(arguments: Sequence[str]) -> Mapping[str, str]:
    """Returns a short title for each argument: the end of its path, without what the titles have in
    common, or its first word; numbers if these are too long or equal.
    """
    # The arguments of --run begin with 'A: ' and 'B: '.
    paths = [argument.partition(': ')[0].rstrip('/') for argument in arguments]
    ends = [path.rpartition('/')[2] for path in paths]
    names = ends if len({*ends}) == len(ends) else paths
    words = [re.findall(r'\W*\w+', name) for name in names]
    columns = enumerate(zip(*words, strict=False))
    start = next((index for index, column in columns if len({*column}) > 1), 0)
    ends = [''.join(parts[start:]).lstrip('/-_. ') for parts in words]
    first_words = [''.join(parts[start : start + 1]).lstrip('/-_. ') for parts in words]
    for titles in (names, ends, first_words):
        if len({*titles}) == len(titles) and all(0 < len(title) <= _MAX_TITLE for title in titles):
            return dict(zip(arguments, titles, strict=True))
    return {argument: f'#{number}' for number, argument in enumerate(arguments, start=1)}


def _make_comparisons(groups: Sequence[Group], titles: Mapping[str, str]) -> Iterator[Comparison]:
    """Yields a row for each group, except for the baselines of others."""
    partners = {id(group.baseline) for group in groups if group.ratio}
    for group in groups:
        if group.is_baseline and id(group.baseline) in partners:
            continue
        title, baseline = titles[group.argument], group.baseline if group.ratio else None
        remarks = [
            f'incomplete: {side.reason}' if side.runs else side.reason
            for side in (baseline, group)
            if side and side.reason
        ]
        if group.runs and not baseline:
            remarks.append(f'only in {title}' if len(titles) > 1 else 'no other of its batch size')
        setting = f'{title}: {group.setting}' if len(titles) > 2 else group.setting
        is_of_baseline = len(titles) > 1 and not baseline and title == next(iter(titles.values()))
        before, after = (group, None) if is_of_baseline else (baseline, group)
        yield Comparison(setting, before, after, group.ratio, '; '.join(remarks))


def _importance(row: Comparison) -> tuple[int, float]:
    """The position of a row: significant differences come first, the largest on top."""
    if row.ratio and row.baseline and row.candidate:
        difference = abs(math.log(row.candidate.rate) - math.log(row.baseline.rate))
        return int(not row.ratio.is_significant), -difference
    return 3 if row.status == 'left out' else 2, 0


def _mean_row(pairs: Sequence[Comparison]) -> Iterator[Comparison]:
    """Yields the geometric mean, if all ratios have an interval and different baselines, and all
    runs did the same work.
    """
    estimates = [
        (row.baseline.estimate, row.candidate.estimate)
        for row in pairs
        if row.verdict not in (Significance.FEW_RUNS, Significance.TOO_SHORT)
        if row.baseline and row.candidate and not row.candidate.work_changes
        if row.baseline.estimate and row.candidate.estimate
    ]
    if len({id(row.baseline) for row in pairs}) == len(pairs) == len(estimates) > 1:
        yield Comparison(f'geometric mean of {len(pairs)}', ratio=geometric_mean(estimates))


def _common_properties(groups: Sequence[Group], titles: Mapping[str, str]) -> Mapping[str, str]:
    texts = {
        name: {group.format_properties([name], {}) for group in groups} for name in FIRST_NAMES
    }
    texts['num_runs'] = {f'{plural(len(group.runs), "run")} each' for group in groups}
    if len(titles) == 1:
        baselines = [group.baseline for group in groups if group.ratio]
        texts['baseline'] = {f'baseline {group.setting}' for group in baselines if group}
    texts |= {
        title: {f'{title} is {argument}'}
        for argument, title in titles.items()
        if title.startswith('#')
    }
    return {
        name: escape_unprintable(*values)
        for name, values in texts.items()
        if len(values) == 1 and values != {''}
    }


def _format_answer(
    rows: Sequence[Comparison], pairs: Sequence[Comparison], titles: Mapping[str, str]
) -> str:
    """Says in a sentence how many settings differ, by how much at most, and what is doubtful."""
    clauses = [_describe_pair(pairs[0], titles)] if len(pairs) == 1 else _count(pairs, titles)
    left_out = sum(row.status == 'left out' for row in rows)
    if unmatched := len(rows) - len(pairs) - left_out:
        clauses.append(f'{plural(unmatched, "setting")} without a counterpart')
    if left_out:
        clauses.append(f'{plural(left_out, "run")} left out')
    return escape_unprintable(f'{"; ".join(clauses)}{doubtful_note(_results(rows))}.')


def _describe_pair(row: Comparison, titles: Mapping[str, str]) -> str:
    assert row.ratio
    assert row.baseline
    first, second = titles.values() if len(titles) == 2 else (row.baseline.setting, row.setting)
    statement = {
        Significance.FASTER: f'{second} is faster than {first}',
        Significance.SLOWER: f'{second} is slower than {first}',
        Significance.SAME: f'No difference is shown between {first} and {second}',
        Significance.FEW_RUNS: f'Too few runs for a verdict on {first} and {second}',
        Significance.TOO_SHORT: f'Runs too short for a verdict on {first} and {second}',
    }[row.ratio.verdict]
    interval = f' ({_ratio_interval(row)})' if row.ratio.interval else ''
    return f'{statement}: ratio {row.ratio.value:.3f}{interval}'


def _count(pairs: Sequence[Comparison], titles: Mapping[str, str]) -> list[str]:
    """Returns a clause for each verdict; the direction of most differences comes first."""
    rows = {verdict: [row for row in pairs if row.verdict is verdict] for verdict in Significance}
    baseline, *candidates = titles.values()
    start, than = f'Against {baseline if candidates else "the baseline"}:', ''
    if len(candidates) == 1:
        start, than = f'{candidates[0]} is', f' than {baseline}'
    first, second = sorted(
        (Significance.FASTER, Significance.SLOWER), key=lambda verdict: -len(rows[verdict])
    )

    def largest(verdict: Significance) -> str:
        way = 'up' if verdict is Significance.FASTER else 'down'
        return ''.join(
            f' (ratio {way} to {row.ratio.value:.3f}: {row.setting})'
            for row in rows[verdict][:1]
            if row.ratio
        )

    clauses = {
        Significance.SAME: 'no difference is shown',
        Significance.FEW_RUNS: 'too few runs',
        Significance.TOO_SHORT: 'runs too short for a verdict',
    }
    answer = f'faster or slower{than} in none of {len(pairs)} settings'
    if rows[first]:
        answer = (
            f'{first.value}{than} in {len(rows[first])} of {len(pairs)} settings{largest(first)}, '
            f'{second.value} in {len(rows[second]) or "none"}{largest(second)}'
        )
    return [
        f'{start} {answer}',
        *(f'{text} in {len(rows[verdict])}' for verdict, text in clauses.items() if rows[verdict]),
    ]


def _explain_missing_pairs(run_sets: Sequence[RunSet]) -> str:
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


def work_notes(rows: Sequence[Comparison]) -> list[str]:
    """Returns a line about the differences in work, if there are any."""
    return [*_difference_line('different work', rows, lambda group: group.work_changes)]


def _make_notes(rows: Sequence[Comparison], problems: Sequence[str]) -> list[str]:
    results = _results(rows)
    remarks = [
        f'{row.setting} ({row.remark})' for row in rows if row.status in ('left out', 'incomplete')
    ]
    outliers = {name: rate for row in rows for name, rate in _outliers(row).items()}
    doubtful = {
        f'{result.source} ({group.format_rate(result.images_per_second)}, {", ".join(codes)})': None
        for row in rows
        for group in row.groups
        for result in group.documents
        if (codes := doubtful_codes(result))
    }
    few = [row.setting for row in rows if row.verdict is Significance.FEW_RUNS]
    notes = [
        f'left out or incomplete: {abbreviate(remarks)}' if remarks else '',
        f'not read: {abbreviate(problems)}' if problems else '',
        *work_notes(rows),
        *_difference_line('flags', rows, lambda group: group.flag_changes),
        *_difference_line('machine', rows, lambda group: group.machine_changes),
        *noise_warnings(results),
        format_outliers(outliers) if outliers else '',
        f'too few runs: {abbreviate(few)}: {_TOO_FEW_RUNS} on both sides; or run both in turns '
        'with compare --run=FLAGS --run=FLAGS'
        if few
        else '',
        *_warning_lines(rows),
        f'doubtful: {abbreviate([*doubtful])}' if doubtful else '',
    ]
    return [escape_unprintable(note) for note in notes if note]


def _results(rows: Iterable[Comparison]) -> list[AnyResult]:
    """Returns all runs of these rows, each once: several rows may have one baseline."""
    return [*{id(result): result for row in rows for result in row.results}.values()]


def _difference_line(
    title: str, rows: Sequence[Comparison], changes_of: Callable[[Group], Differences]
) -> Iterator[str]:
    """Yields a line with the most frequent differences between both sides, if there are any."""
    compared = [
        (row.setting, changes_of(row.candidate)) for row in rows if row.candidate and row.ratio
    ]
    by_text: dict[str, list[str]] = {}
    for setting, changes in compared:
        if changes:
            by_text.setdefault(format_differences(changes), []).append(setting)
    if by_text:
        text, settings = max(by_text.items(), key=lambda item: len(item[1]))
        where = '' if len(settings) == len(compared) else f' of {abbreviate(settings)}'
        more = f'; {plural(len(by_text) - 1, "other set")} of differences' * (len(by_text) > 1)
        yield f'{title}{where}: {text}{more}'


def _warning_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    for warning, names, is_equal in group_warnings((row.setting, _warnings(row)) for row in rows):
        if warning.code not in SUMMARIZED_CODES:
            first = '' if is_equal else f', in {names[0]}'
            yield f'warning: {abbreviate(names)}{first}: {warning.text}'


def _outliers(row: Comparison) -> Mapping[str, float]:
    """Returns the rates, or wall seconds, of runs far from the others of their side, by file."""
    return {
        name: rate
        for group in row.groups
        for name, rate in outlier_rates(
            {run.source: group.in_unit(run.images_per_second) for run in group.runs}
        ).items()
    }


def _warnings(row: Comparison) -> Sequence[WarningRow]:
    by_text = {warning.text: warning for result in row.results for warning in result.warnings}
    return [*by_text.values()]


def _doubtful_runs(row: Comparison) -> Mapping[str, Sequence[str]]:
    return {result.source: codes for result in row.results if (codes := doubtful_codes(result))}


def _ratio_interval(row: Comparison) -> str | None:
    return format_interval(row.ratio.interval, '{:.3f}'.format) if row.ratio else None


def _format_verdict(row: Comparison) -> str:
    if not row.verdict:
        return row.status if row.status != 'complete' else 'no pair'
    verdict = 'unclear' if row.verdict is Significance.SAME else row.verdict.value
    return f'{verdict}, incomplete' if row.status == 'incomplete' else verdict


def _columns(
    rows: Sequence[Comparison], titles: Mapping[str, str], common: Mapping[str, str]
) -> Iterator[Column[Comparison]]:
    """Yields the columns; their values are in JSON and CSV, those with a title in all formats."""
    baseline, *candidates = titles.values()
    flag_names = find_varying_names(
        [group.flag_values for row in rows for group in row.groups if group.runs]
    )

    def flags(row: Comparison) -> Mapping[str, object]:
        group = row.groups[-1] if row.groups else None
        if not group or not group.runs:
            return group.flags if group else {}
        return {name: group.flag_values.get(name) for name in flag_names if name != 'shape'}

    yield Column('setting', lambda row: row.setting, 'setting', wraps=True)
    yield Column('', lambda row: row.status, 'status')
    yield Column('', lambda row: row.remark or None, 'remark')
    yield Column('', lambda row: row.groups[-1].shape if row.groups else None, 'shape')
    yield Column('', flags, 'flags')
    yield Column(
        '' if candidates or 'baseline' in common else 'against',
        lambda row: row.ratio and row.baseline and row.baseline.setting,
        'baseline',
        wraps=True,
    )
    yield from _side_columns(
        baseline if candidates else 'baseline', 'baseline_', lambda row: row.baseline
    )
    title = candidates[0] if len(candidates) == 1 else 'rate'
    yield from _side_columns(title, '', lambda row: row.candidate)
    if 'num_runs' not in common:
        yield Column(
            'runs', lambda row: ', '.join(str(len(group.runs)) for group in row.groups) or None
        )
    yield from _RATIO_COLUMNS


def _side_columns(
    title: str, prefix: str, side: Callable[[Comparison], Group | None]
) -> Iterator[Column[Comparison]]:
    def column(key: str, value: Callable[[Group], object]) -> Column[Comparison]:
        return Column('', lambda row: (group := side(row)) and value(group), f'{prefix}{key}')

    yield column('argument', lambda group: group.argument)
    yield column('files', lambda group: group.files)
    yield column('num_runs', lambda group: len(group.runs))
    yield column('num_steps', lambda group: group.estimate.num_steps if group.estimate else 0)
    yield replace(
        column('images_per_second', lambda group: None if group.is_wall_time else group.rate),
        title=title,
        text=lambda row: (group := side(row)) and group.rate_text,
        is_number=True,
    )
    yield column('wall_seconds', lambda group: 1 / group.rate if group.is_wall_time else None)
    yield column('low', lambda group: group.interval and min(map(group.in_unit, group.interval)))
    yield column('high', lambda group: group.interval and max(map(group.in_unit, group.interval)))
    yield column('step_spread', lambda group: group.estimate and group.estimate.step_spread)


_RATIO_COLUMNS: tuple[Column[Comparison], ...] = (
    Column(
        'ratio',
        lambda row: row.ratio and row.ratio.value,
        'ratio',
        lambda row: row.ratio and f'{row.ratio.value:.3f}',
        is_number=True,
    ),
    Column('95 %', _ratio_interval, is_number=True, is_optional=True),
    Column('', lambda row: row.ratio and row.ratio.interval and row.ratio.interval[0], 'ratio_low'),
    Column(
        '', lambda row: row.ratio and row.ratio.interval and row.ratio.interval[1], 'ratio_high'
    ),
    Column(
        'energy',
        lambda row: row.energy_ratio,
        'energy_ratio',
        lambda row: format_known('{:.2f}', row.energy_ratio),
        is_number=True,
        is_optional=True,
    ),
    Column(
        'verdict',
        lambda row: row.verdict and row.verdict.value,
        'verdict',
        _format_verdict,
        wraps=True,
    ),
    Column('', lambda row: row.ratio and row.ratio.is_significant, 'is_significant'),
    Column('', lambda row: row.candidate.work_changes if row.candidate else {}, 'different_work'),
    Column('', lambda row: row.candidate.flag_changes if row.candidate else {}, 'different_flags'),
    Column(
        '', lambda row: row.candidate.machine_changes if row.candidate else {}, 'different_machine'
    ),
    Column('', _outliers, 'outliers'),
    Column('', _doubtful_runs, 'doubtful_runs'),
    Column('', _warnings, 'warnings'),
    Column('doubtful', lambda row: format_doubtful(row.results), wraps=True, is_optional=True),
)
