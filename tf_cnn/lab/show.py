"""Prints rows as a sentence, a table and notes, in each format."""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tf_cnn.lab.links import link_matrix
from tf_cnn.lab.original_logs import documents
from tf_cnn.lab.rows import FIRST_NAMES, Row, format_value
from tf_cnn.lab.runs import hosts_of
from tf_cnn.lab.sentence import OTHERS, answer, cost_ratio, make_notes, outliers
from tf_cnn.plan.params import SPECS
from tf_cnn.results.advice import doubt_mark, doubtful_codes, format_doubtful
from tf_cnn.results.document import COMMAND_TIME, WALL_TIME, Result
from tf_cnn.results.tables import (
    Column,
    Table,
    escape_unprintable,
    format_interval,
    format_known,
    format_number,
    print_table,
)
from tf_cnn.system.errors import plural

_MAX_NOTES = 6
# Of hosts more rows are printed only if they differ.
_MAX_HOST_ROWS = 12
# More do not fit on a terminal: then one column has the whole setting.
_MAX_SETTING_COLUMNS = 3
_TITLES = {
    'batch_size': 'batch',
    'variable_update': 'mode',
    'shape': 'W*G+P',
    'host': 'on',
    'data_sha256': 'data',
}
_MILLION, _SECONDS_PER_HOUR = 1e6, 3600


def show(rows: Sequence[Row], form: str) -> None:
    """Prints the sentence, the table and the notes; or the rows as CSV or JSON."""
    sentence, common, known = answer(rows), common_line(rows), known_rows(rows)
    document = {
        'schema': 'tf_cnn_benchmarks.rows',
        'schema_version': 1,
        'answer': sentence,
        'common': common,
        'rows': Table([*columns(known)], known).objects if form in ('json', 'csv') else [],
        'notes': make_notes(rows),
    }
    heading = [escape_unprintable(line) for line in (sentence, common) if line]
    table, notes = make_table(rows)
    print_table(table, form, document, notes, heading)


def known_rows(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows without those that only have a note."""
    return [row for row in rows if row.runs or row.ratio or row.is_left_out]


def make_table(rows: Sequence[Row]) -> tuple[Table, list[str]]:
    """Returns the table and the notes for people; --format=json has all rows and notes."""
    notes = make_notes(rows)
    if len(notes) > _MAX_NOTES:
        more = len(notes) - _MAX_NOTES + 1
        notes[_MAX_NOTES - 1 :] = [f'{more} more notes: --format=json']
    if matrix := link_matrix(rows):
        return matrix, notes
    # A host without a rate is one row.
    by_name = {(row.name, row.remark) if row.is_left_out else id(row): row for row in rows}
    # Rows without a ratio say nothing more than the sentence and the notes.
    shown = known_rows(by_name.values()) if any(row.ratio for row in rows) else []
    limit = max(
        _MAX_HOST_ROWS, sum(row.is_significant or row.is_unsteady or not row.ratio for row in shown)
    )
    is_fleet = any('host' in row.setting or row.reference.name == OTHERS for row in rows)
    if is_fleet and len(shown) > limit:
        more = len(shown) - limit
        notes.insert(0, f'{more} more without a significant difference: --format=json')
        shown = shown[:limit]
    return Table([*columns(shown)], shown), notes


def common_line(rows: Sequence[Row]) -> str:
    """Says what all runs have in common, and the unit of their rates."""
    measured = [row for row in rows if row.runs]
    if not measured:
        return ''
    varying = {name for row in measured for name in (*row.setting, *row.changes)}
    texts = []
    for name in FIRST_NAMES:
        values = {str(row.facts.get(name)) for row in measured}
        if len(values) == 1 and values != {'None'} and name not in varying:
            texts.append(format_value(name, values.pop()))
    numbers = {number for row in measured for number in _run_numbers(row)}
    texts += [f'{plural(numbers.pop(), "run")} each'] if len(numbers) == 1 else []
    baselines = [row.label for row in rows if row.is_baseline]
    texts += [f'baseline {baselines[0]}'] if len(baselines) == 1 < len(measured) else []
    units = sorted({row.unit for row in measured})
    is_time = {COMMAND_TIME, WALL_TIME} & {*units}
    line = ', '.join([*texts, *units, *(['ratio above 1 is faster'] if is_time else [])])
    return f'All: {line}.'


def _run_numbers(row: Row) -> list[int]:
    return [len(runs) for runs in (row.compared_runs, row.runs) if runs]


# ---- columns -------------------------------------------------------------------------------------


def columns(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    """Yields the columns; those without a title are in JSON and CSV only."""
    yield from _name_columns(rows)
    for name in ('who', 'setting', 'label'):
        yield Column('', operator.attrgetter(name), name)
    yield Column('', _status, 'status')
    yield Column('', lambda row: row.remark or None, 'remark')
    yield from _rate_columns(rows)
    yield from _COLUMNS


def _name_columns(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    references = {row.reference.name for row in rows if row.is_pair}
    pairs = {row.who for row in rows if row.is_pair}
    sides = {row.who for row in rows if row.runs}
    # A side that has a baseline of its own is not the second of two.
    has_separate = any(row.who and row.is_baseline for row in rows)
    if len(pairs) > 1 or len(sides) > 2 or OTHERS in references or has_separate:
        title = 'host' if OTHERS in references else 'side'
        yield Column(title, lambda row: row.who or None, is_optional=True)
    names = dict.fromkeys(name for row in rows for name in row.setting)
    if len(names) > _MAX_SETTING_COLUMNS or any(
        row.label and not (row.runs or row.setting) for row in rows
    ):
        yield Column('setting', lambda row: row.label, is_optional=True, wraps=True)
    else:
        yield from map(_setting_column, names)
    if len(references) > 1 and sum(row.is_baseline for row in rows) != 1:
        yield Column('against', lambda row: row.reference.name, wraps=True)


def _setting_column(name: str) -> Column[Row]:
    def cell(row: Row) -> object:
        value = row.setting.get(name)
        is_default = name in SPECS and name not in FIRST_NAMES and value == SPECS[name].default
        return None if is_default else value

    is_short = name in FIRST_NAMES
    return Column(_TITLES.get(name, name), cell, is_optional=True, wraps=not is_short)


def _rate_columns(rows: Sequence[Row]) -> Iterator[Column[Row]]:
    """The rates of the reference and of the row; in one folder the baseline is a row."""
    has_baseline = any(row.is_baseline for row in rows)
    references = {row.reference.name for row in rows if row.is_pair}
    if not has_baseline:
        title = next(iter(references)) if len(references) == 1 else 'its rate'
        yield Column(title, _format_reference_rate, is_number=True, is_optional=True)
    yield from _EXCHANGE_COLUMNS
    if not any(_exchange(row)[0] for row in rows):
        pairs = {row.who for row in rows if row.is_pair} - {''}
        title = next(iter(pairs)) if len(pairs) == 1 and not has_baseline else 'rate'
        yield Column(title, lambda row: row.rate_text, is_number=True)
    yield Column(
        '95 % of rate' if has_baseline else '',
        operator.attrgetter('interval'),
        'interval',
        lambda row: format_interval(row.interval),
        is_number=True,
        is_optional=True,
        is_extra=True,
    )
    yield Column('', lambda row: row.in_unit(row.rate) if row.runs else None, 'rate')
    yield Column('', lambda row: row.unit or None, 'unit')
    yield Column('', lambda row: len(row.runs), 'num_runs')
    yield Column('', lambda row: [run.source for run in row.runs], 'files')
    yield Column('', _describe_reference, 'reference')
    if len({number for row in rows for number in _run_numbers(row)}) > 1:
        yield Column('runs', lambda row: ', '.join(map(str, _run_numbers(row))) or None)


def _format_reference_rate(row: Row) -> str | None:
    mark = doubt_mark(documents(row.compared_runs))
    return f'{mark}{row.format_rate(row.reference.rate)}' if row.is_pair else None


def _describe_reference(row: Row) -> dict[str, Any] | None:
    reference = row.reference
    if not row.is_pair:
        return None
    runs = reference.runs if reference.name != OTHERS else ()
    rate, files = row.in_unit(reference.rate), [run.source for run in runs]
    return {'name': reference.name, 'rate': rate, 'files': files}


def _status(row: Row) -> str:
    if not row.runs:
        return 'geometric mean' if row.ratio else 'left out'
    return 'incomplete' if row.remark.startswith('incomplete') else 'complete'


def _format_verdict(row: Row) -> str:
    verdict = 'unclear' if row.verdict == 'no significant difference' else row.verdict
    return f'{verdict}, incomplete' if row.ratio and _status(row) == 'incomplete' else verdict


def _efficiency(row: Row) -> float | None:
    """The speed-up for each time as many devices as the baseline has, on several hosts."""
    runs = (*row.compared_runs[:1], *row.runs[:1])
    counts = [run.cluster.num_devices for run in runs if isinstance(run, Result)]
    if not row.ratio or len({*counts}) < 2 or len(hosts_of(row.first)) < 2:
        return None
    return row.ratio.value * counts[0] / counts[1]


def _exchange(row: Row) -> Sequence[float | None]:
    """Returns the milliseconds, algbw and busbw of --exchange_only; None for other runs.

    PERFORMANCE.md of github.com/NVIDIA/nccl-tests defines both: algbw is the bytes of one device
    over the seconds; busbw is algbw times 2 (n - 1) / n for n devices, the traffic on each link of
    a ring.
    """
    first = row.results[0] if row.results else None
    if not first or first.run.role != 'exchange-only' or not first.gradient_bytes:
        return [None] * 3
    devices = first.cluster.num_devices
    seconds = float(np.mean(np.concatenate([run.step_seconds() for run in row.results])))
    algbw = first.gradient_bytes / seconds / 1e9
    return 1e3 * seconds, algbw, algbw * 2 * (devices - 1) / devices


def _speed_up(row: Row) -> float | None:
    published = row.reference.speed_up
    return row.ratio.value * published if row.ratio and published else None


def price_of_a_million(row: Row) -> list[float] | None:
    """The price, and its interval if the rate has one."""
    if not row.price or not row.runs:
        return None
    rates = [row.rate, *(reversed(row.estimate.interval) if row.estimate.interval else ())]
    return [_MILLION / rate / _SECONDS_PER_HOUR * row.price for rate in rates]


def _format_price(row: Row) -> str | None:
    if not (prices := price_of_a_million(row)):
        return None
    price, *interval = map(format_number, prices)
    mark = doubt_mark(row.documents)
    return f'{mark}{price}' + (f' ({" to ".join(interval)})' if interval else '')


def _number(title: str, key: str, value: Callable[[Row], Any], form: str = '{:.3f}') -> Column[Row]:
    def text(row: Row) -> str | None:
        return format_known(form, value(row))

    return Column(title, value, key, text, is_number=True, is_optional=True)


_COLUMNS: tuple[Column[Row], ...] = (
    _number('speed-up', 'speed_up', _speed_up, '{:.2f}'),
    _number(
        'published',
        'published_speed_up',
        lambda row: row.reference.speed_up,
        '{:g}',
    ),
    _number('ratio', 'ratio', lambda row: row.ratio and row.ratio.value),
    Column(
        '95 %',
        lambda row: row.ratio and row.ratio.interval,
        'ratio_interval',
        lambda row: row.ratio and format_interval(row.ratio.interval, '{:.3f}'.format),
        is_number=True,
        is_optional=True,
    ),
    _number('energy', 'energy_ratio', lambda row: row.energy_ratio, '{:.2f}'),
    _number('efficiency', 'efficiency', _efficiency, '{:.2f}'),
    Column(
        'price of 10^6',
        price_of_a_million,
        'price_of_a_million',
        _format_price,
        is_number=True,
        is_optional=True,
    ),
    _number('cost', 'cost_ratio', cost_ratio, '{:.2f}'),
    Column('verdict', lambda row: row.verdict, 'verdict', _format_verdict, wraps=True),
    Column('', lambda row: row.is_significant, 'is_significant'),
    Column('', lambda row: row.changes, 'differences'),
    Column('', outliers, 'outliers'),
    Column(
        '',
        lambda row: {run.source: codes for run in row.documents if (codes := doubtful_codes(run))},
        'doubtful_runs',
    ),
    Column(
        'doubtful', lambda row: format_doubtful(row.documents) or None, wraps=True, is_optional=True
    ),
)
_EXCHANGE_COLUMNS: tuple[Column[Row], ...] = (
    _number('ms', 'milliseconds', lambda row: _exchange(row)[0]),
    _number('algbw GB/s', 'algbw', lambda row: _exchange(row)[1], '{:.4g}'),
    _number('busbw GB/s', 'busbw', lambda row: _exchange(row)[2], '{:.4g}'),
)
