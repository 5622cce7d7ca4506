"""Each mode works in some clusters; in the others one line says what to write."""

from typing import Any

import pytest

from cluster.discovery import check_mode
from cluster.topology import Cluster
from params import Params
from tests.support.machines import FLAGS, HOSTS, PS, WORKERS, find, found, open_mpi
from tests.support.outputs import refused

pytestmark = pytest.mark.unit

PS_MODE, REPLICATED, COLLECTIVE, CONTROLLED, ALONE = (
    f'--variable_update={mode}'
    for mode in (
        *('parameter_server', 'distributed_replicated', 'collective_all_reduce', 'distributed_all_reduce'),
        'replicated',
    )
)
# Each mode in one process, with workers only, and with workers and a ps: the facts that the error names, None if it
# works. An error about a cluster also names the number of its workers.
NEEDS_PS = ('--ps_hosts', COLLECTIVE)
HAS_NO_PS = ('--ps_hosts', REPLICATED)
WITH_SERVERS, AS_PEERS = (PS_MODE, 'distributed_replicated'), ('collective_all_reduce',)
MODES: dict[str, tuple[tuple[str, ...] | None, ...]] = {
    'parameter_server': (None, NEEDS_PS, None),
    'distributed_replicated': (('--job_name', '--task_index', '--ps_hosts', '--worker_hosts', ALONE), NEEDS_PS, None),
    'collective_all_reduce': (None, None, HAS_NO_PS),
    'replicated': (None, AS_PEERS, WITH_SERVERS),
    'independent': (None, AS_PEERS, WITH_SERVERS),
    'distributed_all_reduce': (
        ('--job_name', '--task_index', '--controller_host', '--worker_hosts', ALONE),
        ('--controller_host=HOST:PORT', COLLECTIVE),
        HAS_NO_PS,
    ),
}
CLUSTERS = (None, Cluster((), WORKERS, 'worker', 0, FLAGS), Cluster(PS, WORKERS, 'worker', 0, FLAGS))


@pytest.mark.parametrize(
    ('mode', 'cluster', 'facts'),
    [(mode, c, facts) for mode, row in MODES.items() for c, facts in zip(CLUSTERS, row, strict=True)],
)
def test_each_mode_works_in_its_clusters_only(
    mode: str, cluster: Cluster | None, facts: tuple[str, ...] | None
) -> None:
    params = Params(variable_update=mode)
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
