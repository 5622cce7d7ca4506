"""What other clusters would give: from the result of one process and from links to images/sec of larger clusters."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from errors import UsageError
from inputs.data_sets import RECORDS
from models.gradients import gradients_of
from models.registry import MODELS, load_model_file
from params.modes import MODES, Mode
from results.document import Record
from scaling.fitting import PRIORS, Fit, Measured, Predicted, Prior, usual
from scaling.links import DTYPE_BYTES, LinkRow
from scaling.terms import Exchange, ModelledCluster, Terms, Work, bytes_of_step, terms_of

# The value of "schema" in the document of a prediction.
PREDICTION = 'tf_cnn_benchmarks.prediction'
SCHEMA_VERSION = 1
# The most workers for which --target looks.
MOST_WORKERS = 1024
_TRAINING = 'training'
# The standard deviation of the logarithm of an exchange in a step over that of the exchange alone.
_SPREAD_OF_MEASURED = 0.1
# What may limit a step: its name, the terms that it has, and the rates that are doubled to see what it is worth.
_LIMITS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    'compute': (('compute', 'crowding', 'slowest'), ('compute',)),
    'input': (('input',), ('image_seconds',)),
    'links in the host': (('inside',), ('inside', 'shared', 'loopback')),
    'network': (('network',), ('between',)),
    "a parameter server's link": (('server_link',), ('between',)),
    'sums in the host': (('sums',), ('sums',)),
    'latency': (('latency',), ('latency', 'message_seconds', 'tensor_seconds')),
}
# Those that are seconds, not rates: twice as fast is half of them.
_SECONDS = ('compute', 'image_seconds', 'latency', 'message_seconds', 'tensor_seconds')
_LINKS = ('links in the host', 'network', "a parameter server's link", 'sums in the host')


@dataclass(frozen=True)
class Candidate:
    """A cluster as a user asks for it.

    Attributes:
      mode: the value of --variable_update.
      workers: the number of workers.
      hosts: the number of hosts; each has as many workers as the others, or one less.
      devices: the devices of each worker.
      servers: the number of parameter servers, on the hosts of the workers; 0 in modes without.
    """

    mode: str
    workers: int
    hosts: int
    devices: int
    servers: int

    @property
    def total_devices(self) -> int:
        return self.workers * self.devices


@dataclass(frozen=True)
class Forecast:
    """What a cluster would give.

    Attributes:
      shape: the cluster.
      images_per_second: the most likely throughput.
      low: the lower end of its 95 % interval.
      high: its upper end.
      efficiency: the throughput as a part of that of as many devices alone.
      terms: the seconds of a step by term.
      bytes_per_step: the bytes that all processes together send in a step.
      limit: what would raise the throughput most if it was twice as fast.
      next_limit: what would raise it second most.
      link: the link that would raise it most; None if there is none.
      with_link_doubled: the throughput if that link was twice as fast.
    """

    shape: Candidate
    images_per_second: float
    low: float
    high: float
    efficiency: float
    terms: Terms
    bytes_per_step: float
    limit: str
    next_limit: str
    link: str | None
    with_link_doubled: float | None

    def as_object(self) -> dict[str, Any]:
        """The forecast as a JSON object."""
        return {
            'variable_update': self.shape.mode,
            'num_workers': self.shape.workers,
            'num_hosts': self.shape.hosts,
            'devices_per_worker': self.shape.devices,
            'num_ps': self.shape.servers,
            'images_per_second': self.images_per_second,
            'low': self.low,
            'high': self.high,
            'efficiency': self.efficiency,
            'step_seconds': self.terms.seconds,
            'terms': self.terms.by_name(),
            'bytes_per_step': self.bytes_per_step,
            'limit': self.limit,
            'next_limit': self.next_limit,
            'link': self.link,
            'images_per_second_with_link_doubled': self.with_link_doubled,
        }


class Forecaster:
    """Predicts the clusters of one machine.

    Args:
      record: the result of one process.
      rows: measured links.
      results: further results of the same machine, to which the rates are fitted, too.
      priors: what is known about rates in another way, such as from a data sheet.

    Raises:
      UsageError: the result has no steps, or is not one of a training process alone.
    """

    def __init__(
        self,
        record: Record,
        rows: Sequence[LinkRow] = (),
        results: Sequence[Record] = (),
        priors: Mapping[str, Prior] | None = None,
    ) -> None:
        check_result(record)
        self.record = record
        self.work = work_of(record)
        steps = record.step_seconds()
        known = {**PRIORS, **(priors or {})}
        if steps.size > 1:
            # What one device varies from step to step is what several wait for; few steps say less about it.
            jitter = max(float(np.std(steps, ddof=1) / np.mean(steps)), 1e-4)
            known['jitter'] = usual(jitter, max(0.3, 1 / math.sqrt(steps.size)))
        if rows:
            # Links that were measured leave less to guess than those that are only usual.
            known['scale'] = Prior(0.0, _SPREAD_OF_MEASURED)
        self._labels = {row.exchange for row in rows}
        measured = [_measured(one, self._labels) for one in (record, *results)]
        self._fit = Fit([*measured, *(row.measured for row in rows)], known)

    @functools.cached_property
    def one_device(self) -> Predicted:
        """The step of one device alone."""
        return self._fit.predict(self.work, ModelledCluster(Exchange.NONE, 1, 1))

    @functools.cached_property
    def images_per_second_of_one(self) -> float:
        """The throughput of one device alone."""
        return self.work.images / self.one_device.seconds

    def forecast(self, shape: Candidate) -> Forecast:
        """Returns what a cluster would give."""
        cluster = self._cluster(shape)
        images = self.work.images * shape.total_devices
        found = self._fit.predict(self.work, cluster)
        gains = {name: self._seconds(cluster, name) for name, (terms, _) in _LIMITS.items() if _has(found.terms, terms)}
        ordered = sorted(gains, key=gains.__getitem__)
        link = next((name for name in ordered if name in _LINKS), None)
        return Forecast(
            shape,
            images / found.seconds,
            images / found.high,
            images / found.low,
            images / found.seconds / (self.images_per_second_of_one * shape.total_devices),
            found.terms,
            bytes_of_step(self.work, cluster),
            ordered[0],
            ordered[1] if len(ordered) > 1 else 'nothing else',
            link,
            images / gains[link] if link else None,
        )

    def images_per_second(self, shape: Candidate) -> float:
        """Returns the most likely throughput of a cluster."""
        return self.work.images * shape.total_devices / self._seconds(self._cluster(shape))

    def smallest(
        self, mode: Mode, devices: int, servers: int | None, target: float, most: int = MOST_WORKERS
    ) -> Forecast | None:
        """Returns the cluster with the fewest workers, one on each host, that reaches a throughput; None if none does.

        Args:
          mode: the row of the mode.
          devices: the devices of each worker.
          servers: the number of parameter servers; None for one on each host.
          target: images/sec.
          most: the most workers to try.
        """
        for workers in range(1, most + 1):
            shape = shape_of(mode, workers, workers, devices, servers)
            if self.images_per_second(shape) >= target:
                return self.forecast(shape)
        return None

    def best(self, mode: Mode, devices: int, servers: int | None, most: int = MOST_WORKERS) -> Forecast:
        """Returns the cluster with the highest throughput; arguments as for smallest."""
        tried = (shape_of(mode, workers, workers, devices, servers) for workers in range(1, most + 1))
        return self.forecast(max(tried, key=self.images_per_second))

    def _cluster(self, shape: Candidate) -> ModelledCluster:
        return _cluster_of(shape, is_cpu=self.work.shares_cores, labels=self._labels)

    def _seconds(self, cluster: ModelledCluster, doubled: str | None = None) -> float:
        """Returns the seconds of a step, if a limit was twice as fast."""
        rates = self._fit.rates(self.work, cluster)
        if doubled:
            known = self._fit.names(self.work, cluster)
            faster = {
                name: -math.log(2) if name[0] in _SECONDS else math.log(2)
                for name in known
                if name[0] in _LIMITS[doubled][1]
            }
            rates = self._fit.rates(self.work, cluster, faster)
        return terms_of(self.work, cluster, rates).seconds


def check_steps(record: Record) -> None:
    """Raises UsageError if a result is not of a training run with timed steps."""
    source = record.source
    if record.run.get('role') != _TRAINING:
        raise UsageError(f'{source}: it is no training run ({record.run.get("role")}); give the result of one that is')
    if not record.step_seconds().size or not record.images_per_second > 0:
        raise UsageError(f'{source}: it has no timed step; measure it again')


def check_result(record: Record) -> None:
    """Raises UsageError if predictions cannot start from a result."""
    check_steps(record)
    source = record.source
    cluster = record.document['cluster']
    if cluster['num_workers'] != 1 or cluster['num_ps']:
        raise UsageError(
            f'{source}: it is the result of a cluster ({record.shape}), and --from takes that of one process; '
            'give clusters with --fit=DIR'
        )


def is_usable(record: Record) -> bool:
    """Whether rates can be fitted to a result: it is a training run with timed steps, which all workers take together.

    One worker with a parameter server is left out: no other worker is there to exchange anything with.
    """
    cluster = record.document['cluster']
    is_alone = cluster['num_workers'] == 1 and cluster['num_ps']
    timed = record.step_seconds().size and record.images_per_second > 0
    return bool(timed and not is_alone and record.run.get('role') == _TRAINING and record.run.get('sync', True))


def work_of(record: Record) -> Work:
    """Returns the work of a result.

    Raises:
      UsageError: its model is unknown, or cannot be built.
    """
    run, flags = record.run, record.flags
    if path := flags.get('model_file'):
        load_model_file(str(path))
    data_set = run.get('data_set')
    # A folder of images trains the network of the model's own data set, but for the number of classes.
    facts = MODELS.find_model(record.model, None if data_set == RECORDS else data_set)
    batch, precision = int(run['batch_size']), str(run.get('precision', 'fp32'))
    kind = (
        record.machine.get('fingerprint'),
        record.model,
        batch,
        precision,
        run.get('is_synthetic'),
        flags.get('xla'),
    )
    return Work(
        key='|'.join(map(str, kind)),
        gradients=gradients_of(facts),
        images=batch,
        value_bytes=DTYPE_BYTES[dtype_of(record)],
        reads_images=not run.get('is_synthetic', True),
        slices=bool(flags.get('slice_variables', True)),
        shares_cores=run.get('device') == 'cpu',
        fuses=bool(flags.get('xla')),
        is_staged=bool(flags.get('staged_vars')) or flags.get('variable_consistency') == 'relaxed',
        is_synchronous=bool(flags.get('cross_replica_sync', True)),
    )


def dtype_of(record: Record) -> str:
    """Returns the type in which the gradients of a run would travel between processes, see docs/modes.md."""
    precision, compact = record.run.get('precision', 'fp32'), record.flags.get('compact_gradient_transfer')
    if precision == 'fp32':
        return 'bfloat16' if compact else 'float32'
    if compact is False:
        return 'float32'
    return 'float16' if precision == 'fp16' else 'bfloat16'


def shape_of(mode: Mode, workers: int, hosts: int, devices: int, servers: int | None) -> Candidate:
    """Returns a shape; servers is None for one parameter server on each host, and counts in modes that have any."""
    return Candidate(mode.name, workers, hosts, devices, (servers or hosts) if _needs_servers(mode, workers) else 0)


def shapes(
    modes: Sequence[str],
    workers: Sequence[int],
    hosts: Sequence[int],
    devices: Sequence[int],
    servers: Sequence[int | None],
) -> list[Candidate]:
    """Returns every combination, each once; without hosts each worker has its own."""
    # A cluster has no more hosts than workers.
    found = [
        shape_of(MODES[name], count, min(number, count), own, of_servers)
        for name in modes
        for of_servers in servers
        for own in devices
        for count in workers
        for number in hosts or [count]
    ]
    return list(dict.fromkeys(found))


def can_cluster(mode: Mode) -> bool:
    """Whether the program itself can start several processes of a mode that train one model."""
    return mode.shares_model and mode.has_cluster


def _needs_servers(mode: Mode, workers: int) -> bool:
    return workers > 1 and mode.needs_servers


def _cluster_of(shape: Candidate, *, is_cpu: bool, labels: set[str]) -> ModelledCluster:
    """Returns the cluster of a shape.

    Args:
      is_cpu: whether its devices are CPUs.
      labels: the exchanges whose links were measured.
    """
    mode = MODES[shape.mode]
    if not mode.shares_model:
        return ModelledCluster(Exchange.NONE, shape.workers, shape.hosts, shape.devices)
    among_gpus = 'nccl' if 'nccl' in labels and not is_cpu else 'copies'
    if shape.workers == 1:
        label = among_gpus
    elif shape.servers:
        label = 'parameter_servers'
    elif mode.has_controller:
        label = 'controller'
    else:
        # Workers that were measured in one ring by another name are in the same ring.
        label = next((name for name in ('collective', 'ring') if name in labels), 'collective')
    return ModelledCluster(
        Exchange.SERVERS if shape.servers else Exchange.RING,
        shape.workers,
        shape.hosts,
        shape.devices,
        shape.servers,
        label,
        # One worker on each host exchanges its gradients only between its own devices.
        inside_label=among_gpus if shape.workers <= shape.hosts else label,
        sums_on_host=is_cpu,
    )


def _measured(record: Record, labels: set[str]) -> Measured:
    document = record.document
    cluster = document['cluster']
    workers = int(cluster['num_workers'])
    names = {str(worker.get('host')) for worker in document['workers']}
    work = work_of(record)
    shape = Candidate(
        str(record.run['variable_update']),
        workers,
        max(1, min(len(names), workers)),
        int(cluster['devices_per_worker']),
        int(cluster['num_ps']),
    )
    found = _cluster_of(shape, is_cpu=work.shares_cores, labels=labels)
    return Measured(work, found, work.images * found.total_devices / record.images_per_second)


def _has(terms: Terms, names: Sequence[str]) -> bool:
    return any(getattr(terms, name) > 0 for name in names)
