"""The processes of a cluster, their addresses, and the role of this one. Does not import
TensorFlow.
"""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tf_cnn.managers.modes import Topology
from tf_cnn.system.errors import UsageError

Hosts = tuple[str, ...]
LOOPBACK = '127.0.0.1'
# HOST:PORT; an IPv6 address stands in brackets.
_HOST_PORT = re.compile(r'(?P<host>\[[\w:.%-]+\]|[\w.-]+):(?P<port>[0-9]{1,5})', re.ASCII)
# How many tasks a message names.
_MOST_NAMED = 5
_FOUR_NUMBERS = re.compile(r'\d+(\.\d+){3}', re.ASCII)
# The flag that names the hosts of each job.
HOSTS_FLAGS = {'ps': 'ps_hosts', 'worker': 'worker_hosts', 'controller': 'controller_host'}


@dataclass(frozen=True)
class Task:
    """One process of the cluster: its job (ps, worker or controller), its index within the job, and
    its HOST:PORT.
    """

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
    """The processes that train together, with the HOST:PORT of each, and the role of this one: its
    job and index.

    A cluster has servers and trainers. Without a controller these are the parameter servers and the
    workers. With one, the controller is the only trainer: it uses the devices of all workers, and
    the workers are servers. source says where the cluster was described, for messages: 'the flags',
    'TF_CONFIG', 'Slurm', 'Horovod' ...
    """

    ps_hosts: Hosts
    worker_hosts: Hosts
    job: str
    index: int
    source: str
    controller_hosts: Hosts = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All processes, servers first."""
        return self.servers + self.training_tasks

    @property
    def servers(self) -> tuple[Task, ...]:
        """The processes that store variables for the trainers and run until the trainers have
        ended.
        """
        return _tasks(*self.jobs[0])

    @property
    def training_tasks(self) -> tuple[Task, ...]:
        """The processes that take steps. The first one is the chief."""
        return _tasks(*self.jobs[1])

    @property
    def own_task(self) -> Task:
        return Task(self.job, self.index, dict(self.jobs)[self.job][self.index])

    @property
    def is_chief(self) -> bool:
        """Whether this is the first trainer, which initializes variables and saves checkpoints."""
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
        """The number of this worker among those whose addresses have its host name, and how many
        these are.
        """
        own_name = _host_name(self.own_task)
        names = [_host_name(task) for task in _tasks('worker', self.worker_hosts)]
        return names[: self.index].count(own_name), names.count(own_name)

    @property
    def num_ps(self) -> int:
        return len(self.ps_hosts)

    @property
    def spec(self) -> dict[str, list[str]]:
        """The hosts of each job that has any, for tf.train.ClusterSpec."""
        return {job: list(hosts) for job, hosts in self.jobs if hosts}

    @property
    def store_task(self) -> Task:
        """The process whose server has the key-value store of the cluster: the first server, else
        the chief.
        """
        return self.tasks[0]

    @property
    def jobs(self) -> tuple[tuple[str, Hosts], tuple[str, Hosts]]:
        """The job of the servers and that of the trainers, with their hosts."""
        workers = 'worker', self.worker_hosts
        if self.controller_hosts:
            return workers, ('controller', self.controller_hosts)
        return ('ps', self.ps_hosts), workers


def topology_of(cluster: Cluster | None) -> Topology:
    """Returns among which processes a mode runs in this cluster; None stands for a run of one
    process.
    """
    if cluster is None:
        return Topology.LOCAL
    if cluster.ps_hosts:
        return Topology.PARAMETER_SERVERS
    return Topology.CONTROLLER if cluster.controller_hosts else Topology.PEERS


def name_tasks(tasks: Sequence[Task], conjunction: str = ', ') -> str:
    """Returns the first tasks of a list, as messages name them."""
    return conjunction.join(map(str, tasks[:_MOST_NAMED])) + ' ...' * (len(tasks) > _MOST_NAMED)


def public_hosts(cluster: Cluster) -> tuple[str, ...]:
    """Returns the hosts, without ports, of which an address is reachable from the internet, each
    once.
    """
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


@dataclass(frozen=True)
class Timeout:
    flag: str
    secs: float

    def message(self, event: str) -> str:
        """Returns the error for something that did not happen in time, such as 'ps 0 (HOST:PORT)
        did not answer'.
        """
        return (
            f'{event} within --{self.flag}={self.secs:g} seconds; see the output there, or write a '
            'longer time'
        )


def join_host_port(host: str, port: int) -> str:
    return f'[{host}]:{port}' if ':' in host else f'{host}:{port}'


def split_host_port(address: str) -> tuple[str, int]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(':')
    return host.replace('[', '').replace(']', ''), int(port)


def may_be_host(host: str) -> bool:
    """Whether a text is a name or a valid address, rather than an address that no host can have:
    zz::1, 10.0.0.256.
    """
    if ':' not in host and not _FOUR_NUMBERS.fullmatch(host):
        return True
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def split_hosts(text: str) -> list[str]:
    """Splits a list of hosts at its commas; there may be one after the last host."""
    return text.strip().removesuffix(',').split(',')


def read_hosts(items: Iterable[str], flag: str) -> Hosts:
    """Returns the hosts of a list, each as HOST:PORT without blanks; messages name the list by
    `flag`.
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
                f'{flag}: {entry} is not HOST:PORT with a port from 1 to 65535; write for example '
                '10.0.0.1:2222 or [fd00::1]:2222, with commas between hosts'
            )
        hosts.append(join_host_port(host, port))
    if duplicate := next((host for host in hosts if hosts.count(host) > 1), None):
        raise UsageError(
            f'{flag}: {duplicate} stands there twice; write a different HOST:PORT for each process'
        )
    return tuple(hosts)
