"""The part of one process in a run: one protocol for a process alone, in a cluster or under Horovod."""

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
    """Another task was lost while this one waited for it.

    Attributes:
      failure: what happened to that task.
    """

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
        """Waits for the chief. Returns the number of steps taken so far, and the last step of the training.

        Raises:
          LostError: a task was lost, or the chief failed, before it announced them.
        """


class Worker(Protocol):
    """One process that takes steps (or evaluates), and what it does with the others, if there are any.

    Attributes:
      cluster: all processes of the run; None if there is only this one.
      target: the TensorFlow server that runs this process's graphs; '' for none.
      device: the prefix of this process's devices in graphs, /job:worker/task:1; None without a server.
      config: the settings of sessions.
      together: whether the workers take their steps together; True for one process.
      is_chief: whether this process initializes variables, saves checkpoints and writes the other shared files.
      index: the number of this process among those that take steps.
      num_trainers: how many processes take steps.
      agreed: the result of join.
      restart: 0 if this process began the training; a different number in each that joined it later.
      conclude: keeps what was measured if this process must end while its main thread is stuck in TensorFlow; called on
        another thread with the reason, one line; set by the run.
      server_state: the state of the variables on servers; None if no server has variables.
      ends_after_chief: whether this process goes on with its steps after a signal until the chief has ended.
    """

    conclude: Callable[[str], Any]

    @property
    def cluster(self) -> Cluster | None: ...

    @property
    def target(self) -> str: ...

    @property
    def device(self) -> str | None: ...

    @property
    def config(self) -> tf.ConfigProto: ...

    @property
    def together(self) -> bool: ...

    @property
    def is_chief(self) -> bool: ...

    @property
    def index(self) -> int: ...

    @property
    def num_trainers(self) -> int: ...

    @property
    def agreed(self) -> Mapping[str, Any]: ...

    @property
    def restart(self) -> int: ...

    @property
    def server_state(self) -> ServerState | None: ...

    @property
    def ends_after_chief(self) -> bool: ...

    def join(self, offer: Offer) -> Mapping[str, Any]:
        """Waits for the others. Returns what all agree on:

        'end': the last step of the training if it had begun before, else None.
        'step': the step of these variables; -1 if no worker has any.

        Raises:
          RunError: some tasks did not come in time.
        """

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        """From now on, ends the session if another task is lost; the chief saves the variables before, if it can."""

    def end_if_lost(self, step_secs: float) -> None:
        """Called between two steps, with the seconds of the last one.

        Raises:
          LostError: another task was lost.
        """

    def stop_watching(self) -> None:
        """From now on other tasks may end without being reported."""

    def peer_failure(self) -> PeerFailure | None:
        """Waits some seconds, after a step has failed, for the failure of another task that explains it."""

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        """Returns the message for a step that failed without a peer failure; names another task if it is the cause.

        Args:
          error: the error of the step.
          line: the message if the cause is in this process.
        """

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds that the chief measured, for all workers.

        Args:
          images: the number of images that this process measured.
          seconds: the time that this process measured.

        Raises:
          LostError: a task was lost meanwhile.
        """

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns the values that all workers pass under this name, in their order. Waits for all of them.

        Args:
          name: unique among everything that is gathered.
          value: a value that JSON can represent.

        Raises:
          LostError: a task was lost meanwhile.
        """

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        """Passes a value to the chief. Returns the values of all workers, in their order, on the chief; else [].

        Does not fail: None stands for a worker that was lost, or did not call this within some seconds.

        Args:
          name: as for gather.
          value: as for gather.
          is_complete: whether this worker has taken all of its steps; if not, others may have ended.
        """

    def end(self, exit_code: int, reason: str = '') -> None:
        """Leaves the run, and records for the others how it ended."""


class WithoutServer:
    """The common part of processes without a TensorFlow server: they watch no others."""

    target = ''
    device = None
    together = True
    restart = 0
    server_state = None

    def __init__(self, config: tf.ConfigProto) -> None:
        self.config = config
        self.conclude: Callable[[str], Any] = lambda reason: None
        self.agreed: Mapping[str, Any] = {}

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        """Does nothing: there is nothing to watch."""

    def end_if_lost(self, step_secs: float) -> None:
        """Does nothing: there is nothing to watch."""

    def stop_watching(self) -> None:
        """Does nothing: there is nothing to watch."""

    def peer_failure(self) -> PeerFailure | None:
        """Returns None."""
        return None

    def end(self, exit_code: int, reason: str = '') -> None:
        """Does nothing: there is nobody to inform."""


class OneProcess(WithoutServer):
    """A run without other processes: it agrees with itself at once.

    Args:
      config: the settings of sessions.
    """

    cluster = None
    is_chief = True
    index = 0
    num_trainers = 1
    ends_after_chief = False

    def join(self, offer: Offer) -> Mapping[str, Any]:
        self.agreed = {'end': None, 'step': -1 if offer['step'] is None else offer['step']}
        return self.agreed

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        return line

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        return [value]

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        return [value]
