"""What one process does with the others of its run. Worker is a process alone; others override what differs."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypedDict

import tensorflow.compat.v1 as tf

from cluster.failure_detector import PeerFailure
from cluster.topology import Cluster
from errors import RunError


class Offer(TypedDict):
    """What a process brings from an earlier training: its last step, and the step of its variables; None without."""

    end: int | None
    step: int | None


class LostError(RunError):
    """Another task was lost while this one waited for it."""

    def __init__(self, failure: PeerFailure) -> None:
        super().__init__(failure.line)
        self.failure = failure


class ServerState(Protocol):
    """What the workers know together about the variables on servers."""

    def kept_end(self) -> int | None:
        """Returns the last step of the training if the servers still have the last chief's variables; else None."""

    def announce(self, start: int, end: int) -> None:
        """Called by the chief: the variables are ready after `start` steps, and training ends after `end` steps."""

    def await_announcement(self) -> tuple[int, int]:
        """Waits for the chief; LostError if a task is lost first. Returns the steps taken so far, and the last step."""


class Worker:
    """One process that takes steps (or evaluates), and what it does with the others. This class has no others.

    Attributes:
      target: the TensorFlow server that runs this process's graphs; '' for none.
      device: the prefix of this process's devices in graphs, /job:worker/task:1; None without a server.
      together: whether the workers take their steps together; True for one process.
      index: the number of this process among those that take steps.
      restart: 0 if this process began the training; a different number in each that joined it later.
      conclude: keeps what was measured if this process must end while its main thread is stuck in TensorFlow; called on
        another thread with the reason, one line; set by the run.
      server_state: None if no server has variables.
      ends_after_chief: whether this process goes on with its steps after a signal until the chief has ended.
    """

    target = ''
    device: str | None = None
    together = True
    restart = 0
    ends_after_chief = False
    server_state: ServerState | None = None

    def __init__(self, config: tf.ConfigProto, cluster: Cluster | None = None) -> None:
        self.config = config
        self.cluster = cluster
        self.is_chief = cluster is None or cluster.is_chief
        self.index = cluster.index if cluster else 0
        self.num_trainers = cluster.num_trainers if cluster else 1
        self.agreed: Mapping[str, Any] = {}
        self.conclude: Callable[[str], Any] = lambda reason: None

    def join(self, offer: Offer) -> Mapping[str, Any]:
        """Waits for the others; raises RunError if some do not come in time. Returns what all agree on:

        'end': the last step of the training if it had begun before, else None.
        'step': the step of these variables; -1 if no worker has any.
        """
        self.agreed = {'end': None, 'step': -1 if offer['step'] is None else offer['step']}
        return self.agreed

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        """From now on, ends the session if another task is lost; the chief saves the variables before, if it can."""

    def end_if_lost(self, step_secs: float) -> None:
        """Called between two steps, with the seconds of the last one; raises LostError if another task was lost."""

    def stop_watching(self) -> None:
        """From now on other tasks may end without being reported."""

    def peer_failure(self) -> PeerFailure | None:
        """Waits some seconds, after a step has failed, for the failure of another task that explains it."""
        return None

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        """Returns the message for a step that failed without a peer failure; `line` if the cause is in this process."""
        return line

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds that the chief measured, for all workers; raises LostError like gather."""
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns the JSON values that all workers pass under this name, in their order; waits for all of them.

        Each gather needs another name. Raises LostError if a task is lost meanwhile.
        """
        return [value]

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        """Passes a value to the chief. Returns the values of all workers, in their order, on the chief; else [].

        Does not fail: None stands for a worker that was lost, or did not call this within some seconds.
        is_complete: whether this worker has taken all of its steps; if not, others may have ended.
        """
        return [value]

    def end(self, exit_code: int, reason: str = '') -> None:
        """Leaves the run, and records for the others how it ended."""
