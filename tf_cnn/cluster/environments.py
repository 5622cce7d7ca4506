"""Reads the cluster from TF_CONFIG and variables of launchers. Does not import TensorFlow."""

import contextlib
import itertools
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec

from tf_cnn.cluster.config import PROTOCOL
from tf_cnn.cluster.topology import LOOPBACK, Cluster, read_hosts
from tf_cnn.system.documents import DocumentError, decode_json
from tf_cnn.system.errors import UsageError, plural

Environ = Mapping[str, str]

_NUMBER = re.compile('[0-9]{1,18}')
# The ports of a job without --cluster_port: the first port, the number of ports per job, and the
# number of jobs with different ports. They avoid the ports of the system (below 1024), of
# Kubernetes (from 30000) and the automatic ports of Linux (from 32768).
_FIRST_PORT, _PORTS_OF_A_JOB, _PORT_BLOCKS = 10_000, 64, 300
_EVALUATOR = 'evaluator'


class _Launcher(NamedTuple):
    """The names of the environment variables that a launcher sets for its processes.

    `job` is the same for all processes of a job and differs between jobs; it is empty if the
    launcher has no such variable.
    """

    source: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    job: str = ''

    @property
    def variables(self) -> tuple[str, ...]:
        return self[1:5]


def _rank_variables(prefix: str) -> tuple[str, str, str, str]:
    return f'{prefix}RANK', f'{prefix}SIZE', f'{prefix}LOCAL_RANK', f'{prefix}LOCAL_SIZE'


# A batch script has SLURM_PROCID too, but only processes that srun starts have the SLURM_STEP_
# variables (srun(1), OUTPUT ENVIRONMENT VARIABLES). SLURM_STEP_TASKS_PER_NODE lists the number of
# tasks on every node.
_SLURM = _Launcher(
    'Slurm', 'SLURM_PROCID', 'SLURM_STEP_NUM_TASKS', 'SLURM_LOCALID', 'SLURM_STEP_TASKS_PER_NODE'
)
# The innermost launcher first. mpirun starts its daemon on each node with srun, so its processes
# also inherit the variables of Slurm. Likewise mpirun may start one torchrun on each node.
_LAUNCHERS = (
    _Launcher('torchrun', 'RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_PORT'),
    _Launcher('horovodrun', *_rank_variables('HOROVOD_'), 'HOROVOD_GLOO_RENDEZVOUS_PORT'),
    # mpirun(1), Open MPI 4 and 5.
    _Launcher('Open MPI', *_rank_variables('OMPI_COMM_WORLD_'), 'PMIX_NAMESPACE'),
    # MPICH and Intel MPI. `srun --mpi` sets the first two as well.
    _Launcher('Hydra', 'PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'),
    _SLURM,
)
# Variables for rank and size that do not prove that several processes run together. They are also
# set in a shell of an allocation, for other programs, and in jobs of independent pods.
_POSSIBLE_RANKS = (
    ('RANK', 'WORLD_SIZE'),
    ('SLURM_PROCID', 'SLURM_NTASKS'),
    # Kubernetes: indexed jobs, Volcano, LeaderWorkerSet.
    ('JOB_COMPLETION_INDEX', ''),
    ('VC_TASK_INDEX', ''),
    ('LWS_WORKER_INDEX', 'LWS_GROUP_SIZE'),
    # PyTorchJob, AWS Batch, and unsupported launchers: MVAPICH, jsrun, Flux, PALS, ALPS, PMIx, LSF.
    ('PET_NODE_RANK', 'PET_NNODES'),
    ('AWS_BATCH_JOB_NODE_INDEX', 'AWS_BATCH_JOB_NUM_NODES'),
    ('MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE'),
    ('MVP_COMM_WORLD_RANK', 'MVP_COMM_WORLD_SIZE'),
    ('JSM_NAMESPACE_RANK', 'JSM_NAMESPACE_SIZE'),
    ('FLUX_TASK_RANK', 'FLUX_JOB_SIZE'),
    ('PALS_RANKID', ''),
    ('ALPS_APP_PE', ''),
    ('PMIX_RANK', 'OMPI_COMM_WORLD_SIZE'),
    ('PMI_ID', ''),
    ('LSF_PM_TASKID', ''),
)
# Variables that a job scheduler or an outer launcher sets: all with these prefixes, and
# _CLUSTER_VARIABLES.
_CLUSTER_PREFIXES = ('TF_CONFIG', 'SLURM', 'OMPI_', 'PMI')
_CLUSTER_VARIABLES = {
    name
    for names in (*(launcher.variables for launcher in _LAUNCHERS), *_POSSIBLE_RANKS)
    for name in names
}
_SET_ROLE = (
    'set the role of this process with --job_name, --task_index, --ps_hosts and --worker_hosts'
)


def remove_cluster_variables(environment: Environ) -> dict[str, str]:
    """Returns the environment for a child process: without variables that describe a cluster."""
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_CLUSTER_PREFIXES) and name not in _CLUSTER_VARIABLES
    }


def check_alone(environment: Environ, command: str, warn: Callable[[str], None]) -> None:
    """Raises UsageError if a launcher has started several processes of a command that starts runs,
    and warns if it may have.
    """
    launch, cluster = find_launch(environment), read_tf_config(environment)
    if launch or is_evaluator(environment) or (cluster and len(cluster.tasks) > 1):
        raise UsageError(
            f'{launch.rank_variable if launch else "TF_CONFIG"}: this process is one of several, '
            f'and in each of them {command} would do the same work; start it once, without a '
            'launcher or TF_CONFIG'
        )
    # What srun starts has a launch. Otherwise these variables are those of a batch script, which is
    # one process.
    others = {name: value for name, value in environment.items() if not name.startswith('SLURM_')}
    if rank_variables := find_rank_variables(others):
        warn(
            f'{rank_variables}: if a launcher started {command} several times, each does the same '
            'work'
        )


# ---- TF_CONFIG -----------------------------------------------------------------------------------


class _Task(msgspec.Struct):
    type: str
    # Kubeflow writes the number as text.
    index: Annotated[int, msgspec.Meta(ge=0)]


class _TFConfig(msgspec.Struct):
    """The fields of TF_CONFIG that are used; "environment" and others are ignored."""

    cluster: dict[str, list[str]] | None = None
    task: _Task | None = None
    rpc_layer: str | None = None


def read_tf_config(environ: Environ) -> Cluster | None:
    """Reads TF_CONFIG, as tf.train.ClusterSpec and Kubeflow's TFJob define it.

    A chief (or master) becomes worker 0. Kubeflow lists chief, master, worker and ps; an evaluator
    has a role but is not listed in the cluster (training-operator,
    pkg/controller.v1/tensorflow/tensorflow.go, genClusterSpec).

    Returns:
      The cluster; None if TF_CONFIG has no cluster or makes this process an evaluator.

    Raises:
      UsageError: TF_CONFIG is not valid.
    """
    config = _decode_tf_config(environ)
    job_lists = (config.cluster or {}).items()
    if unknown := {job for job, hosts in job_lists if hosts} - {
        'chief',
        'master',
        'worker',
        'ps',
        _EVALUATOR,
    }:
        raise _bad_tf_config(f'its cluster has an unknown job: {", ".join(sorted(unknown))}')
    lists = {
        job: read_hosts(hosts, f'TF_CONFIG, cluster, {job}') for job, hosts in job_lists if hosts
    }
    job, index = (config.task.type, config.task.index) if config.task else ('', 0)
    if job == _EVALUATOR or (
        not lists and (job, index) in (('', 0), ('chief', 0), ('master', 0), ('worker', 0))
    ):
        return None
    chiefs, workers = lists.get('chief', ()) + lists.get('master', ()), lists.get('worker', ())
    if len(chiefs) > 1:
        raise _bad_tf_config(f'its cluster has {len(chiefs)} chiefs; there can be only one')
    if index >= len(lists.get(job, ())) or not (chiefs or workers):
        task = f'its task is {job} {index}' if config.task else 'it has no "task"'
        raise _bad_tf_config(
            f'{task}, and its cluster has {plural(len(lists.get(job, ())), f"{job} host")} and '
            f'{plural(len(chiefs + workers), "worker")} (a TFJob needs enableDynamicWorker: false)'
        )
    if config.rpc_layer not in (None, '', PROTOCOL):
        raise _bad_tf_config(
            f'its rpc_layer is {config.rpc_layer!r}, and TensorFlow supports only '
            f'{PROTOCOL}; remove it'
        )
    if job != 'ps':
        job, index = 'worker', index + (len(chiefs) if job == 'worker' else 0)
    return Cluster(lists.get('ps', ()), chiefs + workers, job, index, 'TF_CONFIG')


def is_evaluator(environ: Environ) -> bool:
    """Whether TF_CONFIG makes this process the evaluator of a training."""
    # read_tf_config reports the errors of TF_CONFIG.
    with contextlib.suppress(UsageError):
        task = _decode_tf_config(environ).task
        return task is not None and task.type == _EVALUATOR
    return False


def _decode_tf_config(environ: Environ) -> _TFConfig:
    text = environ.get('TF_CONFIG', '').strip() or '{}'
    try:
        config = decode_json(text, _TFConfig, strict=False)
    except DocumentError as error:
        raise _bad_tf_config(str(error)) from None
    # With "Cluster", "clusters" or "sparseCluster" each process would run without the others.
    if not config.cluster and (
        match := re.search(r'"(\w*cluster\w*)"\s*:\s*\{[^}]', text, re.IGNORECASE)
    ):
        raise _bad_tf_config(f'"{match[1]}" is not read (a TFJob needs enableDynamicWorker: false)')
    return config


def _bad_tf_config(reason: str) -> UsageError:
    return UsageError(
        f'TF_CONFIG: {reason}; it looks like '
        '{"cluster": {"ps": ["HOST:PORT"], "worker": ["HOST:PORT"]}, "task": {"type": "worker", '
        '"index": 0}}'
    )


# ---- launchers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The place of this process among the processes that one launcher started.

    first_port is the port of the first task on each node: 10000 + 64 * (job % 300); None if the job
    has no number. For Slurm, job is SLURM_JOB_ID + 101 * SLURM_STEP_ID, which differs between
    consecutive jobs and simultaneous steps. For other launchers it is the CRC-32 of the job's name.
    """

    launcher: _Launcher
    rank: int
    size: int
    first_port: int | None

    @property
    def source(self) -> str:
        return self.launcher.source

    @property
    def rank_variable(self) -> str:
        """The variable with the rank, as messages quote it: 'SLURM_PROCID=1'."""
        return f'{self.launcher.rank}={self.rank}'

    @property
    def process_count(self) -> str:
        """The number of processes with its variable: '3 processes (SLURM_STEP_NUM_TASKS=3)'."""
        return f'{plural(self.size, "process", "es")} ({self.launcher.size}={self.size})'


def find_launch(environ: Environ) -> Launch | None:
    """Returns the launcher of this process and its rank; None if it is a single process."""
    launcher = next(
        (
            known_launcher
            for known_launcher in _LAUNCHERS
            if all(name in environ for name in known_launcher.variables)
        ),
        None,
    )
    if launcher is None:
        return None
    rank, size = _read_number(launcher.rank, environ), _read_number(launcher.size, environ)
    if rank >= size:
        # In a heterogeneous job of Slurm, the size counts the tasks of one component, but the ranks
        # number the tasks of all components.
        raise UsageError(
            f'{launcher.rank}={rank}: it must be below {launcher.size}={size}; {_SET_ROLE}'
        )
    job_name, job = environ.get(launcher.job), None
    if launcher is _SLURM:
        job = _read_number('SLURM_JOB_ID', environ) + 101 * _read_number('SLURM_STEP_ID', environ)
    elif job_name:
        job = zlib.crc32(job_name.encode(errors='surrogateescape'))
    first_port = None if job is None else _FIRST_PORT + _PORTS_OF_A_JOB * (job % _PORT_BLOCKS)
    return Launch(launcher, rank, size, first_port) if size > 1 else None


def find_rank_variables(environ: Environ) -> str | None:
    """Returns the variables which suggest that a process without a cluster is one of several:
    'RANK=1 WORLD_SIZE=3'. Returns None if there are none.
    """
    variables: dict[str, str] = {}
    for rank, size in (
        *((launcher.rank, launcher.size) for launcher in _LAUNCHERS if launcher.size in environ),
        *_POSSIBLE_RANKS,
    ):
        if _NUMBER.fullmatch(environ.get(rank, '')) and environ.get(size) != '1':
            variables |= {
                name: f'{name}={environ[name]}' for name in (rank, size) if name in environ
            }
    return ' '.join(variables.values()) or None


def find_local_rank_and_size(environ: Environ) -> tuple[int, int] | None:
    """Returns (local rank, local size) of this process from its innermost launcher, else None."""
    for launcher in _LAUNCHERS:
        if launcher.local_rank in environ and launcher.local_size in environ:
            local_rank = _read_number(launcher.local_rank, environ)
            if launcher is not _SLURM:
                return local_rank, _read_number(launcher.local_size, environ)
            counts = expand_counts(environ[launcher.local_size])
            return local_rank, counts[min(_read_number('SLURM_NODEID', environ), len(counts) - 1)]
    return None


def place_ranks(launch: Launch, environ: Environ, num_ps: int) -> list[tuple[str, int]]:
    """Returns (node, local rank) of each rank.

    A single node is called 127.0.0.1. Slurm says how many tasks each node has, and fills one node
    after the other (srun --distribution=block). Other launchers say only how many ranks this node
    has.

    Args:
      num_ps: the number of parameter servers, for messages.

    Raises:
      UsageError: the environment does not say where all ranks run, or contradicts the node and
        local rank of this process.
    """
    launcher = launch.launcher
    ps = f'--ps_hosts=HOST:PORT,... with {num_ps} and ' if num_ps else ''
    hosts = (
        f'{ps}--worker_hosts=HOST:PORT,... with {plural(launch.size - num_ps, "host")} in the '
        'order of the ranks, without --job_name and --task_index'
    )
    if launcher is not _SLURM:
        if _read_number(launcher.local_size, environ) != launch.size:
            raise UsageError(
                f'{launch.rank_variable}: the environment of {launch.source} does not say on '
                f'which hosts the other processes run; use {hosts}; or use srun in a job of Slurm'
            )
        return [(LOOPBACK, number) for number in range(launch.size)]
    nodes = expand_nodes(environ.get('SLURM_STEP_NODELIST', ''))
    counts = expand_counts(environ[launcher.local_size])
    own_node = environ.get('SLURMD_NODENAME', '')
    if len(nodes) == 1:
        nodes, own_node = [LOOPBACK], LOOPBACK
    places = [(node, i) for node, count in zip(nodes, counts, strict=False) for i in range(count)]
    # With one task on each node every distribution is in order, though Slurm calls it cyclic.
    in_order = max(counts) == 1 or environ.get('SLURM_DISTRIBUTION', 'block').startswith('block')
    own_place = own_node, _read_number(launcher.local_rank, environ)
    if not in_order or len(places) != launch.size or places[launch.rank] != own_place:
        node_counts = ', '.join(
            f'{node} with {count}' for node, count in zip(nodes, counts, strict=False)
        )
        raise UsageError(
            f'{launch.rank_variable}: Slurm did not fill one node after the other '
            f'({node_counts}); use srun --distribution=block, or {hosts}'
        )
    return places


def expand_nodes(text: str) -> list[str]:
    """Expands a node list of Slurm, such as gpu[01-03,07],login1, like `scontrol show hostnames`.

    Numbers have as many digits as the first of their range: n[08-10] is n08, n09, n10. With
    several brackets, the last one varies fastest.
    """
    names: list[str] = []
    for item in re.findall(r'(?:[^,\[]|\[.*?\])+', text):
        choices = [[literal] for literal in re.split(r'\[.*?\]', item)]
        for position, numbers in enumerate(re.findall(r'\[(.*?)\]', item)):
            spans = re.findall('([0-9]{1,6})(?:-([0-9]{1,6}))?', numbers)
            expanded = [
                f'{n:0{len(low)}}'
                for low, high in spans
                for n in range(int(low), int(high or low) + 1)
            ]
            choices.insert(2 * position + 1, expanded)
        names += map(''.join, itertools.product(*choices))
    return names


def expand_counts(text: str) -> list[int]:
    """Returns the number of tasks on each node: '2(x3),1' is [2, 2, 2, 1]."""
    counts = re.findall(r'([0-9]{1,6})(?:\(x([0-9]{1,6})\))?', text)
    return [int(count) for count, times in counts for _ in range(int(times or 1))] or [1]


def _read_number(name: str, environ: Environ) -> int:
    text = environ.get(name, '')
    if not _NUMBER.fullmatch(text):
        raise UsageError(
            f'{name}={text}: it is not a number; check the launcher of this process, or {_SET_ROLE}'
        )
    return int(text)
