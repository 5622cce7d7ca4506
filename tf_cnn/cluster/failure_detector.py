"""Detects lost tasks: killed, failed, unreachable, or making a step wait too long."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tf_cnn.cluster.rendezvous import Incarnations, Rendezvous
from tf_cnn.cluster.server import BUSY_SECS
from tf_cnn.cluster.topology import Task, name_tasks
from tf_cnn.system.errors import RunError, UsageError

INTERVAL_SECS = 0.5
# How long a task may refuse connections. A task that is slow to answer has longer, see
# LivenessProbe.
_SILENT_SECS = 2.0
# How long to wait after a loss for the end of the step, before the variables are saved anyway.
_LEAST_STEP_SECS, _MOST_STEP_SECS = 1.0, 6.0


class PeerError(RunError):
    """Another task is lost, and this process exits because of it.

    answers: whether the process of the task still answers, so that its variables can be read.
    """

    def __init__(
        self,
        task: Task,
        message: str,
        exit_code: int = RunError.exit_code,
        *,
        answers: bool = False,
    ) -> None:
        super().__init__(message)
        self.task = task
        self.exit_code = exit_code
        self.answers = answers


class StepLimit:
    """Limits how long a step of this process waits for other tasks.

    A step may take as long as the timeout, or twice as long as the longest step so far if that is
    more. There is no limit for the first step, which may compile, nor while another task evaluates
    or saves a checkpoint.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        timeout_secs: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        cluster = rendezvous.cluster
        # Asynchronous workers wait only for servers.
        tasks = cluster.tasks if rendezvous.is_synchronous else cluster.servers
        self._peers = [task for task in tasks if task != cluster.own_task]
        self._rendezvous = rendezvous
        self._timeout_secs = timeout_secs
        self._clock = clock
        self._num_calls = 0
        self._longest_secs = 0.0
        # None between steps and in the first step.
        self._step_started_at: float | None = None
        # When another task last reported that it evaluates or saves.
        self._paused_at = 0.0
        self._has_published_wait = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Limits the block, a session call that takes steps."""
        started_at = self._clock()
        self._num_calls += 1
        self._has_published_wait = False
        self._step_started_at = started_at if self._num_calls > 1 else None
        try:
            yield
        finally:
            self._step_started_at = None
        self._longest_secs = max(self._longest_secs, self._clock() - started_at)
        # The workers that took part in a step have built their graphs.
        self._rendezvous.liveness.patience_secs = BUSY_SECS

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the limits of other tasks during the block, which evaluates or saves."""
        key = self._key('paused', self._rendezvous.cluster.own_task)
        self._rendezvous.put(key, True)
        yield
        self._rendezvous.put(key, False)

    def check(self) -> PeerError | None:
        """Returns the failure if the current step has waited too long.

        Call it about once a second, on another thread.
        """
        started_at, num_calls = self._step_started_at, self._num_calls
        if started_at is None or not self._timeout_secs:
            return None
        limit_secs = max(self._timeout_secs, 2 * self._longest_secs)
        waited_secs = self._clock() - max(started_at, self._paused_at)
        if waited_secs > limit_secs / 2 and not self._has_published_wait:
            # Every waiting task publishes this. The tasks without it hold up the step.
            self._has_published_wait = True
            self._rendezvous.put(self._key('waiting', self._rendezvous.cluster.own_task), num_calls)
        if waited_secs < limit_secs:
            return None
        entries = self._rendezvous.entries(patient=False) or {}
        if any(entries.get(self._key('paused', task)) for task in self._peers):
            self._paused_at = self._clock()
            return None
        if started_at != self._step_started_at:
            # The step ended meanwhile.
            return None
        late_tasks = [
            task
            for task in self._peers
            if task in self._rendezvous.cluster.training_tasks
            and entries.get(self._key('waiting', task)) != num_calls
        ]
        late_tasks = late_tasks or self._peers
        return PeerError(
            late_tasks[0],
            f'a step has waited {limit_secs:.0f} s for {name_tasks(late_tasks)}, although '
            'each answers; a connection was cut, or a process hangs; '
            f'--step_timeout_secs={self._timeout_secs:g} limits the wait',
            answers=True,
        )

    @staticmethod
    def _key(state: str, task: Task) -> str:
        return f'{state}/{task.job}/{task.index}'


class FailureDetector:
    """Finds the first lost task of the training group."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        assert rendezvous.group, 'it has joined'
        self._rendezvous = rendezvous
        self._required_incarnations = rendezvous.group.required_incarnations
        self._entries: Mapping[str, Any] = {}
        # The time of each silent task's last answer (time.monotonic).
        self.silent_since: dict[Task, float] = {}

    def check(
        self, incarnations: Incarnations | None = None, entries: Mapping[str, Any] | None = None
    ) -> PeerError | None:
        """Returns the loss of a required task; None if all answer, or are only briefly silent.

        Asks the tasks and the store, unless their answers are given.
        """
        cluster = self._rendezvous.cluster
        if incarnations is None:
            incarnations = self._rendezvous.incarnations()
            entries = self._rendezvous.entries(patient=False)
        # If the task with the store is too busy to answer, the exits read before are still valid.
        self._entries = entries or self._entries
        exits = self._rendezvous.exits(
            self._entries,
            {task: self._required_incarnations.get(str(task)) for task in cluster.tasks},
        )
        for task, incarnation in incarnations.items():
            expected = self._required_incarnations.get(str(task))
            if task == cluster.own_task or expected is None:
                continue
            # After a task records its exit, it may still answer for a while, or its next process
            # may already be up.
            if task in exits:
                self.silent_since.pop(task, None)
                if failure := failure_of_exit(task, exits[task], answers=incarnation == expected):
                    return failure
            elif incarnation == expected:
                self.silent_since.pop(task, None)
            else:
                since = self.silent_since.setdefault(
                    task, self._rendezvous.liveness.last_answer(task)
                )
                if incarnation is not None or time.monotonic() - since > _SILENT_SECS:
                    return loss_of(task, self._rendezvous, has_successor=incarnation is not None)
        return None


class FailureWatch(threading.Thread):
    """A thread that checks the tasks until one is lost.

    It then calls save with the failure while the session is still open, sets `failure`, and calls
    interrupt, which aborts every wait for the lost task.
    """

    def __init__(
        self,
        detector: FailureDetector,
        save: Callable[[PeerError], None],
        interrupt: Callable[[], None],
        limit: StepLimit | None = None,
    ) -> None:
        super().__init__(name='failure detector', daemon=True)
        self.failure: PeerError | None = None
        self._detector = detector
        self._limit = limit
        self._save = save
        self._interrupt = interrupt
        self._has_detected, self._between_steps = threading.Event(), threading.Event()
        self._step_secs = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(INTERVAL_SECS):
            failure = self._detector.check() or (self._limit and self._limit.check())
            if failure and not self._stopped.is_set():
                self._has_detected.set()
                self._save(failure)
                self.failure = failure
                self._interrupt()
                return

    def await_step(self) -> None:
        """Waits until the main thread is between two steps.

        Limits the wait, since the step may be waiting for the lost task.
        """
        self._between_steps.wait(min(max(_LEAST_STEP_SECS, 2 * self._step_secs), _MOST_STEP_SECS))

    def raise_if_lost(self, step_secs: float) -> None:
        """Raises the PeerError, after the variables are saved, if a task is lost.

        Call it between two steps.
        """
        self._step_secs = step_secs
        if self._has_detected.is_set():
            self._between_steps.set()
            self.join()
        if self.failure:
            raise self.failure

    def stop(self) -> None:
        """Ends the thread, so that further exits of tasks are not reported."""
        self._stopped.set()

    def wait(self, calm_secs: float) -> PeerError | None:
        """Waits for a failure; returns None after all tasks have answered for calm_secs."""
        calm_since = time.monotonic()
        while (
            self.failure is None and self.is_alive() and time.monotonic() - calm_since < calm_secs
        ):
            if self._detector.silent_since or self._has_detected.is_set():
                calm_since = time.monotonic()
            time.sleep(INTERVAL_SECS / 5)
        return self.failure


def find_lost_peer(rendezvous: Rendezvous) -> PeerError | None:
    """Returns the failure of a task that refuses connections or has failed; None if there is none.

    For a process that is about to exit: unlike FailureDetector, it does not wait to see whether a
    silent task answers again.
    """
    if rendezvous.group is None:
        return None
    incarnations = rendezvous.incarnations()
    exits = rendezvous.exits(rendezvous.entries(patient=False) or {}, incarnations)
    peers = [task for task in rendezvous.cluster.tasks if task != rendezvous.cluster.own_task]
    # Lost tasks come first: the others may have failed because of them.
    lost_peers = [
        loss_of(task, rendezvous)
        for task in peers
        if incarnations[task] is None and task not in exits
    ]
    failures = [failure_of_exit(task, exits.get(task)) for task in peers]
    return next((loss for loss in (*lost_peers, *failures) if loss), None)


def loss_of(task: Task, rendezvous: Rendezvous, *, has_successor: bool = False) -> PeerError:
    """Returns the failure of a task that does not answer, or whose successor does."""
    if has_successor or rendezvous.liveness.has_ended(task):
        return PeerError(task, f'{task} was lost: its process has ended')
    return PeerError(
        task,
        f'{task} was lost: it does not answer; its process may still run, on busy cores or on a '
        'host that cannot be reached',
    )


def failure_of_exit(
    task: Task, task_exit: tuple[int, str] | None, *, answers: bool = False
) -> PeerError | None:
    """Returns the failure of a task with this exit; None if it succeeded or still runs."""
    if task_exit is None or task_exit[0] == 0:
        return None
    exit_code, reason = task_exit
    # A usage error of one process counts as a usage error of the cluster.
    is_usage_error = exit_code == UsageError.exit_code
    return PeerError(
        task,
        f'{task} ended with exit code {exit_code}: {reason}',
        UsageError.exit_code if is_usage_error else RunError.exit_code,
        answers=answers,
    )
