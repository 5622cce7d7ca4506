"""A cluster whose tasks can be stopped and replaced: TensorFlow servers in this process, each
behind a relay.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.programs import Relay
from tf_cnn.cluster.failure_detector import FailureWatch
from tf_cnn.cluster.rendezvous import Rendezvous, TrainingGroup
from tf_cnn.cluster.topology import Cluster, Task, Timeout

DEADLINE_SECS = 60.0
# The seconds that a test waits to see that something does not happen.
MOMENT_SECS = 0.7
_JOBS = ('ps', 'worker')
PATIENT = Timeout('connect_timeout_secs', DEADLINE_SECS)
SOON = Timeout('connect_timeout_secs', 1.0)


@dataclass(frozen=True)
class Member:
    """One process of a cluster, as tests use it."""

    rendezvous: Rendezvous
    target: str
    incarnation: int

    def join(self, timeout: Timeout = PATIENT, step: int | None = None) -> 'Future[TrainingGroup]':
        return begin(self.rendezvous.join, {'step': step, 'end': None}, timeout)


@functools.cache
def relays() -> dict[str, Relay]:
    """The relays of all possible tasks, by task name."""
    return {name: Relay() for name in ('ps 0', 'ps 1', 'worker 0', 'worker 1', 'worker 2')}


@functools.cache
def server_of(name: str, number: int) -> tf.train.Server:
    """The server of a process that runs the named task; different numbers stand for different
    processes.

    Clusters reuse servers, since each server has 80 threads that never end.
    """
    job, index = name.split()
    spec = {
        job: [relay.address for name, relay in relays().items() if name.startswith(job)]
        for job in _JOBS
    }
    # Any free port: the other tasks connect through the relay.
    spec[job][int(index)] = '127.0.0.1:0'
    return tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=int(index))


class LocalCluster:
    """A cluster whose tasks, named 'worker 0' and so on, can be stopped and replaced."""

    def __init__(self, num_ps: int, num_workers: int, *, together: bool = True) -> None:
        names = [f'ps {index}' for index in range(num_ps)] + [
            f'worker {index}' for index in range(num_workers)
        ]
        self.relays = {name: relays()[name] for name in names}
        self.detectors: list[FailureWatch] = []
        self._num_starts = dict.fromkeys(names, 0)
        self._together = together

    def cluster(self, name: str) -> Cluster:
        """The cluster, seen from the task of that name."""
        job, index = name.split()
        hosts = {
            job: tuple(r.address for name, r in self.relays.items() if name.startswith(job))
            for job in _JOBS
        }
        return Cluster(hosts['ps'], hosts['worker'], job, int(index), 'the flags')

    def task(self, name: str) -> Task:
        return self.cluster(name).own_task

    def start(self, name: str) -> Member:
        """Starts a task; if it was started before, a new process replaces it."""
        cluster = self.cluster(name)
        server = server_of(name, self._num_starts[name])
        self._num_starts[name] += 1
        self.relays[name].lead_to(server.target.removeprefix('grpc://'))
        rendezvous = Rendezvous(cluster, is_synchronous=self._together, settings={})
        return Member(rendezvous, server.target, await_answer(rendezvous, cluster.own_task))

    def stop(self, name: str) -> None:
        """Makes the task stop answering."""
        self.relays[name].lead_to(None)

    def start_all(self) -> dict[str, Member]:
        members = {name: self.start(name) for name in self.relays}
        for member in members.values():
            for name in members:
                await_answer(member.rendezvous, self.task(name))
        return members

    def close(self) -> None:
        for detector in self.detectors:
            detector.stop()
            detector.join(DEADLINE_SECS)
        for name in self.relays:
            self.stop(name)
        for name, num_starts in self._num_starts.items():
            for number in range(num_starts):
                _wipe(server_of(name, number), self.task(name))


def _wipe(server: tf.train.Server, keeper: Task) -> None:
    """Deletes the contents of the key-value store on this task, if it has one."""
    with tf.Graph().as_default() as graph, tf.device(f'{keeper.device}/cpu:0'):
        table = tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.string, shared_name='key_value_store'
        )
        wiped = tf.raw_ops.DestroyResourceOp(resource=table)
    with tf.Session(
        server.target, graph=graph, config=tf.ConfigProto(device_filters=[keeper.device])
    ) as session:
        session.run(wiped)


# Makes a cluster: num_ps=1, num_workers=2, *, together=True.
Make = Callable[..., LocalCluster]


@contextlib.contextmanager
def local_clusters() -> Iterator[Make]:
    """Makes clusters, and stops all of their tasks after the block."""
    made: list[LocalCluster] = []

    def make(num_ps: int = 1, num_workers: int = 2, *, together: bool = True) -> LocalCluster:
        made.append(LocalCluster(num_ps, num_workers, together=together))
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()


def await_answer(rendezvous: Rendezvous, task: Task) -> int:
    """Waits until the task answers, and returns its incarnation."""
    deadline = time.monotonic() + DEADLINE_SECS
    while (incarnation := rendezvous.incarnations()[task]) is None:
        assert time.monotonic() < deadline
    return incarnation


def begin(function: Callable[..., Any], *args: Any, **options: Any) -> 'Future[Any]':
    """Calls the function on a daemon thread, which does not keep the tests from ending."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(function(*args, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def result(future: 'Future[Any]') -> Any:
    return future.result(DEADLINE_SECS)


def assert_waits(future: 'Future[Any]') -> None:
    with pytest.raises(NotYet):
        future.result(MOMENT_SECS)


def introduce(members: dict[str, Member]) -> None:
    """Lets the parameter servers tell their settings, as they do while they serve."""
    for name, member in members.items():
        if name.startswith('ps'):
            rendezvous = member.rendezvous
            rendezvous.compare_settings(rendezvous.entries() or {}, rendezvous.incarnations())


def join_all(members: dict[str, Member]) -> list[TrainingGroup]:
    introduce(members)
    futures = [member.join() for name, member in members.items() if name.startswith('worker')]
    return [result(future) for future in futures]
