"""A training task of a cluster: joins the other tasks, and stops with them if one is lost."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import (
    FailureDetector,
    FailureWatch,
    PeerError,
    StepLimit,
    failure_of_exit,
    find_lost_peer,
    loss_of,
)
from tf_cnn.cluster.rendezvous import Incarnations, Rendezvous, ResumePoint, SharedSettings
from tf_cnn.cluster.server import KeyValueStore, start_server
from tf_cnn.cluster.topology import Cluster, name_tasks
from tf_cnn.cluster.worker import Worker
from tf_cnn.system.errors import UsageError
from tf_cnn.system.signals import SIGNALS

_POLL_SECS = 0.1
# If all tasks answer for this long after a failed step, no other task is the cause.
_CALM_SECS = 5.0
# Limits the search for a lost task after a signal.
_SEARCH_SECS = 3.0
# Limits, after a loss, for the chief to save the variables and for TensorFlow to abort a step.
_SAVE_SECS, _RELEASE_SECS = 20.0, 3.0
# How long the chief waits at the end for the results of the other workers. After a signal there is
# little time.
_COLLECT_SECS = 10.0
_COLLECT_SECS_AFTER_FAILURE = 3.0
# TensorFlow's name for the task that did not answer, in its errors.
_TARGET = r'remote target /job:(\w+)/replica:0/task:(\d+)'
# TensorFlow's errors for a lost connection.
_LOST_CONNECTIONS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)


class ClusterWorker(Worker):
    """A training task of a cluster: a worker or the controller.

    Args:
      connect_secs: limits the wait for the other tasks at the start.
      step_secs: limits the wait for other tasks in a step; 0: no limit.
      report: tells the user which tasks this one waits for.
      finish: saves the result so far, given the exit reason in one line. Called on another thread
        if the process must exit while its main thread is stuck in TensorFlow; abort, with the
        reason and the exit code, then exits.
    """

    cluster: Cluster

    # What only the run knows, since this module knows neither flags nor results.
    def __init__(
        self,
        cluster: Cluster,
        config: tf.ConfigProto,
        *,
        settings: SharedSettings,
        is_synchronous: bool,
        connect_secs: float,
        step_secs: float,
        report: Callable[[str], None],
        finish: Callable[[str], object],
        abort: Callable[[str, int], None],
    ) -> None:
        super().__init__(tf.ConfigProto.FromString(config.SerializeToString()), cluster)
        self.is_synchronous = is_synchronous
        if not cluster.servers:
            self.config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
        # Sessions of one server share its threads.
        self.config.use_per_session_threads = False
        self.target = start_server(cluster, self.config).target
        self.device = cluster.own_task.device
        # A session waits for every task that it knows, so it gets only the tasks of its graph.
        device_filters = (
            [f'/job:{cluster.servers[0].job}']
            if cluster.servers
            else [cluster.training_tasks[0].device]
        )
        self.config.device_filters.extend([cluster.own_task.device, *device_filters])
        self._rendezvous = Rendezvous(
            cluster, is_synchronous=is_synchronous, settings=settings, report=report
        )
        self._connect_secs = connect_secs
        self._step_limit = StepLimit(self._rendezvous, step_secs)
        self._finish = finish
        self._abort = abort
        self._watch: FailureWatch | None = None
        self._forced_end: threading.Timer | None = None
        self._calm_secs = _CALM_SECS
        self._lost_peer: PeerError | None = None
        self._peer_search = threading.Thread(
            target=self._find_lost_peer, name='lost task', daemon=True
        )
        self._search_lock = threading.Lock()

    def join(self, resume_point: ResumePoint) -> None:
        self.resume_point = self._rendezvous.join(resume_point, self._connect_secs).resume_point
        self.restart = self._rendezvous.restart

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        def interrupt() -> None:
            threading.Thread(target=session.close, daemon=True).start()
            self._forced_end = threading.Timer(_RELEASE_SECS, self._force_end)
            self._forced_end.daemon = True
            self._forced_end.start()

        def save_after(failure: PeerError) -> None:
            # When a server is lost, so are its variables.
            if self.is_chief and (failure.answers or failure.task not in self.cluster.servers):
                watch.await_step()
                thread = threading.Thread(target=save, daemon=True)
                thread.start()
                thread.join(_SAVE_SECS)

        self._watch = watch = FailureWatch(
            FailureDetector(self._rendezvous), save_after, interrupt, self._step_limit
        )
        watch.start()

    def taking_steps(self) -> contextlib.AbstractContextManager[None]:
        return self._step_limit.step()

    def pausing(self) -> contextlib.AbstractContextManager[None]:
        return self._step_limit.paused()

    def raise_if_lost(self, step_secs: float) -> None:
        if self._watch:
            self._watch.raise_if_lost(step_secs)

    def stop_watching(self) -> None:
        if self._watch:
            self._watch.stop()

    def begin_stop(self) -> None:
        self.stop_watching()
        # When a task is lost, launchers stop all others by a signal. Search for the lost task at
        # once, before the others exit.
        if self._search_lock.acquire(blocking=False):
            self._peer_search.start()

    def explain_stop(self, reason: str) -> str:
        self.begin_stop()
        self._peer_search.join(_SEARCH_SECS)
        return f'{self._lost_peer}; {reason}' if self._lost_peer else reason

    def _find_lost_peer(self) -> None:
        self._lost_peer = find_lost_peer(self._rendezvous)

    def _force_end(self) -> None:
        """Exits while the main thread is stuck in TensorFlow."""
        failure = self._watch.failure if self._watch else None
        reason = str(failure or 'a step does not end')
        self._finish(reason)
        self._rendezvous.record_exit(1, reason)
        self._abort(reason, failure.exit_code if failure else 1)

    def await_peer_failure(self) -> PeerError | None:
        if self._watch is None:
            return None
        # A second call reports the same fault, so it need not wait.
        calm_secs, self._calm_secs = self._calm_secs, 0.0
        # After a signal the watch no longer runs.
        return self._watch.wait(calm_secs) or find_lost_peer(self._rendezvous)

    def explain_step_error(self, error: tf.errors.OpError, line: str) -> str:
        if not isinstance(error, _LOST_CONNECTIONS):
            return line
        # The same tasks as in device_filters.
        peers = self.cluster.servers or [
            task for task in self.cluster.training_tasks if task != self.cluster.own_task
        ]
        targets = re.findall(_TARGET, str(error.message))
        tasks = [task for task in peers if (task.job, str(task.index)) in targets] or peers
        return f'the connection to {name_tasks(tasks, " or ")} was lost during a step ({line})'

    def announce(self, start_step: int, end_step: int) -> None:
        if self.is_chief and self.cluster.servers:
            servers = self._server_incarnations(self._rendezvous.incarnations())
            self._rendezvous.put(
                'state', {'servers': servers, 'start': start_step, 'end': end_step}
            )

    def announced_steps(self) -> tuple[int, int] | None:
        chief = self.cluster.training_tasks[0]
        for entries, incarnations, is_silent in self._poll():
            state = entries.get('state')
            if state and state['servers'] == self._server_incarnations(incarnations):
                return state['start'], state['end']
            if self.is_chief or not self.cluster.servers:
                break
            # Asynchronous workers ignore the loss of the chief, but here they need it.
            exits = self._rendezvous.exits(entries, incarnations)
            if failure := failure_of_exit(chief, exits.get(chief)):
                raise failure
            if is_silent:
                raise loss_of(chief, self._rendezvous)
        return None

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds of the chief; if it has timed no step, or is lost for
        good, of a worker that has timed steps.
        """
        own_key, own_total = f'total/{self.index}', [images, seconds]
        self._rendezvous.put('total' if self.is_chief and images else own_key, own_total)
        for entries, incarnations, is_silent in self._poll():
            if 'total' in entries:
                images, seconds = entries['total']
                break
            if self.is_chief or is_silent:
                # None for a worker that still takes steps.
                totals = [
                    {own_key: own_total, **entries}.get(f'total/{task.index}')
                    for task in self.cluster.training_tasks
                    if incarnations[task] is not None or f'total/{task.index}' in entries
                ]
                totals_with_images = [total for total in totals if total and total[0]]
                if totals_with_images or None not in totals:
                    total = totals_with_images[0] if totals_with_images else own_total
                    self._rendezvous.put('total', total)
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        prefix = f'gathered/{name}'
        self._rendezvous.put(f'{prefix}/{self.index}', value)
        keys = [f'{prefix}/{index}' for index in range(self.num_training_tasks)]
        entries = next(entries for entries, _, _ in self._poll() if entries.keys() >= set(keys))
        return [entries[key] for key in keys]

    def _poll(self) -> Iterator[tuple[Mapping[str, Any], Incarnations, bool]]:
        """Yields (entries of the store, incarnations, whether the chief does not answer).

        Raises PeerError if a required task is lost.
        """
        last_answer = time.monotonic()
        while True:
            SIGNALS.check()
            entries = self._rendezvous.entries() or {}
            incarnations = self._rendezvous.incarnations()
            if incarnations[self.cluster.training_tasks[0]] is not None and not self.is_chief:
                last_answer = time.monotonic()
            yield entries, incarnations, time.monotonic() - last_answer > _CALM_SECS
            if self._watch and self._watch.failure:
                raise self._watch.failure
            time.sleep(_POLL_SECS)

    def collect(
        self, name: str, value: Any, *, is_complete: bool, patience: float = 0.0
    ) -> list[Any]:
        self._cancel_forced_end()
        prefix = f'collected/{name}'
        if not self.is_chief:
            self._rendezvous.use_store(KeyValueStore.put_large, f'{prefix}/{self.index}', value)
            return []
        values = [None] * self.num_training_tasks
        values[self.index] = value
        missing = [task for task in self.cluster.training_tasks if task != self.cluster.own_task]
        secs = _COLLECT_SECS if is_complete else _COLLECT_SECS_AFTER_FAILURE
        deadline = time.monotonic() + secs + patience
        while missing and time.monotonic() < deadline:
            # Ask in this order: a task passes its value before it records its exit.
            incarnations, entries = self._rendezvous.incarnations(), self._rendezvous.entries()
            if entries is None:
                break
            ended_tasks = {
                *self._rendezvous.exits(entries, incarnations),
                *(task for task in missing if incarnations[task] is None),
            }
            for task in missing:
                if time.monotonic() < deadline:
                    values[task.index] = self._rendezvous.use_store(
                        KeyValueStore.get_large, f'{prefix}/{task.index}'
                    )
            missing = [
                task for task in missing if values[task.index] is None and task not in ended_tasks
            ]
            time.sleep(_POLL_SECS)
        return values

    def _cancel_forced_end(self) -> None:
        """Cancels the forced exit, since the main thread is no longer stuck."""
        if self._forced_end:
            self._forced_end.cancel()

    def leave(self, exit_code: int, reason: str = '') -> None:
        self._cancel_forced_end()
        self.stop_watching()
        self._rendezvous.record_exit(exit_code, reason)
        self._rendezvous.wait_for_other_tasks(all_will_end=exit_code == UsageError.exit_code)

    def _server_incarnations(self, incarnations: Incarnations) -> dict[str, int | None]:
        return {str(task): incarnations[task] for task in self.cluster.servers}
