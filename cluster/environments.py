"""Reads the cluster from environment variables: TF_CONFIG, and those of launchers. Does not import TensorFlow."""

import itertools
import json
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cluster.topology import LOOPBACK, Cluster, Hosts, read_hosts
from errors import UsageError, format_warning, plural

Environment = Mapping[str, str]

# A node list of Slurm has names with ranges of numbers in brackets: "gpu[01-03,07],login1".
_SPAN = r'[0-9]{1,8}(?:-[0-9]{1,8})?'
_NUMBERS = rf'{_SPAN}(?:,{_SPAN})*'
_NODES = re.compile(rf'(?:[\w.-]|\[{_NUMBERS}\])+', re.ASCII)
_NODE_LIST = re.compile(rf'{_NODES.pattern}(?:,{_NODES.pattern})*', re.ASCII)
_NUMBER = re.compile('[0-9]{1,18}')
# Tasks on each node: "2(x3),1".
_COUNT = re.compile(r'([0-9]{1,6})(?:\(x([0-9]{1,6})\))?')
# The ports of a job without --cluster_port: first port, ports of each job, jobs with different ports. They avoid the
# ranges of the system (below 1024), of Kubernetes (from 30000) and of Linux's automatic ports (from 32768).
_FIRST_PORT, _PORTS_OF_A_JOB, _PORT_BLOCKS = 10_000, 64, 300
_EVALUATOR = 'evaluator'
# Of TF_CONFIG. Others are ignored ("environment", "rpc_layer"), but for those that stand for these two.
_KEYS = ('cluster', 'task')
_LIKE_KEY = re.compile('cluster|task', re.IGNORECASE)
_CHIEFS = ('chief', 'master')


@dataclass(frozen=True)
class _Launcher:
    """The environment variables in which a launcher numbers its processes; empty for those that it does not set.

    local_rank and local_size count those of a host. job differs between jobs and is the same for all processes of one.
    sign is set by this launcher alone; needed where others, or people, set rank and size too.
    """

    source: str
    rank: str
    size: str = ''
    local_rank: str = ''
    local_size: str = ''
    job: str = ''
    sign: str = ''

    def started(self, environ: Environment) -> bool:
        return (self.sign or self.size or self.rank) in environ and (self.size or self.rank) in environ


def _four(prefix: str) -> tuple[str, str, str, str]:
    return f'{prefix}RANK', f'{prefix}SIZE', f'{prefix}LOCAL_RANK', f'{prefix}LOCAL_SIZE'


_SLURM = _Launcher('Slurm', 'SLURM_PROCID', 'SLURM_STEP_NUM_TASKS')
_PMIX = _Launcher('PMIx', 'PMIX_RANK', job='PMIX_NAMESPACE')
# The innermost launcher first: mpirun starts one daemon on each node with srun, so that its processes have the
# variables of that daemon, too, and one torchrun on each node may be a process of mpirun.
_LAUNCHERS = (
    _Launcher(
        *('torchrun', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID')
    ),
    _Launcher('horovodrun', *_four('HOROVOD_'), 'HOROVOD_GLOO_RENDEZVOUS_PORT'),
    # mpirun(1); 4 and 5 have them.
    _Launcher('Open MPI', *_four('OMPI_COMM_WORLD_'), 'PMIX_NAMESPACE'),
    # MVAPICH2 and MVAPICH 3.
    _Launcher('MVAPICH', *_four('MV2_COMM_WORLD_')),
    _Launcher('MVAPICH', *_four('MVP_COMM_WORLD_')),
    _Launcher('jsrun', *_four('JSM_NAMESPACE_'), 'PMIX_NAMESPACE'),
    _Launcher('Flux', 'FLUX_TASK_RANK', 'FLUX_JOB_SIZE'),
    _Launcher('PALS', 'PMI_RANK', 'PMI_SIZE', 'PMI_LOCAL_RANK', 'PMI_LOCAL_SIZE', 'PALS_APID', sign='PALS_RANKID'),
    # MPICH and Intel MPI.
    _Launcher('Hydra', 'PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),
    _PMIX,
    _SLURM,
    # These tell no size.
    _Launcher('PALS', 'PALS_RANKID'),
    _Launcher('ALPS', 'ALPS_APP_PE'),
    _Launcher('Hydra', 'PMI_ID'),
)
# Rank and size of processes that may belong together, by variables that may also be there for another reason: a shell
# in an allocation, something exported for another program, a job whose pods each do their own.
_PERHAPS_RANKS = (
    # PyTorchJob, DeepSpeed, Accelerate, Azure.
    *(('RANK', 'WORLD_SIZE'), ('PET_NODE_RANK', 'PET_NNODES')),
    ('SLURM_PROCID', 'SLURM_NTASKS'),
    # Kubernetes: indexed jobs, Volcano, LeaderWorkerSet.
    *(('JOB_COMPLETION_INDEX', ''), ('VC_TASK_INDEX', ''), ('LWS_WORKER_INDEX', 'LWS_GROUP_SIZE')),
    ('AWS_BATCH_JOB_NODE_INDEX', 'AWS_BATCH_JOB_NUM_NODES'),
    # blaunch of LSF, and pbsdsh.
    *(('LSF_PM_TASKID', ''), ('PBS_VNODENUM', '')),
)
# Of these, number 0 is also that of every job script.
_NUMBERED_SHELLS = ('PBS_VNODENUM',)
# Variables in which a job scheduler or an outer launcher describes a cluster: these, and all that begin with the
# prefixes.
_CLUSTER_PREFIXES = ('TF_CONFIG', 'SLURM', 'OMPI_', 'PMI')
_CLUSTER_VARIABLES = {
    *(name for one in _LAUNCHERS for name in (one.rank, one.size, one.local_rank, one.local_size)),
    *(name for names in _PERHAPS_RANKS for name in names),
}
_SET_ROLE = 'set the role of this process with --job_name, --task_index, --ps_hosts and --worker_hosts'


def without_clusters(environment: Environment) -> dict[str, str]:
    """Returns the environment for a process that this program starts: without variables that describe a cluster."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_CLUSTER_PREFIXES) and name not in _CLUSTER_VARIABLES
    }


def environment_of_runs(environment: Environment, command: str) -> dict[str, str]:
    """Returns the environment for a command's own runs.

    Warns if a launcher may have started several of these commands, and raises UsageError if it has.
    """
    launch, cluster = find_launch(environment), read_tf_config(environment)
    if is_evaluator(environment) or (cluster and len(cluster.tasks) > 1):
        raise UsageError(
            f'TF_CONFIG: this process is one of several, in each of which {command} would do the same; start it once, '
            'and unset TF_CONFIG'
        )
    if launch and (launch.rank or launch.size):
        raise UsageError(
            f'{launch.own}: {launch.source} started {launch.started} of {command}, which would all do the same; start '
            'it once, without that launcher'
        )
    if unjoined := find_unjoined(environment):
        line = f'{unjoined}: if a launcher started {command} several times, each does the same'
        print(format_warning(line), file=sys.stderr, flush=True)
    return without_clusters(environment)


def read_tf_config(environ: Environment, *, has_hosts: bool = False) -> Cluster | None:
    """Reads TF_CONFIG, as tf.train.ClusterSpec and Kubeflow's TFJob define it; None if this process is an evaluator.

    A chief (or master) is worker 0. Kubeflow lists chief, master, worker and ps; an evaluator has a role but is not
    listed in the cluster (training-operator, pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec). Without a
    cluster the result is None too; if has_hosts, the flags name the hosts, so that TF_CONFIG need not.
    """
    config = _tf_config(environ)
    cluster, task = (config.get(key) or {} for key in _KEYS)
    lists = {job: _tf_config_hosts(job, hosts) for job, hosts in cluster.items() if hosts}
    if task.get('type') == _EVALUATOR:
        return None
    # An evaluator takes no part in training, and nobody connects to it.
    lists.pop(_EVALUATOR, None)
    if not lists:
        if not has_hosts:
            _check_is_alone(config, task)
        return None
    if unknown := sorted(lists.keys() - {'chief', 'master', 'worker', 'ps'}):
        raise _bad_tf_config(
            f'its cluster has {", ".join(unknown)}, which is unknown; it can have chief, master, worker and ps'
        )
    chiefs = tuple(host for job in _CHIEFS for host in lists.get(job, ()))
    if len(chiefs) > 1:
        raise _bad_tf_config(f'its cluster has {len(chiefs)} chiefs, {" and ".join(chiefs)}; there can be only one')
    if not chiefs and 'worker' not in lists:
        raise _bad_tf_config('its cluster has ps but no worker (a TFJob needs enableDynamicWorker: false)')
    job, index = _tf_config_task(task)
    if index >= len(lists.get(job, ())):
        raise _bad_tf_config(f'its task is {job} {index}, but its cluster has only {len(lists.get(job, ()))} {job}')
    if job != 'ps':
        job, index = 'worker', index if job != 'worker' else index + len(chiefs)
    return Cluster(lists.get('ps', ()), (*chiefs, *lists.get('worker', ())), job, index, 'TF_CONFIG')


def is_evaluator(environ: Environment) -> bool:
    """Whether TF_CONFIG makes this process the evaluator of what others train."""
    try:
        return (_tf_config(environ).get('task') or {}).get('type') == _EVALUATOR
    except UsageError:
        # read_tf_config reports what is wrong with it.
        return False


def _tf_config(environ: Environment) -> dict[str, Any]:
    """Returns the object in TF_CONFIG, whose cluster and task are objects, too, if they are there."""
    try:
        config = json.loads(environ.get('TF_CONFIG', '').strip() or '{}')
    except (ValueError, RecursionError) as error:
        raise _bad_tf_config(f'it is not JSON ({error})') from None
    if not isinstance(config, dict):
        raise _bad_tf_config('it is not a JSON object')
    for key in _KEYS:
        if not isinstance(config.get(key) or {}, dict):
            raise _bad_tf_config(f'"{key}" is not an object')
    return config


def _check_is_alone(config: Mapping[str, object], task: Mapping[str, object]) -> None:
    """Raises UsageError if a TF_CONFIG without a cluster is that of one of several processes."""
    like = (key for key, value in config.items() if value and key not in _KEYS and _LIKE_KEY.search(key))
    if key := next(like, None):
        raise _bad_tf_config(
            f'{json.dumps(key)} is not read, and there is no "cluster" (a TFJob needs enableDynamicWorker: false)'
        )
    if task and (own := _tf_config_task(task)) not in ((job, 0) for job in (*_CHIEFS, 'worker')):
        raise _bad_tf_config(f'its task is {own[0]} {own[1]}, and there is no "cluster" that names the others')


def _tf_config_hosts(job: str, hosts: object) -> Hosts:
    if not isinstance(hosts, list) or not all(isinstance(host, str) for host in hosts):
        raise _bad_tf_config(
            f'the {job} of its cluster is not a list of HOST:PORT (a TFJob needs enableDynamicWorker: false)'
        )
    return read_hosts(hosts, f'TF_CONFIG, cluster, {job}')


def _tf_config_task(task: Mapping[str, object]) -> tuple[str, int]:
    job, index = task.get('type'), task.get('index')
    if not isinstance(job, str) or not re.fullmatch('[0-9]{1,18}', str(index)):
        raise _bad_tf_config('it has no "task" with the "type" and "index" of this process')
    return job, int(str(index))


def _bad_tf_config(reason: str) -> UsageError:
    return UsageError(
        f'TF_CONFIG: {reason}; it looks like '
        '{"cluster": {"ps": ["HOST:PORT"], "worker": ["HOST:PORT"]}, "task": {"type": "worker", "index": 0}}'
    )


@dataclass(frozen=True)
class Launch:
    """One of several processes that one command started; size and job are None if the launcher does not tell them."""

    launcher: _Launcher
    rank: int
    size: int | None
    job: int | None

    @property
    def source(self) -> str:
        return self.launcher.source

    @property
    def own(self) -> str:
        """The variable that names this process, as messages quote it: 'SLURM_PROCID=1'."""
        return f'{self.launcher.rank}={self.rank}'

    @property
    def total(self) -> str:
        """The variable that tells the number of processes, likewise; `own` if there is none."""
        return f'{self.launcher.size}={self.size}' if self.size else self.own

    @property
    def started(self) -> str:
        """How many processes there are, as far as it is known: '3 processes'."""
        least = self.rank + 1 if self.size is None else self.size
        return f'{"at least " if self.size is None else ""}{plural(least, "process", "es")}'

    @property
    def first_port(self) -> int | None:
        """The port of the first task on each node: 10000 + 64 * (job % 300); None if the job has no number.

        For Slurm, job is SLURM_JOB_ID + 101 * SLURM_STEP_ID, so that consecutive jobs and simultaneous steps differ.
        Otherwise job is the CRC-32 of the launcher's name of the job, or of SLURM_JOB_ID.
        """
        return None if self.job is None else _FIRST_PORT + _PORTS_OF_A_JOB * (self.job % _PORT_BLOCKS)


def find_launch(environ: Environment) -> Launch | None:
    """Returns who started this process as one of several; None if it was started alone.

    A batch script has SLURM_PROCID too, but only processes that srun starts have the SLURM_STEP_ variables (srun(1),
    OUTPUT ENVIRONMENT VARIABLES). PMIx_server_setup_fork sets PMIX_RANK and PMIX_NAMESPACE, but no size; only the
    namespace distinguishes Slurm's PMIx from others.
    """
    for launcher in _LAUNCHERS:
        if not launcher.started(environ) or _is_slurms_own(launcher, environ):
            continue
        rank, size = _number(launcher.rank, environ), _number(launcher.size, environ) if launcher.size else None
        if size is not None and rank >= size:
            # A heterogeneous job of Slurm counts the tasks of one component, but numbers those of all components.
            raise UsageError(f'{launcher.rank}={rank}: it must be below {launcher.size}={size}; {_SET_ROLE}')
        if launcher is _SLURM:
            job: int | None = _number('SLURM_JOB_ID', environ) + 101 * _number('SLURM_STEP_ID', environ)
        else:
            name = environ.get(launcher.job) or environ.get('SLURM_JOB_ID')
            job = zlib.crc32(name.encode(errors='surrogateescape')) if name else None
        return Launch(launcher, rank, size, job) if size != 1 else None
    return None


def _is_slurms_own(launcher: _Launcher, environ: Environment) -> bool:
    """Whether these variables are those of `srun --mpi`, which numbers its tasks for MPI libraries, too.

    It sets no local rank under the names of the others; a launcher that srun started as a daemon does.
    """
    if launcher is _PMIX:
        return environ.get('PMIX_NAMESPACE', '').startswith('slurm.')
    if launcher is _SLURM or launcher.local_rank in environ or not _SLURM.started(environ):
        return False
    pairs = ((launcher.rank, _SLURM.rank), (launcher.size, _SLURM.size))
    return all(environ.get(own) == environ.get(slurms) for own, slurms in pairs)


def find_unjoined(environ: Environment) -> str | None:
    """Returns the variables by which a process that runs alone may be one of several: 'RANK=1 WORLD_SIZE=3'."""
    launch = find_launch(environ)
    pairs = dict.fromkeys((one.rank, one.size) for one in _LAUNCHERS if one.size and one.started(environ))
    if launch and launch.size is None:
        pairs[launch.launcher.rank, ''] = None
    found: dict[str, str] = {}
    for rank, size in (*pairs, *_PERHAPS_RANKS):
        numbers = [environ.get(name, '') for name in (rank, size)]
        if not _NUMBER.fullmatch(numbers[0]) or (rank in _NUMBERED_SHELLS and not int(numbers[0])):
            continue
        if not size or not _NUMBER.fullmatch(numbers[1]) or int(numbers[1]) > 1:
            found |= {name: f'{name}={environ[name]}' for name in (rank, size) if name in environ}
    return ' '.join(found.values()) or None


def find_place_on_host(environ: Environment) -> tuple[int, int] | None:
    """Returns (local rank, local size) of this process, by its innermost launcher; None if no launcher sets them."""
    for launcher in _LAUNCHERS:
        names = launcher.local_rank, launcher.local_size
        if all(name in environ for name in (*names, launcher.sign or names[0])):
            return _number(names[0], environ), _number(names[1], environ)
    if 'SLURM_STEP_NUM_TASKS' in environ and 'SLURM_STEP_TASKS_PER_NODE' in environ:
        counts = expand_counts(environ.get('SLURM_STEP_TASKS_PER_NODE', ''))
        return _number('SLURM_LOCALID', environ), counts[min(_number('SLURM_NODEID', environ), len(counts) - 1)]
    return None


def place_ranks(launch: Launch, environ: Environment, num_ps: int) -> list[tuple[str, int]]:
    """Returns for each rank the node that it runs on and its number among the ranks of that node.

    A single node is called 127.0.0.1. Slurm says how many tasks each node has, and fills a node before the next
    (srun --distribution=block). Most others say how many ranks this node has; under Slurm, every node of the job is
    then assumed to have as many (the SLURM_STEP_ variables are those of the launcher's daemons). The result is
    checked against the node and local rank of this process. num_ps, the parameter servers among them, is for messages.
    """
    nodes: list[str] = []
    counts: list[int] = []
    local_rank = 0
    if launch.launcher is _SLURM:
        local_rank = _number('SLURM_LOCALID', environ)
        nodes = expand_nodes(environ.get('SLURM_STEP_NODELIST', ''))
        counts = expand_counts(environ.get('SLURM_STEP_TASKS_PER_NODE', ''))
    elif launch.launcher.local_size in environ:
        local_rank = _number(launch.launcher.local_rank, environ)
        local_size = _number(launch.launcher.local_size, environ)
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
        # Hydra gives its processes the environment of mpiexec, SLURMD_NODENAME included; the first name is MPICH's.
        names = ('MPIR_CVAR_CH3_INTERFACE_HOSTNAME', 'SLURMD_NODENAME', 'PMIX_HOSTNAME')
        name = next(filter(None, map(environ.get, names)), '')
        here = name if name in nodes else name.partition('.')[0]
    places = [(node, i) for node, count in zip(nodes, counts, strict=False) for i in range(count)]
    is_filled = len(nodes) == len(counts) and len(places) == launch.size
    # With one task on each node all distributions are the same, and Slurm calls its default cyclic.
    if launch.launcher is _SLURM and max(counts) > 1:
        is_filled &= environ.get('SLURM_DISTRIBUTION', 'block').startswith('block')
    if not is_filled or places[launch.rank] != (here, local_rank):
        filled = ', '.join(f'{node} with {count}' for node, count in zip(nodes, counts, strict=False))
        srun = 'srun --distribution=block' if launch.launcher is _SLURM else f'srun instead of {launch.source}'
        raise UsageError(
            f'{launch.own}: {launch.source} did not fill one node after the other ({filled}); '
            f'use {srun}, or write {_hosts_to_write(launch, num_ps)}'
        )
    return places


def _hosts_to_write(launch: Launch, num_ps: int) -> str:
    workers = plural(launch.size - num_ps, 'host') if launch.size else 'the other hosts'
    ps = f'--ps_hosts=HOST:PORT,... with {num_ps} and ' if num_ps else ''
    return (
        f'{ps}--worker_hosts=HOST:PORT,... with {workers} in the order of the ranks, '
        'without --job_name and --task_index'
    )


def expand_nodes(text: str) -> list[str]:
    """Expands a compressed node list of Slurm, as `scontrol show hostnames` does.

    Numbers are as wide as the first of their range: n[08-10] is n08, n09, n10. With several brackets, the last one
    varies fastest.
    """
    if not _NODE_LIST.fullmatch(text):
        raise UsageError(f'the node list of Slurm, {text!r}, cannot be read; {_SET_ROLE}')
    names: list[str] = []
    for item in _NODES.findall(text):
        texts_and_numbers = re.split(r'\[(.*?)\]', item)
        choices = [_expand_numbers(part) if i % 2 else [part] for i, part in enumerate(texts_and_numbers)]
        names += map(''.join, itertools.product(*choices))
    return names


def _expand_numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for span in text.split(','):
        first, _, last = span.partition('-')
        numbers += [f'{n:0{len(first)}}' for n in range(int(first), int(last or first) + 1)]
    return numbers


def expand_counts(text: str) -> list[int]:
    """Returns the number of tasks on each node: 2(x3),1 is [2, 2, 2, 1]."""
    counts: list[int] = []
    for item in text.split(','):
        match = _COUNT.fullmatch(item)
        if not match:
            raise UsageError(f'SLURM_STEP_TASKS_PER_NODE={text}: it cannot be read; {_SET_ROLE}')
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _number(name: str, environ: Environment) -> int:
    text = environ.get(name, '')
    if not _NUMBER.fullmatch(text):
        raise UsageError(f'{name}={text}: it must be a number; check the launcher of this process, or {_SET_ROLE}')
    return int(text)
