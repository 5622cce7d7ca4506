"""Holds a prediction against what was measured then, term by term."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import UsageError, read_regular
from results.document import MOST_BYTES, Record
from scaling.forecast import PREDICTION, SCHEMA_VERSION, check_steps

# A prediction has its schema among the first bytes.
_HEAD = 200
# The value of "schema" in the document of such a comparison.
VERDICT = 'tf_cnn_benchmarks.prediction_check'
_WAITS = ('slowest', 'inside', 'network', 'server_link', 'sums', 'latency')


@dataclass(frozen=True)
class Beside:
    """One value, predicted and measured.

    Attributes:
      name: what it is.
      predicted: the predicted value.
      measured: the measured one; None if a result does not have it.
      unit: images/sec, seconds or bytes.
    """

    name: str
    predicted: float
    measured: float | None
    unit: str = 'seconds'

    @property
    def difference(self) -> float | None:
        """How much more was measured than predicted."""
        return None if self.measured is None else self.measured - self.predicted


@dataclass(frozen=True)
class PredictionCheck:
    """A prediction beside a measurement.

    Attributes:
      low: the lower end of the 95 % interval of images/sec.
      high: its upper end.
      values: images/sec first, then the step, its terms, and bytes.
      limit: what was predicted to limit the cluster.
    """

    low: float
    high: float
    values: Sequence[Beside]
    limit: str

    @property
    def is_inside(self) -> bool:
        """Whether the measured images/sec lie in the interval."""
        measured = self.values[0].measured
        return measured is not None and self.low <= measured <= self.high

    @property
    def ratio(self) -> float:
        """Measured over predicted images/sec."""
        return (self.values[0].measured or 0.0) / self.values[0].predicted

    @property
    def has_compute(self) -> bool:
        """Whether it was measured how long devices compute."""
        return all(value.measured is not None for value in self.values if value.name == 'compute')

    def as_document(self) -> dict[str, Any]:
        """The verdict as a JSON object."""
        return {
            'schema': VERDICT,
            'schema_version': SCHEMA_VERSION,
            'low': self.low,
            'high': self.high,
            'ratio': self.ratio,
            'is_inside': self.is_inside,
            'limit': self.limit,
            'rows': [
                {
                    'name': value.name,
                    'unit': value.unit,
                    'predicted': value.predicted,
                    'measured': value.measured,
                    'difference': value.difference,
                }
                for value in self.values
            ],
        }


def read_prediction(path: str) -> Mapping[str, Any] | None:
    """Reads what `predict --format=json` printed; None if the file is something else, or cannot be read.

    Raises:
      UsageError: it is a prediction, but damaged or of another version.
    """
    try:
        if not Path(path).is_file():
            return None
        data = read_regular(path, MOST_BYTES)
    except OSError:
        return None
    if PREDICTION.encode() not in data[:_HEAD]:
        return None
    damaged = UsageError(f'{path}: the prediction is damaged; write it again with predict --format=json')
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(document, dict) or document.get('schema_version') != SCHEMA_VERSION:
        raise damaged
    try:
        for row in document['rows']:
            _numbers_of(row)
        if not isinstance(document['from']['model'], str):
            raise damaged
    except (KeyError, TypeError, ValueError):
        raise damaged from None
    return document


def verdict_of(document: Mapping[str, Any], source: str, record: Record) -> PredictionCheck:
    """Holds the predicted cluster that was run against its result.

    Args:
      document: the prediction.
      source: its file, for errors.
      record: the result.

    Raises:
      UsageError: the result is of other work, of a cluster that was not predicted, or has no steps.
    """
    check_steps(record)
    start = document['from']
    for name, own in (
        ('model', record.model),
        ('data_set', record.run.get('data_set')),
        ('batch_size', record.run.get('batch_size')),
        ('precision', record.run.get('precision')),
    ):
        if start.get(name) != own:
            raise UsageError(
                f'{record.source}: its {name} is {own}, and {source} predicts {start.get(name)}; predict that'
            )
    row = _matching(document['rows'], source, record)
    images, low, high, terms = _numbers_of(row)
    seconds = float(record.run['global_batch_size']) / record.images_per_second
    waits = record.document['input'].get('wait_seconds')
    wait = None if waits is None else float(waits) / max(1, record.step_seconds().size)
    traced = record.document['compute'].get('computing_seconds')
    # What several devices take from each other is part of what each computes.
    predicted = terms['compute'] + terms['crowding']
    computing = None if traced is None else float(traced)
    rest = seconds - (predicted if computing is None else computing) - (wait or 0.0)
    sent = record.document['transfer'].get('bytes_per_step')
    values = [
        Beside('images/sec', images, record.images_per_second, 'images/sec'),
        Beside('step', sum(terms.values()), seconds),
        Beside('compute', predicted, computing),
        *_parts(terms, ('crowding',)),
        Beside('input', terms['input'], wait),
        Beside('exchange and waiting', sum(terms[name] for name in _WAITS), rest),
        *_parts(terms, _WAITS),
        Beside('bytes of a step', float(row['bytes_per_step']), None if sent is None else float(sent), 'bytes'),
    ]
    return PredictionCheck(low, high, values, str(row['limit']))


def _parts(terms: Mapping[str, float], names: Sequence[str]) -> list[Beside]:
    """The predicted parts of a value of which only the sum is measured."""
    return [Beside(f'  {name.replace("_", " ")}', terms[name], None) for name in names if terms[name]]


def _numbers_of(row: Mapping[str, Any]) -> tuple[float, float, float, dict[str, float]]:
    terms = {str(name): float(value) for name, value in row['terms'].items()}
    if not {'compute', 'crowding', 'input', *_WAITS} <= terms.keys() or not float(row['images_per_second']) > 0:
        raise ValueError(row)
    float(row['bytes_per_step'])
    return float(row['images_per_second']), float(row['low']), float(row['high']), terms


def _matching(rows: Sequence[Mapping[str, Any]], source: str, record: Record) -> Mapping[str, Any]:
    """Returns the predicted cluster of a result. Hosts decide only between several: they may share a name."""
    cluster = record.document['cluster']
    asked = {
        'variable_update': record.run.get('variable_update'),
        'num_workers': cluster['num_workers'],
        'devices_per_worker': cluster['devices_per_worker'],
        'num_ps': cluster['num_ps'],
    }
    found = [row for row in rows if all(row.get(name) == value for name, value in asked.items())]
    hosts = len({str(worker.get('host')) for worker in record.document['workers']})
    of_hosts = [row for row in found if row.get('num_hosts') == hosts]
    if len(found) == 1 or of_hosts:
        return (of_hosts or found)[0]
    if found:
        numbers = ', '.join(str(row.get('num_hosts')) for row in found)
        raise UsageError(f'{record.source}: it ran on {hosts} hosts, and {source} predicts {numbers}; predict that')
    raise UsageError(
        f'{record.source}: {source} does not predict {asked["variable_update"]} with the shape {record.shape}; predict '
        'it, too'
    )
