"""A cluster knows its tasks: who serves, who is the chief, and which hosts are public."""

import socket
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from cluster.topology import Cluster, Task, public_hosts
from tests.support.machines import (
    FLAGS,
    PS,
    WORKERS,
    controlled,
)

pytestmark = pytest.mark.unit


def test_a_cluster_lists_its_tasks_and_knows_its_own() -> None:
    cluster = Cluster(PS, WORKERS, 'worker', 1, FLAGS)
    assert [str(task) for task in cluster.tasks] == [
        'ps 0 (10.0.0.1:2222)',
        'worker 0 (10.0.0.2:2222)',
        'worker 1 (10.0.0.3:2222)',
    ]
    assert cluster.own == Task('worker', 1, '10.0.0.3:2222')
    assert cluster.own.device == '/job:worker/task:1'
    assert (cluster.num_ps, cluster.num_workers) == (1, 2)
    assert cluster.spec == {'ps': list(PS), 'worker': list(WORKERS)}
    assert not cluster.is_on_one_host
    assert Cluster(('10.0.0.2:1',), WORKERS[:1], 'worker', 0, FLAGS).is_on_one_host


def test_workers_of_a_controller_serve_it() -> None:
    workers = tuple(Task('worker', index, host) for index, host in enumerate(WORKERS))
    for own in (*workers, Task('controller', 0, '10.0.0.9:2222')):
        cluster = controlled(own.job, own.index)
        assert cluster.own == own
        assert (cluster.servers, cluster.store_task) == (workers, workers[0])
        assert cluster.tasks == (*workers, *cluster.trainers)
        assert cluster.spec == {'worker': list(WORKERS), 'controller': ['10.0.0.9:2222']}
        assert (cluster.serves, cluster.is_chief) == (own in workers, own not in workers)


@pytest.mark.parametrize(
    ('host', 'is_public'),
    [
        ('127.0.0.1', False),
        ('10.1.2.3', False),
        ('172.16.0.1', False),
        ('172.32.0.1', True),
        ('100.64.0.1', False),
        ('8.8.8.8', True),
        ('[::1]', False),
        ('[::ffff:8.8.8.8]', True),
        ('[2001:4860:4860::8888]', True),
        ('localhost', False),
    ],
)
def test_hosts_outside_of_private_networks_are_public(host: str, is_public: bool) -> None:
    cluster = Cluster((), (f'{host}:2222', '127.0.0.1:2222'), 'worker', 0, FLAGS)
    assert public_hosts(cluster) == ((host.strip('[]'),) if is_public else ())


def resolve_names(addresses: Mapping[str, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the system resolve these names, and no others, to their addresses."""

    def look_up(name: str, port: None) -> list[tuple[Any, ...]]:
        if name not in addresses:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, '', (address, 0)) for address in addresses[name]]

    monkeypatch.setattr(socket, 'getaddrinfo', look_up)


def test_a_name_is_public_if_one_of_its_addresses_is(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_names({'inside': ['10.0.0.1'], 'both': ['10.0.0.2', '8.8.4.4']}, monkeypatch)
    cluster = Cluster(('both:1', 'gone:1'), ('inside:1', 'both:2'), 'worker', 0, FLAGS)
    assert public_hosts(cluster) == ('both',)


def test_public_hosts_do_not_wait_for_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, 'getaddrinfo', lambda name, port: answered.wait() and [])
    monkeypatch.setattr('cluster.topology._RESOLVE_SECS', 0.01)
    try:
        assert public_hosts(Cluster(('a:1',), ('b:1',), 'worker', 0, FLAGS)) == ()
    finally:
        answered.set()
