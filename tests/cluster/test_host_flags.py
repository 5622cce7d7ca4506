"""The flags that name the hosts of a cluster and the task of this process, and the modes that work
in that cluster.
"""

from typing import Any

import pytest

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
    slurm_step,
    tf_config,
)
from tests.support.outputs import refused
from tf_cnn.cluster.discovery import check_mode
from tf_cnn.cluster.topology import Cluster
from tf_cnn.run.params import Params
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit

WORKER_0, WORKER_1 = (Cluster(PS, WORKERS, 'worker', index, FLAGS) for index in (0, 1))
AS_WORKER_1 = {'job_name': 'worker', 'task_index': 1}


@pytest.mark.parametrize(
    ('flags', 'environ', 'cluster'),
    [
        ({**HOSTS, **AS_WORKER_1}, {}, WORKER_1),
        (
            {
                'ps_hosts': ' 10.0.0.1:2222 ',
                'worker_hosts': '10.0.0.2:2222 , 10.0.0.3:2222',
                'job_name': 'ps',
            },
            {},
            Cluster(PS, WORKERS, 'ps', 0, FLAGS),
        ),
        (
            {
                'worker_hosts': 'gpu-1.lan:1,[::1]:65535,[fd00::1%eth0]:1',
                'job_name': 'worker',
                **COLLECTIVE,
            },
            {},
            Cluster((), ('gpu-1.lan:1', '[::1]:65535', '[fd00::1%eth0]:1'), 'worker', 0, FLAGS),
        ),
        ({**CONTROLLED, 'job_name': 'controller'}, {}, controlled('controller', 0)),
        # A list may end with a comma.
        ({**HOSTS, 'worker_hosts': f'{",".join(WORKERS)}, ', **AS_WORKER_1}, {}, WORKER_1),
        ({**CONTROLLED, **AS_WORKER_1}, {}, controlled('worker', 1)),
        # The rank of a launcher counts where the flags name no role.
        ({**HOSTS, **AS_WORKER_1}, slurm_step(0), WORKER_1),
        ({**HOSTS, 'job_name': 'ps'}, open_mpi(2, 3, 3), Cluster(PS, WORKERS, 'ps', 0, FLAGS)),
        (HOSTS, open_mpi(2, 3, 1), WORKER_1),
        (HOSTS, slurm_step(2, SLURM_STEP_NUM_TASKS='3'), WORKER_1),
        (
            HOSTS,
            tf_config('worker', 1, ps=list(PS), worker=list(WORKERS)),
            Cluster(PS, WORKERS, 'worker', 1, 'TF_CONFIG'),
        ),
    ],
)
def test_flags_name_the_cluster(
    flags: dict[str, Any], environ: dict[str, str], cluster: Cluster
) -> None:
    assert find(environ, **flags) == cluster


@pytest.mark.parametrize(
    'flags',
    [
        {},
        {'task_index': 0},
        {
            'job_name': 'worker',
            'task_index': 0,
            'worker_hosts': 'a:1',
            'variable_update': 'replicated',
        },
        {'worker_hosts': 'a:1'},
        {'worker_hosts': 'a:1', 'task_index': 0},
    ],
)
def test_one_worker_alone_is_one_process(flags: dict[str, Any]) -> None:
    assert find(**flags) is None


@pytest.mark.parametrize('host', ['[zz::1]', '[fd00::1::2]', '10.0.0.256', '1.2.3.4444'])
def test_an_address_that_no_host_can_have_is_refused(host: str) -> None:
    with refused('--worker_hosts=', host.strip('[]'), 'is not a valid address'):
        find(**{**HOSTS, **AS_WORKER_1, 'worker_hosts': f'a:1,{host}:5'})


@pytest.mark.parametrize('workers', [None, 'b:1'])
def test_all_that_a_controller_needs_is_told_at_once(workers: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        find(controller_host='a:1', worker_hosts=workers)
    missing = ['--variable_update=distributed_all_reduce', '--job_name', '--task_index']
    for fact in missing if workers else [*missing, '--worker_hosts=HOST:PORT']:
        assert any(fact in line for line in caught.value.lines), fact
    # Done as told, it works.
    mode: dict[str, Any] = {
        'variable_update': 'distributed_all_reduce',
        'job_name': 'controller',
        'task_index': 0,
    }
    assert find(controller_host='a:1', worker_hosts=workers or 'b:1', **mode) is not None


ROLES = ('--job_name=worker', '--task_index')
NO_CONTROLLER = ('--variable_update=parameter_server', '--variable_update=distributed_all_reduce')


@pytest.mark.parametrize(
    ('flags', 'facts'),
    [
        (
            {**HOSTS, 'job_name': 'worker', 'task_index': 3},
            ('--task_index=3', '--worker_hosts', '2 hosts'),
        ),
        ({'job_name': 'worker', 'task_index': 0}, (*ROLES, '--worker_hosts=', '--ps_hosts=')),
        (HOSTS, (f'--worker_hosts={",".join(WORKERS)}', '--job_name=ps', *ROLES)),
        ({'job_name': 'ps', 'worker_hosts': 'a:1'}, ('--job_name=ps', '--ps_hosts=HOST:PORT')),
        ({'job_name': 'ps', 'ps_hosts': 'a:1'}, ('--ps_hosts=a:1', '--worker_hosts=HOST:PORT')),
        (
            {'job_name': 'controller', **HOSTS},
            ('--job_name=controller', '--controller_host=HOST:PORT'),
        ),
        (
            {'controller_host': 'a:1', 'job_name': 'worker', 'worker_hosts': 'b:1'},
            ('--controller_host', *NO_CONTROLLER),
        ),
        (
            {'controller_host': 'a:1', 'job_name': 'worker', **HOSTS},
            ('--controller_host=a:1', *NO_CONTROLLER),
        ),
        (
            {'ps_hosts': 'A:1', 'job_name': 'worker', 'worker_hosts': 'a:1,b:1'},
            ('a:1', 'HOST:PORT'),
        ),
        ({**CONTROLLED, 'controller_host': 'a:1,b:1'}, ('--controller_host=a:1,b:1', 'HOST:PORT')),
        (
            {**CONTROLLED, 'worker_hosts': None},
            ('--controller_host=10.0.0.9:2222', '--worker_hosts=HOST:PORT'),
        ),
        (CONTROLLED, (f'--worker_hosts={",".join(WORKERS)}', '--job_name=controller', *ROLES)),
        (
            {'job_name': 'worker', 'worker_hosts': 'a:1,a:01'},
            ('--worker_hosts', 'a:1', 'twice', 'HOST:PORT'),
        ),
    ],
)
def test_wrong_flags_are_refused(flags: dict[str, Any], facts: tuple[str, ...]) -> None:
    with refused(*facts):
        find(**flags)


@pytest.mark.parametrize('entry', ['a', 'a:65536', '', '::1:2222', 'grpc://a:1', 'a:\u0661'])
def test_each_host_is_host_and_port(entry: str) -> None:
    written = repr(entry) if entry else 'an empty entry'
    with refused(
        f'--worker_hosts=a:1,{entry},b:1', written, '1', '65535', '10.0.0.1:2222', '[fd00::1]:2222'
    ):
        find(worker_hosts=f'a:1,{entry},b:1', job_name='worker')


TWO_WORKERS: dict[str, Any] = {'worker_hosts': 'a:1,b:1', 'job_name': 'worker', 'task_index': 0}


@pytest.mark.parametrize(
    ('environ', 'flags', 'facts'),
    [
        (
            tf_config('ps', 0, **TF_JOB),
            AS_WORKER_1,
            ('--job_name=worker', '--task_index=1', 'TF_CONFIG', 'ps 0 (cnn-ps-0.train.svc:2222)'),
        ),
        (
            tf_config('worker', 0, **TF_JOB),
            {'task_index': 0},
            ('--task_index=0', 'TF_CONFIG', 'worker 1 (cnn-worker-0.train.svc:2222)'),
        ),
        (
            tf_config('worker', 0, worker=['a:1', 'c:1']),
            TWO_WORKERS,
            ('--worker_hosts=a:1,b:1', 'TF_CONFIG', 'a:1,c:1'),
        ),
        (
            tf_config('worker', 0, worker=['a:1', 'b:1']),
            {**TWO_WORKERS, 'ps_hosts': 'p:1'},
            ('--ps_hosts=p:1', 'TF_CONFIG'),
        ),
        (
            slurm_step(0),
            AS_WORKER_1,
            (
                '--job_name=worker',
                '--task_index=1',
                'Slurm',
                'SLURM_PROCID=0',
                'ps 0 (gpu01:',
                '--worker_hosts',
            ),
        ),
        (
            open_mpi(1, 3, 3),
            {'job_name': 'ps'},
            (
                '--job_name=ps',
                'Open MPI',
                'OMPI_COMM_WORLD_RANK=1',
                'worker 0 (127.0.0.1:',
                '--worker_hosts',
            ),
        ),
        # Ranks must fit the hosts of the flags.
        (
            open_mpi(0, 4, 2),
            HOSTS,
            ('--ps_hosts', '--worker_hosts', '3 ', 'Open MPI', 'OMPI_COMM_WORLD_SIZE=4'),
        ),
        (
            slurm_step(1),
            HOSTS,
            ('--ps_hosts', '--worker_hosts', '3 ', 'Slurm', 'SLURM_STEP_NUM_TASKS=5'),
        ),
    ],
)
def test_an_error_shows_the_flags_and_the_environment_that_contradict_each_other(
    environ: dict[str, str], flags: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with refused(*facts):
        find(environ, **flags)


@pytest.mark.parametrize(
    ('environ', 'flags'),
    [
        (
            tf_config('ps', 0, **TF_JOB),
            {'job_name': 'ps', 'task_index': 0, 'ps_hosts': ' cnn-ps-0.train.svc:2222'},
        ),
        (slurm_step(2), AS_WORKER_1),
        (open_mpi(0, 3, 3), {'job_name': 'ps'}),
    ],
)
def test_flags_that_agree_with_the_environment_change_nothing(
    environ: dict[str, str], flags: dict[str, Any]
) -> None:
    assert find(environ, **flags) == found(environ)


# ---- modes ---------------------------------------------------------------------------------------

PS_MODE, REPLICATED, COLLECTIVE_MODE, ALONE = (
    f'--variable_update={mode}'
    for mode in (
        'parameter_server',
        'distributed_replicated',
        'collective_all_reduce',
        'replicated',
    )
)
# Each mode in one process, with workers only, and with workers and a ps: the facts that the error
# names, None if it works. An error about a cluster also names the number of its workers.
NEEDS_PS, HAS_NO_PS = ('--ps_hosts', COLLECTIVE_MODE), ('--ps_hosts', REPLICATED)
OTHERS = (('collective_all_reduce',), ('parameter_server', 'distributed_replicated'))
MODES: dict[str, tuple[tuple[str, ...] | None, ...]] = {
    'parameter_server': (None, NEEDS_PS, None),
    'distributed_replicated': (
        ('--job_name', '--task_index', '--ps_hosts', '--worker_hosts', ALONE),
        NEEDS_PS,
        None,
    ),
    'collective_all_reduce': (None, None, HAS_NO_PS),
    'replicated': (None, *OTHERS),
    'independent': (None, *OTHERS),
    'distributed_all_reduce': (
        ('--job_name', '--task_index', '--controller_host', '--worker_hosts', ALONE),
        ('--controller_host=HOST:PORT', COLLECTIVE_MODE),
        HAS_NO_PS,
    ),
}


@pytest.mark.parametrize('mode', MODES)
def test_each_mode_works_in_its_clusters_only(mode: str) -> None:
    params = Params().replace(variable_update=mode)
    for cluster, facts in zip(
        (None, Cluster((), WORKERS, 'worker', 0, FLAGS), WORKER_0), MODES[mode], strict=True
    ):
        if facts is None:
            check_mode(params, cluster)
        else:
            with refused(f'--variable_update={mode}', *(['2 workers'] if cluster else []), *facts):
                check_mode(params, cluster)


@pytest.mark.parametrize(
    ('mode', 'flags'),
    [
        ('distributed_replicated', HOSTS),
        ('collective_all_reduce', {'worker_hosts': 'a:1,b:1'}),
        ('distributed_all_reduce', {'worker_hosts': 'a:1', 'controller_host': 'b:1'}),
    ],
)
def test_synchronous_modes_refuse_to_be_asynchronous(mode: str, flags: dict[str, Any]) -> None:
    with refused('--cross_replica_sync=False', f'--variable_update={mode}', PS_MODE):
        find(**flags, job_name='worker', variable_update=mode, cross_replica_sync=False)
    assert found(**HOSTS, job_name='worker', cross_replica_sync=False).num_ps == 1


def test_horovod_finds_its_processes_itself() -> None:
    for environ in ({}, open_mpi(1, 4, 2)):
        assert find(environ, variable_update='horovod') is None
