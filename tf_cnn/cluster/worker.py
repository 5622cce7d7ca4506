"""What one process does with the others of its run."""

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.failure_detector import PeerError
from tf_cnn.cluster.rendezvous import NO_RESUME_POINT, ResumePoint
from tf_cnn.cluster.topology import Cluster


class Worker:
    """A process that takes steps, or evaluates, alone. A cluster and Horovod override what they do
    differently.

    Attributes:
      target: the TensorFlow server that runs this process's graphs; '' for none.
      device: the prefix of this process's devices in graphs, /job:worker/task:1; None without a
        server.
      together: whether the workers take their steps together.
      index: the number of this process among those that take steps.
      agreed: the offer with which all start; its 'end' is None if the training begins now.
      restart: 0 if this process began the training; a different number in each that joined it
        later.
      ends_after_chief: whether this process goes on with its steps after a signal until the chief
        has ended.
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
        """Waits for the others and agrees with them; raises RunError if some do not come in
        time.
        """
        self.resume_point = resume_point

    def announced_steps(self) -> tuple[int, int] | None:
        """Returns the first and the last step of the training if its variables are on servers, else
        None.

        The chief, which puts them there, learns of those that an earlier chief left; the others
        wait for it.
        """
        return None

    def announce(self, start_step: int, end_step: int) -> None:
        """Tells the others, if this is the chief, that the variables are on the servers."""

    def watch(self, session: tf.Session, save: Callable[[], None]) -> None:
        """From now on, ends the session if another task is lost; the chief saves the variables
        before, if it can.
        """

    def taking_steps(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for one session call that takes steps, which limits how long it waits
        for others.
        """
        return contextlib.nullcontext()

    def pausing(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for work between two steps, such as saving, during which others may
        wait for this one.
        """
        return contextlib.nullcontext()

    def raise_if_lost(self, step_secs: float) -> None:
        """Raises PeerError, between two steps, if another task was lost; the last step took
        step_secs.
        """

    def stop_watching(self) -> None:
        """From now on other tasks may end without being reported."""

    def begin_stop(self) -> None:
        """Called on another thread when a signal that ends the run has arrived: as
        stop_watching.
        """

    def explain_stop(self, reason: str) -> str:
        """Returns why a signal ended the run, with the task that was lost before, if one was."""
        return reason

    def await_peer_failure(self) -> PeerError | None:
        """Waits some seconds, after a step has failed, for the failure of another task that
        explains it.
        """
        return None

    def explain_step_error(self, error: tf.errors.OpError, line: str) -> str:
        """Returns the message for a step that failed without a peer failure; `line` if the cause is
        in this process.
        """
        return line

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """Returns the images and seconds that the chief measured, for all workers; raises PeerError
        like gather.
        """
        return images, seconds

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns the JSON values that all workers pass under this name, in their order; waits for
        all of them.

        Each gather needs another name. Raises PeerError if a task is lost meanwhile.
        """
        return [value]

    def collect(self, name: str, value: Any, *, is_complete: bool) -> list[Any]:
        """Passes a value to the chief. Returns the values of all workers, in their order, on the
        chief; else [].

        Does not fail: None stands for a worker that was lost, or did not call this within some
          seconds.
        is_complete: whether this worker has taken all of its steps; if not, others may have ended.
        """
        return [value]

    def leave(self, exit_code: int, reason: str = '') -> None:
        """Leaves the run, and records for the others how it ended."""
