"""A parameter server serves until its workers have ended, or are given up."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import pytest

from cluster.serve import serve
from cluster.topology import Timeout
from tests.cluster.local_cluster import (
    DEADLINE_SECS,
    PATIENT,
    SOON,
    LocalCluster,
    Member,
    assert_waits,
    begin,
    join_all,
    result,
)
from tests.support.outputs import check_line, failed

pytestmark = [pytest.mark.graph, pytest.mark.long]


@dataclass
class Serving:
    """A running parameter server, and its warnings."""

    future: 'Future[None]'
    warnings: list[str]


def begin_serving(member: Member, *, connect: Timeout = PATIENT) -> Serving:
    """Starts a parameter server, and returns when it has looked for the workers once."""
    warnings: list[str] = []
    has_looked = threading.Event()
    future = begin(serve, member.rendezvous, connect, 0.0, warnings.append, has_looked.set)
    assert has_looked.wait(DEADLINE_SECS)
    return Serving(future, warnings)


@pytest.mark.parametrize('together', [True, False])
def test_a_server_ends_when_all_workers_have_ended(together: bool, make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(together=together)
    members = cluster.start_all()
    serving = begin_serving(members['ps 0'])
    members['worker 1'].rendezvous.end(0)
    assert_waits(serving.future)
    members['worker 0'].rendezvous.end(0)
    result(serving.future)
    assert not serving.warnings


def test_a_server_reports_why_a_worker_failed(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    serving = begin_serving(members['ps 0'])
    members['worker 1'].rendezvous.end(77, 'the disk is full')
    members['worker 0'].rendezvous.end(0)
    with failed(cluster.task('worker 1'), '77', 'the disk is full'):
        result(serving.future)


def test_a_server_learns_how_a_worker_ended_when_the_key_value_store_is_lost(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(2, 1)
    members = cluster.start_all()
    serving = begin_serving(members['ps 1'])
    cluster.stop('ps 0')
    assert_waits(serving.future)
    members['worker 0'].rendezvous.end(77, 'ps 0 was lost')
    with failed(cluster.task('worker 0'), '77', 'ps 0 was lost'):
        result(serving.future)


def test_a_server_that_comes_back_early_does_not_end_with_the_earlier_training(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(2)
    old = cluster.start_all()
    join_all(old)
    cluster.stop('ps 1')
    server = cluster.start('ps 1')
    serving = begin_serving(server)
    for name in ('worker 0', 'worker 1'):
        old[name].rendezvous.end(1, 'ps 1 was lost')
        cluster.stop(name)
    assert_waits(serving.future)
    members = {'ps 0': cluster.start('ps 0'), **{name: cluster.start(name) for name in ('worker 0', 'worker 1')}}
    join_all(members)
    for name in ('worker 0', 'worker 1'):
        members[name].rendezvous.end(0)
    result(serving.future)


def test_a_server_gives_up_when_no_worker_ever_came(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    serving = begin_serving(cluster.start('ps 0'), connect=SOON)
    with failed(cluster.task('worker 0'), '--connect_timeout_secs=1'):
        result(serving.future)


@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_server_ends_and_names_the_task_that_was_lost(lost: str, make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(2)
    members = cluster.start_all()
    join_all(members)
    serving = begin_serving(members['ps 1'])
    cluster.stop(lost)
    members['worker 0'].rendezvous.end(1, f'{lost} was lost')
    with failed(lost):
        result(serving.future)


def test_a_server_gives_up_when_all_workers_that_do_not_wait_are_lost(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(together=False)
    members = cluster.start_all()
    join_all(members)
    serving = begin_serving(members['ps 0'])
    cluster.stop('worker 0')
    assert_waits(serving.future)
    # The worker that is left goes on.
    cluster.stop('worker 1')
    with failed(cluster.task('worker 0')):
        result(serving.future)


def test_a_server_waits_for_a_worker_that_comes_back(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(1, 1, together=False)
    members = cluster.start_all()
    serving = begin_serving(members['ps 0'])
    cluster.stop('worker 0')
    assert_waits(serving.future)
    cluster.start('worker 0').rendezvous.end(0)
    result(serving.future)


@pytest.mark.all_modes
def test_a_server_ends_without_a_lost_worker_when_the_others_did_not_need_it(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(together=False)
    members = cluster.start_all()
    join_all(members)
    serving = begin_serving(members['ps 0'])
    cluster.stop('worker 1')
    assert_waits(serving.future)
    members['worker 0'].rendezvous.end(0)
    # Long before it would have been given up.
    result(serving.future)
    [warning] = serving.warnings
    check_line(warning, cluster.task('worker 1'))
