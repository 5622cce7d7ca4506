"""The terms of a step: what it takes on a cluster, in seconds. docs/predict.md has each formula with its source."""

import enum
from dataclasses import dataclass, fields
from statistics import NormalDist

import numpy as np

from models.gradients import GradientFacts

# The program cuts larger variables, of 4 bytes a value, into one part for each parameter server, see
# managers/parameter_servers.py.
LARGEST_WHOLE_VALUES = 1 << 20
# The forward pass is a third of the multiply-adds: for each product of it, the backward pass has two of the same size.
_FORWARD = 1 / 3


class Exchange(enum.Enum):
    """How the gradients of several workers meet."""

    NONE = 'none'
    RING = 'ring'
    SERVERS = 'parameter servers'


@dataclass(frozen=True)
class Work:
    """What one device computes in a step, and what it has to send.

    Attributes:
      key: tells works apart, since each has its own seconds of computing.
      gradients: the gradients in the order of the backward pass.
      images: the images of a step on one device.
      value_bytes: the bytes of one value on its way: 4, or 2 in 16 bits.
      reads_images: whether the images are read and decoded, not made up once.
      slices: whether large variables are cut into parts for the parameter servers.
      shares_cores: whether the devices of a host are the same cores, so that each computes after the other.
      fuses: whether the compiler fuses the backward pass, so that few gradients are ready before its end.
      is_staged: whether the gradients of a step are exchanged during the next one.
      is_synchronous: whether all devices take each step together.
    """

    key: str
    gradients: GradientFacts
    images: int
    value_bytes: int = 4
    reads_images: bool = False
    slices: bool = True
    shares_cores: bool = False
    fuses: bool = False
    is_staged: bool = False
    is_synchronous: bool = True

    @property
    def bytes(self) -> int:
        """The bytes of all gradients."""
        return self.gradients.parameters * self.value_bytes


@dataclass(frozen=True)
class ModelledCluster:
    """A cluster, with the same number of workers on each host that has any.

    Attributes:
      exchange: how the gradients of the workers meet.
      workers: the number of processes that compute.
      hosts: the number of hosts.
      devices: the number of devices of each worker.
      servers: the number of parameter servers; they run on the hosts of the workers, unless some are for them alone.
      label: tells links apart that measurements of one say little about another, such as those of two modes.
      inside_label: the same for the links between the devices of a host; by default label.
      sums_on_host: whether processors of the host sum gradients, not GPUs.
      server_hosts: how many of the hosts run parameter servers and no workers.
    """

    exchange: Exchange
    workers: int
    hosts: int
    devices: int = 1
    servers: int = 0
    label: str = ''
    inside_label: str | None = None
    sums_on_host: bool = False
    server_hosts: int = 0

    @property
    def total_devices(self) -> int:
        return self.workers * self.devices

    @property
    def exchanges_nothing(self) -> bool:
        """Whether it is a single device without a parameter server on another host."""
        return self.total_devices == 1 and self.hosts == 1

    @property
    def devices_of_host(self) -> int:
        """The devices of the fullest host."""
        return self.workers_of_host * self.devices

    @property
    def workers_of_host(self) -> int:
        """The workers of the fullest host."""
        return -(-self.workers // (self.hosts - self.server_hosts))


@dataclass(frozen=True)
class Rates:
    """What a machine and its links do, for one cluster.

    Attributes:
      compute: seconds of a step on one device alone.
      crowding: the part by which computing is slower as soon as there are several devices.
      jitter: the standard deviation of the seconds of one device's step, as a part of them.
      image_seconds: the seconds by which one image that is read delays the step of its host.
      inside: the bus bandwidth between the devices of a host, in bytes/s.
      tensor_seconds: the seconds of one tensor's exchange between the devices of a host, however small it is.
      between: the bytes/s of a host's link, in each direction.
      message_seconds: the seconds of one tensor's exchange between hosts, however small it is.
      latency: the seconds of one message between hosts.
      sums: the bytes/s of gradients that a host adds up.
      overlap: the part of the exchange that can run during the backward pass, from 0 to 1.
      scale: a factor of the exchange, 1 where its formula is exact.
    """

    compute: float
    crowding: float
    jitter: float
    image_seconds: float
    inside: float
    tensor_seconds: float
    between: float
    message_seconds: float
    latency: float
    sums: float
    overlap: float
    scale: float = 1.0


@dataclass(frozen=True)
class Terms:
    """The seconds of a step, by term; their sum is the step.

    Of the terms of the exchange, each has only the part that the backward pass does not hide.

    Attributes:
      compute: forward and backward pass and update on one device.
      crowding: what several devices of one cluster take from each other.
      slowest: the wait for the slowest device.
      input: the wait for images.
      inside: the exchange between the devices of a host.
      network: the exchange through the links of the hosts, where the workers' own share limits it.
      server_link: the same, where the link of one parameter server limits it.
      sums: adding gradients on the hosts.
      latency: what each message takes, however small it is.
    """

    compute: float
    crowding: float
    slowest: float
    input: float
    inside: float
    network: float
    server_link: float
    sums: float
    latency: float

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return sum(self.by_name().values())

    def by_name(self) -> dict[str, float]:
        """The seconds of each term."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def slowest_of(number: int) -> float:
    """Returns the expected maximum of so many standard normal values, by Blom's approximation.

    Source: G. Blom, Statistical Estimates and Transformed Beta-Variables (1958), section 6.9: the normal quantile of
    (n - 0.375) / (n + 0.25).
    """
    return NormalDist().inv_cdf((number - 0.375) / (number + 0.25)) if number > 1 else 0.0


def terms_of(work: Work, cluster: ModelledCluster, rates: Rates) -> Terms:
    """Returns the terms of a step."""
    devices = cluster.devices_of_host
    compute = rates.compute * (devices if work.shares_cores else 1)
    if cluster.exchanges_nothing:
        return Terms(compute, 0, 0, 0, 0, 0, 0, 0, 0)
    waits = devices * work.images * rates.image_seconds if work.reads_images else 0.0
    exchange, after = _exchange(work, cluster, rates)
    whole = sum(exchange.values()) + after
    if work.is_staged:
        shown = max(0.0, rates.scale * whole - compute)
    else:
        shown = rates.scale * (_not_hidden(work, compute, sum(exchange.values()), rates.overlap) + after)
    link = 'server_link' if _server_link_limits(work, cluster) else 'network'
    exchange[link] = exchange.pop('between') + after
    part = shown / whole if whole else 0.0
    return Terms(
        compute=compute,
        crowding=compute * rates.crowding,
        slowest=compute * rates.jitter * slowest_of(cluster.total_devices) if work.is_synchronous else 0.0,
        input=waits,
        **{'network': 0.0, 'server_link': 0.0} | {name: seconds * part for name, seconds in exchange.items()},
    )


def exchange_seconds(work: Work, cluster: ModelledCluster, rates: Rates) -> float:
    """Returns the seconds of an exchange alone, without computing."""
    exchange, after = _exchange(work, cluster, rates)
    return rates.scale * (sum(exchange.values()) + after)


def bytes_of_links(work: Work, cluster: ModelledCluster) -> float:
    """Returns the bytes that the busiest link of a host carries in each direction, from gradients to new values."""
    if cluster.hosts == 1 or cluster.exchange is Exchange.NONE:
        return 0.0
    if cluster.exchange is Exchange.RING:
        # Patarasuk and Yuan 2009, section 3: each of W workers sends 2 (W - 1) / W of the gradients.
        return 2 * (cluster.workers - 1) / cluster.workers * work.bytes
    return 2 * max(_server_bytes(work, cluster), _worker_bytes(work, cluster))


def bytes_of_step(work: Work, cluster: ModelledCluster) -> float:
    """Returns the bytes that all processes together send in a step, as docs/modes.md counts them."""
    if cluster.exchange is Exchange.NONE or cluster.workers == 1:
        return 0.0
    if cluster.exchange is Exchange.SERVERS:
        return 2.0 * work.bytes * cluster.workers
    return 2.0 * work.bytes * (cluster.workers - 1)


def _exchange(work: Work, cluster: ModelledCluster, rates: Rates) -> tuple[dict[str, float], float]:
    """Returns the seconds of the exchange by term, and those after it, in which workers read new values."""
    devices, tensors = cluster.devices_of_host, work.gradients.tensors
    inside = between = sums = latency = after = 0.0
    if cluster.exchange is Exchange.NONE:
        return {'inside': 0.0, 'between': 0.0, 'sums': 0.0, 'latency': 0.0}, 0.0
    if devices > 1:
        inside = _bytes_inside(work, cluster) / rates.inside
        latency += tensors * rates.tensor_seconds
    if cluster.hosts > 1:
        between = bytes_of_links(work, cluster) / rates.between
        latency += tensors * rates.message_seconds
        if cluster.exchange is Exchange.SERVERS:
            # Gradients are sent during the backward pass, new values are read after it.
            between, after = between / 2, between / 2
            latency += 4 * rates.latency
        else:
            latency += 2 * (cluster.workers - 1) * rates.latency
    if cluster.workers > 1 and cluster.exchange is Exchange.SERVERS:
        sums = cluster.workers * _bytes_of_server(work, cluster) * _servers_of_host(cluster) / rates.sums
    elif cluster.workers > 1 and cluster.sums_on_host:
        sums = (cluster.workers - 1) / cluster.workers * cluster.workers_of_host * work.bytes / rates.sums
    return {'inside': inside, 'between': between, 'sums': sums, 'latency': latency}, after


def _bytes_inside(work: Work, cluster: ModelledCluster) -> float:
    """The bytes that one device, or one parameter server, exchanges with the others of its host."""
    devices = cluster.devices_of_host
    if cluster.exchange is Exchange.SERVERS and cluster.hosts == 1 and cluster.workers > 1:
        # Each worker sends all gradients and reads all values; each server does so with its share for every worker.
        return 2 * max(work.bytes, _bytes_of_server(work, cluster) * cluster.workers)
    # As in a ring; in one process, whose devices share the variables between them, it is as much.
    return 2 * (devices - 1) / devices * work.bytes


def _not_hidden(work: Work, compute: float, exchange: float, overlap: float) -> float:
    """Returns the seconds of the exchange that the backward pass does not hide.

    A gradient is sent when its layer is done and the gradients before it are sent, so the exchange ends at the largest,
    over all gradients, of the time at which one is ready plus the seconds of it and of all later ones. That is as much
    as can be hidden; `overlap` of the exchange is, the rest comes after the backward pass.
    """
    sizes = np.array([size for size, _ in work.gradients.pieces], dtype=np.float64)
    ready = np.array([after for _, after in work.gradients.pieces], dtype=np.float64)
    # The parts of the exchange that are left when a piece begins.
    left = np.cumsum(sizes[::-1])[::-1] / sizes.sum()
    late = (ready - 1) * (1 - _FORWARD) * compute + left * exchange
    return float(overlap * max(0.0, late.max()) + (1 - overlap) * exchange)


def _servers_of_host(cluster: ModelledCluster) -> int:
    """The parameter servers of the fullest host."""
    return -(-cluster.servers // (cluster.server_hosts or cluster.hosts))


def _bytes_of_server(work: Work, cluster: ModelledCluster) -> float:
    """The bytes of the fullest parameter server: its share, or the largest variable that is not cut."""
    largest = work.gradients.largest
    if work.slices:
        largest = min(largest, LARGEST_WHOLE_VALUES)
    return max(work.bytes / cluster.servers, float(largest * work.value_bytes))


def _server_bytes(work: Work, cluster: ModelledCluster) -> float:
    """The bytes of gradients that a host with parameter servers receives from workers of other hosts."""
    others = cluster.workers - (0 if cluster.server_hosts else cluster.workers_of_host)
    return min(_bytes_of_server(work, cluster) * _servers_of_host(cluster), work.bytes) * others


def _worker_bytes(work: Work, cluster: ModelledCluster) -> float:
    """The bytes of gradients that the workers of a host send to parameter servers of other hosts."""
    own = work.bytes / cluster.hosts if cluster.servers >= cluster.hosts and not cluster.server_hosts else 0.0
    return cluster.workers_of_host * (work.bytes - own)


def _server_link_limits(work: Work, cluster: ModelledCluster) -> bool:
    """Whether a parameter server's link, not that of the workers, limits the exchange."""
    if cluster.exchange is not Exchange.SERVERS or cluster.hosts == 1:
        return False
    return _server_bytes(work, cluster) > _worker_bytes(work, cluster)
