"""All tasks of a cluster read what one has written to the key-value store."""

import time
from collections.abc import Callable, Iterator

import pytest
from local_cluster import DEADLINE_SECS, LocalCluster, local_clusters

from cluster.board import Board, BoardError

pytestmark = pytest.mark.graph


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., LocalCluster]]:
    with local_clusters() as make:
        yield make


def test_all_tasks_read_what_one_has_written(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    keeper = cluster.task('ps 0')
    stores = [Board(member.target, cluster.task(name), keeper) for name, member in members.items()]
    assert stores[1].read() == {}
    stores[1].post('großer Name', {'steps': [1, 2.5, None], 'is_done': False})
    stores[2].post('other', 'first')
    stores[2].post('other', 'second')
    expected = {'großer Name': {'steps': [1, 2.5, None], 'is_done': False}, 'other': 'second'}
    assert [store.read() for store in stores] == [expected] * 3


def test_the_store_is_lost_with_the_task_that_keeps_it(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(1, 1)
    members = cluster.start_all()
    worker, keeper = cluster.task('worker 0'), cluster.task('ps 0')
    store = Board(members['worker 0'].target, worker, keeper, timeout_secs=1)
    store.post('fact', 1)
    cluster.stop('ps 0')
    with pytest.raises(BoardError):
        store.read()
    cluster.start('ps 0')
    with pytest.raises(BoardError):
        store.read()
    assert Board(members['worker 0'].target, worker, keeper, timeout_secs=10).read() == {}


def test_a_task_reads_nothing_while_the_store_is_lost_and_then_finds_the_new_one(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(1, 1)
    rendezvous = cluster.start_all()['worker 0'].rendezvous
    rendezvous.post('fact', 1)
    assert rendezvous.facts() == {'fact': 1}
    cluster.stop('ps 0')
    assert rendezvous.facts() is None
    cluster.start('ps 0')
    deadline = time.monotonic() + DEADLINE_SECS
    while (facts := rendezvous.facts()) is None:
        assert time.monotonic() < deadline
    assert facts == {}
