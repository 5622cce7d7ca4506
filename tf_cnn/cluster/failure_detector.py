"""Detects that another task is lost: killed, ended with a fault, out of reach, or that a step waits
for it too long.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tf_cnn.cluster.rendezvous import End, Rendezvous
from tf_cnn.cluster.topology import Task, Timeout, name_tasks
from tf_cnn.system.errors import RunError, UsageError

_INTERVAL_SECS = 0.5
# For how long a task may refuse connections. One that leaves requests unanswered has longer, see
# Health.
_SILENT_SECS = 2.0
# How long a step may take to its end after a loss, before the variables are saved within it.
_LEAST_STEP_SECS, _MOST_STEP_SECS = 1.0, 6.0


class PeerError(RunError):
    """Another task is lost, and this process ends because of it. answers: the task itself ends in
    order.
    """

    def __init__(
        self,
        task: Task,
        what: str = 'was lost',
        exit_code: int = RunError.exit_code,
        *,
        answers: bool = False,
    ) -> None:
        super().__init__(f'{task} {what}')
        self.task = task
        self.exit_code = exit_code
        self.answers = answers


class StepTimeoutError(PeerError):
    """A step has waited for these tasks for too long, although they answer."""

    def __init__(self, tasks: Sequence[Task], timeout: Timeout, secs: float) -> None:
        # Not the message of a lost task.
        RunError.__init__(
            self,
            f'a step has waited {secs:.0f} s for {name_tasks(tasks)}, although each answers; a '
            f'connection was cut, or a process stands still; --{timeout.flag}={timeout.secs:g} '
            f'limits the wait',
        )
        self.task = tasks[0]
        self.answers = True


class StepLimit:
    """Limits how long a step of this process waits for other tasks.

    A step may take as long as timeout, or twice the time of the longest step so far if that is
    longer. There is no limit for the first step, which may compile, and while another task
    evaluates or saves a checkpoint.
    """

    def __init__(
        self, rendezvous: Rendezvous, timeout: Timeout, clock: Callable[[], float] = time.monotonic
    ) -> None:
        cluster = rendezvous.cluster
        # Asynchronous workers wait for servers only.
        tasks = cluster.tasks if rendezvous.together else cluster.servers
        self._others = [task for task in tasks if task != cluster.own]
        self._rendezvous = rendezvous
        self._timeout = timeout
        self._clock = clock
        self._num_calls = 0
        self._longest_secs = 0.0
        # When the current step began; None between steps and in the first one.
        self._since: float | None = None
        # When another task was last known to evaluate or save.
        self._paused_at = 0.0
        self._has_told = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Runs the block, a session call that takes steps."""
        began = self._clock()
        self._num_calls += 1
        self._has_told = False
        self._since = began if self._num_calls > 1 else None
        try:
            yield
        finally:
            self._since = None
        self._longest_secs = max(self._longest_secs, self._clock() - began)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Runs the block, which evaluates or saves, while other tasks may wait in their next
        step.
        """
        key = self._key('paused', self._rendezvous.cluster.own)
        self._rendezvous.put(key, True)
        yield
        self._rendezvous.put(key, False)

    def check(self) -> StepTimeoutError | None:
        """Returns the failure of a step that has waited too long. Call it every second or so, on
        another thread.
        """
        since, num_calls = self._since, self._num_calls
        if since is None or not self._timeout.secs:
            return None
        limit_secs = max(self._timeout.secs, 2 * self._longest_secs)
        waited_secs = self._clock() - max(since, self._paused_at)
        if waited_secs > limit_secs / 2 and not self._has_told:
            # The others wait for the tasks that do not tell this.
            self._has_told = True
            self._rendezvous.put(self._key('waiting', self._rendezvous.cluster.own), num_calls)
        if waited_secs < limit_secs:
            return None
        entries = self._rendezvous.entries(patient=False) or {}
        if any(entries.get(self._key('paused', task)) for task in self._others):
            self._paused_at = self._clock()
            return None
        if since != self._since:
            # The step has ended in the meantime.
            return None
        late = [
            task
            for task in self._others
            if task in self._rendezvous.cluster.trainers
            and entries.get(self._key('waiting', task)) != num_calls
        ]
        return StepTimeoutError(late or self._others, self._timeout, limit_secs)

    @staticmethod
    def _key(what: str, task: Task) -> str:
        return f'{what}/{task.job}/{task.index}'


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
        ends = self._rendezvous.ends(
            self._entries, {task: self._members.get(str(task)) for task in cluster.tasks}
        )
        for task, incarnation in found.items():
            expected = self._members.get(str(task))
            if task == cluster.own or expected is None:
                continue
            # A task may still answer for a while after it has recorded its end, and its next
            # process be there already.
            if task in ends:
                self.silent_since.pop(task, None)
                if failure := failure_of_end(task, ends[task], answers=incarnation == expected):
                    return failure
            elif incarnation == expected:
                self.silent_since.pop(task, None)
            else:
                since = self.silent_since.setdefault(
                    task, self._rendezvous.health.last_answer(task)
                )
                if incarnation is not None or time.monotonic() - since > _SILENT_SECS:
                    return PeerError(task)
        return None


class FailureWatch(threading.Thread):
    """A thread that checks the members until one is lost.

    It then calls save with the failure, while the session is still open, sets `failure`, and calls
    interrupt, which ends whatever waits for the lost task.
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
        self._found, self._between_steps = threading.Event(), threading.Event()
        self._step_secs = 0.0
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECS):
            failure = self._detector.check() or (self._limit and self._limit.check())
            if failure and not self._stopped.is_set():
                self._found.set()
                self._save(failure)
                self.failure = failure
                self._interrupt()
                return

    def await_step(self) -> None:
        """Waits until the main thread is between two steps; not for long, since its step may wait
        for the lost task.
        """
        self._between_steps.wait(min(max(_LEAST_STEP_SECS, 2 * self._step_secs), _MOST_STEP_SECS))

    def end_if_lost(self, step_secs: float) -> None:
        """Lets the variables be saved, between two steps, if a task is lost, and then raises
        that.
        """
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
        while (
            self.failure is None and self.is_alive() and time.monotonic() - calm_since < calm_secs
        ):
            if self._detector.silent_since or self._found.is_set():
                calm_since = time.monotonic()
            time.sleep(_INTERVAL_SECS / 5)
        return self.failure


def find_loss(rendezvous: Rendezvous) -> PeerError | None:
    """Returns a task of this training that refuses connections or has failed by now; None if there
    is none.

    For a process that ends: unlike a FailureDetector, it does not wait until a silent task is
      surely lost.
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
    """Returns the failure of a task that recorded this end; None if it ended well or has not
    ended.
    """
    if end is None or end.exit_code == 0:
        return None
    # Wrong use of one process counts as wrong use of the cluster.
    exit_code = (
        UsageError.exit_code if end.exit_code == UsageError.exit_code else RunError.exit_code
    )
    return PeerError(
        task, f'ended with exit code {end.exit_code}: {end.reason}', exit_code, answers=answers
    )
