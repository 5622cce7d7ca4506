"""Reads the cluster from environment variables: TF_CONFIG, Slurm, Open MPI, PMIx. Does not import TensorFlow."""

import ipaddress
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import UsageError, counted

Hosts = tuple[str, ...]
Environment = Mapping[str, str]

# HOST:PORT; an IPv6 address stands in brackets.
_HOST_PORT = re.compile(r'(?P<host>\[[\w:.%-]+\]|[\w.-]+):(?P<port>[0-9]{1,5})', re.ASCII)

# A node list of Slurm has names with ranges of numbers in brackets: "gpu[01-03,07],login1".
_SPAN = r'[0-9]{1,18}(?:-[0-9]{1,18})?'
_NUMBERS = rf'{_SPAN}(?:,{_SPAN})*'
_NODES = re.compile(rf'(?:[\w.-]|\[{_NUMBERS}\])+', re.ASCII)
_NODE_LIST = re.compile(rf'{_NODES.pattern}(?:,{_NODES.pattern})*', re.ASCII)
# Tasks on each node: "2(x3),1".
_COUNT = re.compile(r'([0-9]{1,9})(?:\(x([0-9]{1,9})\))?')
# More than any Slurm system has: a longer list is an error, and would fill the memory.
_MOST_NODES = 1 << 17
_MOST_TASKS = 1 << 22

# The ports of a job without --cluster_port: first port, ports of each job, jobs with different ports. They avoid the
# ranges of the system (below 1024), of Kubernetes (from 30000) and of Linux's automatic ports (from 32768).
_FIRST_PORT, _PORTS_OF_A_JOB, _PORT_BLOCKS = 10_000, 64, 300
LOOPBACK = '127.0.0.1'
_EVALUATOR = 'evaluator'
# The number of a process among those of its host, and how many these are, as horovodrun, Open MPI's mpirun and Hydra
# (MPICH, Intel MPI) set them.
_PLACES_ON_HOST = (
    ('HOROVOD_LOCAL_RANK', 'HOROVOD_LOCAL_SIZE'),
    ('OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
    ('MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),
)
# Prefixes of the environment variables in which a job scheduler or an outer launcher describes a cluster.
_CLUSTERS = ('TF_CONFIG', 'SLURM', 'OMPI_', 'PMI')
_SET_ROLE = 'set the role of this process with --job_name, --task_index, --ps_hosts and --worker_hosts'


def without_clusters(environment: Environment) -> dict[str, str]:
    """Returns the environment for a process that this program starts: without variables that describe a cluster."""
    return {name: value for name, value in environment.items() if not name.startswith(_CLUSTERS)}


def join_host_port(host: str, port: int) -> str:
    """Returns HOST:PORT, the inverse of split_host_port."""
    return f'{with_brackets(host)}:{port}'


def with_brackets(host: str) -> str:
    """Returns a host as it stands before a colon and a number: [fd00::1], USER@[fd00::1], and others as they are."""
    user, at, name = host.rpartition('@')
    return f'{user}{at}[{name}]' if ':' in name else host


def split_host_port(address: str) -> tuple[str, int]:
    """Returns the host, an IPv6 address without its brackets, and the port."""
    host, _, port = address.rpartition(':')
    return host.replace('[', '').replace(']', ''), int(port)


def read_ipv6(text: str) -> str | None:
    """Returns an IPv6 address in its shortest spelling; None if the text is no such address."""
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError:
        return None


def read_hosts(items: Iterable[str], flag: str) -> Hosts:
    """Returns the hosts of a list, each as HOST:PORT without blanks.

    Args:
      items: the entries of the list.
      flag: names the list in messages.

    Raises:
      UsageError: an entry is not HOST:PORT with a port from 1 to 65535.
    """
    hosts = []
    for item in items:
        match = _HOST_PORT.fullmatch(item.strip())
        host, port = split_host_port(match[0]) if match else ('', 0)
        if '[' in item:
            host = read_ipv6(host) or ''
        if not host or not 1 <= port <= 65535:
            what = repr(item.strip()) if item.strip() else 'an empty entry'
            raise UsageError(
                f'{flag}: {what} is not HOST:PORT with a port from 1 to 65535; '
                'write for example 10.0.0.1:2222 or [fd00::1]:2222, with commas between hosts'
            )
        hosts.append(join_host_port(host, port))
    return tuple(hosts)


@dataclass(frozen=True)
class TfConfig:
    """The cluster in TF_CONFIG and the role of this process; a chief (or master) is worker 0."""

    ps_hosts: Hosts
    worker_hosts: Hosts
    job: str
    index: int


def read_tf_config(environ: Environment) -> TfConfig | None:
    """Reads TF_CONFIG, as tf.train.ClusterSpec and Kubeflow's TFJob define it.

    Kubeflow lists chief, master, worker and ps; an evaluator has a role but is not listed in the cluster
    (training-operator, pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec).

    Returns:
      None if TF_CONFIG names no cluster, or if this process is an evaluator.

    Raises:
      UsageError: it is malformed.
    """
    text = environ.get('TF_CONFIG', '').strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise _bad_tf_config(f'it is not JSON ({error})') from None
    except RecursionError:
        raise _bad_tf_config('its objects and lists are nested too deeply') from None
    if not isinstance(config, dict):
        raise _bad_tf_config('it is not a JSON object')
    cluster = config.get('cluster') or {}
    if not isinstance(cluster, dict):
        raise _bad_tf_config('"cluster" is not an object')
    lists = {job: _tf_config_hosts(job, hosts) for job, hosts in cluster.items() if hosts}
    task = config.get('task') or {}
    if not isinstance(task, dict):
        raise _bad_tf_config('"task" is not an object')
    if task.get('type') == _EVALUATOR:
        return None
    # An evaluator takes no part in training, and nobody connects to it.
    lists.pop(_EVALUATOR, None)
    if not lists:
        return None
    if unknown := sorted(lists.keys() - {'chief', 'master', 'worker', 'ps'}):
        raise _bad_tf_config(
            f'its cluster has {", ".join(unknown)}, which is unknown; it can have chief, master, worker and ps'
        )
    chiefs = (*lists.get('chief', ()), *lists.get('master', ()))
    if len(chiefs) > 1:
        raise _bad_tf_config(f'its cluster has {len(chiefs)} chiefs, {" and ".join(chiefs)}; there can be only one')
    if not chiefs and 'worker' not in lists:
        raise _bad_tf_config('its cluster has ps but no worker (a TFJob needs enableDynamicWorker: false)')
    job, index = _tf_config_task(task)
    if index >= len(lists.get(job, ())):
        raise _bad_tf_config(f'its task is {job} {index}, but its cluster has only {len(lists.get(job, ()))} {job}')
    if job != 'ps':
        job, index = 'worker', index if job != 'worker' else index + len(chiefs)
    return TfConfig(lists.get('ps', ()), (*chiefs, *lists.get('worker', ())), job, index)


def is_evaluator(environ: Environment) -> bool:
    """Whether TF_CONFIG makes this process the evaluator of what others train."""
    try:
        task = json.loads(environ.get('TF_CONFIG', '') or '{}').get('task') or {}
        return task.get('type') == _EVALUATOR
    except (ValueError, AttributeError, RecursionError):
        # read_tf_config reports what is wrong with it.
        return False


def _tf_config_hosts(job: str, hosts: object) -> Hosts:
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise _bad_tf_config(
            f'the {job} of its cluster is not a list of HOST:PORT (a TFJob needs enableDynamicWorker: false)'
        )
    return read_hosts(hosts, f'TF_CONFIG, cluster, {job}')


def _tf_config_task(task: Mapping[str, object]) -> tuple[str, int]:
    job, index = task.get('type'), task.get('index')
    if not isinstance(job, str) or not re.fullmatch('[0-9]{1,18}', str(index)):
        raise _bad_tf_config('it has a cluster but no "task" with the "type" and "index" of this process')
    return job, int(str(index))


def _bad_tf_config(reason: str) -> UsageError:
    return UsageError(
        f'TF_CONFIG: {reason}; it looks like '
        '{"cluster": {"ps": ["HOST:PORT"], "worker": ["HOST:PORT"]}, "task": {"type": "worker", "index": 0}}'
    )


@dataclass(frozen=True)
class Launch:
    """One of several processes that one command started.

    Attributes:
      source: the launcher: 'Slurm', 'Open MPI' or 'PMIx'.
      rank: the number of this process, from 0.
      rank_name: the environment variable that holds the rank.
      size: the number of processes; None for PMIx, which does not tell it.
      size_name: the environment variable that holds the size.
      job: a number that differs between jobs; None if there is none.
    """

    source: str
    rank: int
    rank_name: str
    size: int | None
    size_name: str
    job: int | None

    @property
    def own(self) -> str:
        """The variable that names this process, as messages quote it: 'SLURM_PROCID=1'."""
        return f'{self.rank_name}={self.rank}'

    @property
    def first_port(self) -> int | None:
        """The port of the first task on each node: 10000 + 64 * (job % 300); None if the job has no number.

        For Slurm, job is SLURM_JOB_ID + 101 * SLURM_STEP_ID, so that consecutive jobs and simultaneous steps differ.
        Otherwise job is the CRC-32 of PMIX_NAMESPACE.
        """
        return None if self.job is None else _FIRST_PORT + _PORTS_OF_A_JOB * (self.job % _PORT_BLOCKS)


def find_launch(environ: Environment) -> Launch | None:
    """Returns who started this process as one of several; None if it was started alone.

    Open MPI is checked first: its mpirun starts one daemon on each other node with srun, so that processes there have
    the Slurm variables of that daemon. The same holds for other PMIx launchers; only the namespace distinguishes them
    from Slurm. A batch script has SLURM_PROCID too, but only processes that srun starts have the SLURM_STEP_ variables
    (srun(1), OUTPUT ENVIRONMENT VARIABLES). Open MPI 4 and 5 set the OMPI_ variables (mpirun(1));
    PMIx_server_setup_fork sets PMIX_RANK and PMIX_NAMESPACE, but no size.

    Raises:
      UsageError: a variable is not a number, or the rank is not below the size.
    """
    if 'OMPI_COMM_WORLD_SIZE' in environ:
        launch = _launch('Open MPI', 'OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', environ, _namespace(environ))
    elif 'PMIX_RANK' in environ and not environ.get('PMIX_NAMESPACE', '').startswith('slurm.'):
        return Launch('PMIx', _number('PMIX_RANK', environ), 'PMIX_RANK', None, '', _namespace(environ))
    elif 'SLURM_STEP_NUM_TASKS' in environ:
        job = _number('SLURM_JOB_ID', environ) + 101 * _number('SLURM_STEP_ID', environ)
        launch = _launch('Slurm', 'SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', environ, job)
    else:
        return None
    return launch if launch.size != 1 else None


def _launch(source: str, rank_name: str, size_name: str, environ: Environment, job: int | None) -> Launch:
    rank, size = _number(rank_name, environ), _number(size_name, environ)
    if rank >= size:
        # A heterogeneous job of Slurm counts the tasks of one component, but numbers those of all components.
        raise UsageError(f'{rank_name}={rank}: it must be below {size_name}={size}; {_SET_ROLE}')
    return Launch(source, rank, rank_name, size, size_name, job)


def _namespace(environ: Environment) -> int | None:
    namespace = environ.get('PMIX_NAMESPACE')
    return zlib.crc32(namespace.encode()) if namespace else None


def find_place_on_host(environ: Environment) -> tuple[int, int] | None:
    """Returns the number of this process among those that a launcher started on its host, and how many these are.

    The innermost launcher counts: horovodrun may use mpirun, which may use srun.

    Returns:
      None if no launcher tells it.

    Raises:
      UsageError: a variable is not a number.
    """
    for rank_name, size_name in _PLACES_ON_HOST:
        if rank_name in environ and size_name in environ:
            return _number(rank_name, environ), _number(size_name, environ)
    if 'SLURM_STEP_NUM_TASKS' in environ and 'SLURM_STEP_TASKS_PER_NODE' in environ:
        counts = expand_counts(environ.get('SLURM_STEP_TASKS_PER_NODE', ''))
        return _number('SLURM_LOCALID', environ), counts[min(_number('SLURM_NODEID', environ), len(counts) - 1)]
    return None


def place_ranks(launch: Launch, environ: Environment, num_ps: int) -> list[tuple[str, int]]:
    """Returns for each rank the node that it runs on and its number among the ranks of that node.

    A single node is called 127.0.0.1. Slurm says how many tasks each node has, and fills a node before the next
    (srun --distribution=block). Open MPI says how many ranks this node has; under Slurm, every node of the job is then
    assumed to have as many (the SLURM_STEP_ variables are those of Open MPI's daemons). The result is checked against
    the node and local rank of this process.

    Args:
      num_ps: how many ranks will be parameter servers, for messages.

    Raises:
      UsageError: the environment does not name the nodes, or the ranks are distributed in another way.
    """
    nodes: list[str] = []
    counts: list[int] = []
    local_rank = 0
    if launch.source == 'Slurm':
        local_rank = _number('SLURM_LOCALID', environ)
        nodes = expand_nodes(environ.get('SLURM_STEP_NODELIST', ''))
        counts = expand_counts(environ.get('SLURM_STEP_TASKS_PER_NODE', ''))
    elif launch.source == 'Open MPI':
        local_rank = _number('OMPI_COMM_WORLD_LOCAL_RANK', environ)
        local_size = _number('OMPI_COMM_WORLD_LOCAL_SIZE', environ)
        if local_size == launch.size:
            nodes = [LOOPBACK]
        elif 'SLURM_JOB_NODELIST' in environ:
            nodes = expand_nodes(environ['SLURM_JOB_NODELIST'])
        counts = [local_size] * len(nodes)
    if not nodes:
        raise UsageError(
            f'{launch.own}: the environment of {launch.source} does not say on which hosts the other processes run; '
            f'write {_hosts_to_write(launch, num_ps)}'
        )
    if len(nodes) == 1:
        nodes, here = [LOOPBACK], LOOPBACK
    else:
        # mpirun starts the ranks of its own node itself. There the shell of salloc has no SLURMD_NODENAME.
        name = environ.get('SLURMD_NODENAME') or environ.get('PMIX_HOSTNAME', '')
        here = name if name in nodes else name.partition('.')[0]
    places = [(node, i) for node, count in zip(nodes, counts, strict=False) for i in range(count)]
    is_filled = len(nodes) == len(counts) and len(places) == launch.size
    # With one task on each node all distributions are the same, and Slurm calls its default cyclic.
    if launch.source == 'Slurm' and max(counts) > 1:
        is_filled &= environ.get('SLURM_DISTRIBUTION', 'block').startswith('block')
    if not is_filled or places[launch.rank] != (here, local_rank):
        filled = ', '.join(f'{node} with {count}' for node, count in zip(nodes, counts, strict=False))
        srun = 'srun --distribution=block' if launch.source == 'Slurm' else 'srun instead of mpirun'
        raise UsageError(
            f'{launch.own}: {launch.source} did not fill one node after the other ({filled}); '
            f'use {srun}, or write {_hosts_to_write(launch, num_ps)}'
        )
    return places


def _hosts_to_write(launch: Launch, num_ps: int) -> str:
    workers = counted(launch.size - num_ps, 'host') if launch.size else 'the other hosts'
    ps = f'--ps_hosts=HOST:PORT,... with {num_ps} and ' if num_ps else ''
    return (
        f'{ps}--worker_hosts=HOST:PORT,... with {workers} in the order of the ranks, '
        'without --job_name and --task_index'
    )


def expand_nodes(text: str) -> list[str]:
    """Expands a compressed node list of Slurm, as `scontrol show hostnames` does.

    Numbers are as wide as the first of their range: n[08-10] is n08, n09, n10. With several brackets, the last one
    varies fastest.

    Raises:
      UsageError: the text is not such a list, or has more than 131,072 nodes.
    """
    if not _NODE_LIST.fullmatch(text):
        raise UsageError(f'the node list of Slurm, {text!r}, cannot be read; {_SET_ROLE}')
    names: list[str] = []
    for item in _NODES.findall(text):
        texts_and_numbers = re.split(r'\[(.*?)\]', item)
        choices = [_expand_numbers(part) if i % 2 else [part] for i, part in enumerate(texts_and_numbers)]
        names += map(''.join, itertools.islice(itertools.product(*choices), _MOST_NODES + 1))
        if len(names) > _MOST_NODES:
            raise UsageError(f'the node list of Slurm, {text!r}, has more than {_MOST_NODES:,} nodes; {_SET_ROLE}')
    return names


def _expand_numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for span in text.split(','):
        first, _, last = span.partition('-')
        span_end = min(int(last or first), int(first) + _MOST_NODES)
        numbers += [f'{n:0{len(first)}}' for n in range(int(first), span_end + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Returns the number of tasks on each node: 2(x3),1 is [2, 2, 2, 1].

    Raises:
      UsageError: the text is not such a list, or has more than 131,072 nodes or 4,194,304 tasks.
    """
    counts: list[int] = []
    for item in text.split(','):
        match = _COUNT.fullmatch(item)
        if not match:
            raise UsageError(f'SLURM_STEP_TASKS_PER_NODE={text}: it cannot be read; {_SET_ROLE}')
        counts += [int(match[1])] * min(int(match[2] or 1), _MOST_NODES + 1)
        if len(counts) > _MOST_NODES or sum(counts) > _MOST_TASKS:
            raise UsageError(
                f'SLURM_STEP_TASKS_PER_NODE={text}: it has more than {_MOST_NODES:,} nodes or {_MOST_TASKS:,} tasks; '
                f'{_SET_ROLE}'
            )
    return counts


def _number(name: str, environ: Environment) -> int:
    text = environ.get(name, '')
    if not re.fullmatch('[0-9]{1,18}', text):
        raise UsageError(f'{name}={text}: it must be a number; check the launcher of this process, or {_SET_ROLE}')
    return int(text)
