"""The failure detector of a worker finds out which of the other tasks are lost, and whether they are back."""

import socket
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from cluster.failure_detector import FailureDetector, PeerFailure, peer_in_error
from cluster.server import Health
from cluster.topology import Cluster, Task, Timeout
from tests.cluster.local_cluster import (
    DEADLINE_SECS,
    PATIENT_PEER,
    PEER,
    LocalCluster,
    Member,
    assert_waits,
    join_all,
    result,
)
from tests.support.outputs import check_line

pytestmark = [pytest.mark.graph, pytest.mark.long]

# How TensorFlow names worker 0 and ps 1.
TASKS_OF_ERRORS = 'worker/replica:0/task:0', 'ps/replica:0/task:1'


def test_a_server_answers_with_a_number_that_a_new_one_does_not_have(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(0, 1)
    task, first = cluster.task('worker 0'), cluster.start('worker 0')
    health = Health([task])
    assert health.incarnations(1) == health.incarnations(1) == {task: first.incarnation}
    second = cluster.start('worker 0')
    assert health.incarnations(1) == {task: second.incarnation}
    assert first.incarnation != second.incarnation
    health.close()


def test_only_tasks_that_are_there_answer() -> None:
    with socket.create_server(('127.0.0.1', 0)) as mute, socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        tasks = [Task('worker', index, f'127.0.0.1:{end.getsockname()[1]}') for index, end in enumerate((mute, silent))]
        health = Health(tasks)
        # One accepts connections and says nothing, at the other nobody listens.
        assert health.incarnations(0.2) == dict.fromkeys(tasks)
        health.close()


class Detecting:
    """The running failure detector of worker 0, and what it has found."""

    def __init__(
        self,
        cluster: LocalCluster,
        members: dict[str, Member],
        *,
        peer: Timeout = PATIENT_PEER,
        can_return: bool = True,
    ) -> None:
        self.warnings: list[str] = []
        self._interrupted: Future[None] = Future()
        generation = join_all(members)[0]
        self.detector = FailureDetector(
            members['worker 0'].rendezvous,
            generation,
            lambda _: can_return,
            peer.secs,
            self.warnings.append,
            lambda: self._interrupted.set_result(None),
        )
        cluster.detectors.append(self.detector)
        self.detector.start()

    def failure(self) -> PeerFailure:
        """What it finds out about the first task that is lost."""
        result(self._interrupted)
        assert self.detector.failure is not None
        return self.detector.failure

    def assert_calm(self) -> None:
        assert_waits(self._interrupted)
        assert self.detector.failure is None


def test_a_worker_that_is_replaced_counts_as_back(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all())
    cluster.stop('worker 1')
    cluster.start('worker 1')
    task = cluster.task('worker 1')
    failure = detecting.failure()
    assert (failure.task, failure.is_replaced) == (task, True)
    check_line(failure.line, task)


@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_task_that_does_not_come_back_is_lost_when_its_time_is_over(
    lost: str, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all(), peer=PEER)
    cluster.stop(lost)
    task = cluster.task(lost)
    failure = detecting.failure()
    assert (failure.task, failure.is_replaced) == (task, False)
    check_line(failure.line, task, '--peer_timeout_secs=1')
    [warning] = detecting.warnings
    check_line(warning, task, '1 s')


def test_a_server_whose_variables_are_lost_is_not_waited_for(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all(), can_return=False)
    cluster.stop('ps 0')
    # The new process has none of the variables.
    cluster.start('ps 0')
    failure = detecting.failure()
    assert (failure.task, failure.is_replaced) == (cluster.task('ps 0'), False)
    check_line(failure.line, failure.task, '--train_dir')


@pytest.mark.parametrize('has_gone', [False, True])
def test_a_task_that_failed_is_not_waited_for(has_gone: bool, make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    members['worker 1'].rendezvous.end(143, 'stopped by SIGTERM')
    if has_gone:
        cluster.stop('worker 1')
        task = cluster.task('worker 1')
        failure = detecting.failure()
        assert (failure.task, failure.is_replaced) == (task, False)
        check_line(failure.line, task, '143', 'stopped by SIGTERM')
        assert not detecting.warnings
    else:
        # It may have something to finish.
        detecting.assert_calm()


def test_the_task_that_keeps_the_store_is_not_waited_for_once_it_has_announced_its_end(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    # It stays until this was read: later nobody could read it.
    members['ps 0'].rendezvous.end(143, 'stopped by SIGTERM')
    task = cluster.task('ps 0')
    failure = detecting.failure()
    assert (failure.task, failure.is_replaced) == (task, False)
    check_line(failure.line, task, '143', 'stopped by SIGTERM')
    assert not detecting.warnings


def test_a_task_that_has_ended_well_is_not_missed(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members, peer=PEER)
    members['worker 1'].rendezvous.end(0)
    cluster.stop('worker 1')
    assert detecting.detector.wait(2 * PEER.secs) is None
    assert not detecting.warnings


def test_a_task_that_was_only_slow_is_not_lost(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members, peer=Timeout('peer_timeout_secs', 3.0))
    server = members['worker 1'].target.removeprefix('grpc://')
    for _ in range(2):
        cluster.stop('worker 1')
        while not detecting.detector.silent_since:
            detecting.assert_calm()
        cluster.relays['worker 1'].lead_to(server)
        while detecting.detector.silent_since:
            detecting.assert_calm()
    assert len(detecting.warnings) == 2


def test_a_failure_detector_that_was_stopped_finds_nothing(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all(), peer=Timeout('peer_timeout_secs', 0.0))
    detecting.detector.stop()
    cluster.stop('worker 1')
    detecting.detector.join(DEADLINE_SECS)
    assert not detecting.detector.is_alive()
    assert detecting.detector.failure is None


def test_workers_that_do_not_wait_for_each_other_only_miss_parameter_servers(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(together=False)
    detecting = Detecting(cluster, cluster.start_all(), peer=PEER)
    cluster.stop('worker 1')
    assert detecting.detector.wait(2 * PEER.secs) is None
    cluster.stop('ps 0')
    failure = detecting.failure()
    assert failure.task == cluster.task('ps 0')


FROM_WORKER_0, FROM_PS_1 = (f'From /job:{name}:\nSocket closed' for name in TASKS_OF_ERRORS)
TO_WORKER_0, TO_PS_1 = (
    f'\nAdditional GRPC error information from remote target /job:{name}' for name in TASKS_OF_ERRORS
)


@pytest.mark.parametrize(
    ('message', 'peer'),
    [
        (FROM_WORKER_0 + TO_PS_1, 'ps 1 (b:1)'),
        (FROM_PS_1 + TO_WORKER_0, 'ps 1 (b:1)'),
        (f'{FROM_PS_1}{TO_PS_1}\n{FROM_WORKER_0}', 'ps 1 (b:1)'),
        (f'Collective ops is aborted by: {FROM_PS_1}', 'ps 1 (b:1)'),
        ('Your worker job ("/job:worker/replica:0/task:1") was probably restarted.', 'worker 1 (b:2)'),
        (FROM_WORKER_0 + TO_WORKER_0, 'another process'),
        ('Socket closed from /job:worker/task:7', None),
    ],
)
def test_a_lost_connection_is_said_to_lead_to_another_task_and_never_to_this_one(
    message: str, peer: str | None
) -> None:
    assert peer_in_error(message, Cluster(('a:1', 'b:1'), ('a:2', 'b:2'), 'worker', 0, 'the flags')) == peer
