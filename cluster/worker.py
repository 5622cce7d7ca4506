"""One process's part in a run, whether it trains alone, in a cluster or under Horovod: one protocol for all."""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import tensorflow.compat.v1 as tf

from cluster.failure_detector import PeerFailure
from cluster.shared_memory import SharedHost
from cluster.topology import Cluster
from errors import RunError


class LostError(RunError):
    """Another task was lost or replaced while this one waited for it.

    Attributes:
      failure: what happened to that task.
    """

    def __init__(self, failure: PeerFailure) -> None:
        super().__init__(failure.line)
        self.failure = failure


class ServerState(Protocol):
    """What the workers tell each other about the variables on servers."""

    def kept_end(self) -> int | None:
        """After how many steps training ends, if the servers still hold the variables of the last chief; else None."""

    def announce(self, start: int, end: int) -> None:
        """Called by the chief: the variables are ready after `start` steps, and training ends after `end` steps."""

    def await_announcement(self) -> tuple[int, int]:
        """Waits for the chief. Returns the steps taken so far, and those after which training ends.

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
      is_chief: whether this process initializes variables, saves checkpoints and writes what is written once.
      index, num_trainers: the number of this process among those that take steps, and how many these are.
      inherited: what the process that this one replaced passed on with start_anew; empty if there was none.
      agreed: what join returned.
      generation: how often the workers have joined, this time included; 1 for one process.
      end_step: after how many steps training ends, once that is known; set by the run, inherited on a restart.
      measured: returns what the process that replaces this one inherits as 'measured'; set by the run.
      conclude: keeps what was measured if this process must end while its main thread is stuck in TensorFlow; called on
        another thread with the reason, one line; set by the run.
      server_state: what is known of the variables on servers; None if no server holds variables.
      hands_on_variables: whether training can go on from the variables of this process after another one was lost.
      ends_after_chief: whether a signal leaves this process at its steps until the chief has ended.
    """

    end_step: int | None
    measured: Callable[[], Any]
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
    def inherited(self) -> Mapping[str, Any]: ...

    @property
    def agreed(self) -> Mapping[str, Any]: ...

    @property
    def generation(self) -> int: ...

    @property
    def server_state(self) -> ServerState | None: ...

    @property
    def hands_on_variables(self) -> bool: ...

    @property
    def ends_after_chief(self) -> bool: ...

    def join(self, state_step: int | None) -> Mapping[str, Any]:
        """Waits for the others. Returns what all agree on:

        'end': the number of steps after which training ends, if it had begun before, else None.
        'root': the index of the worker whose variables all start from.
        'step': the step of these variables; -1 if nobody has any.

        Args:
          state_step: the step of the variables that this process brings along; None if it has none.

        Raises:
          RunError: some tasks did not come in time.
        """

    def watch(self, session: tf.Session) -> None:
        """From now on, closes the session if another task is lost for good or replaced."""

    def stop_watching(self) -> None:
        """From now on other tasks may end."""

    def peer_failure(self) -> PeerFailure | None:
        """To be called when a step has failed: waits some seconds for the failure of another task that explains it."""

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        """The line for a step that failed although no peer failure was found; names others if they are the cause.

        Args:
          error: what the step raised.
          line: the cause as far as this process alone is concerned.
        """

    def start_anew(self, inherited: Mapping[str, Any]) -> NoReturn:
        """Restarts this process after another one was replaced; only possible after peer_failure returned that.

        Args:
          inherited: what the new process needs, besides end_step. JSON must be able to represent it.
        """

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds that the chief measured, for all workers.

        Args:
          images, seconds: what this process measured.

        Raises:
          LostError: a task was lost meanwhile.
        """

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns what all workers passed under this name, in their order. Each waits for the others.

        Args:
          name: unique among everything that is gathered.
          value: what JSON can represent.

        Raises:
          LostError: a task was lost meanwhile.
        """

    def shared_host(self) -> SharedHost | None:
        """Returns the host of all workers; None if they are on several, or there is only one.

        Every worker must call it, before watch().

        Raises:
          LostError: a task was lost meanwhile.
        """

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        """Passes a value to the chief. Returns there what the workers passed, in their order; elsewhere an empty list.

        Does not fail: None stands for a worker that was lost, or did not get to this point within some seconds.

        Args:
          name, value: as for gather.
          is_complete: whether this worker has taken all of its steps; if not, others may have ended.
        """

    def end(self, exit_code: int, reason: str = '') -> None:
        """Leaves the run, and records for the others how it ended."""


class WithoutServer:
    """What all processes have in common that run no TensorFlow server: they watch no others and cannot be replaced."""

    target = ''
    device = None
    together = True
    generation = 1
    server_state = None
    hands_on_variables = False

    def __init__(self, config: tf.ConfigProto) -> None:
        self.config = config
        self.end_step: int | None = None
        self.measured: Callable[[], Any] = lambda: None
        self.conclude: Callable[[str], Any] = lambda reason: None
        self.inherited: Mapping[str, Any] = {}
        self.agreed: Mapping[str, Any] = {}

    def watch(self, session: tf.Session) -> None:
        """There is nothing to watch."""

    def stop_watching(self) -> None:
        """There is nothing to watch."""

    def shared_host(self) -> SharedHost | None:
        """None: no task shares it."""
        return None

    def peer_failure(self) -> PeerFailure | None:
        """Always None."""
        return None

    def start_anew(self, inherited: Mapping[str, Any]) -> NoReturn:
        """Never called, since peer_failure returns None."""
        raise NotImplementedError

    def end(self, exit_code: int, reason: str = '') -> None:
        """There is nobody to inform."""


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

    def join(self, state_step: int | None) -> Mapping[str, Any]:
        self.agreed = {'end': None, 'root': 0, 'step': -1 if state_step is None else state_step}
        return self.agreed

    def explain(self, error: tf.errors.OpError, line: str) -> str:
        return line

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        return [value]

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        return [value]
