"""The lines below a table: what is left out, what else differs, and what is doubtful."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tf_cnn.lab.ratios import MIN_RUNS, Significance
from tf_cnn.lab.rows import Row
from tf_cnn.lab.runs import describe_outliers, format_differences, outlier_rates
from tf_cnn.lab.sentence import NO_OTHER, OTHERS
from tf_cnn.results.advice import SUMMARIZED_CODES, doubtful_codes, group_warnings, noise_warnings
from tf_cnn.results.sections import WarningRow
from tf_cnn.results.tables import abbreviate, escape_unprintable
from tf_cnn.system.errors import plural

_MAX_CHANGES = 2


def make_notes(rows: Sequence[Row]) -> list[str]:
    """Returns the lines, the most important ones first."""
    pairs = [row for row in rows if row.is_pair]
    has_one_subject = len({row.who for row in pairs}) == 1
    names = {id(row): (has_one_subject and row.label) or row.name or 'all' for row in rows}
    runs = {run.id: run for row in rows for run in row.documents}
    doubtful = [
        f'{run.source} ({", ".join(codes)})'
        for run in runs.values()
        if (codes := doubtful_codes(run))
    ]
    few = [
        names[id(row)] for row in pairs if row.ratio and row.ratio.verdict is Significance.FEW_RUNS
    ]
    notes = [
        *_left_out(rows),
        *_changes(pairs, names),
        *noise_warnings([*runs.values()]),
        *_far_runs(rows),
        *(
            [f'{abbreviate(few)}: an interval needs {MIN_RUNS} runs or more on both sides']
            if few
            else []
        ),
        *_warnings(rows, names),
        *([f'doubtful: {abbreviate(doubtful)}'] if doubtful else []),
    ]
    return [*dict.fromkeys(map(escape_unprintable, notes))]


def by_remark(rows: Iterable[Row]) -> list[str]:
    """Returns the remarks with the names of their rows."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        names.setdefault(row.remark, {})[row.name] = None
    return [
        ': '.join(filter(None, (abbreviate([*each]), remark))) for remark, each in names.items()
    ]


def _left_out(rows: Sequence[Row]) -> Iterator[str]:
    yield from by_remark(row for row in rows if row.remark and (not row.runs or ': ' in row.remark))
    if lonely := [row.name for row in rows if row.remark == NO_OTHER]:
        yield f'{NO_OTHER}: {abbreviate(lonely)}'


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
    return {
        path: rate
        for runs in (row.compared_runs, row.runs)
        for path, rate in outlier_rates(
            {run.source: row.in_unit(run.images_per_second) for run in runs}
        ).items()
    }


def _far_runs(rows: Sequence[Row]) -> Iterator[str]:
    rates = {path: rate for row in rows for path, rate in outliers(row).items()}
    if rates:
        yield describe_outliers(rates)


def _warnings(rows: Sequence[Row], names: Mapping[int, str]) -> Iterator[str]:
    def warnings(row: Row) -> list[WarningRow]:
        return [warning for run in row.documents for warning in run.warnings]

    groups = group_warnings((names[id(row)], warnings(row)) for row in rows)
    for warning, owners, is_equal in groups:
        if warning.code not in SUMMARIZED_CODES:
            where = '' if is_equal else f', in {owners[0]}'
            yield f'warning: {abbreviate([*dict.fromkeys(owners)])}{where}: {warning.text}'
