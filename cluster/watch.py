"""Watches the other tasks while this one takes steps, and says what to do when one of them is lost."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from cluster.crew import Crew, End, Generation
from cluster.members import Task

_INTERVAL_SECS = 0.5
# A task that will not be waited for may still be only slow to answer.
_SLOW_SECS = 5.0


@dataclass(frozen=True)
class Verdict:
    """What has become of another task: it was replaced by a new process, or will not come back."""

    task: Task
    is_back: bool
    line: str


class Watch(threading.Thread):
    """Asks the members of a generation for their incarnations until one of them has changed or is lost.

    Args:
      can_return: whether the run can go on when this task is replaced by a new process.
      peer_timeout_secs: how long to wait for that.
      warn: where a line about a lost task goes.
      interrupt: called once there is a verdict; ends what waits for the lost task.

    Attributes:
      verdict: what has become of the first task that was lost for good or replaced.
      lost: since when each task does not answer.
    """

    def __init__(
        self,
        crew: Crew,
        generation: Generation,
        can_return: Callable[[Task], bool],
        peer_timeout_secs: float,
        warn: Callable[[str], None],
        interrupt: Callable[[], None],
    ) -> None:
        super().__init__(name='watch', daemon=True)
        self.verdict: Verdict | None = None
        self.lost: dict[Task, float] = {}
        self._crew = crew
        self._generation = generation
        self._can_return = can_return
        self._peer_timeout_secs = peer_timeout_secs
        self._warn = warn
        self._interrupt = interrupt
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(_INTERVAL_SECS):
            verdict = self._look()
            if verdict and not self._stopped.is_set():
                self.verdict = verdict
                self._interrupt()
                return

    def stop(self) -> None:
        """From now on tasks may end."""
        self._stopped.set()

    def wait(self, calm_secs: float) -> Verdict | None:
        """The verdict. None if, for that long, no task was lost."""
        calm_since = time.monotonic()
        while self.verdict is None and time.monotonic() - calm_since < calm_secs and self.is_alive():
            if self.lost:
                calm_since = time.monotonic()
            time.sleep(_INTERVAL_SECS / 5)
        return self.verdict

    def _look(self) -> Verdict | None:
        there, cluster = self._crew.ask(), self._crew.cluster
        facts = self._crew.facts() if there[cluster.host_task] is not None else None
        ends = self._crew.ends(facts or {}, there)
        for task, incarnation in there.items():
            expected = self._generation.members.get(str(task))
            if task == cluster.own or expected is None:
                continue
            if incarnation == expected:
                self.lost.pop(task, None)
                # A server, and who keeps the board, stays for a while when it has told that it ends.
                if task in (cluster.host_task, *cluster.servers) and (verdict := judge_end(task, ends.get(task))):
                    return verdict
            elif incarnation is not None and self._can_return(task):
                return Verdict(task, True, f'{task} was lost and is back')
            elif verdict := self._judge(task, incarnation):
                return verdict
        return None

    def _judge(self, task: Task, incarnation: int | None) -> Verdict | None:
        """What to do about a task that does not answer, or is another process and of no use."""
        end = self._crew.end_of(task, incarnation)
        if end:
            self.lost.pop(task, None)
            return judge_end(task, end)
        if task not in self.lost:
            self.lost[task] = time.monotonic()
            patience = self._peer_timeout_secs if self._can_return(task) else _SLOW_SECS
            self._warn(f'{task} does not answer; waiting up to {patience:g} s for it')
        gone_secs = time.monotonic() - self.lost[task]
        if not self._can_return(task):
            if gone_secs < min(_SLOW_SECS, self._peer_timeout_secs):
                return None
            return Verdict(task, False, f'{task} was lost, and its variables with it; --train_dir=DIR would keep them')
        if gone_secs < self._peer_timeout_secs:
            return None
        return give_up(task, self._peer_timeout_secs)


def give_up(task: Task, peer_timeout_secs: float) -> Verdict:
    """What it means that a lost task was waited for in vain."""
    return Verdict(
        task, False, f'{task} was lost and did not come back within --peer_timeout_secs={peer_timeout_secs:g}'
    )


def judge_end(task: Task, end: End | None) -> Verdict | None:
    """What it means that a task told how it ends."""
    if end is None or end.exit_code == 0:
        return None
    return Verdict(task, False, f'{task} ended with exit code {end.exit_code}: {end.reason}')
