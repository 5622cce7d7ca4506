"""The tasks of a cluster and the role of this process. Does not import TensorFlow."""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tf_cnn.managers.modes import Mode, Topology
from tf_cnn.system.errors import UsageError

_SHAPE = re.compile(r'\s*([0-9]{1,6})\s*\*\s*([0-9]{1,6})\s*(?:\+\s*([0-9]{1,6})\s*)?', re.ASCII)
EXPECTED = 'W*G or W*G+P: workers, devices of each, parameter servers, such as 1*2 or 2*1+1'


@dataclass(frozen=True)
class Shape:
    """A shape W*G+P: workers * devices of each + parameter servers, such as 2*1+1 or 1*4."""

    workers: int
    devices: int
    num_ps: int = 0

    @classmethod
    def parse(cls, text: str) -> 'Shape':
        """Parses '2*1+1' or '1*2'; raises ValueError if the text is not a shape."""
        match = _SHAPE.fullmatch(text)
        if not match:
            raise ValueError(f'it must be {EXPECTED}')
        shape = cls(*(int(number or 0) for number in match.groups()))
        if not shape.workers or not shape.devices:
            raise ValueError('it needs at least one worker with one device, as in 1*1')
        return shape

    def __str__(self) -> str:
        return f'{self.workers}*{self.devices}' + (f'+{self.num_ps}' if self.num_ps else '')

    def topology(self, mode: Mode) -> Topology:
        if self.num_ps:
            return Topology.PARAMETER_SERVERS
        if mode.has_controller:
            return Topology.CONTROLLER
        return Topology.PEERS if self.workers > 1 else Topology.LOCAL

    def unsupported_reason(self, mode: Mode) -> str | None:
        """Returns why the mode cannot run in this shape; None if it can."""
        if mode.launcher:
            return f'{mode.launcher} starts the processes of {mode.name}, which a sweep cannot'
        topology = self.topology(mode)
        if mode.runs_in(topology):
            return None
        if topology is not Topology.LOCAL and not mode.has_cluster:
            return f'{mode.name} works within one process'
        if topology is Topology.PARAMETER_SERVERS:
            return f'{mode.name} has no parameter servers'
        return f'{mode.name} needs parameter servers'


Hosts = tuple[str, ...]
LOOPBACK = '127.0.0.1'
# HOST:PORT, with an IPv6 address in brackets.
_HOST_PORT = re.compile(r'(?P<host>\[[\w:.%-]+\]|[\w.-]+):(?P<port>[0-9]{1,5})', re.ASCII)
# How many tasks a message names.
_MOST_NAMED = 5
_FOUR_NUMBERS = re.compile(r'\d+(\.\d+){3}', re.ASCII)
# The flag that names the hosts of each job.
HOSTS_FLAGS = {'ps': 'ps_hosts', 'worker': 'worker_hosts', 'controller': 'controller_host'}


@dataclass(frozen=True)
class Task:
    """One process of the cluster. job is ps, worker or controller; host is HOST:PORT."""

    job: str
    index: int
    host: str

    @property
    def device(self) -> str:
        """The prefix of its device names: /job:worker/task:1."""
        return f'/job:{self.job}/task:{self.index}'

    def __str__(self) -> str:
        return f'{self.job} {self.index} ({self.host})'


@dataclass(frozen=True)
class Cluster:
    """The tasks that train together, and the job and index of this process.

    A cluster has servers and training tasks. Without a controller these are the parameter servers
    and the workers. With a controller, it is the only training task: it uses the devices of all
    workers, and the workers are servers.

    Attributes:
      ps_hosts, worker_hosts, controller_hosts: the HOST:PORT of each task of the job.
      source: what describes the cluster, for messages: 'the flags', 'TF_CONFIG', 'Slurm' ...
    """

    ps_hosts: Hosts
    worker_hosts: Hosts
    job: str
    index: int
    source: str
    controller_hosts: Hosts = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, servers first."""
        return self.servers + self.training_tasks

    @property
    def servers(self) -> tuple[Task, ...]:
        """The tasks that serve variables or devices until the training tasks have exited."""
        return _tasks(*self.jobs[0])

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The tasks that take steps. The first one is the chief."""
        return _tasks(*self.jobs[1])

    @property
    def own_task(self) -> Task:
        return Task(self.job, self.index, dict(self.jobs)[self.job][self.index])

    @property
    def is_chief(self) -> bool:
        """Whether this is the first training task, which initializes and saves the variables."""
        return self.own_task == self.training_tasks[0]

    @property
    def is_server(self) -> bool:
        return self.own_task in self.servers

    @property
    def is_on_one_host(self) -> bool:
        return len(set(map(_host_name, self.tasks))) == 1

    @property
    def num_workers(self) -> int:
        return len(self.worker_hosts)

    @property
    def local_rank_and_size(self) -> tuple[int, int]:
        """(Local rank, local size) of this worker among the workers with the same host name."""
        own_name = _host_name(self.own_task)
        names = [_host_name(task) for task in _tasks('worker', self.worker_hosts)]
        return names[: self.index].count(own_name), names.count(own_name)

    @property
    def num_ps(self) -> int:
        return len(self.ps_hosts)

    @property
    def spec(self) -> dict[str, list[str]]:
        """The hosts by job, for tf.train.ClusterSpec."""
        return {job: list(hosts) for job, hosts in self.jobs if hosts}

    @property
    def store_task(self) -> Task:
        """The task with the key-value store: the first server, else the chief."""
        return self.tasks[0]

    @property
    def jobs(self) -> tuple[tuple[str, Hosts], tuple[str, Hosts]]:
        """(Job, hosts) of the servers and of the training tasks."""
        workers = 'worker', self.worker_hosts
        if self.controller_hosts:
            return workers, ('controller', self.controller_hosts)
        return ('ps', self.ps_hosts), workers


def topology_of(cluster: Cluster | None) -> Topology:
    """Returns the topology of a cluster; None stands for a run in one process."""
    if cluster is None:
        return Topology.LOCAL
    if cluster.ps_hosts:
        return Topology.PARAMETER_SERVERS
    return Topology.CONTROLLER if cluster.controller_hosts else Topology.PEERS


def name_tasks(tasks: Sequence[Task], conjunction: str = ', ') -> str:
    return conjunction.join(map(str, tasks[:_MOST_NAMED])) + ' ...' * (len(tasks) > _MOST_NAMED)


def public_hosts(cluster: Cluster) -> tuple[str, ...]:
    """Returns the distinct hosts, without ports, that have an address on the internet."""
    hosts: list[str] = []
    for name in dict.fromkeys(split_host_port(task.host)[0] for task in cluster.tasks):
        with contextlib.suppress(OSError, UnicodeError):
            if any(_is_public(str(info[4][0])) for info in socket.getaddrinfo(name, None)):
                hosts.append(name)
    return tuple(hosts)


def _tasks(job: str, hosts: Hosts) -> tuple[Task, ...]:
    return tuple(Task(job, index, host) for index, host in enumerate(hosts))


def _host_name(task: Task) -> str:
    return split_host_port(task.host)[0].lower()


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, 'ipv4_mapped', None) or ip).is_global


def join_host_port(host: str, port: int) -> str:
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def split_host_port(address: str) -> tuple[str, int]:
    """Returns (host, port); an IPv6 address loses its brackets."""
    host, _, port = address.rpartition(':')
    return host.replace('[', '').replace(']', ''), int(port)


def may_be_host(host: str) -> bool:
    """Whether a text is a name or a valid address, unlike zz::1 and 10.0.0.256."""
    if ':' not in host and not _FOUR_NUMBERS.fullmatch(host):
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def split_hosts(text: str) -> list[str]:
    """Splits a list of hosts at its commas; a comma may follow the last host."""
    return text.strip().removesuffix(',').split(',')


def read_hosts(items: Iterable[str], flag: str) -> Hosts:
    """Returns the hosts, each as HOST:PORT without blanks.

    Raises UsageError if an item is not HOST:PORT or appears twice. Messages begin with `flag`.
    """
    hosts = []
    for item in items:
        match = _HOST_PORT.fullmatch(item.strip())
        host, port = split_host_port(match[0]) if match else ('', 0)
        if host and not may_be_host(host):
            raise UsageError(
                f'{flag}: {host} is not a valid address; use a name, or an address such as '
                '10.0.0.1 or [fd00::1]'
            )
        if not 1 <= port <= 65535:
            entry = repr(item.strip()) if item.strip() else 'an empty entry'
            raise UsageError(
                f'{flag}: {entry} is not HOST:PORT with a port from 1 to 65535; use for example '
                '10.0.0.1:2222 or [fd00::1]:2222, with commas between hosts'
            )
        hosts.append(join_host_port(host, port))
    if duplicate := next((host for host in hosts if hosts.count(host) > 1), None):
        raise UsageError(
            f'{flag}: {duplicate} appears twice; use a different HOST:PORT for each process'
        )
    return tuple(hosts)
