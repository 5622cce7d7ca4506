"""Detects that another task is lost: killed, ended with a fault, or out of reach."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cluster.rendezvous import End, Rendezvous
from cluster.topology import Task
from errors import RunError, UsageError

_INTERVAL_SECS = 0.5
# For how long a task may refuse connections. One that leaves requests unanswered has longer, see Health.
_SILENT_SECS = 2.0
# How long a step may take to its end after a loss, before the variables are saved within it.
_LEAST_STEP_SECS, _MOST_STEP_SECS = 1.0, 6.0


class PeerError(RunError):
    """Another task is lost, and this process ends because of it. answers: the task itself ends in order."""

    def __init__(
        self, task: Task, what: str = 'was lost', exit_code: int = RunError.exit_code, *, answers: bool = False
    ) -> None:
        super().__init__(f'{task} {what}')
        self.task = task
        self.exit_code = exit_code
        self.answers = answers


class FailureDetector:
    """Finds the first member of the training that is lost."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        assert rendezvous.membership, 'it has joined'
        self._rendezvous = rendezvous
        self._members = rendezvous.membership.members
        self._entries: Mapping[str, Any] = {}
        # Since when each task that does not answer has been silent (time.monotonic).
        self.silent_since: dict[Task, float] = {}

    def check(self) -> PeerError | None:
        """Returns the loss of a member; None if all answer, or are silent for a moment only."""
        found, cluster = self._rendezvous.incarnations(), self._rendezvous.cluster
        # How a task ended stays true while the task with the store is too busy to answer.
        self._entries = self._rendezvous.entries(patient=False) or self._entries
        ends = self._rendezvous.ends(self._entries, {task: self._members.get(str(task)) for task in cluster.tasks})
        for task, incarnation in found.items():
            expected = self._members.get(str(task))
            if task == cluster.own or expected is None:
                continue
            # A task may still answer for a while after it has recorded its end, and its next process be there already.
            if task in ends:
                self.silent_since.pop(task, None)
                if failure := failure_of_end(task, ends[task], answers=incarnation == expected):
                    return failure
            elif incarnation == expected:
                self.silent_since.pop(task, None)
            else:
                since = self.silent_since.setdefault(task, self._rendezvous.health.last_answer(task))
                if incarnation is not None or time.monotonic() - since > _SILENT_SECS:
                    return PeerError(task)
        return None


class FailureWatch(threading.Thread):
    """A thread that checks the members until one is lost.

    It then calls save with the failure, while the session is still open, sets `failure`, and calls interrupt, which
    ends whatever waits for the lost task.
    """

    def __init__(
        self, detector: FailureDetector, save: Callable[[PeerError], None], interrupt: Callable[[], None]
    ) -> None:
        super().__init__(name='failure detector', daemon=True)
        self.failure: PeerError | None = None
        self._detector = detector
        self._save = save
        self._interrupt = interrupt
        self._found, self._between_steps = threading.Event(), threading.Event()
        self._step_secs = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECS):
            failure = self._detector.check()
            if failure and not self._stopped.is_set():
                self._found.set()
                self._save(failure)
                self.failure = failure
                self._interrupt()
                return

    def await_step(self) -> None:
        """Waits until the main thread is between two steps; not for long, since its step may wait for the lost task."""
        self._between_steps.wait(min(max(_LEAST_STEP_SECS, 2 * self._step_secs), _MOST_STEP_SECS))

    def end_if_lost(self, step_secs: float) -> None:
        """Lets the variables be saved, between two steps, if a task is lost, and then raises that."""
        self._step_secs = step_secs
        if self._found.is_set():
            self._between_steps.set()
            self.join()
        if self.failure:
            raise self.failure

    def stop(self) -> None:
        """Ends the thread: from now on other tasks may end without being reported."""
        self._stopped.set()

    def wait(self, calm_secs: float) -> PeerError | None:
        """Waits for a failure; returns None when all tasks have answered for calm_secs seconds."""
        calm_since = time.monotonic()
        while self.failure is None and self.is_alive() and time.monotonic() - calm_since < calm_secs:
            if self._detector.silent_since or self._found.is_set():
                calm_since = time.monotonic()
            time.sleep(_INTERVAL_SECS / 5)
        return self.failure


def find_loss(rendezvous: Rendezvous) -> PeerError | None:
    """Returns a task of this training that refuses connections or has failed by now; None if there is none.

    For a process that ends: unlike a FailureDetector, it does not wait until a silent task is surely lost.
    """
    if rendezvous.membership is None:
        return None
    found = rendezvous.incarnations()
    ends = rendezvous.ends(rendezvous.entries(patient=False) or {}, found)
    others = [task for task in rendezvous.cluster.tasks if task != rendezvous.cluster.own]
    # Tasks that recorded their end may have ended because of one that could not.
    losses = [PeerError(task) for task in others if found[task] is None and task not in ends]
    failures = [failure_of_end(task, ends.get(task)) for task in others]
    return next((loss for loss in (*losses, *failures) if loss), None)


def failure_of_end(task: Task, end: End | None, *, answers: bool = False) -> PeerError | None:
    """Returns the failure of a task that recorded this end; None if it ended well or has not ended."""
    if end is None or end.exit_code == 0:
        return None
    # Wrong use of one process counts as wrong use of the cluster.
    exit_code = UsageError.exit_code if end.exit_code == UsageError.exit_code else RunError.exit_code
    return PeerError(task, f'ended with exit code {end.exit_code}: {end.reason}', exit_code, answers=answers)
