"""Clusters list their tasks and public hosts, and name the first flag that differs between two
tasks.
"""

import dataclasses
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.sample_clusters import FLAGS, PS, WORKERS, controlled
from tests.support.outputs import check_line
from tf_cnn.cluster.rendezvous import find_difference, shared_settings
from tf_cnn.cluster.topology import Cluster, Task, public_hosts
from tf_cnn.plan.parsing import make_params

pytestmark = pytest.mark.unit

CLUSTER = Cluster(PS, WORKERS, 'worker', 1, FLAGS)


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
