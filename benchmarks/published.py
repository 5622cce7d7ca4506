"""Judges `predict` on published throughputs of the original program: predicts some rows of a table from the others.

    python benchmarks/published.py ROWS.csv --protocol=larger
    python benchmarks/published.py ROWS.csv --protocol=other_models --json
    python benchmarks/published.py ROWS.csv --protocol=larger --leave_one_out=100

The columns of the table are source, hw, net_or_mode, data, model, batch_per_gpu, num_ps, gpus, images_per_sec,
precision, xla and hosts. A machine is a value of hw. Where hosts is empty, hw says how many GPUs a host has, such as
8xK80; otherwise all are in one host. A series is a machine, mode, data, model, batch and precision. The protocols:

- larger: of each series, the rows with at most half of its most GPUs are known, and those above are predicted.
- other_models: all rows of one model of a machine and mode are known, and of every other series the row with one GPU.
  Each model is the known one in turn.

An error is the difference between the predicted and the published images/sec, in per cent of the published. Of several
errors, the 90th percentile is the smallest one that more than 90 % of them do not exceed.

Two simple rules stand beside the predictions: 0.95 x n x one GPU, and the last efficiency falling on as before with
each doubling. Both start from one GPU, and compare rows of one number of parameter servers, since another number is
another configuration. So they apply only to rows for which such a row with one GPU is known.
"""

import argparse
import csv
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from comparison.tables import Table, TableColumn
from errors import UsageError, format_error, format_warning, nearest
from models.gradients import GradientFacts, gradients_of
from models.registry import MODELS
from params.modes import MODES
from scaling.fitting import PRIORS, Fit, Measured, Prior
from scaling.terms import Exchange, ModelledCluster, Work

_COLUMNS = ('hw', 'net_or_mode', 'data', 'model', 'batch_per_gpu', 'gpus', 'images_per_sec')
# '8xK80', 'k80x8'; not the 8x of p2.8xlarge.
_GPUS_OF_HOST = re.compile(r'(?<![\w.])(\d+) ?x ?(?=[A-Z])|(?<=[a-zA-Z0-9])x(\d+)\b', re.IGNORECASE)
# The gradients of a network that is not one of this program: 25 million values, spread evenly over the backward pass.
_TYPICAL = GradientFacts(150, 2_000_000, tuple((1_250_000, number / 20) for number in range(1, 21)))
_EACH = 0.95
_SEED = 1


@dataclass(frozen=True)
class Row:
    """A published throughput.

    Attributes:
      machine: the hardware.
      mode: how the gradients met, as published.
      model: the network.
      data: 'synthetic', or what was read.
      series: tells the series apart to which the row belongs.
      gpus: the number of GPUs.
      images_per_second: the published throughput.
      work: what each GPU computed.
      cluster: how the GPUs were connected.
    """

    machine: str
    mode: str
    model: str
    data: str
    series: tuple[str, ...]
    gpus: int
    images_per_second: float
    work: Work
    cluster: ModelledCluster

    @property
    def images(self) -> int:
        """The images of a step of all GPUs."""
        return self.work.images * self.gpus

    @property
    def measured(self) -> Measured:
        return Measured(self.work, self.cluster, self.images / self.images_per_second)


@dataclass(frozen=True)
class Question:
    """Rows of one machine that are known, and those to predict from them."""

    known: Sequence[Row]
    unknown: Sequence[Row]


@dataclass(frozen=True)
class JudgedRow:
    """A predicted row.

    Attributes:
      row: what was published.
      predicted: images/sec.
      low: the lower end of the 95 % interval.
      high: its upper end.
      yardsticks: what simple rules predict, by name; without those that do not apply.
    """

    row: Row
    predicted: float
    low: float
    high: float
    yardsticks: Mapping[str, float]

    @property
    def error(self) -> float:
        """The error in per cent of the published throughput, without its sign."""
        return _error(self.predicted, self.row)

    @property
    def is_inside(self) -> bool:
        """Whether the published throughput lies in the interval."""
        return self.low <= self.row.images_per_second <= self.high


def read_rows(path: Path) -> list[Row]:
    """Reads the table of published throughputs.

    Raises:
      UsageError: the file cannot be read, a column is missing, or a number is none.
    """
    try:
        with path.open(newline='', encoding='utf-8') as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise UsageError(f'{path}: the column {missing[0]} is missing; give a table with {", ".join(_COLUMNS)}')
            rows = []
            for number, cells in enumerate(reader, 2):
                try:
                    rows.append(_read_row({name: cells.get(name) or '' for name in cells if name}))
                except (ValueError, ZeroDivisionError) as error:
                    raise UsageError(f'{path}: line {number}: {error}; mend the line') from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f'{path}: it cannot be read ({error}); give a CSV file') from None
    if not rows:
        raise UsageError(f'{path}: it has no rows; give a table of throughputs')
    return rows


def _read_row(cells: Mapping[str, str]) -> Row:
    machine, mode, data, model = cells['hw'], cells['net_or_mode'], cells['data'], cells['model']
    batch, gpus, throughput = int(cells['batch_per_gpu']), int(cells['gpus']), float(cells['images_per_sec'])
    if min(batch, gpus, throughput) <= 0 or not math.isfinite(throughput):
        raise ValueError('batch_per_gpu, gpus and images_per_sec must be above 0')
    setting = tuple(
        cells.get(name, '') for name in ('source', 'hw', 'data', 'model', 'batch_per_gpu', 'precision', 'xla')
    )
    found = _GPUS_OF_HOST.search(machine)
    of_host = int(found[1] or found[2]) if found else gpus
    hosts = int(cells.get('hosts') or 0) or -(-gpus // max(of_host, 1))
    exchange = _exchange_of(mode)
    work = Work(
        key='|'.join(setting),
        gradients=_gradients(model),
        images=batch,
        reads_images=data != 'synthetic',
        # The original program cuts no variables.
        slices=False,
        fuses=cells.get('xla', '').lower() in ('yes', 'true', '1'),
    )
    cluster = ModelledCluster(
        exchange,
        workers=hosts,
        hosts=hosts,
        devices=-(-gpus // hosts),
        servers=(int(cells.get('num_ps') or 0) or hosts) if exchange is Exchange.SERVERS else 0,
        label=mode,
    )
    return Row(machine, mode, model, data, (*setting, mode), gpus, throughput, work, cluster)


def _exchange_of(text: str) -> Exchange:
    """Returns how gradients meet in a mode that begins with the name of one, such as 'replicated/nccl'."""
    mode = MODES.get(re.split(r'[\W]', text.strip().lower())[0])
    if mode and not mode.shares_model:
        return Exchange.NONE
    has_servers = mode.needs_servers if mode else text.lower().startswith(('ps', 'param'))
    return Exchange.SERVERS if has_servers else Exchange.RING


def _gradients(model: str) -> GradientFacts:
    names = MODELS.list_models()
    name = model.lower().replace('-', '')
    close = name if name in names else nearest(name, names)
    if close is None or (close != name and re.sub(r'[\W_v]', '', close) != re.sub(r'[\W_v]', '', name)):
        if model not in _warned:
            _warned.add(model)
            reason = 'it counts as a network of 25 million parameters'
            print(format_warning(f'{model}: this program has no such model; {reason}'), file=sys.stderr)
        return _TYPICAL
    return gradients_of(MODELS.find_model(close))


# Models about which a warning was printed.
_warned: set[str] = set()


def tasks_of_larger(rows: Sequence[Row]) -> list[Question]:
    """Returns the task of each machine for --protocol=larger."""
    tasks = []
    for of_machine in _grouped(rows, lambda row: row.machine):
        known, unknown = [], []
        for series in _grouped(of_machine, lambda row: row.series):
            most = max(row.gpus for row in series)
            below = [row for row in series if 2 * row.gpus <= most]
            # A series of one row predicts nothing, and is known.
            known += below or series
            unknown += [row for row in series if 2 * row.gpus > most] if below else []
        if unknown:
            tasks.append(Question(known, unknown))
    return tasks


def tasks_of_other_models(rows: Sequence[Row]) -> list[Question]:
    """Returns the task of each machine, mode and known model for --protocol=other_models."""
    tasks = []
    for of_mode in _grouped(rows, lambda row: (row.machine, row.mode)):
        # One mode of a table may have its rows with one GPU under another.
        alone = [row for row in rows if row.machine == of_mode[0].machine and row.gpus == 1]
        measured = {row.work.key for row in alone}
        for model in dict.fromkeys(row.model for row in of_mode):
            own = [row for row in of_mode if row.model == model]
            others = [row for row in of_mode if row.model != model and row.gpus > 1 and row.work.key in measured]
            if others and any(row.gpus > 1 for row in own):
                works = {row.work.key for row in others}
                ones = {id(row): row for row in alone if row.work.key in works}
                tasks.append(Question([*own, *(row for key, row in ones.items() if row not in own)], others))
    return tasks


PROTOCOLS: Mapping[str, Callable[[Sequence[Row]], list[Question]]] = {
    'larger': tasks_of_larger,
    'other_models': tasks_of_other_models,
}


def judge(tasks: Iterable[Question], priors: Mapping[str, Prior] = PRIORS) -> list[JudgedRow]:
    """Predicts the unknown rows of each task from its known rows."""
    judged = []
    for task in tasks:
        fit = Fit([row.measured for row in task.known], dict(priors))
        for row in task.unknown:
            found = fit.predict(row.work, row.cluster)
            low, high = row.images / found.high, row.images / found.low
            judged.append(JudgedRow(row, row.images / found.seconds, low, high, _yardsticks(row, task.known)))
    return judged


def _yardsticks(row: Row, known: Sequence[Row]) -> dict[str, float]:
    """What simple rules predict for a row: 0.95 x n x one GPU, and the last efficiency falling on as before.

    Empty if one GPU was not measured with as many parameter servers.
    """
    like = [other for other in known if (other.series, other.cluster.servers) == (row.series, row.cluster.servers)]
    series = sorted(like, key=lambda other: other.gpus)
    if not series or series[0].gpus > 1:
        return {}
    found = {f'{_EACH} n': _EACH * row.gpus * series[0].images_per_second}
    if len(series) > 1 and series[-1].gpus > series[-2].gpus:
        each = [math.log(other.images_per_second / other.gpus) for other in series]
        fall = (each[-1] - each[-2]) / math.log2(series[-1].gpus / series[-2].gpus)
        found['falling on'] = row.gpus * math.exp(each[-1] + fall * math.log2(row.gpus / series[-1].gpus))
    return found


def _error(predicted: float, row: Row) -> float:
    return 100 * abs(predicted / row.images_per_second - 1)


def leave_one_out(tasks: Sequence[Question], number: int) -> list[JudgedRow]:
    """Judges each machine with constants that were chosen on the other machines.

    Args:
      number: so many sets of constants are drawn; those chosen are the mean of the tenth with the smallest errors.
    """
    draws = np.random.default_rng(_SEED)
    drawn = [_draw(draws) for _ in range(number)]
    machines = list(dict.fromkeys(task.unknown[0].machine for task in tasks))
    # Sets x machines.
    losses = np.array([[_loss(found, name) for name in machines] for found in (judge(tasks, one) for one in drawn)])
    judged = []
    for column, name in enumerate(machines):
        of_others = np.delete(losses, column, axis=1).sum(axis=1)
        best = np.argsort(of_others)[: max(1, number // 10)]
        chosen = _mean([drawn[place] for place in best])
        judged += judge([task for task in tasks if task.unknown[0].machine == name], chosen)
    return judged


def _draw(draws: np.random.Generator) -> dict[str, Prior]:
    """Draws constants: usual values within a factor of about two of the program's own, spreads within one of 1.5."""
    return {
        name: Prior(
            prior.mean + draws.normal(0, math.log(2) if abs(prior.mean) > 1 else 0.2),
            prior.spread * math.exp(draws.normal(0, math.log(1.5))),
        )
        for name, prior in PRIORS.items()
    }


def _mean(sets: Sequence[Mapping[str, Prior]]) -> dict[str, Prior]:
    return {
        name: Prior(
            float(np.mean([one[name].mean for one in sets])),
            float(np.exp(np.mean([math.log(one[name].spread) for one in sets]))),
        )
        for name in sets[0]
    }


def _loss(judged: Sequence[JudgedRow], machine: str) -> float:
    """How badly the rows of a machine are predicted; machines with more rows count more, but not in proportion."""
    errors = np.array([min(one.error, 40) for one in judged if one.row.machine == machine])
    return math.sqrt(len(errors)) * float(errors.mean())


def _grouped(rows: Iterable[Row], key: Callable[[Row], object]) -> list[list[Row]]:
    groups: dict[object, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return list(groups.values())


def summary_of(errors: Sequence[float]) -> dict[str, float]:
    """The number of errors, their median and 90th percentile."""
    if not errors:
        return {'rows': 0}
    return {
        'rows': len(errors),
        'median': round(float(np.median(errors)), 2),
        'p90': round(_percentile_90(errors), 2),
    }


def _percentile_90(errors: Sequence[float]) -> float:
    """The smallest of the errors that more than 90 % of them do not exceed."""
    return float(np.percentile(errors, 90, method='higher'))


def document_of(judged: Sequence[JudgedRow]) -> dict[str, object]:
    """The errors in all and of each machine."""
    machines = dict.fromkeys(one.row.machine for one in judged)
    return {
        'all': summary_of([one.error for one in judged]),
        'machines': {name: summary_of([one.error for one in judged if one.row.machine == name]) for name in machines},
    }


def table_of(judged: Sequence[JudgedRow]) -> Table:
    """The errors in all and of each machine, beside those of the yardsticks: median / 90th percentile, in per cent."""
    names = list(dict.fromkeys(name for one in judged for name in one.yardsticks))
    columns = [TableColumn('machine'), TableColumn('rows', is_number=True), TableColumn('predict', is_number=True)]
    columns += [TableColumn(name, is_number=True) for name in (*names, 'in the interval')]
    machines = dict.fromkeys(one.row.machine for one in judged)
    rows = []
    for title, group in [
        *((name, [one for one in judged if one.row.machine == name]) for name in machines),
        ('all', list(judged)),
    ]:
        cells = [title, str(len(group)), _cell([one.error for one in group])]
        for name in names:
            cells.append(_cell([_error(one.yardsticks[name], one.row) for one in group if name in one.yardsticks]))
        rows.append([*cells, f'{np.mean([one.is_inside for one in group]):.0%}'])
    return Table(columns, rows)


def _cell(errors: Sequence[float]) -> str:
    return f'{np.median(errors):.1f} / {_percentile_90(errors):.1f}' if errors else ''


def main() -> int:
    """Judges the protocol that the flags name, and prints the errors; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('rows', type=Path, metavar='ROWS.csv', help='the table of published throughputs')
    parser.add_argument('--protocol', choices=tuple(PROTOCOLS), default='larger', help='what is known, see above')
    parser.add_argument('--json', action='store_true', help='print the errors of predict as JSON')
    parser.add_argument('--all', action='store_true', help='print every predicted row, too')
    parser.add_argument(
        '--leave_one_out',
        type=int,
        metavar='N',
        default=0,
        help='judge each machine with constants that were chosen, of N drawn ones, on the other machines only',
    )
    flags = parser.parse_args()
    try:
        tasks = PROTOCOLS[flags.protocol](read_rows(flags.rows))
        if not tasks:
            raise UsageError(f'{flags.rows}: it has no rows to predict with --protocol={flags.protocol}; give more')
    except UsageError as error:
        print(format_error(str(error)), file=sys.stderr)
        return error.exit_code
    judged = leave_one_out(tasks, flags.leave_one_out) if flags.leave_one_out > 0 else judge(tasks)
    if flags.json:
        print(json.dumps(document_of(judged), indent=2))
        return 0
    if flags.all:
        for one in judged:
            where = f'{one.row.machine}, {one.row.mode}, {one.row.data} {one.row.model} {one.row.work.images}'
            found = f'{one.predicted:.1f} ({one.low:.1f} to {one.high:.1f})'
            print(f'{where} x {one.row.gpus}: {found}, published {one.row.images_per_second:.1f}')
        print()
    print('Errors in per cent of the published images/sec: median / 90th percentile\n')
    print(table_of(judged).as_markdown())
    return 0


if __name__ == '__main__':
    sys.exit(main())
