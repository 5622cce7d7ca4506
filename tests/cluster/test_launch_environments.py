"""A process that Slurm, Open MPI or another launcher started finds its cluster and its role in the
environment.
"""

import pytest

from tests.support.machines import (
    COLLECTIVE,
    cluster_of,
    find,
    hydra,
    open_mpi,
    slurm_batch,
    slurm_step,
    tf_config,
)
from tests.support.outputs import refused
from tf_cnn.cluster.environments import (
    check_alone,
    expand_counts,
    expand_nodes,
    find_rank_variables,
    remove_cluster_variables,
)
from tf_cnn.cluster.topology import Cluster

pytestmark = pytest.mark.unit

HOSTS_TO_WRITE = ('--ps_hosts=HOST:PORT', '--worker_hosts=HOST:PORT')


CONTROLLED = {'variable_update': 'distributed_all_reduce'}
CONTROLLER_FLAGS = ('--controller_host=', '--worker_hosts=')
NOT_IN_BLOCKS = ('SLURM_PROCID=1', 'srun --distribution=block', *HOSTS_TO_WRITE)
# Slurm's own numbers for 3, 1 and 1 tasks: rank 3 is back on the first node.
CYCLIC = {'SLURMD_NODENAME': 'gpu01', 'SLURM_LOCALID': '1', 'SLURM_DISTRIBUTION': 'cyclic'}


@pytest.mark.parametrize(
    ('environ', 'flags', 'facts'),
    [
        # Ranks alone do not show where a controller is.
        (slurm_step(0), CONTROLLED, ('SLURM_PROCID=0', *CONTROLLER_FLAGS)),
        (open_mpi(1, 4, 1), CONTROLLED, ('OMPI_COMM_WORLD_RANK=1', *CONTROLLER_FLAGS)),
        (
            slurm_step(3, **CYCLIC),
            {},
            ('gpu01 with 3, gpu02 with 1, gpu03 with 1', *NOT_IN_BLOCKS[1:]),
        ),
        # The task is not where its rank says.
        (slurm_step(1, SLURMD_NODENAME='gpu02'), {}, NOT_IN_BLOCKS),
        (slurm_step(1, SLURM_LOCALID='2'), {}, NOT_IN_BLOCKS),
        (slurm_step(1, SLURM_STEP_NUM_TASKS='6'), {}, NOT_IN_BLOCKS),
        (slurm_step(1, SLURM_STEP_NODELIST='gpu[01-02]'), {}, NOT_IN_BLOCKS),
        (slurm_step(1, SLURM_STEP_TASKS_PER_NODE=''), {}, NOT_IN_BLOCKS),
        (slurm_step(1, SLURM_PROCID='5'), {}, ('SLURM_PROCID=5', 'NUM_TASKS=5', '--task_index')),
        (slurm_step(1, SLURM_PROCID='x'), {}, ('SLURM_PROCID=x', '--job_name', '--task_index')),
        # At least one rank must be a worker.
        (slurm_step(0), {'num_ps': 5}, ('--num_ps=5', 'SLURM_STEP_NUM_TASKS=5', '--num_ps=4')),
    ],
)
def test_ranks_that_cannot_be_tasks_are_refused(environ, flags, facts):
    with refused(*facts):
        find(environ, **flags)


def test_a_process_that_was_started_alone_is_in_no_cluster():
    # `srun --ntasks=1` and the shell of `salloc`.
    alone = {'SLURM_STEP_NUM_TASKS': '1', 'SLURM_STEP_TASKS_PER_NODE': '1'}
    in_step = slurm_step(0, **alone, SLURM_STEP_NODELIST='gpu01')
    for environ in (slurm_batch(), in_step, open_mpi(0, 1, 1), hydra(0, 1, 1)):
        assert find(environ) is None, environ


# ---- Slurm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize('rank', range(5))
def test_the_first_tasks_of_a_slurm_step_are_the_parameter_servers(rank):
    # 1207 % 300 = 7, and 10000 + 64 * 7 = 10448.
    hosts = ('gpu01:10448', 'gpu01:10449', 'gpu01:10450', 'gpu02:10448', 'gpu03:10448')
    job, index = ('ps', rank) if rank < 2 else ('worker', rank - 2)
    cluster = Cluster(hosts[:2], hosts[2:], job, index, 'Slurm')
    assert cluster_of(slurm_step(rank), num_ps=2) == cluster
    # srun numbers its tasks for MPI, too.
    for_mpi = {'PMI_RANK': str(rank), 'PMI_SIZE': '5', 'PMI_FD': '9'}
    assert cluster_of(slurm_step(rank, **for_mpi), num_ps=2) == cluster
    expected = Cluster((), hosts, 'worker', rank, 'Slurm')
    assert cluster_of(slurm_step(rank), **COLLECTIVE) == expected


def test_a_step_on_one_node_talks_over_loopback():
    environ = slurm_step(
        1,
        SLURM_STEP_NODELIST='gpu01',
        SLURM_STEP_NUM_TASKS='2',
        SLURM_STEP_TASKS_PER_NODE='2',
        SLURM_JOB_ID='0',
    )
    hosts = ('127.0.0.1:10000',), ('127.0.0.1:10001',)
    assert cluster_of(environ) == Cluster(*hosts, 'worker', 0, 'Slurm')


def test_jobs_in_a_row_and_steps_at_the_same_time_have_ports_of_their_own():
    ids = [(job, step) for job in range(40) for step in range(3)]
    environs = [slurm_step(0, SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)) for job, step in ids]
    ports = [
        host for environ in environs for host in set(cluster_of(environ, **COLLECTIVE).worker_hosts)
    ]
    assert len(set(ports)) == len(ports)


def test_a_flag_sets_the_first_port_of_a_node():
    hosts = cluster_of(slurm_step(4), cluster_port=4000, **COLLECTIVE).worker_hosts
    assert hosts == ('gpu01:4000', 'gpu01:4001', 'gpu01:4002', 'gpu02:4000', 'gpu03:4000')


def test_one_task_on_each_node_is_distributed_in_one_way_only():
    environ = slurm_step(
        3,
        SLURM_PROCID='1',
        SLURM_STEP_NUM_TASKS='3',
        SLURM_STEP_TASKS_PER_NODE='1(x3)',
        SLURM_DISTRIBUTION='cyclic',
    )
    assert str(cluster_of(environ).own_task) == 'worker 0 (gpu02:10448)'


def test_node_lists_are_read_as_slurm_reads_them():
    # As `scontrol show hostnames` of Slurm 22.05 writes them. It does not accept text after
    # brackets, as in the last row.
    for text, names in (
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
    ):
        assert expand_nodes(text) == names.split(), text


def test_task_counts_are_read_as_slurm_writes_them():
    assert expand_counts('4') == [4]
    assert expand_counts('2(x3),1') == [2, 2, 2, 1]
    assert expand_counts('1,12(x2)') == [1, 12, 12]


# ---- Open MPI and others -------------------------------------------------------------------------


def test_the_ranks_of_open_mpi_on_one_node_talk_over_loopback():
    clusters = [cluster_of(open_mpi(rank, 3, 3), cluster_port=4000) for rank in range(3)]
    assert [str(cluster.own_task) for cluster in clusters] == [
        'ps 0 (127.0.0.1:4000)',
        'worker 0 (127.0.0.1:4001)',
        'worker 1 (127.0.0.1:4002)',
    ]
    assert {cluster.source for cluster in clusters} == {'Open MPI'}


def test_the_ranks_of_open_mpi_derive_their_ports_from_the_namespace():
    specs = [cluster_of(open_mpi(rank, 3, 3)).spec for rank in range(3)]
    assert specs[0] == specs[1] == specs[2]
    assert specs[0] != cluster_of(open_mpi(0, 3, 3, PMIX_NAMESPACE='another')).spec


def test_without_a_namespace_the_error_asks_for_a_port():
    environ = open_mpi(0, 2, 2)
    del environ['PMIX_NAMESPACE']
    with refused('OMPI_COMM_WORLD_RANK=0', '--cluster_port='):
        find(environ)
    assert cluster_of(environ, cluster_port=4000).own_task.host == '127.0.0.1:4000'


def torchrun(rank: int, size: int, local_size: int) -> dict[str, str]:
    return {
        'RANK': str(rank),
        'WORLD_SIZE': str(size),
        'LOCAL_RANK': str(rank % local_size),
        'LOCAL_WORLD_SIZE': str(local_size),
        'MASTER_PORT': '1',
    }


def test_ranks_of_other_launchers_on_one_host_join_as_open_mpis_do():
    horovodrun = {
        'HOROVOD_RANK': '1',
        'HOROVOD_SIZE': '2',
        'HOROVOD_LOCAL_RANK': '1',
        'HOROVOD_LOCAL_SIZE': '2',
    }
    hosts = ('127.0.0.1:4000',), ('127.0.0.1:4001',)
    for source, environ in (
        ('Hydra', hydra(1, 2, 2)),
        ('horovodrun', horovodrun),
        ('torchrun', {**slurm_step(0), **torchrun(1, 2, 2)}),
    ):
        assert cluster_of(environ, cluster_port=4000) == Cluster(*hosts, 'worker', 0, source)


@pytest.mark.parametrize(
    ('rank', 'environ'),
    [
        ('OMPI_COMM_WORLD_RANK=1: the environment of Open MPI', open_mpi(1, 3, 1)),
        ('PMI_RANK=1', hydra(1, 3, 1)),
        ('RANK=1', torchrun(1, 3, 1)),
        # mpirun in a job of Slurm may distribute its ranks in another way than srun.
        ('OMPI_COMM_WORLD_RANK=1', {**slurm_step(0), **open_mpi(1, 3, 1)}),
    ],
)
def test_ranks_on_several_hosts_need_flags_with_their_hosts(rank, environ):
    with refused(rank, '--worker_hosts=HOST:PORT,...', '--job_name', '--task_index') as error:
        find(environ, **COLLECTIVE)
    assert '--ps_hosts' not in str(error.value)
    with refused(rank, *HOSTS_TO_WRITE):
        find(environ)
    cluster = cluster_of(environ, worker_hosts='a:1,b:1,c:1', **COLLECTIVE)
    assert str(cluster.own_task) == 'worker 1 (b:1)'


# ---- alone ---------------------------------------------------------------------------------------


def variables(text: str) -> dict[str, str]:
    return dict(word.split('=') for word in text.split())


def test_the_rank_variable_of_a_process_without_a_cluster_is_named():
    for text in (
        'RANK=1 WORLD_SIZE=3',
        'RANK=0',
        'JOB_COMPLETION_INDEX=0',
        'FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2',
        'PMIX_RANK=1',
        'PMI_RANK=1 PMI_SIZE=3',
    ):
        assert find(variables(text)) is None, text
        assert (find_rank_variables(variables(text)) or '').startswith(text), text


def test_the_only_process_of_a_launcher_has_no_rank():
    for environ in (
        {},
        variables('RANK=0 WORLD_SIZE=1 SLURM_NTASKS=4 PMI_SIZE=1 PMI_RANK=0'),
        {'RANK': 'major'},
        open_mpi(0, 1, 1),
    ):
        assert find(environ) is None, environ
        assert find_rank_variables(environ) is None, environ


@pytest.mark.parametrize(
    ('environ', 'rank'),
    [
        (hydra(0, 2, 2), 'PMI_RANK=0'),
        (slurm_step(1), 'SLURM_PROCID=1'),
        (tf_config('worker', 0, worker=['a:1'], ps=['b:1']), 'TF_CONFIG'),
        (tf_config('evaluator', 0, worker=['a:1']), 'TF_CONFIG'),
    ],
)
def test_a_command_that_starts_runs_is_not_started_several_times(environ, rank):
    with refused(rank, 'sweep'):
        check_alone(environ, 'sweep', pytest.fail)


def test_runs_of_a_command_inherit_no_rank():
    ranks = {**hydra(0, 1, 1), **torchrun(0, 1, 1), 'JOB_COMPLETION_INDEX': '2'}
    run_environ = remove_cluster_variables({**ranks, 'LANG': 'C'})
    assert find_rank_variables(run_environ) is None
    assert run_environ['LANG'] == 'C'


def test_a_command_that_may_be_started_several_times_is_warned():
    warnings: list[str] = []
    check_alone({**hydra(0, 1, 1), 'JOB_COMPLETION_INDEX': '2'}, 'sweep', warnings.append)
    [line] = warnings
    assert 'JOB_COMPLETION_INDEX=2' in line
    # A batch script is one process.
    check_alone(slurm_batch(), 'sweep', pytest.fail)
