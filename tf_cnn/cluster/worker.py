"""How one training task works with the other processes of its run."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import PeerError
from tf_cnn.cluster.rendezvous import NO_RESUME_POINT, ResumePoint
from tf_cnn.cluster.topology import Cluster


class Worker:
    """A single process that takes steps or evaluates. Subclasses work in a cluster or with Horovod.

    Attributes:
      target: the TensorFlow server that runs this process's graphs; '' without a server.
      device: the prefix of this process's devices in graphs, /job:worker/task:1; None without a
        server.
      is_synchronous: whether the workers take each step together.
      index: the number of this process among the training tasks.
      num_training_tasks: the number of training tasks.
      resume_point: where all workers start; its 'end' is None if the training begins now.
      restart: 0 if this process began the training; otherwise a number that differs between the
        processes that joined later.
      ends_after_chief: whether this process, after a signal, goes on taking steps until the chief
        has exited.
    """

    target = ''
    device: str | None = None
    is_synchronous = True
    restart = 0
    ends_after_chief = False

    def __init__(self, config: tf.ConfigProto, cluster: Cluster | None = None) -> None:
        self.config = config
        self.cluster = cluster
        self.is_chief = cluster is None or cluster.is_chief
        self.index = cluster.index if cluster else 0
        self.num_training_tasks = len(cluster.training_tasks) if cluster else 1
        self.resume_point = NO_RESUME_POINT

    def join(self, resume_point: ResumePoint) -> None:
        """Waits for the other tasks and sets the shared `resume_point`.

        resume_point: where the earlier training of this process stopped. Raises RunError if some
        tasks do not join in time.
        """
        self.resume_point = resume_point

    def announced_steps(self) -> tuple[int, int] | None:
        """Returns (first step, last step) of the training if its variables are on servers, else
        None.

        The chief learns whether an earlier chief left variables there. The other workers wait until
        the chief has announced its variables.
        """
        return None

    def announce(self, start_step: int, end_step: int) -> None:
        """Announces, on the chief, that the variables are on the servers."""

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        """Starts watching the other tasks. If one is lost, the chief saves the variables if it can,
        and the session is closed.
        """

    def taking_steps(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context that limits how long one session call waits for other tasks."""
        return contextlib.nullcontext()

    def pausing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for work between two steps, such as saving, while others may wait."""
        return contextlib.nullcontext()

    def raise_if_lost(self, step_secs: float) -> None:
        """Raises PeerError if another task was lost. Call it between two steps.

        step_secs: the seconds of the last step.
        """

    def stop_watching(self) -> None:
        """Stops watching: further exits of other tasks are not reported."""

    def begin_stop(self) -> None:
        """Stops watching when a signal has arrived. Called on another thread."""

    def explain_stop(self, reason: str) -> str:
        """Returns the reason for a stop by a signal, after the lost task's name if there is one."""
        return reason

    def await_peer_failure(self) -> PeerError | None:
        """Returns the failure of another task that explains a failed step; waits some seconds."""
        return None

    def explain_step_error(self, error: tf.errors.OpError, line: str) -> str:
        """Returns the message for a failed step without a peer failure.

        Returns `line` unchanged if the cause is in this process.
        """
        return line

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds of one worker, mostly the chief, the same on all workers.

        Raises PeerError like gather.
        """
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        """Waits for the JSON values that all workers pass under this name; returns them in order.

        Each gather needs a different name. Raises PeerError if a task is lost meanwhile.
        """
        return [value]

    def collect(
        self, name: str, value: Any, *, is_complete: bool, patience: float = 0.0
    ) -> list[Any]:
        """Passes a JSON value to the chief. Returns [] on the other workers.

        On the chief, returns the values of all workers in order. Never fails: None stands for a
        worker that was lost or did not call this within some seconds.

        is_complete: whether this worker took all its steps; if not, others may have exited.
        patience: how many seconds later the others may call this.
        """
        return [value]

    def leave(self, exit_code: int, reason: str = '') -> None:
        """Leaves the run, and records the exit for the other tasks."""
