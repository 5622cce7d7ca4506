"""Who is in the cluster and which of them this process is. Does not import TensorFlow."""

import ipaddress
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cluster.environments import (
    Environment,
    Hosts,
    find_launch,
    is_evaluator,
    place_ranks,
    read_hosts,
    read_tf_config,
)
from errors import UsageError
from flag_spec import spelled
from flag_table import EVAL_DURING_TRAINING
from params import Params

_FLAGS = 'the flags'
# By which flag the hosts of each job are named.
HOSTS_FLAGS = {'ps': 'ps_hosts', 'worker': 'worker_hosts', 'controller': 'controller_host'}
# The mode in which one process, the controller, trains with the devices of all workers.
CONTROLLED_MODE = 'distributed_all_reduce'
_RESOLVE_SECS = 2.0
# How often an evaluator looks for new checkpoints that was not told.
_EVALUATOR_INTERVAL_SECS = 10.0
# Not reached from elsewhere: loopback, RFC 1918, RFC 6598 (shared, within a provider), RFC 4193, link-local.
_PRIVATE_NETWORKS = tuple(
    ipaddress.ip_network(network)
    for network in (
        *('127.0.0.0/8', '10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', '100.64.0.0/10', '169.254.0.0/16'),
        *('::1/128', 'fc00::/7', 'fe80::/10'),
    )
)


@dataclass(frozen=True)
class Task:
    """One process of the cluster: its job (ps, worker or controller), which of that job it is, and its HOST:PORT."""

    job: str
    index: int
    host: str

    @property
    def device(self) -> str:
        """The start of its device names: /job:worker/task:1."""
        return f'/job:{self.job}/task:{self.index}'

    def __str__(self) -> str:
        return f'{self.job} {self.index} ({self.host})'


@dataclass(frozen=True)
class Cluster:
    """The processes that train together, and which of them this one is.

    source says, for messages, who named them: 'the flags', 'TF_CONFIG', 'Slurm', 'Open MPI'. controller_hosts is the
    one process that trains with the devices of all workers, in the mode that has one; then the workers are servers.
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
        return self.servers + self.trainers

    @property
    def servers(self) -> tuple[Task, ...]:
        """Those that keep variables for the others, and are there until these are done."""
        return _tasks(*self.jobs[0])

    @property
    def trainers(self) -> tuple[Task, ...]:
        """Those that take steps. The first one is the chief."""
        return _tasks(*self.jobs[1])

    @property
    def own(self) -> Task:
        """This process."""
        return Task(self.job, self.index, dict(self.jobs)[self.job][self.index])

    @property
    def is_chief(self) -> bool:
        """Whether this is the first that trains, which initializes variables and saves checkpoints."""
        return self.own == self.trainers[0]

    @property
    def serves(self) -> bool:
        """Whether this is one of the servers."""
        return self.own in self.servers

    @property
    def num_workers(self) -> int:
        """How many processes compute gradients."""
        return len(self.worker_hosts)

    @property
    def num_trainers(self) -> int:
        """How many processes take steps."""
        return len(self.trainers)

    @property
    def num_ps(self) -> int:
        """How many processes only keep variables."""
        return len(self.ps_hosts)

    @property
    def spec(self) -> dict[str, list[str]]:
        """The hosts of each job that has any, for tf.train.ClusterSpec."""
        return {job: list(hosts) for job, hosts in self.jobs if hosts}

    @property
    def host_task(self) -> Task:
        """The process that keeps what the cluster shares: the first server, else the chief."""
        return self.tasks[0]

    @property
    def jobs(self) -> tuple[tuple[str, Hosts], tuple[str, Hosts]]:
        """The job of the servers and that of the trainers, with their hosts."""
        workers = 'worker', self.worker_hosts
        if self.controller_hosts:
            return workers, ('controller', self.controller_hosts)
        return ('ps', self.ps_hosts), workers

    def public_hosts(self) -> tuple[str, ...]:
        """The hosts, without ports and each once, of which an address is neither loopback nor private.

        Private are the networks of RFC 1918, 4193 and 6598 and link-local ones. Names are looked up at the same time,
        for at most 2 seconds in all; one without an answer by then is not reported.
        """
        names = list(dict.fromkeys(task.host.rpartition(':')[0].strip('[]') for task in self.tasks))
        addresses: dict[str, list[str]] = {}

        def look_up(name: str) -> None:
            try:
                addresses[name] = [str(found[4][0]) for found in socket.getaddrinfo(name, None)]
            except (OSError, UnicodeError):
                addresses[name] = []

        # Daemons, since a lookup cannot be ended and must not keep the process.
        threads = [threading.Thread(target=look_up, args=[name], daemon=True) for name in names]
        deadline = time.monotonic() + _RESOLVE_SECS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        found = dict(addresses)
        return tuple(name for name in names if any(map(_is_public, found.get(name, ()))))


def for_evaluator(params: Params, environ: Environment) -> Params:
    """The settings of this process, if TF_CONFIG has it evaluate what the others train: --eval, until they end.

    Raises:
      UsageError: the flags name another role, or there is no --train_dir to find checkpoints in.
    """
    if not is_evaluator(environ):
        return params
    if given := _written(params, ('job_name', *HOSTS_FLAGS.values())):
        raise UsageError(f'{given} contradicts TF_CONFIG, which makes this process an evaluator; leave one of them out')
    if params.train_dir is None:
        raise UsageError('TF_CONFIG makes this process an evaluator, and it needs the checkpoints; add --train_dir=DIR')
    others: dict[str, Any] = dict.fromkeys(EVAL_DURING_TRAINING)
    # Those who train export what they have trained. How they share variables is nothing to one that is alone.
    others |= {'stop_at_top_1_accuracy': None, 'export_saved_model': None, 'variable_update': 'parameter_server'}
    return replace(
        params, eval=True, eval_interval_secs=params.eval_interval_secs or _EVALUATOR_INTERVAL_SECS, **others
    )


def _tasks(job: str, hosts: Hosts) -> tuple[Task, ...]:
    return tuple(Task(job, index, host) for index, host in enumerate(hosts))


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    ip = getattr(ip, 'ipv4_mapped', None) or ip
    return not any(ip in network for network in _PRIVATE_NETWORKS)


@dataclass(frozen=True)
class _ModeRules:
    """Why a mode does not work in one process, in several without and in several with parameter servers; None: it does.

    {mode}, {members} and {ps} stand for the flag, the processes and where the parameter servers are named.
    """

    alone: str | None
    without_ps: str | None
    with_ps: str | None


_ONE_PROCESS_ONLY = (
    '{mode} works within one process, and here are {members}; for several write --variable_update=parameter_server, '
    'distributed_replicated or collective_all_reduce'
)
_NEEDS_PS = (
    '{mode} needs parameter servers, and here are {members}; add {ps}, or write '
    '--variable_update=collective_all_reduce, which needs none'
)
_NO_PS = (
    '{mode} has no parameter servers, and here are {members}; leave out {ps}, or write '
    '--variable_update=distributed_replicated'
)
_MODES = {
    'parameter_server': _ModeRules(None, _NEEDS_PS, None),
    'distributed_replicated': _ModeRules(
        '{mode} needs a cluster, and this process is alone; write --job_name, --task_index, --ps_hosts and '
        '--worker_hosts, or --variable_update=replicated for one process',
        _NEEDS_PS,
        None,
    ),
    'collective_all_reduce': _ModeRules(None, None, _NO_PS),
    'replicated': _ModeRules(None, _ONE_PROCESS_ONLY, _ONE_PROCESS_ONLY),
    'independent': _ModeRules(None, _ONE_PROCESS_ONLY, _ONE_PROCESS_ONLY),
    CONTROLLED_MODE: _ModeRules(
        '{mode} needs a cluster, and this process is alone; write --job_name, --task_index, --controller_host and '
        '--worker_hosts, or --variable_update=replicated for one process',
        '{mode} needs a controller, and here are {members}; name all by flags, with --controller_host=HOST:PORT and '
        'without TF_CONFIG, or write --variable_update=collective_all_reduce, which needs none',
        _NO_PS,
    ),
}
_MODES_WITH_PS = ('parameter_server', 'distributed_replicated')
_SYNCHRONOUS_MODES = ('distributed_replicated', 'collective_all_reduce', CONTROLLED_MODE)


def check_mode(params: Params, cluster: Cluster | None) -> None:
    """Raises UsageError if --variable_update does not work in this cluster (None: one process)."""
    rules = _MODES.get(params.variable_update)
    if rules is None:
        return
    mode = spelled('variable_update', params.variable_update)
    if cluster is None:
        message = rules.alone
        members = 'one process'
    else:
        message = rules.with_ps if cluster.num_ps else None if cluster.controller_hosts else rules.without_ps
        members = f'{_count(cluster.num_workers, "worker")} and {cluster.num_ps} ps ({cluster.source})'
    if message:
        ps = 'the ps of TF_CONFIG' if cluster and cluster.source == 'TF_CONFIG' else '--ps_hosts'
        raise UsageError(message.format(mode=mode, members=members, ps=ps))
    if cluster and params.variable_update in _SYNCHRONOUS_MODES and not params.cross_replica_sync:
        raise UsageError(
            f'{spelled("cross_replica_sync", False)}: with {mode} workers always take each step together; '
            'leave it out, or write --variable_update=parameter_server'
        )


def find_cluster(params: Params, environ: Environment) -> Cluster | None:
    """The cluster of this process, or None if it runs alone. Of several sources the first one counts:

    1. TF_CONFIG, where it names a cluster. It describes the same thing as the host and role flags, so that flags that
       say otherwise are a mistake and not a choice: an error shows both. Flags that are left out say nothing.
    2. --ps_hosts and --worker_hosts. The role is that of --job_name and --task_index (0 if it is left out), and nothing
       else is asked: a process that is told all may well run inside a Slurm or MPI job that has another shape. Without
       both of them the rank that Slurm, Open MPI or PMIx gave decides.
    3. Slurm or Open MPI, which started several processes. --job_name and --task_index, if given, must agree.

    With ranks, the first ones are the parameter servers: rank r is ps r for r below their number P (--num_ps, or that
    of --ps_hosts), else worker r - P. So a role follows from the rank alone, and is the same in 2 as in 3. Where there
    is a controller, it has rank 0, and only flags can name the hosts.

    Horovod finds its processes by itself: with --variable_update=horovod it is None.

    Raises:
      UsageError: the sources contradict each other, lack something or are malformed, or --variable_update does not work
        in this cluster.
    """
    if params.variable_update == 'horovod':
        return None
    if params.variable_update != CONTROLLED_MODE and (params.job_name == 'controller' or params.controller_host):
        name = 'controller_host' if params.controller_host else 'job_name'
        raise UsageError(
            f'{spelled(name, getattr(params, name))}: {spelled("variable_update", params.variable_update)} has no '
            f'controller; leave it out, or write --variable_update={CONTROLLED_MODE}'
        )
    cluster = _cluster_of_tf_config(params, environ) or _cluster_of_flags(params, environ)
    cluster = cluster or _cluster_of_launch(params, environ)
    if cluster is None and (params.job_name or params.task_index):
        raise UsageError(
            f'{_written(params)}: there are no hosts; write --worker_hosts=HOST:PORT,... and in modes with '
            'parameter servers --ps_hosts=HOST:PORT,..., or leave the role out to run in one process'
        )
    if cluster is not None:
        _check_hosts_differ(cluster)
        cluster = cluster if len(cluster.tasks) > 1 else None
    check_mode(params, cluster)
    return cluster


def _cluster_of_tf_config(params: Params, environ: Environment) -> Cluster | None:
    config = read_tf_config(environ)
    if config is None:
        return None
    cluster = Cluster(config.ps_hosts, config.worker_hosts, config.job, config.index, 'TF_CONFIG')
    for name in ('ps_hosts', 'worker_hosts'):
        given, hosts = _hosts_flag(params, name), getattr(cluster, name)
        if given and given != hosts:
            raise UsageError(
                f'{spelled(name, ",".join(given))} contradicts TF_CONFIG, whose '
                f'{name.removesuffix("_hosts")} hosts are {",".join(hosts) or "none"}; '
                'leave out the flag, or unset TF_CONFIG'
            )
    _check_role(params, cluster, 'TF_CONFIG', 'leave out the flags, or unset TF_CONFIG')
    return cluster


def _cluster_of_flags(params: Params, environ: Environment) -> Cluster | None:
    hosts = {job: _hosts_flag(params, name) for job, name in HOSTS_FLAGS.items()}
    if not any(hosts.values()):
        return None
    if not hosts['worker']:
        given = next(name for job, name in HOSTS_FLAGS.items() if hosts[job])
        raise UsageError(
            f'{spelled(given, getattr(params, given))}: the workers are missing; add --worker_hosts=HOST:PORT,...'
        )
    if len(hosts['controller']) > 1:
        raise UsageError(f'--controller_host={params.controller_host}: there is one controller; write one HOST:PORT')
    job, index = _role_of_flags(params, environ, {job: len(named) for job, named in hosts.items()})
    num_hosts, flag = len(hosts[job]), HOSTS_FLAGS[job]
    if not num_hosts:
        more = '' if job == 'controller' else ',...'
        raise UsageError(f'--job_name={job}: --{flag} is missing; add --{flag}=HOST:PORT{more}')
    if index >= num_hosts:
        limits = f'from 0 to {num_hosts - 1}' if num_hosts > 1 else '0'
        raise UsageError(f'--task_index={index}: --{flag} has {_count(num_hosts, "host")}, so it must be {limits}')
    return Cluster(hosts['ps'], hosts['worker'], job, index, _FLAGS, hosts['controller'])


def _role_of_flags(params: Params, environ: Environment, counts: Mapping[str, int]) -> tuple[str, int]:
    """The job and index of a process whose flags name so many hosts of each job."""
    job, index = params.job_name, params.task_index
    first = 'controller' if counts['controller'] else 'ps'
    if job and index is not None:
        return job, index
    launch = find_launch(environ)
    num_hosts = sum(counts.values())
    if job:
        # Of several ranks with this command line each would be task 0.
        if launch and counts[job] > 1:
            raise UsageError(
                f'--job_name={job} without --task_index: {launch.source} started several processes ({launch.own}); add '
                '--task_index, or leave out both flags to take them from the rank'
            )
        return job, 0
    if num_hosts == 1 and (index is not None or launch is None):
        return 'worker', index or 0
    if index is not None:
        raise UsageError(f'--task_index={index}: --job_name is missing; add --job_name=worker or --job_name={first}')
    if launch is None:
        raise UsageError(
            f'{spelled("worker_hosts", params.worker_hosts)}: --job_name is missing; add --job_name=worker or '
            f'--job_name={first}, and --task_index for which of its hosts this process is'
        )
    started = launch.rank + 1 if launch.size is None else launch.size
    if started > num_hosts or launch.size not in (None, num_hosts):
        total = f'{launch.size_name}={launch.size}' if launch.size else launch.own
        raise UsageError(
            f'--{HOSTS_FLAGS[first]} and --worker_hosts have {_count(num_hosts, "host")}, and {launch.source} started '
            f'{"at least " if launch.size is None else ""}{_count(started, "process", "es")} ({total}); '
            'start as many as there are hosts, or name this process with --job_name and --task_index'
        )
    return _role_of_rank(launch.rank, counts[first], first)


def _cluster_of_launch(params: Params, environ: Environment) -> Cluster | None:
    launch = find_launch(environ)
    # PMIx does not tell how many ranks there are. The first one may be alone; if it is not, the others end the job.
    if launch is None or (launch.size is None and launch.rank == 0):
        return None
    if params.variable_update == CONTROLLED_MODE:
        raise UsageError(
            f'{launch.own}: --variable_update={CONTROLLED_MODE} has to be told where the processes are; add '
            '--controller_host=HOST:PORT, which rank 0 becomes, and --worker_hosts=HOST:PORT,... for the others'
        )
    num_ps = params.num_ps if params.variable_update in _MODES_WITH_PS else 0
    if launch.size is not None and num_ps >= launch.size:
        raise UsageError(
            f'--num_ps={num_ps}: {launch.source} started {launch.size} processes ({launch.size_name}={launch.size}), '
            f'and one has to be a worker; start more, or write --num_ps={launch.size - 1}'
        )
    places = place_ranks(launch, environ, num_ps)
    first_port = params.cluster_port or launch.first_port
    if first_port is None:
        raise UsageError(f'{launch.own}: PMIX_NAMESPACE is not set, to derive a port from; add --cluster_port=PORT')
    last_port = first_port + max(i for _, i in places)
    if last_port > 65535:
        raise UsageError(
            f'--cluster_port={first_port}: the ports of a node would end at {last_port}, above 65535; write a lower one'
        )
    hosts = tuple(f'{node}:{first_port + i}' for node, i in places)
    job, index = _role_of_rank(launch.rank, num_ps)
    cluster = Cluster(hosts[:num_ps], hosts[num_ps:], job, index, launch.source)
    _check_role(params, cluster, f'{launch.source} ({launch.own})', 'leave out the flags, or add --worker_hosts')
    return cluster


def _role_of_rank(rank: int, num_first: int, first: str = 'ps') -> tuple[str, int]:
    return (first, rank) if rank < num_first else ('worker', rank - num_first)


def _check_hosts_differ(cluster: Cluster) -> None:
    seen: dict[str, Task] = {}
    for task in cluster.tasks:
        if (first := seen.setdefault(task.host.lower(), task)) is not task:
            lists = (
                ' and '.join(f'--{HOSTS_FLAGS[job]}' for job, _ in cluster.jobs)
                if cluster.source == _FLAGS
                else cluster.source
            )
            raise UsageError(
                f'{lists}: {first.job} {first.index} and {task.job} {task.index} are both {task.host}; '
                'write another HOST:PORT for each process'
            )


def _check_role(params: Params, cluster: Cluster, environment: str, remedy: str) -> None:
    """Raises UsageError if --job_name or --task_index is given and is not what the environment says."""
    if params.job_name not in (None, cluster.job) or params.task_index not in (None, cluster.index):
        raise UsageError(f'{_written(params)} contradicts {environment}, where this process is {cluster.own}; {remedy}')


def _written(params: Params, names: Iterable[str] = ('job_name', 'task_index')) -> str:
    given = {name: getattr(params, name) for name in names}
    return ' '.join(spelled(name, value) for name, value in given.items() if value is not None)


def _hosts_flag(params: Params, name: str) -> Hosts:
    text = getattr(params, name)
    return read_hosts(text.split(','), spelled(name, text)) if text and text.strip() else ()


def _count(number: int, noun: str, plural: str = 's') -> str:
    return f'{number} {noun}{plural if number != 1 else ""}'
