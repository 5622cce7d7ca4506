"""Makes the rows of `predict` from results; docs/compare.md describes them.

Does not import TensorFlow.
"""

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tf_cnn.cluster.shape import Shape
from tf_cnn.compare.differences import format_property, limit_differences
from tf_cnn.compare.predict import Prediction, Series, link_bytes, num_transfers, predict
from tf_cnn.compare.repeats import equality_key, workload_key
from tf_cnn.managers.modes import MODES
from tf_cnn.results.advice import noise_warnings
from tf_cnn.results.collection import collect
from tf_cnn.results.document import Result
from tf_cnn.results.tables import Column, abbreviate, format_number
from tf_cnn.system.errors import UsageError, format_flag, join_with_or, plural

SCHEMA, SCHEMA_VERSION = 'tf_cnn_benchmarks.prediction', 1
_ONE_DEVICE = Shape(1, 1)
NO_RULE = 'none: too little is known'


@dataclass(frozen=True)
class Workload:
    """The work of one device, and its mean step times in each mode and shape.

    Attributes:
      images: the images of a step on one device.
      machine: the processor, the GPUs and the settings.
      limits: the limits of the process on the machine. Workloads with the same machine and limits
        predict each other.
      seconds: (mode, shape) -> mean seconds of a step; one device has the mode ''.
    """

    work: str
    model: str
    data: str
    images: int
    precision: str
    is_synthetic: bool
    is_cpu: bool
    machine: tuple[str, ...]
    limits: str
    gradient_bytes: int
    result: Result = field(compare=False)
    seconds: dict[tuple[str, Shape], float] = field(default_factory=dict, compare=False)

    def series(self, mode: str, shape: Shape) -> Series:
        """Returns the measurements that differ from `shape` only in their number of devices.

        They have more devices in one process, or more workers with as many devices each.
        """
        seconds = {}
        runs_in_one_process = Shape(1, 2).unsupported_reason(MODES[mode]) is None
        for (other_mode, other_shape), step_seconds in self.seconds.items():
            is_start = (
                other_shape.workers == 1
                and not other_shape.num_ps
                and (other_mode in ('', mode) or not runs_in_one_process)
            )
            is_more = (
                other_mode == mode
                and shape.workers > 1
                and other_shape.workers > 1
                and other_shape.num_ps == shape.num_ps
            )
            if (is_start and shape.workers == 1) or (
                (is_start or is_more) and other_shape.devices == shape.devices
            ):
                seconds[other_shape.workers * other_shape.devices] = step_seconds
        one_device_seconds = self.seconds.get(('', _ONE_DEVICE))
        return Series(
            self.model,
            self.gradient_bytes,
            self.images,
            self.is_synthetic,
            one_device_seconds,
            seconds,
        )


# The measured rates of links: mode -> (shape, bytes of the gradients, bytes/s) of each run.
Links = Mapping[str, Sequence[tuple[Shape, int, float]]]


@dataclass(frozen=True)
class Measurements:
    """What results say: workloads, rates of links, notes about doubtful results, and why results
    are left out.
    """

    workloads: Sequence[Workload]
    links: Links
    notes: Sequence[str]
    problems: Sequence[str]


def read_measurements(paths: Sequence[str]) -> Measurements:
    collection = collect(paths)
    links: dict[str, list[tuple[Shape, int, float]]] = defaultdict(list)
    workloads: dict[Workload, dict[tuple[str, Shape], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    problems = [
        *collection.problems,
        *(
            f'{failure.source}: this run failed ({failure.reason})'
            for failure in collection.failures
        ),
    ]
    for result in collection.results:
        run, size, shape = result.run, result.gradient_bytes, Shape.parse(result.shape)
        role, mode, steps = run.role, run.variable_update, result.step_seconds()
        is_usable = steps.size and result.images_per_second > 0 and run.sync
        if (
            not size
            or not is_usable
            or role not in ('training', 'exchange-only')
            or mode not in MODES
        ):
            problems.append(
                f'{result.source}: left out, since it is not a complete, synchronous training run'
            )
        elif len(hosts := _hosts_of_workers(result)) < shape.workers:
            problems.append(
                f'{result.source}: its {shape.workers} workers ran on {plural(len(hosts), "host")} '
                f'({abbreviate(hosts)}), and shared the cores and memory there; left out, since '
                'it does not show the throughput of workers on different hosts'
            )
        elif role == 'training':
            seconds = run.global_batch_size / result.images_per_second
            workloads[_workload_of(result)]['' if shape == _ONE_DEVICE else mode, shape].append(
                seconds
            )
        elif crossing := link_bytes(size, shape.workers, shape.devices, shape.num_ps):
            times = num_transfers(shape.workers, shape.num_ps)
            links[mode].append((shape, size, times * crossing / float(steps.mean())))
    for workload, seconds_by_point in workloads.items():
        workload.seconds.update(
            {point: statistics.fmean(seconds) for point, seconds in seconds_by_point.items()}
        )
    notes = [*_limit_notes([*workloads]), *noise_warnings(collection.results)]
    return Measurements([*workloads], links, notes, problems)


def _hosts_of_workers(result: Result) -> list[str]:
    """Returns the distinct hosts of the workers.

    A worker with an unknown host counts as the only worker of its host.
    """
    addresses = str(result.command.flags.get('worker_hosts') or '').split(',')
    hosts = [worker.host for worker in result.workers]
    if result.run.variable_update in MODES and MODES[result.run.variable_update].has_controller:
        # The document has only the steps of the controller, not the hosts of the workers.
        hosts = [address.rpartition(':')[0] for address in addresses if address]
    unknown = [f'unknown host {number}' for number in range(len(hosts), result.cluster.num_workers)]
    return list(dict.fromkeys([*hosts, *unknown]))


def _workload_of(result: Result) -> Workload:
    run, machine = result.run, result.machine
    gpus = sorted({str(gpu.get('name')) for gpu in machine.get('gpus') or ()})
    # Runs on more devices have more GPUs of the same kind.
    limits = {
        name: [*dict.fromkeys(map(str, value))] if name.startswith('gpus.') else value
        for name, value in result.limits.items()
    }
    return Workload(
        workload_key(result),
        result.model.name,
        f'{run.data_set}, {"synthetic" if run.is_synthetic else "real"}',
        run.batch_size,
        run.precision,
        run.is_synthetic,
        run.device == 'cpu',
        (
            str(machine.get('cpu_model')),
            *gpus,
            run.device,
            run.precision,
            str(result.command.flags.get('xla')),
        ),
        equality_key(limits),
        result.gradient_bytes or 0,
        result,
    )


def _limit_notes(workloads: Sequence[Workload]) -> list[str]:
    """Returns a line for runs of the same work under different limits, which are not combined."""
    notes: dict[str, None] = {}
    for first, other in itertools.combinations(workloads, 2):
        if replace(first, limits='') == replace(other, limits=''):
            differences = limit_differences([first.result, other.result]).items()
            text = ', '.join(
                f'{name} {" and ".join(map(format_property, values))}'
                for name, values in differences
            )
            notes[f'runs of {first.model} are not combined, since their limits differ: {text}'] = (
                None
            )
    return [*notes]


@dataclass(frozen=True)
class PredictionRow:
    """A row of the table, and of the document: images/sec of a workload in a mode and shape."""

    model: str
    batch_size: int
    precision: str
    data: str
    variable_update: str
    shape: str
    images_per_second: float | None
    low: float | None
    high: float | None
    rule: str


PREDICTION_COLUMNS: tuple[Column[PredictionRow], ...] = (
    Column('model', lambda row: row.model),
    Column('batch', lambda row: row.batch_size, is_number=True),
    Column('precision', lambda row: row.precision),
    Column('data', lambda row: row.data),
    Column('variable_update', lambda row: row.variable_update),
    Column('W*G+P', lambda row: row.shape),
    # Absent if there are bands only.
    Column(
        'images/sec',
        lambda row: row.images_per_second and format_number(row.images_per_second),
        is_number=True,
        is_optional=True,
    ),
    Column('from', lambda row: row.low and format_number(row.low), is_number=True),
    Column('to', lambda row: row.high and format_number(row.high), is_number=True),
    Column('rule', lambda row: row.rule),
)


def prediction_document(rows: Sequence[PredictionRow]) -> dict[str, Any]:
    """Returns the predictions as a JSON object; CSV has the same rows."""
    return {
        'schema': SCHEMA,
        'schema_version': SCHEMA_VERSION,
        'rows': [asdict(row) for row in rows],
    }


def predict_rows(
    measurements: Measurements,
    workloads: Sequence[Workload],
    workers: Sequence[int],
    devices: Sequence[int],
    network: float | None,
) -> list[PredictionRow]:
    """Predicts workloads on all pairs of numbers of workers and of devices of each worker.

    Without numbers, they are as in PredictOptions. network is the bytes/s of a host's link.
    """
    measured_points = [
        (mode, shape)
        for workload in measurements.workloads
        for mode, shape in workload.seconds
        if shape != _ONE_DEVICE
    ]
    measured_points += [
        (mode, shape) for mode, rows in measurements.links.items() for shape, *_ in rows
    ]
    largest = max((shape for _, shape in measured_points), default=_ONE_DEVICE)
    requested_sizes = [
        *itertools.product(workers or ([1] if devices else [2, 4, 8]), devices or [largest.devices])
    ]
    return [
        _make_row(workload, mode, shape, _predict(measurements, workload, mode, shape, network))
        for workload in workloads
        for mode, shape in _candidate_points(
            measured_points, requested_sizes, has_network=network is not None
        )
    ]


def _candidate_points(
    measured_points: Sequence[tuple[str, Shape]],
    requested_sizes: Sequence[tuple[int, int]],
    *,
    has_network: bool,
) -> Iterator[tuple[str, Shape]]:
    """Yields each (mode, shape) to predict.

    The modes are those measured with several workers, or with several devices. Without such
    measurements, or with --network and several workers, all possible modes.
    """
    for number, devices in requested_sizes:
        similar_points = [
            (mode, shape) for mode, shape in measured_points if (shape.workers > 1) == (number > 1)
        ]
        measured_names = {name for name, _ in similar_points}
        measured_modes = [mode for name, mode in MODES.items() if name in measured_names]
        covers_all_modes = not measured_modes or (has_network and number > 1)
        for mode in MODES.values() if covers_all_modes else measured_modes:
            # The measured numbers of parameter servers, or else one if the mode needs it.
            servers = {shape.num_ps for name, shape in similar_points if name == mode.name} or {
                int(mode.needs_servers)
            }
            for num_ps in sorted(servers) if number > 1 else [0]:
                shape = Shape(number, devices, num_ps)
                if mode.shares_model and (
                    mode in measured_modes or shape.unsupported_reason(mode) is None
                ):
                    yield mode.name, shape


def _predict(
    measurements: Measurements,
    workload: Workload,
    mode: str,
    shape: Shape,
    network: float | None,
) -> Prediction:
    if seconds := workload.seconds.get(('' if shape == _ONE_DEVICE else mode, shape)):
        return Prediction('measured', seconds, math.nan, math.nan)
    series, size = workload.series(mode, shape), workload.gradient_bytes
    other_series = [
        other.series(mode, shape)
        for other in measurements.workloads
        if (other.machine, other.limits) == (workload.machine, workload.limits)
    ]
    if prediction := predict(series, other_series, shape.workers * shape.devices):
        return prediction
    rule, rate = 'band: --network', network if shape.workers > 1 else None
    links = measurements.links.get(mode, ())
    if rows := [link for link in links if (link[0].workers > 1) == (shape.workers > 1)]:
        # Prefers the same shape, and then the most similar size.
        rate = min(rows, key=lambda row: (row[0] != shape, abs(math.log(row[1] / size))))[2]
        rule = 'band: --exchange_only'
    # All devices of a CPU share its cores.
    compute = series.seconds_on_one_device and series.seconds_on_one_device * (
        shape.devices if workload.is_cpu else 1
    )
    if shape.workers > 1:
        compute = series.seconds_by_devices.get(shape.devices, compute)
    if rate is None or compute is None:
        return Prediction(NO_RULE, None, math.nan, math.nan)
    exchange = link_bytes(size, shape.workers, shape.devices, shape.num_ps) / rate
    # The upper bound: the exchange follows the computation. The lower one: they overlap fully.
    slowest = compute + num_transfers(shape.workers, shape.num_ps) * exchange
    return Prediction(rule, None, max(compute, exchange), slowest)


def _make_row(workload: Workload, mode: str, shape: Shape, prediction: Prediction) -> PredictionRow:
    images = workload.images * shape.workers * shape.devices
    has_interval = not math.isnan(prediction.fastest)
    return PredictionRow(
        model=workload.model,
        batch_size=workload.images,
        precision=workload.precision,
        data=workload.data,
        variable_update=mode,
        shape=str(shape),
        images_per_second=None if prediction.seconds is None else images / prediction.seconds,
        low=images / prediction.slowest if has_interval else None,
        high=images / prediction.fastest if has_interval else None,
        rule=prediction.rule,
    )


def select_workloads(workloads: Sequence[Workload], models: str | None) -> list[Workload]:
    measured_models = sorted({workload.model for workload in workloads})
    names = measured_models if models is None else models.split(',')
    if unknown := [name for name in names if name not in measured_models]:
        raise UsageError(
            f'{format_flag("model", models)}: the results have only '
            f'{join_with_or(measured_models)}; run {unknown[0]} on one device, and add its result'
        )
    return [workload for workload in workloads if workload.model in names]
