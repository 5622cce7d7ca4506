"""One worker's part in the life of a cluster: it meets the others, watches them, and acts when one is lost."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.crew import Crew, Generation, Timeout
from cluster.members import Cluster, Task
from cluster.server import start_server
from cluster.watch import Verdict, Watch, give_up, judge_end
from errors import RunError

# Where a process tells the one that takes its place what it knew.
_LEGACY = 'TF_CNN_BENCHMARKS_LEGACY'
_POLL_SECS = 0.1
# If no task is lost for that long after a step failed, the fault lies elsewhere.
_CALM_SECS = 5.0
# How long TensorFlow may take to give up a step whose session was closed.
_RELEASE_SECS = 20.0


class Worker:
    """A worker of a cluster.

    Args:
      cluster: all tasks, and which this is.
      config: the settings of the server, and of sessions.
      together: whether the workers take their steps together.
      keeps_state: whether variables outlive the parameter server that they are on, in checkpoints.
      connect, peer: how long to wait for tasks at the start, and for lost ones.
      warn: where lines about the others go.
      hand_over: called before another program takes this process over.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: tf.ConfigProto,
        *,
        together: bool,
        keeps_state: bool,
        connect: Timeout,
        peer: Timeout,
        warn: Callable[[str], None],
        hand_over: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.together = together
        self.legacy: dict[str, Any] = json.loads(os.environ.pop(_LEGACY, '{}'))
        config = tf.ConfigProto.FromString(config.SerializeToString())
        if not cluster.servers:
            config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
        # Sessions of one server share its threads.
        config.use_per_session_threads = False
        server = start_server(cluster, config)
        self.target = server.target
        self.device = cluster.own.device
        # No task but those that its graph uses: a session waits for all that it knows.
        used = [f'/job:{cluster.servers[0].job}'] if cluster.servers else [cluster.trainers[0].device]
        config.device_filters.extend([cluster.own.device, *used])
        self.config = config
        self._crew = Crew(cluster, server.target, together=together)
        self._keeps_state = keeps_state
        self._connect = connect
        self._peer = peer
        self._warn = warn
        self._hand_over = hand_over
        self._watch: Watch | None = None
        self._generation: Generation | None = None

    def join(self, state_step: int | None) -> Mapping[str, Any]:
        """Waits for the others. Returns what all agree on: the number of steps after which training ends, if it had
        begun before ('end'), and the worker whose variables all start from with their step ('root', 'step').

        Args:
          state_step: the step of the variables that this worker brings along, if it does.

        Raises:
          RunError: not all tasks were there in time.
        """
        offer = {'end': self.legacy.get('end'), 'step': state_step}
        self._generation = self._crew.join(offer, _agree, self._peer if self.legacy else self._connect)
        return self.agreed

    @property
    def agreed(self) -> Mapping[str, Any]:
        """What join returned."""
        assert self._generation
        return self._generation.agreed

    @property
    def generation(self) -> int:
        """How often the workers have joined, this time included."""
        assert self._generation
        return self._generation.number

    def watch(self, session: tf.Session) -> None:
        """Watches the others from now on; closes the session when one of them is lost for good or replaced."""

        def interrupt() -> None:
            threading.Thread(target=session.close, daemon=True).start()
            release = threading.Timer(_RELEASE_SECS, self._end_by_force)
            release.daemon = True
            release.start()

        assert self._generation
        self._watch = Watch(self._crew, self._generation, self._can_return, self._peer.secs, self._warn, interrupt)
        self._watch.start()

    def unwatch(self) -> None:
        """From now on the others may end."""
        if self._watch:
            self._watch.stop()

    def _can_return(self, task: Task) -> bool:
        return self._keeps_state or task not in self.cluster.servers

    def _end_by_force(self) -> None:
        """The main thread is stuck within TensorFlow."""
        verdict = self._watch.verdict if self._watch else None
        if verdict and verdict.is_back:
            self.replace({})
        reason = verdict.line if verdict else 'a step does not end'
        self._warn(reason)
        self._crew.end(1, reason)
        os._exit(1)

    def verdict(self) -> Verdict | None:
        """What has become of the others, when a step has failed: None if nothing has."""
        return self._watch.wait(_CALM_SECS) if self._watch else None

    def replace(self, legacy: Mapping[str, Any]) -> None:
        """Starts this process anew, to join again: TensorFlow keeps what it knows of a lost task until it ends.

        Args:
          legacy: what the new process should know, besides when training ends.
        """
        os.environ[_LEGACY] = json.dumps({'end': self.legacy.get('end'), **legacy})
        sys.stdout.flush()
        sys.stderr.flush()
        self._hand_over()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def kept_state(self) -> dict[str, Any] | None:
        """What the last chief said about the variables on the parameter servers, if these still have them."""
        facts, there = self._crew.facts() or {}, self._crew.ask()
        state = facts.get('state')
        return state if state and state['servers'] == self._servers(there) else None

    def announce(self, start: int, end: int) -> None:
        """As the chief: the variables are ready, so many steps were taken, and training ends after so many."""
        servers = self._servers(self._crew.ask())
        self._crew.post('state', {'number': self.generation, 'servers': servers, 'start': start, 'end': end})

    def await_state(self) -> tuple[int, int]:
        """What the chief announced: the steps that were taken, and those after which training ends.

        Raises:
          LostError: a task was lost, or the chief failed, before it could.
        """
        chief = self.cluster.trainers[0]
        last_answer = time.monotonic()
        while True:
            facts, there = self._crew.facts() or {}, self._crew.ask()
            state = facts.get('state')
            if state and state['number'] == self.generation:
                return state['start'], state['end']
            self._raise_if_lost()
            # Workers that do not wait for each other do not watch the chief, and yet need it here.
            if verdict := judge_end(chief, self._crew.ends(facts, there).get(chief)):
                raise LostError(verdict)
            if there[chief] is not None:
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > self._peer.secs:
                raise LostError(give_up(chief, self._peer.secs))
            time.sleep(_POLL_SECS)

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """The images and seconds that the chief measured; if it is gone for good, those of the first who notices.

        Args:
          images, seconds: what this worker measured.
        """
        if self.cluster.is_chief and images:
            self._crew.post('total', [images, seconds])
        chief = self.cluster.trainers[0]
        last_answer = time.monotonic()
        while True:
            facts, there = self._crew.facts(), self._crew.ask()
            if facts and 'total' in facts:
                images, seconds = facts['total']
                return images, seconds
            self._raise_if_lost()
            if there[chief] is not None and not self.cluster.is_chief:
                last_answer = time.monotonic()
            elif time.monotonic() - last_answer > _CALM_SECS:
                self._crew.post('total', [images, seconds])
            time.sleep(_POLL_SECS)

    def gather(self, name: str, value: Any) -> list[Any]:
        """What all workers gave under this name, in their order. Each waits for the others.

        Args:
          name: another one for everything that is gathered.
          value: what JSON can hold.

        Raises:
          LostError: one of them was lost.
        """
        place = f'gathered/{self.generation}/{name}'
        self._crew.post(f'{place}/{self.cluster.index}', value)
        names = [f'{place}/{index}' for index in range(self.cluster.num_trainers)]
        while True:
            facts = self._crew.facts() or {}
            if facts.keys() >= set(names):
                return [facts[each] for each in names]
            self._raise_if_lost()
            time.sleep(_POLL_SECS)

    def _raise_if_lost(self) -> None:
        if self._watch and self._watch.verdict:
            raise LostError(self._watch.verdict)

    def end(self, exit_code: int, reason: str = '') -> None:
        """Leaves the cluster. The others learn how."""
        self.unwatch()
        self._crew.end(exit_code, reason)
        self._crew.see_off()

    def _servers(self, there: Mapping[Task, int | None]) -> dict[str, int | None]:
        return {str(task): there[task] for task in self.cluster.servers}


class LostError(RunError):
    """Another task was lost or replaced while this one waited for it."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.line)
        self.verdict = verdict


def _agree(offers: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The latest state that anyone has is where all start from."""
    ends = [offer['end'] for offer in offers if offer['end'] is not None]
    steps = [-1 if offer['step'] is None else offer['step'] for offer in offers]
    return {'end': max(ends, default=None), 'root': steps.index(max(steps)), 'step': max(steps)}
