"""The sentence that answers what rows are about, and the notes below their table: what is left out,
what else differs, and what is doubtful. Does not import TensorFlow.
"""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tf_cnn.lab.links import LinkRatio, describe_links
from tf_cnn.lab.losses import describe_losses, describe_wrong, is_wrong
from tf_cnn.lab.original_logs import documents
from tf_cnn.lab.rows import UNSTEADY, Row, format_value, settings_with_references
from tf_cnn.lab.runs import (
    WITH,
    find_varying_names,
    format_differences,
    group,
)
from tf_cnn.results.advice import (
    SUMMARIZED_CODES,
    doubtful_codes,
    doubtful_note,
    group_warnings,
    noise_warnings,
)
from tf_cnn.results.document import COMMAND_RATE, AnyResult, Result
from tf_cnn.results.ratios import MIN_RUNS, Significance
from tf_cnn.results.statistics import MAD_TO_STANDARD_DEVIATION, mad
from tf_cnn.results.tables import abbreviate, escape_unprintable, format_interval, format_number
from tf_cnn.system.errors import plural

OTHERS = 'the others'
AS_BEFORE = 'as before'
# Remarks of rows that have nothing to be held against.
NO_OTHER, NO_OTHER_HOST = 'no other of its work', 'no other host'
_OF_HOSTS = ' (to compare kinds of machines give one machine of each, or use --across=hosts)'
_MAX_CLAUSES, _MAX_CHANGES = 3, 2
# A run is an outlier beyond this modified z-score: Iglewicz and Hoaglin 1993, How to Detect and
# Handle Outliers, 3.3.
_OUTLIER_SCORE = 3.5
# Nobody looks for the cause of a smaller difference.
_MIN_OUTLIER_SHARE = 0.02
# The median and the MAD of fewer runs are too uncertain to call one an outlier.
_MIN_RUNS_FOR_OUTLIERS = 5
# Hosts agree if no interval reaches further than this; wider ones show nothing.
_AGREEMENT = 0.1
# The clause of each verdict that names no direction.
_CLAUSES = {
    Significance.SAME.value: 'no difference is shown',
    AS_BEFORE: 'as before',
    Significance.FEW_RUNS.value: 'too few runs for a verdict',
    Significance.TOO_SHORT.value: 'runs too short for a verdict',
    UNSTEADY: 'runs differ too much for a verdict',
}


def answer(rows: Sequence[Row]) -> str:
    """Says who differs from what, in how many settings and by how much; then the rest by counts."""
    pairs = [row for row in rows if row.is_pair]
    absent = _hosts_without_rate(rows)
    clauses = [f'no rate of {abbreviate(absent)}'] if absent else []
    if pairs:
        clauses += _describe_small_sides(rows)
        clauses += describe_links(pairs)
        clauses += _describe_pairs([row for row in pairs if not isinstance(row.ratio, LinkRatio)])
    else:
        clauses += _explain_nothing(rows)
    agree, uncompared = describe_losses(rows)
    remarks = Counter(
        row.verdict
        for row in rows
        if row.runs and not row.ratio and not row.is_baseline and row.remark != NO_OTHER
        if not is_wrong(row)
    )
    if pairs:
        clauses += [f'{count} {text}' for text, count in remarks.items()]
    clauses += [*describe_wrong(rows)[:_MAX_CLAUSES], *agree, *uncompared]
    without = {row.who for row in rows if {*absent} & {row.who, *row.who.split(WITH)}}
    if left_out := sum(row.is_left_out and row.who not in without for row in rows):
        clauses.append(f'{plural(left_out, "run")} left out')
    return escape_unprintable(f'{"; ".join(clauses)}{doubtful_note(_documents(rows))}.')


def _unit(row: Row) -> str:
    """Returns the unit after a number; '' if the number has it."""
    return '' if row.is_time else row.unit.removeprefix('rates in ')


def _describe_small_sides(rows: Sequence[Row]) -> Iterator[str]:
    """Of sides that are compared each by itself, says the rates of those with one or two rows."""
    for peers in group([row for row in rows if row.who and row.runs], lambda row: row.who):
        if len(peers) < 3 and any(row.is_baseline for row in peers):
            rates = ', '.join(f'{row.label} {row.format_rate(row.rate)}'.strip() for row in peers)
            yield f'{peers[0].who}: {rates} {_unit(peers[0])}'.rstrip()


def _is_fleet(rows: Iterable[Row]) -> bool:
    return any(row.reference.name == OTHERS for row in rows)


def _hosts_without_rate(rows: Sequence[Row]) -> list[str]:
    """Returns the hosts without a rate in a fleet, and the pairs of other hosts."""
    sides = {row.who for row in rows if row.runs}
    hosts = {host for side in sides for host in side.split(WITH)}
    missing = [row.who for row in rows if row.is_missing and row.who not in {'', *sides}]
    absent = (
        [host for host in side.split(WITH) if host not in hosts] or [side] for side in missing
    )
    return [*dict.fromkeys(name for names in absent for name in names)] if _is_fleet(rows) else []


def _describe_pairs(pairs: Sequence[Row]) -> list[str]:
    subjects = [
        peers for peers in group(sorted(pairs, key=_severity), _subject) if peers[0].is_significant
    ]
    if len(pairs) == 1:
        return [_describe_subject(pairs)]
    clauses = [*map(_describe_subject, subjects[:_MAX_CLAUSES])]
    if more := len(subjects[_MAX_CLAUSES:]):
        clauses.append(f'{more} more differ')
    unsteady = [row for row in pairs if row.is_unsteady and not row.is_significant]
    rest = [row for row in pairs if not row.is_significant and not row.is_unsteady]
    start = ''
    if _is_fleet(pairs):
        differing = {row.who for subject in subjects for row in subject}
        hosts = [row for row in rest if row.reference.name == OTHERS]
        clauses += _describe_agreement([row for row in hosts if row.who not in differing])
        clauses[:0] = [] if subjects else ['no host differs']
        # Clusters may stand beside hosts.
        rest = [row for row in rest if row.reference.name != OTHERS]
    elif not subjects and len(references := {row.reference.name for row in pairs}) == 1:
        start = f'against {references.pop()}: '
    for verdict, text in _CLAUSES.items():
        if same := [row for row in rest if row.verdict == verdict]:
            clauses.append(f'{start}{text} in {len(same)}{_format_ratios(same)}')
            start = ''
    if names := [*dict.fromkeys(row.who for row in unsteady)]:
        clauses.append(f'unsteady: {abbreviate(names)}')
    return clauses


def _subject(row: Row) -> str:
    """A side or host; within a folder, a setting."""
    is_alone = not row.who or row.reference.name.startswith(f'{row.who} ')
    return row.name if is_alone else row.who


def _severity(row: Row) -> tuple[bool, float]:
    """Slower and faster rows first, the largest difference on top."""
    assert row.ratio
    return not row.is_significant, -max(row.ratio.value, 1 / row.ratio.value)


def _describe_agreement(rows: Sequence[Row]) -> Iterator[str]:
    """Says within which difference hosts agree, if the intervals exclude a larger one."""
    hosts = len({row.who for row in rows})
    intervals = [row.ratio.interval for row in rows if row.ratio and row.ratio.interval]
    furthest = max((max(1 - low, high - 1) for low, high in intervals), default=0)
    if hosts > 1 and furthest <= _AGREEMENT:
        yield f'{hosts} hosts agree within {format_number(100 * furthest, 2)} %'
    elif hosts:
        yield f'no difference is shown in {plural(hosts, "host")}{_format_ratios(rows)}'


def _format_ratios(rows: Sequence[Row]) -> str:
    values = [row.ratio.value for row in rows if row.ratio]
    if len(values) == 1:
        return f' (ratio {values[0]:.3f})'
    return f' (ratios {min(values):.3f} to {max(values):.3f})'


def _describe_subject(rows: Sequence[Row]) -> str:
    """Describes the rows of one side, host or setting by the first of them, the worst."""
    worst, name = rows[0], _subject(rows[0])
    assert worst.ratio
    verdict, other = worst.ratio.verdict, worst.reference.name
    if worst.is_significant:
        statement = f'{name} is {verdict.value} than {other}'
    elif worst.verdict == AS_BEFORE:
        statement = f'{name} is as in {other}'
    else:
        statement = f'{_CLAUSES[worst.verdict]} between {other} and {name}'
    if len(rows) > 1:
        verdicts = Counter(row.ratio.verdict for row in rows if row.ratio)
        opposite = {Significance.FASTER, Significance.SLOWER} - {verdict}
        also = [f' and {way.value} in {verdicts[way]}' for way in opposite if verdicts[way]]
        statement += f' in {verdicts[verdict]} of {len(rows)} settings{"".join(also)}'
    interval = format_interval(worst.ratio.interval, '{:.3f}'.format)
    preposition = '' if worst.label.startswith('on ') else 'for '
    where = f' {preposition}{worst.label}' if len(rows) > 1 and worst.label else ''
    ratio = f'ratio {worst.ratio.value:.3f}{(interval and f" ({interval})") or ""}{where}'
    cost = cost_ratio(worst)
    return f'{statement}: {ratio}{(cost and f", and costs {cost:.2f} of it{_per(worst)}") or ""}'


def _per(row: Row) -> str:
    if row.unit == Result.unit:
        return ' per image'
    return '' if row.unit == COMMAND_RATE else ' per run'


def cost_ratio(row: Row) -> float | None:
    """The cost of an image over the reference's: the ratio of the prices over that of the rates."""
    before = row.reference.price
    return row.price / before / row.ratio.value if row.price and before and row.ratio else None


# ---- nothing to compare --------------------------------------------------------------------------


def _explain_nothing(rows: Sequence[Row]) -> list[str]:
    """Says which values the sides do not share; of a single setting its rate."""
    measured = [row for row in rows if row.runs]
    sides = {peers[0].who: peers for peers in group(measured, lambda row: row.who)}
    empty = dict.fromkeys(row.who for row in rows if row.who and row.who not in sides)
    remarks = Counter(row.remark for row in measured if row.remark and not is_wrong(row))
    if [*remarks] == [NO_OTHER_HOST] and len(sides) == 1 and not empty:
        runs = plural(sum(len(row.runs) for row in measured), 'run')
        return [
            f'{runs} of one host, {measured[0].who}; if these are several machines, put each into '
            'a folder'
        ]
    if measured and not remarks:
        return [*map(_describe_rate, measured[:_MAX_CLAUSES])]
    reasons = [text if count == 1 else f'{count} {text}' for text, count in remarks.items()]
    if all(text.startswith('only in') for text in remarks):
        if empty:
            reasons = []
        elif len(sides) > 1:
            (first, before), (second, after), *_ = sides.items()
            reasons = [*_separating_values(first, before, second, after)] or reasons
    reasons[:0] = [f'no run of {abbreviate([*empty])} has a throughput'] if empty else []
    return [f'nothing was compared: {"; ".join(reasons[:_MAX_CLAUSES]) or "there is no run"}']


def _describe_rate(row: Row) -> str:
    interval = format_interval(row.interval, row.format_number)
    names = ('model', 'variable_update', 'batch_size', 'shape', 'command')
    facts = [format_value(name, row.facts[name]) for name in names if name in row.facts]
    parts = [row.rate_text, _unit(row), f'({interval})' if interval else '']
    return f'{row.who and f"{row.who}, "}{", ".join(facts)}: {" ".join(filter(None, parts))}'


def _separating_values(
    first: str, before: Sequence[Row], second: str, after: Sequence[Row]
) -> Iterator[str]:
    sides: list[list[Mapping[str, Any]]] = [[row.facts for row in side] for side in (before, after)]
    names = {*find_varying_names(sides[0]), *find_varying_names(sides[1])}
    for name in sorted(names, key=lambda name: (name != 'host', name)):
        values = [[*dict.fromkeys(str(facts.get(name)) for facts in side)] for side in sides]
        if {*values[0]}.isdisjoint(values[1]):
            yield (
                f'{name} is {abbreviate(values[0])} in {first} and {abbreviate(values[1])} in '
                f'{second}{_OF_HOSTS * (name == "host")}'
            )


# ---- the lines below a table ---------------------------------------------------------------------


def make_notes(rows: Sequence[Row]) -> list[str]:
    """Returns the lines, the most important ones first."""
    pairs = [row for row in rows if row.is_pair]
    has_one_subject = len({row.who for row in pairs}) == 1
    names = {id(row): (has_one_subject and row.label) or row.name or 'all' for row in rows}
    runs = _documents(rows)
    few = [names[id(row)] for row in pairs if row.verdict == Significance.FEW_RUNS.value]
    far = {path: rate for row in rows for path, rate in outliers(row).items()}
    doubtful = {run.source: codes for run in runs if (codes := doubtful_codes(run))}
    notes = [
        *by_remark(row for row in rows if row.remark and (not row.runs or ': ' in row.remark)),
        *_listed(f'{NO_OTHER}: {{}}', [row.name for row in rows if row.remark == NO_OTHER]),
        *_changes(pairs, names),
        *_listed(
            'the program was changed since its commit, and may differ between these: {}',
            [names[id(row)] for row in rows if any(map(_is_changed, row.results))],
        ),
        *noise_warnings(runs),
        *_listed(
            'far from the others: {}; something disturbed the machine, or changed on it',
            [f'{path} ({format_number(rate)})' for path, rate in far.items()],
        ),
        *_listed(f'{{}}: an interval needs {MIN_RUNS} runs or more on both sides', few),
        *_warnings(rows),
        *_listed(
            'doubtful: {}', [f'{path} ({", ".join(codes)})' for path, codes in doubtful.items()]
        ),
    ]
    return [*dict.fromkeys(map(escape_unprintable, notes))]


def _is_changed(run: Result) -> bool:
    return (run.program.git_commit or '').endswith('-dirty')


def _listed(text: str, items: Sequence[str]) -> list[str]:
    return [text.format(abbreviate(items))] if items else []


def _documents(rows: Iterable[Row]) -> list[AnyResult]:
    return [*{run.id: run for row in rows for run in row.documents}.values()]


def by_remark(rows: Iterable[Row]) -> list[str]:
    """Returns the remarks with the names of their rows."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row.remark, {})[row.name] = None
    return [
        ': '.join(filter(None, (abbreviate([*each]), remark))) for remark, each in names.items()
    ]


def _changes(pairs: Sequence[Row], names: Mapping[int, str]) -> Iterator[str]:
    """Yields the most frequent sets of differences from the reference."""
    is_fleet = any(row.reference.name == OTHERS for row in pairs)
    rows_by_text: dict[str, list[str]] = {}
    for row in pairs:
        if row.changes and (row.is_significant or not is_fleet):
            text = format_differences(row.changes)
            rows_by_text.setdefault(text, []).append(row.who if is_fleet else names[id(row)])
    sets = sorted(rows_by_text.items(), key=lambda item: -len(item[1]))
    for text, owners in sets[:_MAX_CHANGES]:
        where = f'{abbreviate([*dict.fromkeys(owners)])}{" alone" * is_fleet}'
        yield f'{"differs" if len(owners) == len(pairs) else where}: {text}'
    if more := len(sets[_MAX_CHANGES:]):
        yield f'{plural(more, "other set")} of differences: --format=json'


def outliers(row: Row) -> Mapping[str, float]:
    """Returns the rates of runs far from the others of their side, by file."""
    far = dict[str, float]()
    for runs in (row.compared_runs, row.runs):
        rates = {run.source: row.in_unit(run.images_per_second) for run in runs}
        if len(rates) >= _MIN_RUNS_FOR_OUTLIERS:
            middle = statistics.median(rates.values())
            deviation = MAD_TO_STANDARD_DEVIATION * mad([*rates.values()])
            limit = max(_OUTLIER_SCORE * deviation, _MIN_OUTLIER_SHARE * middle)
            far |= {path: rate for path, rate in rates.items() if abs(rate - middle) > limit}
    return far


def _warnings(rows: Sequence[Row]) -> Iterator[str]:
    groups = group_warnings(
        (row.name or 'all', chain(*(run.warnings for run in documents(row.runs))))
        for row in settings_with_references(rows)
    )
    for warning, owners, is_equal in groups:
        if warning.code not in SUMMARIZED_CODES:
            where = '' if is_equal else f', in {owners[0]}'
            yield f'warning: {abbreviate([*dict.fromkeys(owners)])}{where}: {warning.text}'
