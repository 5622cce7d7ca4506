"""Judges `predict` on published throughputs of the original program: predicts some rows of a table from the others.

    python benchmarks/published.py ROWS.csv --protocol=larger --leave_one_out

A machine is a value of the column hw; a series is a machine, mode, data, model, batch and precision. Known are of each
series the rows with at most half of its most GPUs (larger), or all rows of one model of a machine and mode, each model
in turn, and of every other series the row with one GPU (other_models). Errors are in per cent of the published
images/sec; the 90th percentile is the smallest that more than 90 % do not exceed. Two yardsticks stand beside predict:
0.95 x n x one GPU, and the last efficiency falling on, where one GPU was measured with as many parameter servers.
"""

import argparse
import csv
import functools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from comparison import predict as rules
from comparison.tables import Table, TableColumn
from errors import UsageError, format_error, format_warning
from models.costs import read_table

_WORK = ('source', 'hw', 'data', 'model', 'batch_per_gpu', 'precision', 'xla')
_TYPICAL_PARAMETERS = 25_000_000
_INSIDE = 'in the interval'


@dataclass(frozen=True)
class PublishedRow:
    """A published throughput. The work is what one GPU computes, in whatever mode; seconds are those of a step."""

    machine: str
    mode: str
    model: str
    work: tuple[str, ...]
    is_synthetic: bool
    servers: str
    gpus: int
    images: int
    rate: float

    @property
    def series(self) -> tuple[str, ...]:
        return (*self.work, self.mode)

    @property
    def seconds(self) -> float:
        return self.images * self.gpus / self.rate


# A row to predict, and those that are known.
Question = tuple[PublishedRow, Sequence[PublishedRow]]


def read_rows(path: Path) -> list[PublishedRow]:
    """Reads the table; raises UsageError if it cannot be read, lacks a column, has a wrong number or no rows."""
    rows, line = [], 1
    try:
        with path.open(newline='', encoding='utf-8') as file:
            for cells in csv.DictReader(file):
                line += 1
                numbers = int(cells['gpus']), int(cells['batch_per_gpu']), float(cells['images_per_sec'])
                if not 0 < min(numbers) <= max(numbers) < math.inf:
                    raise ValueError('gpus, batch_per_gpu and images_per_sec must be numbers above 0')
                machine, mode, model = cells['hw'], cells['net_or_mode'], cells['model']
                work, is_synthetic = tuple(cells.get(name) or '' for name in _WORK), cells['data'] == 'synthetic'
                servers = cells.get('num_ps') or ''
                rows.append(PublishedRow(machine, mode, model, work, is_synthetic, servers, *numbers))
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f'{path}: line {line}: {error}; mend the rows, or the columns') from None
    except OSError as error:
        raise UsageError(f'{path}: it cannot be read ({error.strerror}); give a CSV file of rows') from None
    if not rows:
        raise UsageError(f'{path}: it has no rows; give a table of throughputs')
    return rows


def _grouped(rows: Iterable[PublishedRow], key: Callable[[PublishedRow], object]) -> list[list[PublishedRow]]:
    groups: dict[object, list[PublishedRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def larger(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    for of_machine in _grouped(rows, lambda row: row.machine):
        asked, known = [], []
        for series in _grouped(of_machine, lambda row: row.series):
            most = max(row.gpus for row in series)
            below = [row for row in series if 2 * row.gpus <= most]
            # A series of one row predicts nothing, and is known.
            known += below or series
            asked += [row for row in series if 2 * row.gpus > most] if below else []
        yield from ((row, known) for row in asked)


def other_models(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    for of_mode in _grouped(rows, lambda row: (row.machine, row.mode)):
        # One mode of a table may have its rows with one GPU under another.
        alone = [row for row in rows if row.machine == of_mode[0].machine and row.gpus == 1]
        works = {row.work for row in alone}
        for own in _grouped(of_mode, lambda row: row.model):
            asked = [row for row in of_mode if row.model != own[0].model and row.gpus > 1 and row.work in works]
            if any(row.gpus > 1 for row in own):
                yield from ((row, [*own, *alone]) for row in asked)


def every_start(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    """Yields each row after each start of its series with two sizes or more: from these come the intervals."""
    for series in _grouped(rows, lambda row: row.series):
        for most in sorted({row.gpus for row in series})[1:]:
            yield from ((row, [one for one in series if one.gpus <= most]) for row in series if row.gpus > most)


def answer(row: PublishedRow, known: Sequence[PublishedRow]) -> rules.Prediction:
    """Predicts a row as the subcommand does; a series of one size without another model loses CROWDING a doubling."""
    of_mode = [other for other in (row, *known) if (other.machine, other.mode) == (row.machine, row.mode)]
    own, *others = (_series(known, group[0]) for group in _grouped(of_mode, lambda other: other.series))
    return rules.predict(own, others, row.gpus) or rules.more_devices(own, row.gpus)


def _series(known: Sequence[PublishedRow], row: PublishedRow) -> rules.Series:
    alone = {other.gpus: other.seconds for other in known if other.work == row.work and other.gpus == 1}
    seconds = {other.gpus: other.seconds for other in known if other.series == row.series} or alone
    first = alone.get(1, seconds[min(seconds)])
    return rules.Series(row.model, _parameters(row.model), row.images, row.is_synthetic, first, seconds)


@functools.cache
def _parameters(model: str) -> float:
    known = {re.sub(r'[\W_v]', '', name): found for (name, *_), (found, _) in reversed(read_table().items())}
    found = known.get(re.sub(r'[\W_v]', '', model.lower()))
    if not found:
        text = f'{model}: this program has no such model; it counts as one of {_TYPICAL_PARAMETERS:,} parameters'
        print(format_warning(text), file=sys.stderr)
    return found or _TYPICAL_PARAMETERS


def _yardsticks(row: PublishedRow, known: Sequence[PublishedRow]) -> dict[str, float]:
    like = [other for other in known if (other.series, other.servers) == (row.series, row.servers)]
    each = {other.gpus: other.rate / other.gpus for other in sorted(like, key=lambda other: other.gpus)}
    if 1 not in each:
        return {}
    found = {'0.95 n': 0.95 * row.gpus * each[1]}
    if len(each) > 1:
        *_, before, most = each
        fall = math.log(each[most] / each[before]) / math.log2(most / before)
        found['falling on'] = row.gpus * each[most] * math.exp(fall * math.log2(row.gpus / most))
    return found


def quantiles(rows: Sequence[PublishedRow]) -> dict[str, list[tuple[float, float]]]:
    """Returns comparison.predict.ERRORS as they are on these rows; a rule without rows is missing."""
    found: dict[str, list[tuple[float, float]]] = {}
    for rule, questions in ((rules.ANOTHER_MODEL, other_models(rows)), (rules.MORE_DEVICES, every_start(rows))):
        errors: dict[int, list[float]] = {}
        for row, known in questions:
            most = 1 if rule == rules.ANOTHER_MODEL else max(other.gpus for other in known)
            error = math.log((answer(row, known).seconds or math.nan) / row.seconds)
            errors.setdefault(math.ceil(math.log2(row.gpus / most)), []).append(error)
        low = {number: float(np.percentile(several, 1.25, method='lower')) for number, several in errors.items()}
        high = {number: float(np.percentile(several, 98.75, method='higher')) for number, several in errors.items()}
        least = min(errors, default=0)
        for most in range(1, max(errors, default=0) + 1):
            upto = [number for number in errors if number <= max(most, least)]
            ends = round(min(low[number] for number in upto), 3), round(max(high[number] for number in upto), 3)
            found.setdefault(rule, []).append(ends)
    return found


def summary_of(errors: Sequence[float]) -> dict[str, float]:
    """The number of errors, their median and 90th percentile."""
    ninth = float(np.percentile(errors, 90, method='higher'))
    return {'rows': len(errors), 'median': round(float(np.median(errors)), 2), 'p90': round(ninth, 2)}


def main() -> int:
    """Judges the protocol that the flags name, and prints the errors; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rows', type=Path, metavar='ROWS.csv', help='the table of published throughputs')
    parser.add_argument('--protocol', choices=('larger', 'other_models'), default='larger', help='what is known')
    parser.add_argument('--json', action='store_true', help='print the errors of predict as JSON')
    parser.add_argument('--leave_one_out', action='store_true', help="take a machine's intervals from the others")
    parser.add_argument('--quantiles', action='store_true', help='print what comparison/predict.py has as ERRORS')
    flags = parser.parse_args()
    try:
        rows = read_rows(flags.rows)
        questions = list((larger if flags.protocol == 'larger' else other_models)(rows))
        if not questions:
            raise UsageError(f'{flags.rows}: it has no rows to predict with --protocol={flags.protocol}; give more')
    except UsageError as error:
        print(format_error(str(error)), file=sys.stderr)
        return error.exit_code
    if flags.quantiles:
        print(quantiles(rows))
        return 0
    shipped = rules.ERRORS
    # Of each machine and in all: the errors by title, and whether rows are in the interval.
    errors: dict[str, dict[str, list[float]]] = {name: {} for name in [*(row.machine for row, _ in questions), 'all']}
    for machine in [*errors][:-1]:
        if flags.leave_one_out:
            rules.ERRORS = {**shipped, **quantiles([row for row in rows if row.machine != machine])}
        for row, known in [question for question in questions if question[0].machine == machine]:
            found = answer(row, known)
            rates = {'predict': row.images * row.gpus / (found.seconds or math.nan), **_yardsticks(row, known)}
            judged = {name: 100 * abs(rate / row.rate - 1) for name, rate in rates.items()}
            judged[_INSIDE] = 100.0 * (found.fastest <= row.seconds <= found.slowest)
            for name, value in judged.items():
                errors[machine].setdefault(name, []).append(value)
                errors['all'].setdefault(name, []).append(value)
    if flags.json:
        summaries = {name: summary_of(group['predict']) for name, group in errors.items()}
        print(json.dumps({'all': summaries.pop('all'), 'machines': summaries}, indent=2))
        return 0
    names = [name for name in ('predict', '0.95 n', 'falling on') if name in errors['all']]
    columns = [TableColumn('machine'), *(TableColumn(name, is_number=True) for name in ('rows', *names, _INSIDE))]
    cells = []
    for machine, group in errors.items():
        found_in = [summary_of(group[name]) if name in group else None for name in names]
        texts = [f'{one["median"]:.1f} / {one["p90"]:.1f}' if one else '' for one in found_in]
        cells.append([machine, str(len(group['predict'])), *texts, f'{np.mean(group[_INSIDE]):.0f}%'])
    print('Errors in per cent of the published images/sec: median / 90th percentile\n')
    print(Table(columns, cells).as_markdown())
    return 0


if __name__ == '__main__':
    sys.exit(main())
