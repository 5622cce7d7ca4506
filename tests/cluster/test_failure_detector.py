"""Workers find out which other tasks are lost; servers serve until their workers have ended or are
given up.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf

from tests.cluster.local_cluster import (
    DEADLINE_SECS,
    PATIENT,
    POLL_SECS,
    SOON,
    LocalCluster,
    Member,
    assert_waits,
    begin,
    join_all,
    result,
)
from tests.support.outputs import check_line, failed
from tf_cnn.cluster import failure_detector
from tf_cnn.cluster.failure_detector import FailureDetector, FailureWatch, PeerError, StepLimit
from tf_cnn.cluster.serve import serve
from tf_cnn.cluster.server import LivenessProbe
from tf_cnn.cluster.topology import Task

pytestmark = [pytest.mark.graph, pytest.mark.long]


def test_only_running_tasks_answer():
    with socket.create_server(('127.0.0.1', 0)) as mute, socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        # One address accepts connections and never answers; at the other nobody listens.
        ports = [end.getsockname()[1] for end in (mute, silent)]
        tasks = [Task('worker', index, f'127.0.0.1:{port}') for index, port in enumerate(ports)]
        probe = LivenessProbe()
        assert probe.incarnations(tasks) == dict.fromkeys(tasks)
        assert list(map(probe.has_ended, tasks)) == [False, True]


@contextlib.contextmanager
def busy(address: str, task: Task) -> Iterator[None]:
    """Keeps all inter-op threads of the server in a step during the block."""
    release = threading.Event()
    config = tf.ConfigProto(device_filters=[task.device])
    with tf.Graph().as_default(), tf.Session(f'grpc://{address}', config=config) as session:
        num_ops = 4 * (os.cpu_count() or 1)
        step = begin(
            session.run, [tf.numpy_function(release.wait, [], tf.bool) for _ in range(num_ops)]
        )
        try:
            # A new probe has no earlier answer.
            while LivenessProbe().incarnations([task])[task] is not None:
                assert not step.done()
            yield
        finally:
            release.set()
            result(step)


def test_a_task_in_a_long_step_counts_as_alive_until_it_dies(make_cluster):
    cluster = make_cluster()
    address, task = cluster.start('worker 1').address, cluster.task('worker 1')
    probe = LivenessProbe()
    before = probe.incarnations([task])
    probe.patience_secs = 0.5
    with busy(address, task):
        for _ in range(2):
            asked_at = time.monotonic()
            assert probe.incarnations([task]) == before
            assert probe.last_answer(task) > asked_at
        assert probe.incarnations([task], patient=False) == {task: None}
        cluster.stop('worker 1')
        assert probe.incarnations([task]) == {task: None}


class Detecting:
    """The running failure detector of worker 0, after all workers have joined."""

    def __init__(self, cluster: LocalCluster, members: dict[str, Member]) -> None:
        join_all(members)
        self.interrupted: Future[None] = Future()
        self._saved_after: list[PeerError] = []
        self.detector = FailureDetector(members['worker 0'].rendezvous)
        self.watch = FailureWatch(
            self.detector, self._saved_after.append, lambda: self.interrupted.set_result(None)
        )
        cluster.detectors.append(self.watch)
        self.watch.start()

    def failure(self) -> PeerError:
        """Waits for the first task that is lost."""
        result(self.interrupted)
        assert self.watch.failure is not None
        assert self._saved_after == [self.watch.failure]
        return self.watch.failure


@pytest.mark.parametrize('is_replaced', [False, True])
@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_task_that_died_or_was_replaced_is_lost(lost, is_replaced, make_cluster):
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all())
    cluster.stop(lost)
    if is_replaced:
        cluster.start(lost)
    failure = detecting.failure()
    assert (failure.task, failure.answers) == (cluster.task(lost), False)
    check_line(failure, failure.task, *(['has ended'] if is_replaced else []))


@pytest.mark.parametrize(
    ('name', 'has_gone'), [('worker 1', False), ('worker 1', True), ('ps 0', False)]
)
def test_a_task_that_failed_is_named_with_its_reason(name, has_gone, make_cluster):
    cluster = make_cluster(2)
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    members[name].rendezvous.record_exit(143, 'stopped by SIGTERM')
    if has_gone:
        cluster.stop(name)
    failure = detecting.failure()
    assert failure.task == cluster.task(name)
    check_line(failure, failure.task, '143', 'stopped by SIGTERM')


def test_a_task_that_has_ended_well_is_not_missed(make_cluster):
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    members['worker 1'].rendezvous.record_exit(0)
    cluster.stop('worker 1')
    assert detecting.watch.wait(4.0) is None
    assert detecting.watch.is_alive()


def test_a_task_that_was_only_slow_is_not_lost(make_cluster):
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    for _ in range(2):
        cluster.stop('worker 1')
        while not detecting.detector.silent_since:
            assert detecting.watch.failure is None
            time.sleep(POLL_SECS)
        cluster.relays['worker 1'].lead_to(members['worker 1'].address)
        while detecting.detector.silent_since:
            assert detecting.watch.failure is None
            time.sleep(POLL_SECS)
    assert_waits(detecting.interrupted)
    assert detecting.watch.failure is None


def test_a_task_that_does_not_answer_is_lost_only_after_the_first_step(make_cluster):
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    cluster.relays['worker 1'].flows.clear()
    # Longer than a process may refuse connections.
    assert detecting.watch.wait(4.0) is None
    limit = StepLimit(members['worker 0'].rendezvous, 10.0)
    with mock.patch.object(failure_detector, 'BUSY_SECS', 0.5), limit.step():
        pass
    failure = detecting.failure()
    assert failure.task == cluster.task('worker 1')
    check_line(failure, failure.task, 'does not answer')


def test_asynchronous_workers_only_miss_parameter_servers(make_cluster):
    cluster = make_cluster(is_synchronous=False)
    detecting = Detecting(cluster, cluster.start_all())
    cluster.stop('worker 1')
    assert detecting.watch.wait(4.0) is None
    cluster.stop('ps 0')
    assert detecting.failure().task == cluster.task('ps 0')


# ---- the limit of a step -------------------------------------------------------------------------


class Clock:
    """A clock that a test sets, in seconds."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def limits_of(cluster: LocalCluster, clock: Clock) -> list[StepLimit]:
    """Returns limits of 10 seconds for the steps of both workers, after a step of one second."""
    members = cluster.start_all()
    join_all(members)
    workers = members['worker 0'], members['worker 1']
    limits = [StepLimit(member.rendezvous, 10.0, clock) for member in workers]
    for limit in limits:
        with limit.step():
            # The first one may compile.
            clock.now += 1000.0
            assert limit.check() is None
            clock.now -= 999.0
    return limits


def test_a_step_that_waits_too_long_names_the_worker_that_is_not_in_it(make_cluster):
    cluster, clock = make_cluster(), Clock()
    [limit, _] = limits_of(cluster, clock)
    with limit.step():
        clock.now += 9.0
        assert limit.check() is None
        clock.now += 2.0
        failure = limit.check()
    check_line(failure, cluster.task('worker 1'), '10 s', '--step_timeout_secs=10')
    assert str(cluster.task('ps 0')) not in str(failure)
    # Between two steps there is no limit.
    clock.now += 100.0
    assert limit.check() is None


def test_if_all_workers_wait_in_the_same_step_all_other_tasks_are_named(make_cluster):
    cluster, clock = make_cluster(), Clock()
    limits = limits_of(cluster, clock)
    with limits[0].step(), limits[1].step():
        clock.now += 6.0
        assert [limit.check() for limit in limits] == [None, None]
        clock.now += 5.0
        check_line(limits[0].check(), cluster.task('ps 0'), cluster.task('worker 1'))


def test_a_step_has_no_limit_while_another_worker_saves(make_cluster):
    clock = Clock()
    [limit, other] = limits_of(make_cluster(), clock)
    with limit.step():
        with other.paused():
            clock.now += 500.0
            assert limit.check() is None
        # After the pause the step may take as long as any other.
        clock.now += 9.0
        assert limit.check() is None


def test_a_step_may_take_twice_as_long_as_the_longest_one(make_cluster):
    clock = Clock()
    [limit, _] = limits_of(make_cluster(), clock)
    with limit.step():
        clock.now += 9.0
    with limit.step():
        clock.now += 17.0
        assert limit.check() is None
        clock.now += 2.0
        assert limit.check()


def test_an_asynchronous_worker_waits_for_servers_only(make_cluster):
    cluster, clock = make_cluster(is_synchronous=False), Clock()
    [limit, _] = limits_of(cluster, clock)
    with limit.step():
        clock.now += 11.0
        failure = limit.check()
    check_line(failure, cluster.task('ps 0'))
    assert str(cluster.task('worker 1')) not in str(failure)


# ---- the end of parameter servers ----------------------------------------------------------------


def begin_serving(member: Member, *, connect_secs: float = PATIENT) -> 'Future[None]':
    """Starts a parameter server, and returns when it has looked for the workers once."""
    has_looked = threading.Event()
    serving = begin(serve, member.rendezvous, connect_secs, 0.0, print, has_looked.set)
    assert has_looked.wait(DEADLINE_SECS)
    return serving


@pytest.mark.parametrize('is_synchronous', [True, False])
def test_a_server_ends_when_all_workers_have_ended_and_reports_why_one_failed(
    is_synchronous, make_cluster
):
    cluster = make_cluster(is_synchronous=is_synchronous)
    members = cluster.start_all()
    serving = begin_serving(members['ps 0'])
    members['worker 1'].rendezvous.record_exit(0)
    assert_waits(serving)
    members['worker 0'].rendezvous.record_exit(77, 'the disk is full')
    with failed(cluster.task('worker 0'), '77', 'the disk is full'):
        result(serving)
    members['worker 0'].rendezvous.record_exit(0)
    serve(members['ps 0'].rendezvous, PATIENT, 0.0, print)


def test_a_server_that_comes_back_early_does_not_end_with_the_earlier_training(make_cluster):
    cluster = make_cluster(2)
    old = cluster.start_all()
    join_all(old)
    cluster.stop('ps 1')
    serving = begin_serving(cluster.start('ps 1'))
    for name in ('worker 0', 'worker 1'):
        old[name].rendezvous.record_exit(1, 'ps 1 was lost')
        cluster.stop(name)
    assert_waits(serving)
    members = {name: cluster.start(name) for name in ('ps 0', 'worker 0', 'worker 1')}
    join_all(members)
    for name in ('worker 0', 'worker 1'):
        members[name].rendezvous.record_exit(0)
    result(serving)


def test_a_server_gives_up_when_no_worker_ever_came(make_cluster):
    cluster = make_cluster()
    serving = begin_serving(cluster.start('ps 0'), connect_secs=SOON)
    with failed(cluster.task('worker 0'), '--connect_timeout_secs=1'):
        result(serving)


@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_server_ends_and_names_the_task_that_was_lost(lost, make_cluster):
    cluster = make_cluster(2)
    members = cluster.start_all()
    join_all(members)
    serving = begin_serving(members['ps 1'])
    cluster.stop(lost)
    members['worker 0'].rendezvous.record_exit(1, f'{lost} was lost')
    with failed(lost):
        result(serving)


def test_a_server_waits_for_workers_that_come_back_and_gives_up_when_all_are_lost(make_cluster):
    cluster = make_cluster(is_synchronous=False)
    members = cluster.start_all()
    join_all(members)
    serving = begin_serving(members['ps 0'])
    cluster.stop('worker 0')
    # The remaining worker goes on.
    assert_waits(serving)
    cluster.stop('worker 1')
    with failed(cluster.task('worker 0')):
        result(serving)
    again = begin_serving(members['ps 0'])
    assert_waits(again)
    for name in ('worker 0', 'worker 1'):
        cluster.start(name).rendezvous.record_exit(0)
    result(again)
