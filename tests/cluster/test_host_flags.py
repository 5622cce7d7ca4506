"""The flags that name the hosts of a cluster and the task of this process."""

from dataclasses import dataclass
from typing import Any

import pytest

from cluster.topology import Cluster
from tests.support.machines import (
    COLLECTIVE,
    CONTROLLED,
    FLAGS,
    HOSTS,
    PS,
    TF_JOB,
    WORKERS,
    controlled,
    find,
    found,
    open_mpi,
    pmix,
    slurm_step,
    tf_config,
)
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


@dataclass(frozen=True)
class Found:
    """Flags and environment, and the cluster that they make."""

    flags: dict[str, Any]
    environ: dict[str, str]
    cluster: Cluster


FLAGS_CASES = {
    'a worker': Found({**HOSTS, 'job_name': 'worker', 'task_index': 1}, {}, Cluster(PS, WORKERS, 'worker', 1, FLAGS)),
    'blanks around hosts': Found(
        {'ps_hosts': ' 10.0.0.1:2222 ', 'worker_hosts': '10.0.0.2:2222 , 10.0.0.3:2222', 'job_name': 'ps'},
        {},
        Cluster(PS, WORKERS, 'ps', 0, FLAGS),
    ),
    'names and IPv6': Found(
        {'worker_hosts': 'gpu-1.lan:1,[::1]:65535,[FD00:0::1%eth0]:1', 'job_name': 'worker', **COLLECTIVE},
        {},
        Cluster((), ('gpu-1.lan:1', '[::1]:65535', '[fd00::1%eth0]:1'), 'worker', 0, FLAGS),
    ),
    'a full role within a Slurm job of another shape': Found(
        {**HOSTS, 'job_name': 'worker', 'task_index': 1},
        slurm_step(0),
        Cluster(PS, WORKERS, 'worker', 1, FLAGS),
    ),
    'no index for the only ps of an MPI job': Found(
        {**HOSTS, 'job_name': 'ps'}, open_mpi(2, 3, 3), Cluster(PS, WORKERS, 'ps', 0, FLAGS)
    ),
    'the rank of Open MPI': Found(HOSTS, open_mpi(2, 3, 1), Cluster(PS, WORKERS, 'worker', 1, FLAGS)),
    'the controller': Found({**CONTROLLED, 'job_name': 'controller'}, {}, controlled('controller', 0)),
    'a worker of a controller': Found(
        {**CONTROLLED, 'job_name': 'worker', 'task_index': 1}, {}, controlled('worker', 1)
    ),
    'the rank of PMIx': Found(HOSTS, pmix(1), Cluster(PS, WORKERS, 'worker', 0, FLAGS)),
    'the rank of a Slurm step': Found(
        HOSTS, slurm_step(2, SLURM_STEP_NUM_TASKS='3'), Cluster(PS, WORKERS, 'worker', 1, FLAGS)
    ),
    'the role of a TF_CONFIG with the same hosts': Found(
        HOSTS,
        tf_config('worker', 1, ps=list(PS), worker=list(WORKERS)),
        Cluster(PS, WORKERS, 'worker', 1, 'TF_CONFIG'),
    ),
}


@pytest.mark.parametrize('case', FLAGS_CASES.values(), ids=FLAGS_CASES.keys())
def test_flags_name_the_cluster(case: Found) -> None:
    assert find(case.environ, **case.flags) == case.cluster


@pytest.mark.parametrize(
    'flags',
    [
        {},
        {'task_index': 0},
        {'job_name': 'worker', 'worker_hosts': 'a:1'},
        {'job_name': 'worker', 'task_index': 0, 'worker_hosts': 'a:1', 'variable_update': 'replicated'},
        {'worker_hosts': 'a:1'},
        {'worker_hosts': 'a:1', 'task_index': 0},
    ],
)
def test_one_worker_alone_is_one_process(flags: dict[str, Any]) -> None:
    assert find(**flags) is None


# Flags, and the facts that their error names.
FLAG_ERRORS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({**HOSTS, 'job_name': 'worker', 'task_index': 3}, ('--task_index=3', '--worker_hosts', '2', '0', '1')),
    (
        {'job_name': 'worker', 'task_index': 0},
        ('--job_name=worker', '--task_index=0', '--worker_hosts=', '--ps_hosts='),
    ),
    (
        {**HOSTS},
        (f'--worker_hosts={",".join(WORKERS)}', '--job_name=worker', '--job_name=ps', '--task_index'),
    ),
    ({'job_name': 'ps', 'worker_hosts': 'a:1'}, ('--job_name=ps', '--ps_hosts=HOST:PORT')),
    ({'job_name': 'ps', 'ps_hosts': 'a:1'}, ('--ps_hosts=a:1', '--worker_hosts=HOST:PORT')),
    (
        {'job_name': 'controller', **HOSTS},
        (
            *('--job_name=controller', '--variable_update=parameter_server'),
            '--variable_update=distributed_all_reduce',
        ),
    ),
    (
        {'controller_host': 'a:1', 'job_name': 'worker', **HOSTS},
        (
            *('--controller_host=a:1', '--variable_update=parameter_server'),
            '--variable_update=distributed_all_reduce',
        ),
    ),
    (
        {**CONTROLLED, 'controller_host': None, 'job_name': 'controller'},
        ('--job_name=controller', '--controller_host=HOST:PORT'),
    ),
    (
        {**CONTROLLED, 'controller_host': None, 'job_name': 'worker'},
        (
            *('--variable_update=distributed_all_reduce', '2 workers', '--controller_host=HOST:PORT'),
            '--variable_update=collective_all_reduce',
        ),
    ),
    ({**CONTROLLED, 'controller_host': 'a:1,b:1'}, ('--controller_host=a:1,b:1', 'HOST:PORT')),
    ({**CONTROLLED, 'worker_hosts': None}, ('--controller_host=10.0.0.9:2222', '--worker_hosts=HOST:PORT')),
    (
        CONTROLLED,
        (f'--worker_hosts={",".join(WORKERS)}', '--job_name=worker', '--job_name=controller', '--task_index'),
    ),
    ({**CONTROLLED, 'job_name': 'controller', 'task_index': 1}, ('--task_index=1', '--controller_host', '0')),
    (
        {**CONTROLLED, 'job_name': 'controller', 'ps_hosts': 'a:1'},
        (
            *('--variable_update=distributed_all_reduce', '2 workers', '--ps_hosts'),
            '--variable_update=distributed_replicated',
        ),
    ),
    (
        {**CONTROLLED, 'job_name': 'worker', 'controller_host': '10.0.0.3:2222'},
        ('--worker_hosts', '--controller_host', 'worker 1', 'controller 0', '10.0.0.3:2222', 'HOST:PORT'),
    ),
    (
        {'job_name': 'worker', 'ps_hosts': 'a:1', 'worker_hosts': 'b:1,A:1'},
        ('--ps_hosts', '--worker_hosts', 'ps 0', 'worker 1', 'A:1', 'HOST:PORT'),
    ),
    (
        {'job_name': 'worker', 'worker_hosts': 'a:1,a:01'},
        ('--worker_hosts', 'worker 0', 'worker 1', 'a:1', 'HOST:PORT'),
    ),
]


@pytest.mark.parametrize(('flags', 'facts'), FLAG_ERRORS, ids=[' '.join(facts)[:50] for _, facts in FLAG_ERRORS])
def test_wrong_flags_are_refused(flags: dict[str, Any], facts: tuple[str, ...]) -> None:
    with refused(*facts):
        find(**flags)


@pytest.mark.parametrize(
    ('hosts', 'entry'),
    [
        ('a', "'a'"),
        ('a:65536', "'a:65536'"),
        ('a:1,,b:1', ''),
        ('::1:2222', "'::1:2222'"),
        ('grpc://a:1', "'grpc://a:1'"),
        ('a:\u0661', "'a:\u0661'"),
    ],
)
def test_each_host_is_host_and_port(hosts: str, entry: str) -> None:
    with refused(f'--worker_hosts={hosts}', entry, 'HOST:PORT', '1', '65535', '10.0.0.1:2222', '[fd00::1]:2222'):
        find(worker_hosts=hosts, job_name='worker')


# An environment, flags that contradict it, and the facts of both sides.
CONTRADICTIONS: list[tuple[dict[str, str], dict[str, Any], tuple[str, ...]]] = [
    (
        tf_config('ps', 0, **TF_JOB),
        {'job_name': 'worker', 'task_index': 1},
        ('--job_name=worker', '--task_index=1', 'TF_CONFIG', 'ps 0 (cnn-ps-0.train.svc:2222)'),
    ),
    (
        tf_config('worker', 0, **TF_JOB),
        {'task_index': 0},
        ('--task_index=0', 'TF_CONFIG', 'worker 1 (cnn-worker-0.train.svc:2222)'),
    ),
    (
        tf_config('worker', 0, worker=['a:1', 'b:1'], ps=['p:1']),
        {'worker_hosts': 'a:1,c:1', 'ps_hosts': 'p:1', 'job_name': 'worker', 'task_index': 0},
        ('--worker_hosts=a:1,c:1', 'TF_CONFIG', 'a:1,b:1'),
    ),
    (
        tf_config('worker', 0, worker=['a:1', 'b:1']),
        {'worker_hosts': 'a:1,b:1', 'ps_hosts': 'p:1', 'job_name': 'worker', 'task_index': 0},
        ('--ps_hosts=p:1', 'TF_CONFIG'),
    ),
    (
        slurm_step(0),
        {'job_name': 'worker', 'task_index': 1},
        ('--job_name=worker', '--task_index=1', 'Slurm', 'SLURM_PROCID=0', 'ps 0 (gpu01:', '--worker_hosts'),
    ),
    (
        open_mpi(1, 3, 3),
        {'job_name': 'ps'},
        ('--job_name=ps', 'Open MPI', 'OMPI_COMM_WORLD_RANK=1', 'worker 0 (127.0.0.1:', '--worker_hosts'),
    ),
]


@pytest.mark.parametrize(
    ('environ', 'flags', 'facts'), CONTRADICTIONS, ids=[' '.join(facts)[:60] for _, _, facts in CONTRADICTIONS]
)
def test_an_error_shows_the_flags_and_the_environment_that_contradict_each_other(
    environ: dict[str, str], flags: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with refused(*facts):
        find(environ, **flags)


@pytest.mark.parametrize(
    ('environ', 'flags'),
    [
        (tf_config('ps', 0, **TF_JOB), {'job_name': 'ps', 'task_index': 0, 'ps_hosts': ' cnn-ps-0.train.svc:2222'}),
        (slurm_step(2), {'job_name': 'worker', 'task_index': 1}),
        (open_mpi(0, 3, 3), {'job_name': 'ps'}),
    ],
)
def test_flags_that_agree_with_the_environment_change_nothing(environ: dict[str, str], flags: dict[str, Any]) -> None:
    assert find(environ, **flags) == found(environ)


@pytest.mark.parametrize(
    ('environ', 'flags', 'facts'),
    [
        (open_mpi(0, 4, 2), HOSTS, ('--ps_hosts', '--worker_hosts', '3 ', 'Open MPI', 'OMPI_COMM_WORLD_SIZE=4')),
        (open_mpi(0, 2, 2), {'worker_hosts': 'a:1'}, ('--worker_hosts', '1 ', 'Open MPI', 'OMPI_COMM_WORLD_SIZE=2')),
        # PMIx tells no size: there are at least as many processes as the rank says.
        (pmix(3), HOSTS, ('--ps_hosts', '--worker_hosts', '3 ', 'PMIx', '4 ', 'PMIX_RANK=3')),
        (slurm_step(1), HOSTS, ('--ps_hosts', '--worker_hosts', '3 ', 'Slurm', 'SLURM_STEP_NUM_TASKS=5')),
        (
            open_mpi(0, 3, 3),
            {**HOSTS, 'job_name': 'worker'},
            ('--job_name=worker', '--task_index', 'Open MPI', 'OMPI_COMM_WORLD_RANK=0'),
        ),
    ],
)
def test_ranks_must_fit_the_hosts_of_the_flags(
    environ: dict[str, str], flags: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with refused(*facts):
        find(environ, **flags)
