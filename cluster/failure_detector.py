"""Detects when another task is lost or replaced while this one takes steps."""

import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.rendezvous import End, Generation, Rendezvous
from cluster.topology import Cluster, Task
from errors import RunError, UsageError

_INTERVAL_SECS = 0.5
# A task that cannot return may be silent for this long, if it is alive but slow.
_SLOW_SECS = 5.0
# How TensorFlow's messages name the task that a call was sent to, and any task, such as the one that reports an error.
_ANY_TASK = r'/job:(\w+)(?:/replica:\d+)?/task:(\d+)'
_NAMED_TASKS = re.compile(f'remote target {_ANY_TASK}'), re.compile(_ANY_TASK)


@dataclass(frozen=True)
class PeerFailure:
    """What happened to another task.

    Attributes:
      task: the task.
      is_replaced: whether a new process has replaced it; if not, it is lost for good.
      line: what happened, for messages.
      exit_code: the exit code of a process that ends because of this failure.
    """

    task: Task
    is_replaced: bool
    line: str
    exit_code: int = RunError.exit_code


class FailureDetector(threading.Thread):
    """A thread that compares the incarnations of all members of a generation until one has changed or is lost.

    Args:
      rendezvous: this task's view of the cluster.
      generation: the expected incarnations.
      can_return: whether the run can go on if this task is replaced by a new process.
      peer_timeout_secs: how long to wait for that, in seconds.
      warn: prints a warning about a task that does not answer.
      interrupt: called when a failure is found; ends whatever waits for the lost task.

    Attributes:
      failure: the first failure of another task; None if there was none.
      silent_since: since when each task that does not answer has been silent (time.monotonic).
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        generation: Generation,
        can_return: Callable[[Task], bool],
        peer_timeout_secs: float,
        warn: Callable[[str], None],
        interrupt: Callable[[], None],
    ) -> None:
        super().__init__(name='failure detector', daemon=True)
        self.failure: PeerFailure | None = None
        self.silent_since: dict[Task, float] = {}
        self._named_strangers: set[str] = set()
        self._rendezvous = rendezvous
        self._generation = generation
        self._can_return = can_return
        self._peer_timeout_secs = peer_timeout_secs
        self._warn = warn
        self._interrupt = interrupt
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECS):
            failure = self._check_members()
            if failure and not self._stopped.is_set():
                self.failure = failure
                self._interrupt()
                return

    def stop(self) -> None:
        """Ends the thread: from now on other tasks may end without being reported."""
        self._stopped.set()

    def wait(self, calm_secs: float) -> PeerFailure | None:
        """Waits for a failure; returns None when all tasks have answered for calm_secs seconds."""
        calm_since = time.monotonic()
        while self.failure is None and time.monotonic() - calm_since < calm_secs and self.is_alive():
            if self.silent_since:
                calm_since = time.monotonic()
            time.sleep(_INTERVAL_SECS / 5)
        return self.failure

    def _check_members(self) -> PeerFailure | None:
        found, cluster = self._rendezvous.incarnations(), self._rendezvous.cluster
        entries = self._rendezvous.entries() if found[cluster.store_task] is not None else None
        ends = self._rendezvous.ends(entries or {}, found)
        if cluster.is_chief:
            self._name_strangers(entries or {})
        for task, incarnation in found.items():
            expected = self._generation.members.get(str(task))
            if task == cluster.own or expected is None:
                continue
            if incarnation == expected:
                self.silent_since.pop(task, None)
                # Servers, and the task with the store, still answer for a while after they have recorded their end.
                if task in (cluster.store_task, *cluster.servers) and (failure := failure_of_end(task, ends.get(task))):
                    return failure
            elif incarnation is not None and self._can_return(task):
                return PeerFailure(task, True, f'{task} was lost and has been replaced by a new process')
            elif failure := self._check_lost(task, incarnation):
                return failure
        return None

    def _name_strangers(self, entries: Mapping[str, Any]) -> None:
        for name, difference in self._rendezvous.strangers(entries).items():
            if name not in self._named_strangers:
                self._named_strangers.add(name)
                self._warn(f'{name} does not belong to this cluster and was refused: {difference}')

    def _check_lost(self, task: Task, incarnation: int | None) -> PeerFailure | None:
        """Returns the failure of a task that is silent, or replaced although it cannot return; None to wait longer."""
        end = self._rendezvous.end_of(task, incarnation)
        if end:
            self.silent_since.pop(task, None)
            return failure_of_end(task, end)
        if task not in self.silent_since:
            self.silent_since[task] = time.monotonic()
            wait_secs = self._peer_timeout_secs if self._can_return(task) else _SLOW_SECS
            self._warn(f'{task} does not answer; waiting up to {wait_secs:g} s for it')
        silent_secs = time.monotonic() - self.silent_since[task]
        if not self._can_return(task):
            if silent_secs < min(_SLOW_SECS, self._peer_timeout_secs):
                return None
            line = f'{task} was lost, and its variables with it; write --train_dir=DIR to keep them in checkpoints'
            return PeerFailure(task, False, line)
        if silent_secs < self._peer_timeout_secs:
            return None
        return failure_of_timeout(task, self._peer_timeout_secs)


def failure_of_timeout(task: Task, peer_timeout_secs: float) -> PeerFailure:
    """Returns the failure of a lost task that did not come back in time."""
    line = f'{task} was lost and did not come back within --peer_timeout_secs={peer_timeout_secs:g}'
    return PeerFailure(task, False, line)


def failure_of_end(task: Task, end: End | None) -> PeerFailure | None:
    """Returns the failure of a task that recorded this end; None if it ended well or has not ended."""
    if end is None or end.exit_code == 0:
        return None
    # Wrong use of one process counts as wrong use of the cluster.
    exit_code = UsageError.exit_code if end.exit_code == UsageError.exit_code else RunError.exit_code
    return PeerFailure(task, False, f'{task} ended with exit code {end.exit_code}: {end.reason}', exit_code)


def fault_of(failure: PeerFailure) -> RunError:
    """Returns the error with which a process ends because of this failure."""
    fault = RunError(failure.line)
    fault.exit_code = failure.exit_code
    return fault


def peer_in_error(message: str, cluster: Cluster) -> str | None:
    """Returns what a lost connection led to, by TensorFlow's message: another task; None if it names no task.

    The process that reports the error comes first in the message, and may be this one.
    """
    by_name = {(task.job, str(task.index)): task for task in cluster.tasks}
    found = (by_name.get(name) for pattern in _NAMED_TASKS for name in pattern.findall(message))
    tasks = [task for task in found if task]
    return next((str(task) for task in tasks if task != cluster.own), 'another process' if tasks else None)
