"""Every process finds out who is in the cluster and who it is, or one line says what to write."""

import itertools
import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.environments import expand_counts, expand_nodes
from cluster.members import Cluster, Task, check_mode, find_cluster, for_evaluator
from errors import UsageError
from params import Params, make_params

pytestmark = pytest.mark.unit

PS, WORKERS = ('10.0.0.1:2222',), ('10.0.0.2:2222', '10.0.0.3:2222')
HOSTS: dict[str, Any] = {'ps_hosts': ','.join(PS), 'worker_hosts': ','.join(WORKERS)}
COLLECTIVE: dict[str, Any] = {'variable_update': 'collective_all_reduce'}
CONTROLLED: dict[str, Any] = {
    'variable_update': 'distributed_all_reduce',
    'controller_host': '10.0.0.9:2222',
    'worker_hosts': '10.0.0.2:2222,10.0.0.3:2222',
}


def controlled(job: str, index: int) -> Cluster:
    return Cluster((), WORKERS, job, index, 'the flags', ('10.0.0.9:2222',))


def find(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster | None:
    return find_cluster(Params(**flags), environ or {})


def found(environ: Mapping[str, str] | None = None, **flags: Any) -> Cluster:
    cluster = find(environ, **flags)
    assert cluster is not None
    return cluster


def refusal(environ: Mapping[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(UsageError) as error:
        find(environ, **flags)
    message = str(error.value)
    assert '\n' not in message
    return message


# What Kubeflow's training operator writes (kubeflow/training-operator, pkg/controller.v1/tensorflow/tensorflow.go,
# genTFConfigJSONStr): hosts are the headless services of the replicas; an evaluator is in no cluster, but has one.
def tf_config(job: str, index: int | str, **cluster: list[str] | dict[str, str]) -> dict[str, str]:
    config = {'cluster': cluster, 'task': {'type': job, 'index': index}, 'environment': 'cloud'}
    return {'TF_CONFIG': json.dumps(config)}


def replicas(job: str, count: int) -> list[str]:
    return [f'cnn-{job}-{i}.train.svc:2222' for i in range(count)]


TF_JOB = {'chief': replicas('chief', 1), 'worker': replicas('worker', 2), 'ps': replicas('ps', 1)}


def slurm_batch(**changes: str) -> dict[str, str]:
    """The environment of a batch script of 3 nodes and 5 tasks, as Slurm 22.05 sets it (sbatch(1))."""
    return {
        'SLURMD_NODENAME': 'gpu01',
        'SLURM_JOB_ID': '1207',
        'SLURM_JOB_NODELIST': 'gpu[01-03]',
        'SLURM_JOB_NUM_NODES': '3',
        'SLURM_LOCALID': '0',
        'SLURM_NODEID': '0',
        'SLURM_NODELIST': 'gpu[01-03]',
        'SLURM_NPROCS': '5',
        'SLURM_NTASKS': '5',
        'SLURM_PROCID': '0',
        'SLURM_TASKS_PER_NODE': '3,1(x2)',
        **changes,
    }


PLACES = [('gpu01', 0), ('gpu01', 1), ('gpu01', 2), ('gpu02', 0), ('gpu03', 0)]


def slurm_step(rank: int, **changes: str) -> dict[str, str]:
    """The environment of one task of `srun` in that script, as Slurm 22.05 sets it (srun(1), OUTPUT ENVIRONMENT)."""
    node, local_rank = PLACES[rank]
    return {
        **slurm_batch(),
        'SLURMD_NODENAME': node,
        'SLURM_DISTRIBUTION': 'block',
        'SLURM_LOCALID': str(local_rank),
        'SLURM_NODEID': str(int(node[-1]) - 1),
        'SLURM_PROCID': str(rank),
        'SLURM_STEPID': '0',
        'SLURM_STEP_ID': '0',
        'SLURM_STEP_NODELIST': 'gpu[01-03]',
        'SLURM_STEP_NUM_NODES': '3',
        'SLURM_STEP_NUM_TASKS': '5',
        'SLURM_STEP_TASKS_PER_NODE': '3,1(x2)',
        **changes,
    }


def open_mpi(rank: int, size: int, local_size: int, **changes: str) -> dict[str, str]:
    """The environment that mpirun of Open MPI 4.1 sets (docs.open-mpi.org, "environment variables"; 5 has them too)."""
    return {
        'OMPI_COMM_WORLD_RANK': str(rank),
        'OMPI_COMM_WORLD_SIZE': str(size),
        'OMPI_COMM_WORLD_LOCAL_RANK': str(rank % local_size),
        'OMPI_COMM_WORLD_LOCAL_SIZE': str(local_size),
        'OMPI_COMM_WORLD_NODE_RANK': str(rank % local_size),
        'OMPI_UNIVERSE_SIZE': str(size),
        'PMIX_NAMESPACE': '1265238017',
        'PMIX_RANK': str(rank),
        'PMIX_VERSION': '4.2.2rc2',
        **changes,
    }


def open_mpi_in_slurm(rank: int, **changes: str) -> dict[str, str]:
    """The same in a Slurm job with 2 ranks on each of 3 nodes: the step is that of Open MPI's daemon on this node."""
    node = rank // 2
    daemon = {
        'SLURMD_NODENAME': f'gpu0{node + 1}',
        'SLURM_DISTRIBUTION': 'cyclic',
        'SLURM_LOCALID': '0',
        'SLURM_NODEID': str(node),
        'SLURM_PROCID': str(node),
        'SLURM_STEP_NUM_TASKS': '3',
        'SLURM_STEP_TASKS_PER_NODE': '1(x3)',
        'SLURM_TASKS_PER_NODE': '1(x3)',
    }
    return {**slurm_step(0), **daemon, **open_mpi(rank, 6, 2), **changes}


def pmix(rank: int, **changes: str) -> dict[str, str]:
    """What a PMIx launcher (prterun) sets: PMIx_server_setup_fork of OpenPMIx tells the rank, and no size."""
    return {'PMIX_NAMESPACE': 'prterun-gpu01-4711@1', 'PMIX_RANK': str(rank), 'PMIX_HOSTNAME': 'gpu01', **changes}


def test_a_cluster_knows_its_tasks_and_its_own() -> None:
    cluster = Cluster(PS, WORKERS, 'worker', 1, 'the flags')
    assert [str(task) for task in cluster.tasks] == [
        'ps 0 (10.0.0.1:2222)',
        'worker 0 (10.0.0.2:2222)',
        'worker 1 (10.0.0.3:2222)',
    ]
    assert cluster.own == Task('worker', 1, '10.0.0.3:2222')
    assert cluster.own.device == '/job:worker/task:1'
    assert (cluster.num_ps, cluster.num_workers) == (1, 2)
    assert cluster.spec == {'ps': list(PS), 'worker': list(WORKERS)}


def test_the_host_task_is_the_first_ps_or_else_the_first_worker() -> None:
    assert Cluster(PS, WORKERS, 'worker', 1, 'the flags').host_task == Task('ps', 0, PS[0])
    assert Cluster((), WORKERS, 'worker', 1, 'the flags').host_task == Task('worker', 0, WORKERS[0])


def test_a_job_without_hosts_is_not_in_the_spec() -> None:
    assert Cluster((), WORKERS, 'worker', 0, 'the flags').spec == {'worker': list(WORKERS)}


def test_workers_of_a_controller_serve_it() -> None:
    workers = tuple(Task('worker', index, host) for index, host in enumerate(WORKERS))
    for own in (*workers, Task('controller', 0, '10.0.0.9:2222')):
        cluster = controlled(own.job, own.index)
        assert cluster.own == own
        assert (cluster.servers, cluster.host_task) == (workers, workers[0])
        assert cluster.tasks == (*workers, *cluster.trainers)
        assert cluster.spec == {'worker': list(WORKERS), 'controller': ['10.0.0.9:2222']}
        assert (cluster.serves, cluster.is_chief) == (own in workers, own not in workers)


@pytest.mark.parametrize(
    ('source', 'environ'), [('SLURM_PROCID=0', slurm_step(0)), ('OMPI_COMM_WORLD_RANK=1', open_mpi(1, 4, 1))]
)
def test_ranks_alone_do_not_tell_where_a_controller_is(source: str, environ: dict[str, str]) -> None:
    message = refusal(environ, variable_update='distributed_all_reduce')
    assert message.startswith(f'{source}: --variable_update=distributed_all_reduce has to be told where')


def test_tf_config_knows_no_controller() -> None:
    environ = tf_config('worker', 1, worker=replicas('worker', 2))
    message = refusal(environ, variable_update='distributed_all_reduce', controller_host='a:1')
    assert 'needs a controller, and here are 2 workers and 0 ps (TF_CONFIG); name all by flags' in message


@pytest.mark.parametrize(('job', 'index', 'is_chief'), [('worker', 0, True), ('worker', 1, False), ('ps', 0, False)])
def test_only_the_first_worker_is_the_chief(job: str, index: int, is_chief: bool) -> None:
    assert Cluster(PS, WORKERS, job, index, 'the flags').is_chief is is_chief


@dataclass(frozen=True)
class Found:
    """Flags and environment, and the cluster that they make."""

    flags: dict[str, Any]
    environ: dict[str, str]
    cluster: Cluster


FLAGS_CASES = {
    'a worker': Found(
        {**HOSTS, 'job_name': 'worker', 'task_index': 1}, {}, Cluster(PS, WORKERS, 'worker', 1, 'the flags')
    ),
    'an index that is left out': Found({**HOSTS, 'job_name': 'ps'}, {}, Cluster(PS, WORKERS, 'ps', 0, 'the flags')),
    'blanks around hosts': Found(
        {'ps_hosts': ' 10.0.0.1:2222 ', 'worker_hosts': '10.0.0.2:2222 , 10.0.0.3:2222', 'job_name': 'ps'},
        {},
        Cluster(PS, WORKERS, 'ps', 0, 'the flags'),
    ),
    'names and IPv6': Found(
        {'worker_hosts': 'gpu-1.lan:1,[::1]:65535', 'job_name': 'worker', **COLLECTIVE},
        {},
        Cluster((), ('gpu-1.lan:1', '[::1]:65535'), 'worker', 0, 'the flags'),
    ),
    'one worker and one ps': Found(
        {'ps_hosts': 'a:1', 'worker_hosts': 'b:1', 'job_name': 'worker'},
        {},
        Cluster(('a:1',), ('b:1',), 'worker', 0, 'the flags'),
    ),
    'a full role within a Slurm job of another shape': Found(
        {**HOSTS, 'job_name': 'worker', 'task_index': 1},
        slurm_step(0),
        Cluster(PS, WORKERS, 'worker', 1, 'the flags'),
    ),
    'no index for the only ps of an MPI job': Found(
        {**HOSTS, 'job_name': 'ps'}, open_mpi(2, 3, 3), Cluster(PS, WORKERS, 'ps', 0, 'the flags')
    ),
    'the rank of Open MPI': Found(HOSTS, open_mpi(2, 3, 1), Cluster(PS, WORKERS, 'worker', 1, 'the flags')),
    'the first rank of Open MPI': Found(HOSTS, open_mpi(0, 3, 1), Cluster(PS, WORKERS, 'ps', 0, 'the flags')),
    'the controller': Found({**CONTROLLED, 'job_name': 'controller'}, {}, controlled('controller', 0)),
    'a worker of a controller': Found(
        {**CONTROLLED, 'job_name': 'worker', 'task_index': 1}, {}, controlled('worker', 1)
    ),
    'the rank of a controller': Found(CONTROLLED, open_mpi(0, 3, 1), controlled('controller', 0)),
    'the rank of a worker of a controller': Found(CONTROLLED, pmix(2), controlled('worker', 1)),
    'the rank of PMIx': Found(HOSTS, pmix(1), Cluster(PS, WORKERS, 'worker', 0, 'the flags')),
    'the rank of a Slurm step': Found(
        HOSTS, slurm_step(2, SLURM_STEP_NUM_TASKS='3'), Cluster(PS, WORKERS, 'worker', 1, 'the flags')
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


FLAG_ERRORS = [
    (
        {**HOSTS, 'job_name': 'worker', 'task_index': 3},
        '--task_index=3: --worker_hosts has 2 hosts, so it must be from 0 to 1',
    ),
    ({'worker_hosts': 'a:1', 'job_name': 'worker', 'task_index': 1}, '--worker_hosts has 1 host, so it must be 0'),
    ({'worker_hosts': 'a:1', 'task_index': 1}, '--task_index=1: --worker_hosts has 1 host, so it must be 0'),
    ({'job_name': 'worker', 'task_index': 0}, '--job_name=worker --task_index=0: there are no hosts; write --worker_h'),
    ({'task_index': 1}, '--task_index=1: there are no hosts; write --worker_hosts=HOST:PORT,...'),
    ({**HOSTS}, '--worker_hosts=10.0.0.2:2222,10.0.0.3:2222: --job_name is missing; add --job_name=worker or --job_na'),
    ({**HOSTS, 'task_index': 0}, '--task_index=0: --job_name is missing; add --job_name=worker or --job_name=ps'),
    ({'job_name': 'ps', 'worker_hosts': 'a:1'}, '--job_name=ps: --ps_hosts is missing; add --ps_hosts=HOST:PORT,...'),
    ({'job_name': 'ps', 'ps_hosts': 'a:1'}, '--ps_hosts=a:1: the workers are missing; add --worker_hosts=HOST:PORT'),
    (
        {'job_name': 'controller', **HOSTS},
        '--job_name=controller: --variable_update=parameter_server has no controller; leave it out, or write '
        '--variable_update=distributed_all_reduce',
    ),
    (
        {'controller_host': 'a:1', 'job_name': 'worker', **HOSTS},
        '--controller_host=a:1: --variable_update=parameter_server has no controller; leave it out, or write ',
    ),
    (
        {**CONTROLLED, 'controller_host': None, 'job_name': 'controller'},
        '--job_name=controller: --controller_host is missing; add --controller_host=HOST:PORT',
    ),
    (
        {**CONTROLLED, 'controller_host': None, 'job_name': 'worker'},
        '--variable_update=distributed_all_reduce needs a controller, and here are 2 workers and 0 ps (the flags)',
    ),
    ({**CONTROLLED, 'controller_host': 'a:1,b:1'}, '--controller_host=a:1,b:1: there is one controller; write one '),
    ({**CONTROLLED, 'worker_hosts': None}, '--controller_host=10.0.0.9:2222: the workers are missing; add --worker_h'),
    (CONTROLLED, '--job_name is missing; add --job_name=worker or --job_name=controller, and --task_index'),
    (
        {**CONTROLLED, 'job_name': 'controller', 'task_index': 1},
        '--task_index=1: --controller_host has 1 host, so it must be 0',
    ),
    (
        {**CONTROLLED, 'job_name': 'controller', 'ps_hosts': 'a:1'},
        'distributed_all_reduce has no parameter servers, and here are 2 workers and 1 ps (the flags); leave out --ps',
    ),
    (
        {**CONTROLLED, 'job_name': 'worker', 'controller_host': '10.0.0.3:2222'},
        '--worker_hosts and --controller_host: worker 1 and controller 0 are both 10.0.0.3:2222',
    ),
    (
        {'job_name': 'worker', 'ps_hosts': 'a:1', 'worker_hosts': 'b:1,A:1'},
        '--ps_hosts and --worker_hosts: ps 0 and worker 1 are both A:1; write another HOST:PORT for each process',
    ),
    ({'job_name': 'worker', 'worker_hosts': 'a:1,a:01'}, 'worker 0 and worker 1 are both a:1'),
]


@pytest.mark.parametrize(('flags', 'message'), FLAG_ERRORS, ids=[message[:50] for _, message in FLAG_ERRORS])
def test_wrong_flags_are_told_in_one_line(flags: dict[str, Any], message: str) -> None:
    assert message in refusal(**flags)


@pytest.mark.parametrize(
    ('hosts', 'entry'),
    [
        ('a', "'a'"),
        ('a:0', "'a:0'"),
        ('a:65536', "'a:65536'"),
        ('a:x', "'a:x'"),
        ('a:1,,b:1', 'an empty entry'),
        ('a:1,', 'an empty entry'),
        (',', 'an empty entry'),
        (':1', "':1'"),
        ('::1:2222', "'::1:2222'"),
        ('grpc://a:1', "'grpc://a:1'"),
        ('a:1;b:1', "'a:1;b:1'"),
        ('a:1 b:1', "'a:1 b:1'"),
        ('a:\u0661', "'a:\u0661'"),
    ],
)
def test_each_host_is_host_and_port(hosts: str, entry: str) -> None:
    message = refusal(worker_hosts=hosts, job_name='worker')
    assert message.startswith(f'--worker_hosts={hosts}: {entry} is not HOST:PORT with a port from 1 to 65535; ')


@pytest.mark.parametrize(
    ('job', 'index', 'own'),
    [
        ('chief', 0, 'worker 0 (cnn-chief-0.train.svc:2222)'),
        ('worker', 0, 'worker 1 (cnn-worker-0.train.svc:2222)'),
        ('worker', '1', 'worker 2 (cnn-worker-1.train.svc:2222)'),
        ('ps', 0, 'ps 0 (cnn-ps-0.train.svc:2222)'),
    ],
)
def test_in_tf_config_the_chief_is_the_first_worker(job: str, index: int | str, own: str) -> None:
    cluster = found(tf_config(job, index, **TF_JOB))
    assert str(cluster.own) == own
    assert cluster.source == 'TF_CONFIG'
    assert cluster.worker_hosts == (*TF_JOB['chief'], *TF_JOB['worker'])
    assert cluster.ps_hosts == tuple(TF_JOB['ps'])


def test_a_master_is_a_chief_and_workers_without_one_begin_at_0() -> None:
    assert found(tf_config('worker', 0, master=['m:1'], worker=['w:1'], ps=['p:1'])).index == 1
    assert found(tf_config('worker', 0, worker=['w:1', 'w:2'], ps=['p:1'])).is_chief


def test_a_tf_job_without_ps_is_for_collectives() -> None:
    environ = tf_config('worker', 1, worker=replicas('worker', 2))
    assert found(environ, **COLLECTIVE).num_ps == 0
    assert refusal(environ).startswith(
        '--variable_update=parameter_server needs parameter servers, and here are 2 workers and 0 ps (TF_CONFIG); '
        'add the ps of TF_CONFIG, or write --variable_update=collective_all_reduce'
    )


@pytest.mark.parametrize(
    'environ',
    [
        {'TF_CONFIG': ''},
        {'TF_CONFIG': '{}'},
        {'TF_CONFIG': '{"cluster": {}, "task": {"type": "worker", "index": 0}}'},
        {'TF_CONFIG': '{"cluster": {"worker": []}}'},
        tf_config('chief', 0, chief=['a:1']),
        tf_config('worker', 0, worker=['a:1'], ps=[]),
    ],
)
def test_a_tf_config_of_one_process_is_no_cluster(environ: dict[str, str]) -> None:
    assert find(environ) is None


def test_a_tf_config_without_a_cluster_leaves_the_flags_alone() -> None:
    assert found({'TF_CONFIG': '{"cluster": {}}'}, **HOSTS, job_name='ps').source == 'the flags'


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('{"cluster":', 'it is not JSON'),
        ('[1]', 'it is not a JSON object'),
        ('{"cluster": ["a:1"]}', '"cluster" is not an object'),
        ('{"cluster": {"worker": "a:1"}}', 'the worker of its cluster is not a list of HOST:PORT'),
        ('{"cluster": {"worker": {"0": "a:1"}, "ps": ["b:1"]}}', 'a TFJob needs enableDynamicWorker: false'),
        # What a ps is told by enableDynamicWorker: itself alone.
        (
            '{"cluster": {"worker": {}, "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}',
            'has ps and no worker (a TFJ',
        ),
        (
            '{"cluster": {"worker": {}, "ps": ["b:1"]}, "task": {"type": "ps", "index": 1}}',
            'has ps and no worker (a TFJ',
        ),
        ('{"cluster": {"worker": ["a"]}}', "TF_CONFIG, cluster, worker: 'a' is not HOST:PORT"),
        ('{"cluster": {"tpu": ["a:1"]}}', 'its cluster has tpu, which is none of chief, master, worker, ps'),
        ('{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}', 'its cluster has 2 chiefs, a:1 and b:1'),
        ('{"cluster": {"worker": ["a:1"]}}', 'it has a cluster, and no "task"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": "ps"}', '"task" is not an object'),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}}', 'it has a cluster, and no "task"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": true}}', 'and no "task"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": -1}}', 'and no "task"'),
        (
            '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
            'its task is worker 1, and its cluster lists 1 of worker',
        ),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "ps", "index": 0}}', 'its cluster lists 0 of ps'),
        (
            '{"cluster": {"worker": ["a:1", "a:1"], "ps": ["b:1"]}, "task": {"type": "ps", "index": 0}}',
            'TF_CONFIG: worker 0 and worker 1 are both a:1',
        ),
    ],
)
def test_a_malformed_tf_config_is_named(text: str, reason: str) -> None:
    message = refusal({'TF_CONFIG': text})
    assert message.startswith('TF_CONFIG')
    assert reason in message


def test_an_evaluator_is_in_no_cluster_and_evaluates_until_training_ends() -> None:
    environ = tf_config('evaluator', 0, **TF_JOB)
    given = make_params(train_dir='/train', eval_during_training_every_n_steps=5, stop_at_top_1_accuracy=0.9)
    params = for_evaluator(given, environ)
    assert (params.eval, params.eval_interval_secs > 0, params.evaluates_in_training) == (True, True, False)
    assert find_cluster(params, environ) is None
    asked = for_evaluator(make_params(train_dir='/train', eval=True, eval_interval_secs=3), environ)
    assert asked.eval_interval_secs == 3
    with pytest.raises(UsageError, match='--train_dir'):
        for_evaluator(Params(), environ)


@pytest.mark.parametrize('mode', ['parameter_server', 'distributed_replicated', 'collective_all_reduce'])
def test_an_evaluator_takes_the_command_line_of_those_who_train_in_any_mode(mode: str) -> None:
    environ = tf_config('evaluator', 0, **TF_JOB)
    assert find_cluster(for_evaluator(make_params(train_dir='/train', variable_update=mode), environ), environ) is None


@pytest.mark.parametrize('flags', [{'job_name': 'worker', **HOSTS}, HOSTS, {'job_name': 'ps'}])
def test_an_evaluator_does_not_take_the_place_of_another(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as raised:
        for_evaluator(make_params(train_dir='/train', **flags), tf_config('evaluator', 0, **TF_JOB))
    assert ' contradicts TF_CONFIG, which makes this process an evaluator; leave' in str(raised.value)
    assert all(f'--{name}={value}' in str(raised.value) for name, value in flags.items())


@pytest.mark.parametrize('environ', [{}, tf_config('worker', 0, **TF_JOB), {'TF_CONFIG': '[1]'}, {'TF_CONFIG': '{'}])
def test_who_is_no_evaluator_does_what_its_flags_say(environ: Mapping[str, str]) -> None:
    assert for_evaluator(Params(), environ) == Params()


def test_who_trains_needs_not_know_of_an_evaluator() -> None:
    alone, beside = (
        find_cluster(Params(), tf_config('ps', 0, **TF_JOB, **more)) for more in ({}, {'evaluator': ['e:1']})
    )
    assert alone == beside


CONTRADICTIONS = [
    (
        tf_config('ps', 0, **TF_JOB),
        {'job_name': 'worker', 'task_index': 1},
        '--job_name=worker --task_index=1 contradicts TF_CONFIG, where this process is '
        'ps 0 (cnn-ps-0.train.svc:2222); leave out the flags, or unset TF_CONFIG',
    ),
    (
        tf_config('worker', 0, **TF_JOB),
        {'task_index': 0},
        '--task_index=0 contradicts TF_CONFIG, where this process is worker 1 (cnn-worker-0.train.svc:2222); ',
    ),
    (
        tf_config('worker', 0, worker=['a:1', 'b:1'], ps=['p:1']),
        {'worker_hosts': 'a:1,c:1', 'ps_hosts': 'p:1', 'job_name': 'worker', 'task_index': 0},
        '--worker_hosts=a:1,c:1 contradicts TF_CONFIG, whose worker hosts are a:1,b:1; ',
    ),
    (
        tf_config('worker', 0, worker=['a:1', 'b:1']),
        {'worker_hosts': 'a:1,b:1', 'ps_hosts': 'p:1', 'job_name': 'worker', 'task_index': 0},
        '--ps_hosts=p:1 contradicts TF_CONFIG, whose ps hosts are none; leave out the flag, or unset TF_CONFIG',
    ),
    (
        slurm_step(0),
        {'job_name': 'worker', 'task_index': 1},
        '--job_name=worker --task_index=1 contradicts Slurm (SLURM_PROCID=0), where this process is ps 0 (gpu01:',
    ),
    (
        open_mpi(1, 3, 3),
        {'job_name': 'ps'},
        '--job_name=ps contradicts Open MPI (OMPI_COMM_WORLD_RANK=1), where this process is worker 0 (127.0.0.1:',
    ),
]


@pytest.mark.parametrize(('environ', 'flags', 'message'), CONTRADICTIONS, ids=[m[:60] for _, _, m in CONTRADICTIONS])
def test_a_contradiction_shows_both_sides(environ: dict[str, str], flags: dict[str, Any], message: str) -> None:
    assert message in refusal(environ, **flags)


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


# 1207 % 300 = 7, and 10000 + 64 * 7 = 10448.
SLURM_HOSTS = ('gpu01:10448', 'gpu01:10449', 'gpu01:10450', 'gpu02:10448', 'gpu03:10448')


def test_the_first_tasks_of_a_slurm_step_are_the_parameter_servers() -> None:
    for rank in range(5):
        cluster = found(slurm_step(rank), num_ps=2)
        job, index = ('ps', rank) if rank < 2 else ('worker', rank - 2)
        assert cluster == Cluster(SLURM_HOSTS[:2], SLURM_HOSTS[2:], job, index, 'Slurm')
        assert cluster.own.host == SLURM_HOSTS[rank]


def test_all_tasks_of_a_slurm_step_are_workers_of_a_collective() -> None:
    assert found(slurm_step(3), **COLLECTIVE) == Cluster((), SLURM_HOSTS, 'worker', 3, 'Slurm')


def test_the_ports_of_a_step_begin_where_asked() -> None:
    hosts = found(slurm_step(3), cluster_port=2222, **COLLECTIVE).worker_hosts
    assert hosts == ('gpu01:2222', 'gpu01:2223', 'gpu01:2224', 'gpu02:2222', 'gpu03:2222')


@given(job=st.integers(1, 2**31), step=st.integers(0, 10_000))
def test_derived_ports_are_not_the_systems(job: int, step: int) -> None:
    environ = slurm_step(0, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step))
    ports = [int(host.rpartition(':')[2]) for host in found(environ, **COLLECTIVE).worker_hosts]
    # From 30000 they are those of Kubernetes, from 32768 of Linux itself.
    assert all(1024 <= port < 30000 for port in ports)


def test_jobs_in_a_row_and_steps_at_the_same_time_have_ports_of_their_own() -> None:
    ids = [(job, step) for job in range(40) for step in range(3)]
    environs = [slurm_step(0, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)) for job, step in ids]
    ports = [host for environ in environs for host in set(found(environ, **COLLECTIVE).worker_hosts)]
    assert len(set(ports)) == len(ports)


def test_the_ports_of_a_node_must_exist() -> None:
    assert refusal(slurm_step(4), cluster_port=65534, **COLLECTIVE).startswith(
        '--cluster_port=65534: the ports of a node would end at 65536, above 65535'
    )
    assert found(slurm_step(4), cluster_port=65533, **COLLECTIVE).worker_hosts[2] == 'gpu01:65535'


@pytest.mark.parametrize(
    'environ',
    [
        slurm_batch(),
        # `srun --ntasks=1` and the shell of `salloc`.
        slurm_step(0, SLURM_STEP_NUM_TASKS='1', SLURM_STEP_TASKS_PER_NODE='1', SLURM_STEP_NODELIST='gpu01'),
        open_mpi(0, 1, 1),
        pmix(0),
    ],
    ids=['batch script', 'step of one task', 'mpirun -np 1', 'first rank of PMIx'],
)
def test_what_was_started_alone_is_one_process(environ: dict[str, str]) -> None:
    assert find(environ) is None


def test_a_step_on_one_node_talks_over_loopback() -> None:
    environ = slurm_step(
        1, SLURM_STEP_NODELIST='gpu01', SLURM_STEP_NUM_TASKS='2', SLURM_STEP_TASKS_PER_NODE='2', SLURM_JOB_ID='0'
    )
    assert found(environ) == Cluster(('127.0.0.1:10000',), ('127.0.0.1:10001',), 'worker', 0, 'Slurm')


def test_steps_that_slurms_own_pmix_serves_are_steps_of_slurm() -> None:
    environ = slurm_step(3, PMIX_NAMESPACE='slurm.pmix.1207.0', PMIX_RANK='3')
    assert found(environ) == found(slurm_step(3))


@pytest.mark.parametrize('rank', range(5))
def test_a_cyclic_distribution_is_refused_by_every_task(rank: int) -> None:
    # Slurm's own numbers for 3, 1 and 1 tasks: rank 3 is back on the first node.
    node, local_rank = [('gpu01', 0), ('gpu02', 0), ('gpu03', 0), ('gpu01', 1), ('gpu01', 2)][rank]
    environ = slurm_step(rank, SLURMD_NODENAME=node, SLURM_LOCALID=str(local_rank), SLURM_DISTRIBUTION='cyclic')
    message = refusal(environ)
    assert message.startswith(f'SLURM_PROCID={rank}: Slurm did not fill one node after the other (gpu01 with 3, ')
    assert 'srun --distribution=block, or write --ps_hosts=HOST:PORT,... with 1 and --worker_hosts=' in message


def test_one_task_on_each_node_is_distributed_in_one_way_only() -> None:
    environ = slurm_step(
        3, SLURM_PROCID='1', SLURM_STEP_NUM_TASKS='3', SLURM_STEP_TASKS_PER_NODE='1(x3)', SLURM_DISTRIBUTION='cyclic'
    )
    assert str(found(environ).own) == 'worker 0 (gpu02:10448)'


@pytest.mark.parametrize(
    'changes',
    [
        {'SLURMD_NODENAME': 'gpu02'},
        {'SLURM_LOCALID': '2'},
        {'SLURM_STEP_NUM_TASKS': '6'},
        {'SLURM_STEP_NODELIST': 'gpu[01-02]'},
    ],
)
def test_a_task_that_is_not_where_its_rank_says_is_refused(changes: dict[str, str]) -> None:
    assert 'Slurm did not fill one node after the other' in refusal(slurm_step(1, **changes))


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'SLURM_PROCID': '5'}, 'SLURM_PROCID=5: it must be below SLURM_STEP_NUM_TASKS=5; name this process with'),
        ({'SLURM_PROCID': 'x'}, 'SLURM_PROCID=x: it must be a number'),
        ({'SLURM_STEP_NODELIST': 'gpu[01'}, "the node list of Slurm, 'gpu[01', cannot be read"),
        ({'SLURM_STEP_TASKS_PER_NODE': '3,(x2)'}, 'SLURM_STEP_TASKS_PER_NODE=3,(x2): it cannot be read'),
    ],
)
def test_slurm_variables_that_make_no_sense_are_named(changes: dict[str, str], message: str) -> None:
    assert message in refusal(slurm_step(1, **changes))


def test_at_least_one_rank_must_be_a_worker() -> None:
    assert refusal(slurm_step(0), num_ps=5) == (
        '--num_ps=5: Slurm started 5 processes (SLURM_STEP_NUM_TASKS=5), and one has to be a worker; '
        'start more, or write --num_ps=4'
    )


def test_the_ranks_of_open_mpi_on_one_node_talk_over_loopback() -> None:
    clusters = [found(open_mpi(rank, 3, 3), cluster_port=4000) for rank in range(3)]
    assert [str(cluster.own) for cluster in clusters] == [
        'ps 0 (127.0.0.1:4000)',
        'worker 0 (127.0.0.1:4001)',
        'worker 1 (127.0.0.1:4002)',
    ]
    assert {cluster.source for cluster in clusters} == {'Open MPI'}


def test_all_ranks_of_open_mpi_derive_the_same_port() -> None:
    specs = [found(open_mpi(rank, 3, 3)).spec for rank in range(3)]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0] != found(open_mpi(0, 3, 3, PMIX_NAMESPACE='another')).spec


def test_without_a_namespace_a_port_is_asked_for() -> None:
    environ = open_mpi(0, 2, 2)
    del environ['PMIX_NAMESPACE']
    assert refusal(environ).endswith('PMIX_NAMESPACE is not set, to derive a port from; add --cluster_port=PORT')
    assert found(environ, cluster_port=4000).own.host == '127.0.0.1:4000'


def test_open_mpi_in_a_slurm_job_runs_on_the_nodes_of_the_job() -> None:
    hosts = tuple(f'gpu0{node}:{port}' for node in (1, 2, 3) for port in (4000, 4001))
    for rank in range(6):
        cluster = found(open_mpi_in_slurm(rank), cluster_port=4000, **COLLECTIVE)
        assert cluster == Cluster((), hosts, 'worker', rank, 'Open MPI')


@pytest.mark.parametrize(
    'environ',
    [
        open_mpi_in_slurm(1, OMPI_COMM_WORLD_LOCAL_RANK='0', SLURMD_NODENAME='gpu02'),
        open_mpi_in_slurm(0, OMPI_COMM_WORLD_SIZE='5'),
        open_mpi_in_slurm(0, OMPI_COMM_WORLD_LOCAL_SIZE='1'),
    ],
    ids=['--map-by node', 'another number on the last node', 'the last node'],
)
def test_open_mpi_that_does_not_fill_the_nodes_alike_is_refused(environ: dict[str, str]) -> None:
    message = refusal(environ)
    assert 'Open MPI did not fill one node after the other' in message
    assert 'srun in place of mpirun' in message


def test_open_mpi_on_hosts_that_nobody_names_says_what_to_write() -> None:
    assert refusal(open_mpi(2, 4, 2)) == (
        'OMPI_COMM_WORLD_RANK=2: the environment of Open MPI does not tell on which hosts the other processes are; '
        'write --ps_hosts=HOST:PORT,... with 1 and --worker_hosts=HOST:PORT,... with 3 hosts in the order of the '
        'ranks, and leave out --job_name and --task_index'
    )
    assert 'write --worker_hosts=HOST:PORT,... with 4 hosts in the order' in refusal(open_mpi(2, 4, 2), **COLLECTIVE)


def test_a_later_rank_of_pmix_says_what_to_write() -> None:
    assert refusal(pmix(1)) == (
        'PMIX_RANK=1: the environment of PMIx does not tell on which hosts the other processes are; write '
        '--ps_hosts=HOST:PORT,... with 1 and --worker_hosts=HOST:PORT,... with the other hosts in the order of the '
        'ranks, and leave out --job_name and --task_index'
    )


@pytest.mark.parametrize(
    ('environ', 'flags', 'message'),
    [
        (
            open_mpi(0, 4, 2),
            HOSTS,
            '--ps_hosts and --worker_hosts have 3 hosts, and Open MPI started 4 processes (OMPI_COMM_WORLD_SIZE=4); ',
        ),
        (open_mpi(0, 2, 2), HOSTS, 'have 3 hosts, and Open MPI started 2 processes'),
        (open_mpi(0, 2, 2), {'worker_hosts': 'a:1'}, 'have 1 host, and Open MPI started 2 processes'),
        (pmix(3), HOSTS, 'have 3 hosts, and PMIx started at least 4 processes (PMIX_RANK=3); start as many as'),
        (slurm_step(1), HOSTS, 'have 3 hosts, and Slurm started 5 processes (SLURM_STEP_NUM_TASKS=5)'),
        (
            open_mpi(0, 3, 3),
            {**HOSTS, 'job_name': 'worker'},
            '--job_name=worker without --task_index: Open MPI started several processes (OMPI_COMM_WORLD_RANK=0); add '
            '--task_index, or leave out both flags to take them from the rank',
        ),
    ],
)
def test_ranks_must_fit_the_hosts_of_the_flags(environ: dict[str, str], flags: dict[str, Any], message: str) -> None:
    assert message in refusal(environ, **flags)


# Each mode in one process, with workers only, and with workers and a ps: what is said, None if it works.
MODES = {
    'parameter_server': (None, 'needs parameter servers, and here are 2 workers and 0 ps (the flags)', None),
    'distributed_replicated': ('needs a cluster', 'needs parameter servers', None),
    'collective_all_reduce': (None, None, 'has no parameter servers, and here are 2 workers and 1 ps (the flags)'),
    'replicated': (None, *['works within one process, and here are 2 workers and '] * 2),
    'independent': (None, *['works within one process, and here are 2 workers and '] * 2),
    'distributed_all_reduce': ('needs a cluster', 'needs a controller', 'has no parameter servers'),
    'horovod': (None,) * 3,
}
CLUSTERS = (None, Cluster((), WORKERS, 'worker', 0, 'the flags'), Cluster(PS, WORKERS, 'worker', 0, 'the flags'))


@pytest.mark.parametrize(
    ('mode', 'cluster', 'message'),
    [(mode, c, message) for mode, row in MODES.items() for c, message in zip(CLUSTERS, row, strict=True)],
)
def test_each_mode_works_in_its_clusters_only(mode: str, cluster: Cluster | None, message: str | None) -> None:
    params = Params(variable_update=mode)
    if message is None:
        check_mode(params, cluster)
    else:
        with pytest.raises(UsageError, match=re.escape(f'--variable_update={mode} {message}')):
            check_mode(params, cluster)


@pytest.mark.parametrize('mode', ['replicated', 'independent'])
def test_a_mode_of_one_process_names_those_of_several(mode: str) -> None:
    message = refusal(**HOSTS, job_name='worker', variable_update=mode)
    assert message.endswith('write --variable_update=parameter_server, distributed_replicated or collective_all_reduce')


@pytest.mark.parametrize(
    ('mode', 'flags'),
    [
        ('distributed_replicated', HOSTS),
        ('collective_all_reduce', {'worker_hosts': 'a:1,b:1'}),
        ('distributed_all_reduce', {'worker_hosts': 'a:1', 'controller_host': 'b:1'}),
    ],
)
def test_synchronous_modes_refuse_to_be_asynchronous(mode: str, flags: dict[str, Any]) -> None:
    message = refusal(**flags, job_name='worker', variable_update=mode, cross_replica_sync=False)
    assert message.startswith(
        f'--cross_replica_sync=False: with --variable_update={mode} workers always take each step'
    )
    assert found(**HOSTS, job_name='worker', cross_replica_sync=False).num_ps == 1


def test_horovod_finds_its_processes_itself() -> None:
    assert find(open_mpi(1, 4, 2), variable_update='horovod') is None


@pytest.mark.parametrize(
    ('host', 'is_public'),
    [
        ('127.0.0.1', False),
        ('127.9.9.9', False),
        ('10.1.2.3', False),
        ('172.15.0.1', True),
        ('172.16.0.1', False),
        ('172.32.0.1', True),
        ('192.168.7.7', False),
        ('192.0.2.1', True),
        ('100.64.0.1', False),
        ('169.254.1.1', False),
        ('8.8.8.8', True),
        ('[::1]', False),
        ('[fd00::1]', False),
        ('[fe80::1]', False),
        ('[::ffff:10.0.0.1]', False),
        ('[::ffff:8.8.8.8]', True),
        ('[2001:4860:4860::8888]', True),
        ('localhost', False),
    ],
)
def test_hosts_outside_of_private_networks_are_public(host: str, is_public: bool) -> None:
    cluster = Cluster((), (f'{host}:2222', '127.0.0.1:2222'), 'worker', 0, 'the flags')
    assert cluster.public_hosts() == ((host.strip('[]'),) if is_public else ())


def resolve(addresses: Mapping[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(name: str, port: None) -> list[tuple[Any, ...]]:
        if name not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (address, 0)) for address in addresses[name]]

    monkeypatch.setattr(socket, 'getaddrinfo', look_up)


def test_a_name_is_public_if_one_of_its_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve({'inside': ['10.0.0.1'], 'both': ['10.0.0.2', '8.8.4.4']}, monkeypatch)
    cluster = Cluster(('both:1', 'gone:1'), ('inside:1', 'both:2'), 'worker', 0, 'the flags')
    assert cluster.public_hosts() == ('both',)


def test_a_name_server_that_does_not_answer_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, 'getaddrinfo', lambda name, port: answered.wait() and [])
    monkeypatch.setattr('cluster.members._RESOLVE_SECS', 0.01)
    try:
        assert Cluster(('a:1',), ('b:1',), 'worker', 0, 'the flags').public_hosts() == ()
    finally:
        answered.set()


# As `scontrol show hostnames` of Slurm 22.05 writes them; it takes no text behind brackets, as in the last one.
@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('login1', 'login1'),
        ('gpu[01-03,07],login1', 'gpu01 gpu02 gpu03 gpu07 login1'),
        ('rack[0-1]node[0-1]', 'rack0node0 rack0node1 rack1node0 rack1node1'),
        ('tux[1-2][3-4]', 'tux13 tux14 tux23 tux24'),
        ('n[098-101]', 'n098 n099 n100 n101'),
        ('n[9-010]', 'n9 n10'),
        ('n[01-3]', 'n01 n02 n03'),
        ('a[1,1]', 'a1 a1'),
        ('gpu-a.lan,b', 'gpu-a.lan b'),
        ('a[1-2]-ib,b', 'a1-ib a2-ib b'),
    ],
)
def test_node_lists_are_read_as_slurm_reads_them(text: str, names: str) -> None:
    assert expand_nodes(text) == names.split()


@pytest.mark.parametrize('text', ['', 'a[', 'a[1-2', 'a]', 'a[]', 'a[x]', 'a[1-2-3]', 'a,,b', 'a,', 'a b', '(null)'])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match='cannot be read'):
        expand_nodes(text)


@st.composite
def node_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A compressed list, and its names written out one by one."""
    items, names = [], []
    for _ in range(draw(st.integers(1, 3))):
        text, choices = draw(st.from_regex('[a-z][a-z0-9.-]{0,4}', fullmatch=True)), []
        choices.append([text])
        for _ in range(draw(st.integers(0, 2))):
            spans, numbers = [], []
            for _ in range(draw(st.integers(1, 3))):
                first, width, more = draw(st.integers(0, 200)), draw(st.integers(1, 4)), draw(st.integers(0, 4))
                written = [str(first + i).rjust(max(width, len(str(first))), '0') for i in range(more + 1)]
                spans.append(f'{written[0]}-{written[-1]}' if more else written[0])
                numbers += written
            suffix = draw(st.sampled_from(['', '-ib', 'n']))
            text += f'[{",".join(spans)}]{suffix}'
            choices.append([number + suffix for number in numbers])
        items.append(text)
        names += [''.join(parts) for parts in itertools.product(*choices)]
    return ','.join(items), names


@given(node_lists())
def test_node_lists_expand_to_the_names_they_were_made_of(case: tuple[str, list[str]]) -> None:
    text, names = case
    assert expand_nodes(text) == names


@pytest.mark.parametrize(('text', 'counts'), [('4', [4]), ('2(x3),1', [2, 2, 2, 1]), ('1,12(x2)', [1, 12, 12])])
def test_task_counts_are_read_as_slurm_writes_them(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts


def test_members_load_no_tensorflow() -> None:
    code = 'import cluster.members, sys; assert "tensorflow" not in sys.modules'
    subprocess.run([sys.executable, '-c', code], check=True, timeout=60)
