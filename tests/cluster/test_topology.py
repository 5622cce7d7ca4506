"""Clusters that flags name: their hosts, tasks and modes, and the first flag that differs between
two tasks.
"""

import dataclasses
import shlex
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.machines import TF_JOB, cluster_of, open_mpi, slurm_step, tf_config
from tests.support.outputs import check_line, refused
from tf_cnn.cluster.rendezvous import find_difference, shared_settings
from tf_cnn.cluster.topology import Cluster, Task, public_hosts
from tf_cnn.plan.discovery import check_mode, find_cluster
from tf_cnn.plan.params import Params, RuleContext
from tf_cnn.plan.parsing import make_params, parse_argv
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit


FLAGS = 'the flags'
PS, WORKERS = ('10.0.0.1:2222',), ('10.0.0.2:2222', '10.0.0.3:2222')
CLUSTER = Cluster(PS, WORKERS, 'worker', 1, FLAGS)


def controlled(job: str, index: int) -> Cluster:
    """Returns a cluster with a controller, seen from one of its tasks."""
    return Cluster((), WORKERS, job, index, FLAGS, ('10.0.0.9:2222',))


def test_a_cluster_lists_its_tasks_and_knows_whether_they_share_a_host():
    names = ['ps 0 (10.0.0.1:2222)', 'worker 0 (10.0.0.2:2222)', 'worker 1 (10.0.0.3:2222)']
    assert [*map(str, CLUSTER.tasks)] == names
    assert CLUSTER.spec == {'ps': list(PS), 'worker': list(WORKERS)}
    assert not CLUSTER.is_on_one_host
    assert Cluster(('10.0.0.2:1',), WORKERS[:1], 'worker', 0, FLAGS).is_on_one_host


def test_workers_of_a_controller_serve_it():
    workers = tuple(Task('worker', index, host) for index, host in enumerate(WORKERS))
    for task in (*workers, Task('controller', 0, '10.0.0.9:2222')):
        cluster = controlled(task.job, task.index)
        assert cluster.own_task == task
        assert (cluster.servers, cluster.store_task) == (workers, workers[0])
        assert cluster.tasks == (*workers, *cluster.training_tasks)
        assert cluster.spec == {'worker': list(WORKERS), 'controller': ['10.0.0.9:2222']}
        assert (cluster.is_server, cluster.is_chief) == (task in workers, task not in workers)


def test_hosts_outside_of_private_networks_are_public():
    private = ['127.0.0.1', '10.1.2.3', '172.16.0.1', '100.64.0.1', '[::1]', 'localhost']
    for host in (*private, '172.32.0.1', '8.8.8.8', '[::ffff:8.8.8.8]', '[2001:4860:4860::8888]'):
        cluster = Cluster((), (f'{host}:2222', '127.0.0.1:2222'), 'worker', 0, FLAGS)
        expected = () if host in private else (host.strip('[]'),)
        assert public_hosts(cluster) == expected, host


def test_a_name_is_public_if_one_of_its_addresses_is(monkeypatch):
    addresses = {'inside': ['10.0.0.1'], 'both': ['10.0.0.2', '8.8.4.4']}

    def look_up(name: str, port: None) -> list[tuple[Any, ...]]:
        if name not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, '')
        return [(*kind, (address, 0)) for address in addresses[name]]

    monkeypatch.setattr(socket, 'getaddrinfo', look_up)
    cluster = Cluster(('both:1', 'gone:1'), ('inside:1', 'both:2'), 'worker', 0, FLAGS)
    assert public_hosts(cluster) == ('both',)


# ---- agreement -----------------------------------------------------------------------------------


def test_the_first_difference_names_the_flag_both_values_and_both_tasks():
    with_digest, digest = 'SHA-256 of --model_file', 64 * 'a'
    other = dataclasses.replace(CLUSTER, worker_hosts=('b:1',))
    rows: list[tuple[Mapping[str, Any], Mapping[str, Any], str, str]] = [
        (
            {'num_batches': 100, 'model': 'lenet'},
            {'num_batches': 90},
            '--num_batches=100',
            '--num_batches=90',
        ),
        ({'num_epochs': None}, {'num_epochs': 1.5}, 'no --num_epochs', '--num_epochs=1.5'),
        (
            {with_digest: None},
            {with_digest: digest},
            'no --model_file',
            f'--model_file with SHA-256 {digest[:12]}...',
        ),
        (
            {'training images': 8},
            {'training images': 7},
            '8 training images',
            '7 training images',
        ),
        (
            shared_settings(CLUSTER, {}),
            shared_settings(other, {}),
            f'--worker_hosts={",".join(WORKERS)}',
            '--worker_hosts=b:1',
        ),
    ]
    for first, second, of_first, of_second in rows:
        assert find_difference({'worker 0': first, 'worker 1': dict(first)}) is None, first
        difference = find_difference({'worker 0': first, 'worker 1': second})
        check_line(difference, f'{of_first} in worker 0', f'{of_second} in worker 1')


def test_a_server_compares_only_the_flags_that_affect_it():
    worker = make_params(model='lenet', num_batches=7).shared_flags(serves=False)
    server = make_params().shared_flags(serves=True)
    assert find_difference({'ps 0': server, 'worker 0': worker}) is None
    apart = make_params(cross_replica_sync=False).shared_flags(serves=True)
    assert find_difference({'ps 0': apart, 'worker 0': worker})


# ---- flags ---------------------------------------------------------------------------------------


WORKER_HOSTS = '--worker_hosts=10.0.0.2:2222,10.0.0.3:2222'
HOSTS = f'--ps_hosts=10.0.0.1:2222 {WORKER_HOSTS}'
CONTROLLER = '--controller_host=10.0.0.9:2222 --variable_update=distributed_all_reduce'
COLLECTIVE = '--variable_update=collective_all_reduce'
AS_WORKER_1 = '--job_name=worker --task_index=1'
WORKER_0 = Cluster(PS, WORKERS, 'worker', 0, FLAGS)
PS_0 = Cluster(PS, WORKERS, 'ps', 0, FLAGS)


def find(flags: str, environ: dict[str, str] | None = None) -> Cluster | None:
    return find_cluster(parse_argv(shlex.split(flags)).params, environ or {})


def assert_refused(flags: str, facts: str, environ: dict[str, str] | None = None) -> None:
    with refused(*facts.split(', ')):
        cluster = find(flags, environ)
        pytest.fail(f'{flags} makes {cluster}')


def test_flags_name_the_cluster():
    ipv6 = '--worker_hosts=gpu-1.lan:1,[::1]:65535,[fd00::1%eth0]:1'
    spaces = "--ps_hosts=' 10.0.0.1:2222 ' --worker_hosts='10.0.0.2:2222 , 10.0.0.3:2222'"
    hosts = ('gpu-1.lan:1', '[::1]:65535', '[fd00::1%eth0]:1')
    for flags, cluster in (
        (f'{HOSTS} {AS_WORKER_1}', CLUSTER),
        (f'{spaces} --job_name=ps', PS_0),
        (f'{ipv6} --job_name=worker {COLLECTIVE}', Cluster((), hosts, 'worker', 0, FLAGS)),
        (f'{CONTROLLER} {WORKER_HOSTS} --job_name=controller', controlled('controller', 0)),
        (f'{CONTROLLER} {WORKER_HOSTS} {AS_WORKER_1}', controlled('worker', 1)),
        # A list may end with a comma.
        (f"{HOSTS}', ' {AS_WORKER_1}", CLUSTER),
    ):
        assert find(flags) == cluster, flags


def test_the_rank_of_a_launcher_counts_where_the_flags_name_no_role():
    of_tf_config = Cluster(PS, WORKERS, 'worker', 1, 'TF_CONFIG')
    for flags, environ, cluster in (
        (f'{HOSTS} {AS_WORKER_1}', slurm_step(0), CLUSTER),
        (f'{HOSTS} --job_name=ps', open_mpi(2, 3, 3), PS_0),
        (HOSTS, open_mpi(2, 3, 1), CLUSTER),
        (HOSTS, slurm_step(2, SLURM_STEP_NUM_TASKS='3'), CLUSTER),
        (HOSTS, tf_config('worker', 1, ps=list(PS), worker=list(WORKERS)), of_tf_config),
    ):
        assert find(flags, environ) == cluster, (flags, environ)


def test_one_worker_alone_is_one_process():
    for flags in (
        '',
        '--task_index=0',
        '--worker_hosts=a:1 --job_name=worker --task_index=0 --variable_update=replicated',
        '--worker_hosts=a:1',
        '--worker_hosts=a:1 --task_index=0',
    ):
        assert find(flags) is None, flags


@pytest.mark.parametrize(
    ('workers', 'missing'),
    [('', ['--worker_hosts=HOST:PORT']), ('--worker_hosts=b:1', [])],
)
def test_everything_that_a_controller_lacks_is_reported_together(workers, missing):
    mode = '--variable_update=distributed_all_reduce'
    with pytest.raises(UsageError) as caught:
        find(f'--controller_host=a:1 {workers}')
    for fact in (mode, '--job_name', '--task_index', *missing):
        assert any(fact in line for line in caught.value.lines), fact
    # With these flags it works.
    role = '--job_name=controller --task_index=0'
    assert find(f'--controller_host=a:1 --worker_hosts=b:1 {mode} {role}')


def test_wrong_flags_are_refused():
    update, controller = '--variable_update=parameter_server', '--controller_host=a:1'
    controlled_update = '--variable_update=distributed_all_reduce'
    for flags, facts in (
        (f'{HOSTS} --job_name=worker --task_index=3', '--task_index=3, --worker_hosts, 2 hosts'),
        (
            '--job_name=worker --task_index=0',
            '--job_name=worker, --task_index, --worker_hosts=, --ps_hosts=',
        ),
        (HOSTS, f'{WORKER_HOSTS}, --job_name=ps, --job_name=worker, --task_index'),
        ('--job_name=ps --worker_hosts=a:1', '--job_name=ps, --ps_hosts=HOST:PORT'),
        ('--job_name=ps --ps_hosts=a:1', '--ps_hosts=a:1, --worker_hosts=HOST:PORT'),
        (f'--job_name=controller {HOSTS}', '--job_name=controller, --controller_host=HOST:PORT'),
        (
            f'{controller} --job_name=worker --worker_hosts=b:1',
            f'--controller_host, {update}, {controlled_update}',
        ),
        (
            f'{controller} --job_name=worker {HOSTS}',
            f'{controller}, {update}, {controlled_update}',
        ),
        ('--ps_hosts=A:1 --job_name=worker --worker_hosts=a:1,b:1', 'a:1, HOST:PORT'),
        (
            f'{CONTROLLER} {WORKER_HOSTS} --controller_host=a:1,b:1',
            '--controller_host=a:1,b:1, HOST:PORT',
        ),
        (CONTROLLER, '--controller_host=10.0.0.9:2222, --worker_hosts=HOST:PORT'),
        (
            f'{CONTROLLER} {WORKER_HOSTS}',
            f'{WORKER_HOSTS}, --job_name=controller, --job_name=worker, --task_index',
        ),
        ('--job_name=worker --worker_hosts=a:1,a:01', '--worker_hosts, a:1, twice, HOST:PORT'),
        ('--job_name=worker --worker_hosts=a:1,,b:1', 'an empty entry, 10.0.0.1:2222'),
        *(
            (f'--job_name=worker --worker_hosts=a:1,{entry}', f"'{entry}', 65535, [fd00::1]:2222")
            for entry in ('a', 'a:65536', '::1:2222', 'grpc://a:1', 'a:\u0661')
        ),
        *(
            (f'--job_name=worker --worker_hosts=a:1,{host}:5', f'{host}, is not a valid address')
            for host in ('[zz::1]', '[fd00::1::2]', '10.0.0.256', '1.2.3.4444')
        ),
    ):
        assert_refused(flags, facts)


def test_an_error_shows_the_flags_and_the_environment_that_contradict_each_other():
    two_workers = '--worker_hosts=a:1,b:1 --job_name=worker --task_index=0'
    for flags, environ, facts in (
        (
            AS_WORKER_1,
            tf_config('ps', 0, **TF_JOB),
            '--job_name=worker, --task_index=1, TF_CONFIG, ps 0 (cnn-ps-0.train.svc:2222)',
        ),
        (
            '--task_index=0',
            tf_config('worker', 0, **TF_JOB),
            '--task_index=0, TF_CONFIG, worker 1 (cnn-worker-0.train.svc:2222)',
        ),
        (
            two_workers,
            tf_config('worker', 0, worker=['a:1', 'c:1']),
            '--worker_hosts=a:1,b:1, TF_CONFIG, a:1,c:1',
        ),
        (
            f'{two_workers} --ps_hosts=p:1',
            tf_config('worker', 0, worker=['a:1', 'b:1']),
            '--ps_hosts=p:1, TF_CONFIG',
        ),
        (
            AS_WORKER_1,
            slurm_step(0),
            f'{AS_WORKER_1}, Slurm, SLURM_PROCID=0, ps 0 (gpu01:, --worker_hosts',
        ),
        (
            '--job_name=ps',
            open_mpi(1, 3, 3),
            '--job_name=ps, Open MPI, OMPI_COMM_WORLD_RANK=1, worker 0 (127.0.0.1:, --worker_hosts',
        ),
        # Ranks must fit the hosts of the flags.
        (
            HOSTS,
            open_mpi(0, 4, 2),
            '--ps_hosts, --worker_hosts, 3 , Open MPI, OMPI_COMM_WORLD_SIZE=4',
        ),
        (
            HOSTS,
            slurm_step(1),
            '--ps_hosts, --worker_hosts, 3 , Slurm, SLURM_STEP_NUM_TASKS=5',
        ),
    ):
        assert_refused(flags, facts, environ)


def test_flags_that_agree_with_the_environment_change_nothing():
    for flags, environ in (
        (
            "--job_name=ps --task_index=0 --ps_hosts=' cnn-ps-0.train.svc:2222'",
            tf_config('ps', 0, **TF_JOB),
        ),
        (AS_WORKER_1, slurm_step(2)),
        ('--job_name=ps', open_mpi(0, 3, 3)),
    ):
        assert find(flags, environ) == cluster_of(environ), flags


# ---- modes ---------------------------------------------------------------------------------------

NEEDS_PS = f'--ps_hosts {COLLECTIVE}'
HAS_NO_PS = '--ps_hosts --variable_update=distributed_replicated'
OTHER_MODES = ('collective_all_reduce', 'parameter_server distributed_replicated')


# For each mode, what the error names in one process, with workers only, and with workers and a ps;
# None if the mode works.
@pytest.mark.parametrize(
    ('mode', 'alone', 'workers', 'served'),
    [
        ('parameter_server', None, NEEDS_PS, None),
        (
            'distributed_replicated',
            '--job_name --task_index --ps_hosts --worker_hosts --variable_update=replicated',
            NEEDS_PS,
            None,
        ),
        ('collective_all_reduce', None, None, HAS_NO_PS),
        ('replicated', None, *OTHER_MODES),
        ('independent', None, *OTHER_MODES),
        (
            'distributed_all_reduce',
            '--job_name --task_index --controller_host --worker_hosts --variable_update=replicated',
            f'--controller_host=HOST:PORT {COLLECTIVE}',
            HAS_NO_PS,
        ),
    ],
)
def test_each_mode_works_in_its_clusters_only(mode, alone, workers, served):
    params = Params().with_values(variable_update=mode)
    only_workers = Cluster((), WORKERS, 'worker', 0, FLAGS)
    for cluster, facts in ((None, alone), (only_workers, workers), (WORKER_0, served)):
        if facts is None:
            check_mode(params, cluster)
            continue
        with refused(f'--variable_update={mode}', *facts.split()) as error:
            check_mode(params, cluster)
        assert ('2 workers' in str(error.value)) == (cluster is not None)


@pytest.mark.parametrize(
    'mode', ['distributed_replicated', 'collective_all_reduce', 'distributed_all_reduce']
)
def test_synchronous_modes_refuse_to_be_asynchronous(mode):
    params = Params().with_values(variable_update=mode, cross_replica_sync=False)
    params.check()
    facts = f'--variable_update={mode}', '--variable_update=parameter_server'
    with refused('--cross_replica_sync=False', *facts):
        params.check(RuleContext(is_single_process=False, is_residual=False))


@pytest.mark.parametrize('environ', [{}, open_mpi(1, 4, 2)])
def test_horovod_finds_its_processes_itself(environ):
    assert find('--variable_update=horovod', environ) is None
