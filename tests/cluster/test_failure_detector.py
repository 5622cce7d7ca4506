"""The failure detector of a worker finds out which of the other tasks are lost."""

import socket
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from cluster.failure_detector import FailureDetector, FailureWatch, PeerError, peer_in_error
from cluster.server import Health
from cluster.topology import Cluster, Task
from tests.cluster.local_cluster import (
    DEADLINE_SECS,
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
    health = Health()
    assert health.incarnations([task]) == health.incarnations([task]) == {task: first.incarnation}
    second = cluster.start('worker 0')
    assert health.incarnations([task]) == {task: second.incarnation}
    assert first.incarnation != second.incarnation


def test_only_tasks_that_are_there_answer() -> None:
    with socket.create_server(('127.0.0.1', 0)) as mute, socket.socket() as silent:
        silent.bind(('127.0.0.1', 0))
        tasks = [Task('worker', index, f'127.0.0.1:{end.getsockname()[1]}') for index, end in enumerate((mute, silent))]
        # One accepts connections and says nothing, at the other nobody listens.
        assert Health().incarnations(tasks, timeout_secs=0.2) == dict.fromkeys(tasks)


class Detecting:
    """The running failure detector of worker 0, and what it has found."""

    def __init__(self, cluster: LocalCluster, members: dict[str, Member]) -> None:
        self.saved_after: list[PeerError] = []
        self._interrupted: Future[None] = Future()
        join_all(members)
        self.detector = FailureDetector(members['worker 0'].rendezvous, print)
        self.watch = FailureWatch(self.detector, self.saved_after.append, lambda: self._interrupted.set_result(None))
        cluster.detectors.append(self.watch)
        self.watch.start()

    def failure(self) -> PeerError:
        """What it finds out about the first task that is lost."""
        result(self._interrupted)
        assert self.watch.failure is not None
        assert self.saved_after == [self.watch.failure]
        return self.watch.failure

    def assert_calm(self) -> None:
        assert_waits(self._interrupted)
        assert self.watch.failure is None


@pytest.mark.parametrize('is_replaced', [False, True])
@pytest.mark.parametrize('lost', ['worker 1', 'ps 0'])
def test_a_task_that_is_gone_or_replaced_is_lost(
    lost: str, is_replaced: bool, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all())
    cluster.stop(lost)
    if is_replaced:
        cluster.start(lost)
    failure = detecting.failure()
    assert (failure.task, failure.answers) == (cluster.task(lost), False)
    check_line(str(failure), failure.task)


@pytest.mark.parametrize('has_gone', [False, True])
@pytest.mark.parametrize('name', ['worker 1', 'ps 0'])
def test_a_task_that_failed_is_named_with_its_reason(
    name: str, has_gone: bool, make_cluster: Callable[..., LocalCluster]
) -> None:
    cluster = make_cluster(2)
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    members[name].rendezvous.end(143, 'stopped by SIGTERM')
    if has_gone and name != 'ps 0':
        cluster.stop(name)
    failure = detecting.failure()
    assert failure.task == cluster.task(name)
    check_line(str(failure), failure.task, '143', 'stopped by SIGTERM')


def test_a_task_that_has_ended_well_is_not_missed(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    members['worker 1'].rendezvous.end(0)
    cluster.stop('worker 1')
    assert detecting.watch.wait(4.0) is None


def test_a_task_that_was_only_slow_is_not_lost(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    members = cluster.start_all()
    detecting = Detecting(cluster, members)
    server = members['worker 1'].target.removeprefix('grpc://')
    for _ in range(2):
        cluster.stop('worker 1')
        while not detecting.detector.silent_since:
            assert detecting.watch.failure is None
        cluster.relays['worker 1'].lead_to(server)
        while detecting.detector.silent_since:
            assert detecting.watch.failure is None
    detecting.assert_calm()


def test_a_failure_detector_that_was_stopped_finds_nothing(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster()
    detecting = Detecting(cluster, cluster.start_all())
    detecting.watch.stop()
    cluster.stop('worker 1')
    detecting.watch.join(DEADLINE_SECS)
    assert not detecting.watch.is_alive()
    assert detecting.watch.failure is None


def test_workers_that_do_not_wait_for_each_other_only_miss_parameter_servers(
    make_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = make_cluster(together=False)
    detecting = Detecting(cluster, cluster.start_all())
    cluster.stop('worker 1')
    assert detecting.watch.wait(4.0) is None
    cluster.stop('ps 0')
    assert detecting.failure().task == cluster.task('ps 0')


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
