"""All tasks of a cluster read what one has written to the key-value store."""

import time
from collections.abc import Callable

import pytest

from cluster.server import KeyValueStore, StoreError
from tests.cluster.local_cluster import DEADLINE_SECS, LocalCluster

pytestmark = pytest.mark.graph


def test_all_tasks_read_what_one_has_written(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    cluster.start_all()
    stores = [KeyValueStore(cluster.task('ps 0')) for _ in range(3)]
    assert stores[1].get_all() == {}
    stores[1].put('großer Name', {'steps': [1, 2.5, None], 'is_done': False})
    stores[2].put('other', 'first')
    stores[2].put('other', 'second')
    expected = {'großer Name': {'steps': [1, 2.5, None], 'is_done': False}, 'other': 'second'}
    assert [store.get_all() for store in stores] == [expected] * 3


def test_the_store_is_lost_with_the_task_that_keeps_it(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(1, 1)
    cluster.start_all()
    store = KeyValueStore(cluster.task('ps 0'), timeout_secs=1)
    store.put('fact', 1)
    cluster.stop('ps 0')
    with pytest.raises(StoreError):
        store.get_all()
    cluster.start('ps 0')
    with pytest.raises(StoreError):
        store.get_all()
    assert KeyValueStore(cluster.task('ps 0'), timeout_secs=10).get_all() == {}


def test_a_task_reads_nothing_while_the_store_is_lost_and_then_finds_the_new_one(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(1, 1)
    rendezvous = cluster.start_all()['worker 0'].rendezvous
    rendezvous.put('fact', 1)
    assert rendezvous.entries() == {'fact': 1}
    cluster.stop('ps 0')
    assert rendezvous.entries() is None
    cluster.start('ps 0')
    deadline = time.monotonic() + DEADLINE_SECS
    while (facts := rendezvous.entries()) is None:
        assert time.monotonic() < deadline
    assert facts == {}
