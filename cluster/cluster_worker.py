"""A worker of a cluster: it joins the others, detects lost ones, and goes on or ends with them."""

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from cluster.agreement import Settings
from cluster.failure_detector import FailureDetector, PeerFailure, failure_of_end, failure_of_timeout
from cluster.rendezvous import Generation, Incarnations, Rendezvous, Timeout
from cluster.server import start_server
from cluster.shared_memory import SharedHost, find_host
from cluster.topology import Cluster, Task
from cluster.worker import LostError
from errors import UsageError

# The variable with the descriptor of an open file: a process that restarts itself passes JSON in it to the new program.
# The environment itself is too small for the steps of a long run.
_INHERITED = 'TF_CNN_BENCHMARKS_INHERITED'
_POLL_SECS = 0.1
# If all tasks answer for this long after a step failed, another task is not the cause.
_CALM_SECS = 5.0
# How long TensorFlow may take to abort a step after its session was closed.
_RELEASE_SECS = 20.0
# How long the chief waits at the end for the measurements of the other workers; after a signal there is little time.
_COLLECT_SECS = 10.0
_COLLECT_SECS_OF_FAILURE = 3.0
# How TensorFlow's messages name the task of another process, and the errors in which that means a lost connection.
_REMOTE_TASK = re.compile(r'/job:(?P<job>\w+)/replica:0/task:(?P<index>\d+)')
_LOST_CONNECTIONS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


class ClusterWorker:
    """A worker, or the controller, of a cluster. Implements cluster.worker.Worker.

    Args:
      cluster: all tasks, and the role of this one.
      config: the settings of the server and of sessions.
      settings: the settings that this task must share with the others.
      together: whether the workers take their steps together.
      keeps_state: whether checkpoints keep the variables of a server that is lost.
      connect: how long to wait for the other tasks at the start.
      peer: how long to wait for a lost task.
      warn: prints a warning about other tasks.
      show: shows a line about the tasks that this one waits for.
      hand_over: called just before start_anew replaces the program of this process.
    """

    ends_after_chief = False

    # Ten arguments, each an independent fact of the run or a way to reach its user. One caller passes them by name.
    def __init__(
        self,
        cluster: Cluster,
        config: tf.ConfigProto,
        *,
        settings: Settings,
        together: bool,
        keeps_state: bool,
        connect: Timeout,
        peer: Timeout,
        warn: Callable[[str], None],
        show: Callable[[str], None],
        hand_over: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.together = together
        self.is_chief = cluster.is_chief
        self.index = cluster.index
        self.num_trainers = cluster.num_trainers
        # Without servers every worker has all variables, so the others can go on from those of any worker.
        self.hands_on_variables = not cluster.servers
        self.inherited = _read_inherited()
        self.measured: Callable[[], Any] = lambda: None
        self.conclude: Callable[[str], Any] = lambda reason: None
        self.end_step: int | None = self.inherited.get('end')
        config = tf.ConfigProto.FromString(config.SerializeToString())
        if not cluster.servers:
            config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
        # Sessions of one server share its threads.
        config.use_per_session_threads = False
        server = start_server(cluster, config)
        self.target = server.target
        self.device = cluster.own.device
        # A session waits for all tasks that it knows, so let it know only those that its graph uses.
        used = [f'/job:{cluster.servers[0].job}'] if cluster.servers else [cluster.trainers[0].device]
        config.device_filters.extend([cluster.own.device, *used])
        self.config = config
        self._rendezvous = Rendezvous(cluster, together=together, settings=settings, show=show)
        self._keeps_state = keeps_state
        self._connect = connect
        self._peer = peer
        self._warn = warn
        self._hand_over = hand_over
        self._detector: FailureDetector | None = None
        self._generation: Generation | None = None
        self._shared_host: SharedHost | None = None

    def join(self, state_step: int | None) -> Mapping[str, Any]:
        offer = {'end': self.end_step, 'step': state_step}
        self._generation = self._rendezvous.join(offer, _agree, self._peer if self.inherited else self._connect)
        return self.agreed

    @property
    def agreed(self) -> Mapping[str, Any]:
        assert self._generation
        return self._generation.agreed

    @property
    def generation(self) -> int:
        assert self._generation
        return self._generation.number

    @property
    def num_replacements(self) -> int:
        return self._rendezvous.num_replacements

    @property
    def server_state(self) -> 'ClusterWorker | None':
        return self if self.cluster.servers else None

    def watch(self, session: tf.Session) -> None:
        def interrupt() -> None:
            threading.Thread(target=session.close, daemon=True).start()
            release = threading.Timer(_RELEASE_SECS, self._end_by_force)
            release.daemon = True
            release.start()

        self._detect(interrupt)

    def _detect(self, interrupt: Callable[[], None]) -> None:
        assert self._generation
        self._detector = FailureDetector(
            self._rendezvous, self._generation, self._can_return, self._peer.secs, self._warn, interrupt
        )
        self._detector.start()

    def stop_watching(self) -> None:
        if self._detector:
            self._detector.stop()

    def _can_return(self, task: Task) -> bool:
        return self._keeps_state or task not in self.cluster.servers

    def _end_by_force(self) -> None:
        """Ends or restarts the process while its main thread is stuck in TensorFlow."""
        failure = self._detector.failure if self._detector else None
        if failure and failure.is_replaced:
            self.start_anew({})
        reason = failure.line if failure else 'a step does not end'
        self._warn(reason)
        self.conclude(reason)
        self._rendezvous.end(1, reason)
        self._hand_over()
        os._exit(1)

    def peer_failure(self) -> PeerFailure | None:
        return self._detector.wait(_CALM_SECS) if self._detector else None

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        remote = _REMOTE_TASK.search(error.message)
        if not isinstance(error, _LOST_CONNECTIONS) or not remote:
            return line
        job, index = remote['job'], int(remote['index'])
        lost = next((task for task in self.cluster.tasks if (task.job, task.index) == (job, index)), None)
        return f'the connection to {lost or f"{job} {index}"} was lost during a step ({type(error).__name__})'

    def start_anew(self, inherited: Mapping[str, Any]) -> NoReturn:
        """Replaces the program of this process by a new one that joins again.

        This is necessary because TensorFlow keeps its state of a lost task for as long as the process lives.
        """
        _hand_on({'end': self.end_step, 'measured': self.measured(), **inherited})
        sys.stdout.flush()
        sys.stderr.flush()
        self._hand_over()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def kept_end(self) -> int | None:
        state, servers = (self._rendezvous.entries() or {}).get('state'), self._servers(self._rendezvous.incarnations())
        return state['end'] if state and state['servers'] == servers else None

    def announce(self, start: int, end: int) -> None:
        servers = self._servers(self._rendezvous.incarnations())
        self._rendezvous.put('state', {'number': self.generation, 'servers': servers, 'start': start, 'end': end})

    def await_announcement(self) -> tuple[int, int]:
        chief = self.cluster.trainers[0]
        last_answer = time.monotonic()
        while True:
            entries, found = self._rendezvous.entries() or {}, self._rendezvous.incarnations()
            state = entries.get('state')
            if state and state['number'] == self.generation:
                return state['start'], state['end']
            self._raise_if_lost()
            # The failure detector of asynchronous workers ignores the chief, but here the chief is needed.
            if failure := failure_of_end(chief, self._rendezvous.ends(entries, found).get(chief)):
                raise LostError(failure)
            if found[chief] is not None:
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > self._peer.secs:
                raise LostError(failure_of_timeout(chief, self._peer.secs))
            time.sleep(_POLL_SECS)

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the measurement of the chief; if it is lost for good, that of the first worker that notices it."""
        if self.is_chief and images:
            self._rendezvous.put('total', [images, seconds])
        chief = self.cluster.trainers[0]
        last_answer = time.monotonic()
        while True:
            entries, found = self._rendezvous.entries(), self._rendezvous.incarnations()
            if entries and 'total' in entries:
                images, seconds = entries['total']
                return images, seconds
            self._raise_if_lost()
            if found[chief] is not None and not self.is_chief:
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > _CALM_SECS:
                self._rendezvous.put('total', [images, seconds])
            time.sleep(_POLL_SECS)

    def gather(self, name: str, value: Any) -> list[Any]:
        prefix = f'gathered/{self.generation}/{name}'
        self._rendezvous.put(f'{prefix}/{self.index}', value)
        keys = [f'{prefix}/{index}' for index in range(self.num_trainers)]
        while True:
            entries = self._rendezvous.entries() or {}
            if entries.keys() >= set(keys):
                return [entries[key] for key in keys]
            self._raise_if_lost()
            time.sleep(_POLL_SECS)

    def shared_host(self) -> SharedHost | None:
        hosts = self._gather_early('shared_memory/host', find_host())
        if hosts[0] is None or any(host != hosts[0] for host in hosts):
            return None
        self._shared_host = SharedHost(is_chief=self.is_chief, gather=self._gather_early, warn=self._warn)
        return self._shared_host

    def _gather_early(self, name: str, value: Any) -> list[Any]:
        """As gather, but before a session is open, so that no call of TensorFlow must be interrupted."""
        self._detect(lambda: None)
        try:
            return self.gather(name, value)
        finally:
            self.stop_watching()

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        prefix = f'collected/{self.generation if self._generation else 0}/{name}'
        if not self.is_chief:
            self._rendezvous.put_large(f'{prefix}/{self.index}', value)
            return []
        values = [None] * self.num_trainers
        values[self.index] = value
        missing = {task for task in self.cluster.trainers if task != self.cluster.own}
        deadline = time.monotonic() + (_COLLECT_SECS if is_complete else _COLLECT_SECS_OF_FAILURE)
        while missing:
            # The order matters: a task that has ended has passed its value before.
            found = self._rendezvous.incarnations()
            ends = self._rendezvous.ends(self._rendezvous.entries() or {}, found)
            for task in sorted(missing, key=lambda task: task.index):
                values[task.index] = self._rendezvous.get_large(f'{prefix}/{task.index}')
                if values[task.index] is not None or task in ends or found[task] is None:
                    missing.remove(task)
            if time.monotonic() > deadline:
                break
            if missing:
                time.sleep(_POLL_SECS)
        return values

    def _raise_if_lost(self) -> None:
        if self._detector and self._detector.failure:
            raise LostError(self._detector.failure)

    def end(self, exit_code: int, reason: str = '') -> None:
        self.stop_watching()
        # After a fault, a step that has not ended may still read the memory.
        if self._shared_host and exit_code == 0:
            self._shared_host.close()
        self._rendezvous.end(exit_code, reason)
        self._rendezvous.stay_for_others(all_will_end=exit_code == UsageError.exit_code, is_over=exit_code == 0)

    def _servers(self, found: Incarnations) -> dict[str, int | None]:
        return {str(task): found[task] for task in self.cluster.servers}


def _agree(offers: list[Mapping[str, Any]]) -> dict[str, Any]:
    """All start from the latest variables that any worker offers."""
    ends = [offer['end'] for offer in offers if offer['end'] is not None]
    steps = [-1 if offer['step'] is None else offer['step'] for offer in offers]
    return {'end': max(ends, default=None), 'root': steps.index(max(steps)), 'step': max(steps)}


def _hand_on(inherited: Mapping[str, Any]) -> None:
    with tempfile.TemporaryFile('w+', encoding='utf-8') as file:
        # The new program has the number of this process.
        json.dump({**inherited, 'pid': os.getpid()}, file)
        # A duplicate stays open even when another program replaces this one.
        descriptor = os.dup(file.fileno())
    os.set_inheritable(descriptor, True)
    os.environ[_INHERITED] = str(descriptor)


def _read_inherited() -> Mapping[str, Any]:
    text = os.environ.pop(_INHERITED, None)
    if text is None:
        return {}
    try:
        # It may be a descriptor of somebody else, which stays open.
        with open(int(text), encoding='utf-8', closefd=False) as file:
            file.seek(0)
            inherited = json.load(file)
        if inherited['pid'] == os.getpid():
            os.close(int(text))
            return dict(inherited)
    except (ValueError, OverflowError, RecursionError, OSError, TypeError, KeyError, IndexError):
        pass
    raise UsageError(f'{_INHERITED}={text}: only a worker that starts anew sets this variable, for itself; unset it')
