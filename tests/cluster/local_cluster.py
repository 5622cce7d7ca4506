"""Clusters of TensorFlow servers in this process, each behind a relay, so that tests can stop and
replace them.
"""

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import FailureWatch
from tf_cnn.cluster.rendezvous import Rendezvous, TrainingGroup
from tf_cnn.cluster.topology import Cluster, Task

DEADLINE_SECS = 60.0
PATIENT = DEADLINE_SECS
SOON = 1.0
# Between two looks at a state, which otherwise take all of a core.
POLL_SECS = 0.01


class Relay:
    """Listens at an address until the process ends, and passes connections on to a server, or
    closes them if there is none.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._lock = threading.Lock()
        self._server: str | None = None
        self._open: list[socket.socket] = []
        # While it is cleared, connections stay open and carry nothing.
        self.flows = threading.Event()
        self.flows.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: str | None) -> None:
        """Passes new connections to the server at this HOST:PORT, or to none. Closes all present
        connections.
        """
        self.flows.set()
        with self._lock:
            self._server = server
            for end in self._open:
                _shut(end)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            self._connect(self._listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if self._server is None:
                    raise ConnectionRefusedError
                host, port = self._server.split(':')
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                return
            self._open += [client, server]
        for source, sink in (client, server), (server, client):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.flows.wait()
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@functools.cache
def _relays() -> dict[str, Relay]:
    """The relays of all possible tasks, by task name."""
    return {name: Relay() for name in ('ps 0', 'ps 1', 'worker 0', 'worker 1', 'worker 2')}


@functools.cache
def _server_of(name: str, number: int) -> tf.train.Server:
    """Returns the server of a process that runs the named task. Different numbers stand for
    different processes.

    Clusters reuse servers, since each server has 80 threads that never end.
    """
    spec: dict[str, list[str]] = {'ps': [], 'worker': []}
    for other, relay in _relays().items():
        # Any free port: the other tasks connect through the relay.
        spec[other.split()[0]].append('127.0.0.1:0' if other == name else relay.address)
    job, index = name.split()
    return tf.train.Server(tf.train.ClusterSpec(spec), job_name=job, task_index=int(index))


@dataclass(frozen=True)
class Member:
    """One process of a cluster, as tests use it."""

    rendezvous: Rendezvous
    address: str
    incarnation: int

    def join(
        self, timeout_secs: float = PATIENT, step: int | None = None
    ) -> 'Future[TrainingGroup]':
        return begin(self.rendezvous.join, {'step': step, 'end': None}, timeout_secs)


class LocalCluster:
    """A cluster with tasks named 'worker 0' and so on, which tests stop and replace."""

    def __init__(
        self, num_ps: int = 1, num_workers: int = 2, *, is_synchronous: bool = True
    ) -> None:
        names = [f'ps {i}' for i in range(num_ps)] + [f'worker {i}' for i in range(num_workers)]
        self.relays = {name: _relays()[name] for name in names}
        self.detectors: list[FailureWatch] = []
        self._num_starts = dict.fromkeys(names, 0)
        self._is_synchronous = is_synchronous

    def cluster(self, name: str) -> Cluster:
        """Returns the cluster as the named task sees it."""
        ps, workers = (
            tuple(relay.address for name, relay in self.relays.items() if name.startswith(job))
            for job in ('ps', 'worker')
        )
        job, index = name.split()
        return Cluster(ps, workers, job, int(index), 'the flags')

    def task(self, name: str) -> Task:
        return self.cluster(name).own_task

    def start(self, name: str) -> Member:
        """Starts a task; if it was started before, a new process replaces it."""
        cluster = self.cluster(name)
        address = _server_of(name, self._num_starts[name]).target.removeprefix('grpc://')
        self._num_starts[name] += 1
        self.relays[name].lead_to(address)
        rendezvous = Rendezvous(cluster, is_synchronous=self._is_synchronous, settings={})
        return Member(rendezvous, address, await_answer(rendezvous, cluster.own_task))

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
                # Deletes the key-value store.
                target, device = _server_of(name, number).target, self.task(name).device
                config = tf.ConfigProto(device_filters=[device])
                with tf.Graph().as_default(), tf.Session(target, config=config) as session:
                    with tf.device(f'{device}/cpu:0'):
                        table = tf.raw_ops.MutableHashTableV2(
                            key_dtype=tf.int64, value_dtype=tf.string, shared_name='key_value_store'
                        )
                        wiped = tf.raw_ops.DestroyResourceOp(resource=table)
                    session.run(wiped)


def await_answer(rendezvous: Rendezvous, task: Task) -> int:
    """Waits until the task answers, and returns its incarnation."""
    deadline = time.monotonic() + DEADLINE_SECS
    while (incarnation := rendezvous.incarnations()[task]) is None:
        assert time.monotonic() < deadline
        time.sleep(POLL_SECS)
    return incarnation


def begin(function: Callable[..., Any], *args: Any, **options: Any) -> 'Future[Any]':
    """Calls the function on a daemon thread, so that the tests can end while it waits."""
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
    """Asserts that nothing happens for a moment."""
    with pytest.raises(NotYet):
        future.result(0.7)


def introduce(members: dict[str, Member]) -> None:
    """Makes the parameter servers publish their settings, as they do while they serve."""
    for name, member in members.items():
        if name.startswith('ps'):
            rendezvous = member.rendezvous
            rendezvous.compare_settings(rendezvous.entries() or {}, rendezvous.incarnations())


def join_all(members: dict[str, Member]) -> list[TrainingGroup]:
    introduce(members)
    futures = [member.join() for name, member in members.items() if name.startswith('worker')]
    return [*map(result, futures)]
