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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.turns import as_table, run_script
from comparison import predict as rules
from errors import UsageError, format_warning
from models.costs import read_table

_WORK = ('source', 'hw', 'data', 'model', 'batch_per_gpu', 'precision', 'xla')
_TYPICAL_PARAMETERS = 25_000_000
_INSIDE = 'in the interval'


class PublishedRow(NamedTuple):
    """A published throughput. The work is what one GPU computes, in whatever mode; seconds are those of a step."""

    machine: str
    mode: str
    model: str
    work: tuple[str, ...]
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
    rows: list[PublishedRow] = []
    try:
        with path.open(newline='', encoding='utf-8') as file:
            for cells in csv.DictReader(file):
                numbers = int(cells['gpus']), int(cells['batch_per_gpu']), float(cells['images_per_sec'])
                if not 0 < min(numbers) <= max(numbers) < math.inf:
                    raise ValueError(f'gpus, batch_per_gpu, images_per_sec = {numbers}: they must be above 0')
                work, servers = tuple(cells.get(name) or '' for name in _WORK), cells.get('num_ps') or ''
                rows.append(PublishedRow(cells['hw'], cells['net_or_mode'], cells['model'], work, servers, *numbers))
    except OSError as error:
        raise UsageError(f'{path}: it cannot be read ({error.strerror}); give a CSV file of throughputs') from None
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f'{path}: row {len(rows) + 1}: {error!r}; give a CSV file of throughputs') from None
    if not rows:
        raise UsageError(f'{path}: it has no rows; give a CSV file of throughputs')
    return rows


def larger(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    sizes = {row.series: [other.gpus for other in rows if other.series == row.series] for row in rows}

    def is_asked(row: PublishedRow) -> bool:
        # A series without a row below half of its most GPUs predicts nothing, and is known.
        return 2 * min(sizes[row.series]) <= max(sizes[row.series]) < 2 * row.gpus

    for row in filter(is_asked, rows):
        yield row, [other for other in rows if other.machine == row.machine and not is_asked(other)]


def other_models(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    for row in rows:
        # One mode of a table may have its rows with one GPU under another.
        alone = [other for other in rows if other.machine == row.machine and other.gpus == 1]
        if row.gpus > 1 and row.work in {other.work for other in alone}:
            of_mode = [other for other in rows if (other.machine, other.mode) == (row.machine, row.mode)]
            for model in dict.fromkeys(other.model for other in of_mode if other.gpus > 1):
                if model != row.model:
                    yield row, [*(other for other in of_mode if other.model == model), *alone]


def every_start(rows: Sequence[PublishedRow]) -> Iterator[Question]:
    """Yields each row after each start of its series with two sizes or more: from these come the intervals."""
    for row in rows:
        smaller = [other for other in rows if other.series == row.series and other.gpus < row.gpus]
        for most in sorted({other.gpus for other in smaller})[1:]:
            yield row, [other for other in smaller if other.gpus <= most]


PROTOCOLS = {'larger': larger, 'other_models': other_models}


def answer(row: PublishedRow, known: Sequence[PublishedRow]) -> rules.Prediction:
    """Predicts a row as the subcommand does; a series of one size without another model loses CROWDING a doubling."""
    of_mode = [other for other in (row, *known) if (other.machine, other.mode) == (row.machine, row.mode)]
    own, *others = (_series(known, other) for other in {other.series: other for other in of_mode}.values())
    return rules.predict(own, others, row.gpus) or rules.more_devices(own, row.gpus)


def _series(known: Sequence[PublishedRow], row: PublishedRow) -> rules.Series:
    alone = {other.gpus: other.seconds for other in known if other.work == row.work and other.gpus == 1}
    seconds = {other.gpus: other.seconds for other in known if other.series == row.series} or alone
    first = alone.get(1, seconds[min(seconds)])
    return rules.Series(row.model, _parameters(row.model), row.images, 'synthetic' in row.work, first, seconds)


@functools.cache
def _parameters(model: str) -> float:
    # Names are spelled differently: inception_v3, inception3.
    known = {re.sub(r'[\W_v]', '', name): found for (name, *_), (found, _) in reversed(read_table().items())}
    if found := known.get(re.sub(r'[\W_v]', '', model.lower())):
        return found
    text = f'{model}: this program has no such model; it counts as one of {_TYPICAL_PARAMETERS:,} parameters'
    print(format_warning(text), file=sys.stderr)
    return _TYPICAL_PARAMETERS


def quantiles(rows: Sequence[PublishedRow]) -> dict[str, list[tuple[float, float]]]:
    """Returns comparison.predict.ERRORS as they are on these rows; a rule without rows is missing."""
    found: dict[str, list[tuple[float, float]]] = {}
    for rule, questions in ((rules.ANOTHER_MODEL, other_models(rows)), (rules.MORE_DEVICES, every_start(rows))):
        errors: dict[int, list[float]] = {}
        for row, known in questions:
            most = 1 if rule == rules.ANOTHER_MODEL else max(other.gpus for other in known)
            error = math.log((answer(row, known).seconds or math.nan) / row.seconds)
            errors.setdefault(math.ceil(math.log2(row.gpus / most)), []).append(error)
        low, high = math.inf, -math.inf
        for doublings in range(1, max(errors, default=0) + 1):
            # Where a number of doublings is missing, the fewest stand for it.
            several = errors.get(doublings, errors[min(errors)])
            low = min(low, round(float(np.percentile(several, 1.25, method='lower')), 3))
            high = max(high, round(float(np.percentile(several, 98.75, method='higher')), 3))
            found.setdefault(rule, []).append((low, high))
    return found


def judge(row: PublishedRow, known: Sequence[PublishedRow]) -> dict[str, float]:
    """Returns the errors of predict and of the yardsticks that apply, in per cent, and 100 if _INSIDE, else 0."""
    found = answer(row, known)
    rates = {'predict': row.images * row.gpus / (found.seconds or math.nan)}
    like = [other for other in known if (other.series, other.servers) == (row.series, row.servers)]
    each = {other.gpus: other.rate / other.gpus for other in sorted(like, key=lambda other: other.gpus)}
    if 1 in each:
        rates['0.95 n'] = 0.95 * row.gpus * each[1]
    if 1 in each and len(each) > 1:
        *_, before, most = each
        fall = math.log(each[most] / each[before]) / math.log2(most / before)
        rates['falling on'] = row.gpus * each[most] * math.exp(fall * math.log2(row.gpus / most))
    errors = {name: 100 * abs(rate / row.rate - 1) for name, rate in rates.items()}
    return {**errors, _INSIDE: 100.0 * (found.fastest <= row.seconds <= found.slowest)}


def summary_of(judged: Sequence[Mapping[str, float]], name: str) -> dict[str, float] | None:
    if not (errors := [one[name] for one in judged if name in one]):
        return None
    ninth = float(np.percentile(errors, 90, method='higher'))
    return {'rows': len(errors), 'median': round(float(np.median(errors)), 2), 'p90': round(ninth, 2)}


def format_table(judged: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    names = [name for name in ('predict', '0.95 n', 'falling on') if summary_of(judged['all'], name)]
    rows = []
    for machine, errors in judged.items():
        found = [summary_of(errors, name) for name in names]
        cells = [f'{one["median"]:.1f} / {one["p90"]:.1f}' if one else '' for one in found]
        rows.append([machine, str(len(errors)), *cells, f'{np.mean([one[_INSIDE] for one in errors]):.0f}%'])
    return as_table(['machine', 'rows', *names, _INSIDE], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rows', type=Path, metavar='ROWS.csv', help='the table of published throughputs')
    parser.add_argument('--protocol', choices=PROTOCOLS, default='larger', help='what is known')
    parser.add_argument('--json', action='store_true', help='print the errors of predict as JSON')
    parser.add_argument('--leave_one_out', action='store_true', help="take a machine's intervals from the others")
    parser.add_argument('--quantiles', action='store_true', help='print what comparison/predict.py has as ERRORS')
    flags = parser.parse_args()
    rows = read_rows(flags.rows)
    if flags.quantiles:
        print(quantiles(rows))
        return 0
    questions = list(PROTOCOLS[flags.protocol](rows))
    if not questions:
        raise UsageError(f'{flags.rows}: it has no rows to predict with --protocol={flags.protocol}; give more')
    shipped = rules.ERRORS
    judged: dict[str, list[dict[str, float]]] = {row.machine: [] for row, _ in questions}
    for machine in judged:
        if flags.leave_one_out:
            rules.ERRORS = {**shipped, **quantiles([row for row in rows if row.machine != machine])}
        judged[machine] = [judge(row, known) for row, known in questions if row.machine == machine]
    judged['all'] = [one for errors in judged.values() for one in errors]
    if flags.json:
        machines = {machine: summary_of(errors, 'predict') for machine, errors in judged.items()}
        print(json.dumps({'all': machines.pop('all'), 'machines': machines}, indent=2))
    else:
        print(
            'Errors in per cent of the published images/sec: median / 90th percentile', format_table(judged), sep='\n\n'
        )
    return 0


if __name__ == '__main__':
    run_script(main)
