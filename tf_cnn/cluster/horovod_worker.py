"""Workers that Horovod starts and connects. When one is lost, Horovod ends all of them."""

import contextlib
import itertools
import json
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.cluster.rendezvous import ResumePoint, SharedSettings, find_difference
from tf_cnn.cluster.topology import Cluster
from tf_cnn.cluster.worker import Worker
from tf_cnn.managers.modes import format_modes
from tf_cnn.system.errors import UsageError


def load_horovod() -> Any:
    try:
        import horovod.tensorflow as horovod
    except Exception as error:
        # A library that was built for another TensorFlow raises several kinds of errors.
        horovod_modes = format_modes(lambda mode: mode.launcher is not None)
        other_modes = format_modes(
            lambda mode: mode.has_cluster and not mode.needs_servers and not mode.has_controller
        )
        raise UsageError(
            f'{horovod_modes}: the package horovod cannot be imported '
            f'({" ".join(str(error).split())}); install it for this TensorFlow, or use '
            f'{other_modes}'
        ) from error
    horovod.init()
    return horovod


def horovod_cluster(horovod: Any) -> Cluster:
    """Returns the cluster that Horovod started, with placeholders for the hosts.

    Only Horovod knows the addresses.
    """
    hosts = tuple(f'rank-{rank}:0' for rank in range(horovod.size()))
    return Cluster((), hosts, 'worker', horovod.rank(), 'Horovod')


class HorovodWorker(Worker):
    """One of the synchronous workers that Horovod started. Horovod detects lost processes."""

    def __init__(
        self, horovod: Any, cluster: Cluster, config: tf.ConfigProto, *, settings: SharedSettings
    ) -> None:
        super().__init__(config, cluster)
        self._settings = settings
        # Each all-reduce needs all processes. If the others exited first, the chief could not
        # finish its step and save.
        self.ends_after_chief = not cluster.is_chief
        self._horovod = horovod

    def join(self, resume_point: ResumePoint) -> None:
        """Takes the resume point of rank 0. All ranks start from the variables of rank 0.

        Raises UsageError if two ranks have different settings.
        """
        settings = enumerate(self.gather('settings', self._settings))
        if difference := find_difference({f'rank {rank}': each for rank, each in settings}):
            raise UsageError(difference)
        received = self._broadcast_from_chief(
            [-1 if value is None else value for value in resume_point.values()]
        )
        self.resume_point = {
            name: None if value < 0 else int(value)
            for name, value in zip(resume_point, received, strict=True)
        }

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        images, seconds = self._broadcast_from_chief([images, seconds])
        return int(images), float(seconds)

    def gather(self, name: str, value: Any) -> list[Any]:
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            encoded_value = tf.constant(list(json.dumps(value).encode()), tf.int32)
            texts = self._horovod.allgather(encoded_value, name=f'gather_{name}')
            lengths = self._horovod.allgather(
                tf.shape(encoded_value), name=f'gather_{name}_lengths'
            )
        with tf.Session(graph=graph, config=self.config) as session:
            encoded_values, sizes = session.run([texts, lengths])
        end_offsets = list(itertools.accumulate(sizes))
        return [
            json.loads(bytes(encoded_values[end_offset - size : end_offset].astype('uint8')))
            for end_offset, size in zip(end_offsets, sizes, strict=True)
        ]

    def collect(
        self, name: str, value: Any, *, is_complete: bool, patience: float = 0.0
    ) -> list[Any]:
        """Returns the values of all ranks if all steps were taken.

        Otherwise returns only the value of this rank, since a lost rank would never answer.
        """
        if is_complete:
            with contextlib.suppress(tf.errors.OpError):
                return self.gather(name, value)
        return [value if index == self.index else None for index in range(self.num_training_tasks)]

    def _broadcast_from_chief(self, values: list[float]) -> Any:
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            received = self._horovod.broadcast(
                tf.constant(values, tf.float64), root_rank=0, name='from_chief'
            )
        with tf.Session(graph=graph, config=self.config) as session:
            return session.run(received)

    def explain_step_error(self, error: tf.errors.OpError, line: str) -> str:
        """Recognizes the UnknownError that Horovod raises when another process is lost.

        The error may not name a Horovod operation.
        """
        is_own = error.op is not None and not error.op.type.startswith('Horovod')
        if is_own or not isinstance(error, tf.errors.UnknownError):
            return line
        return f'Horovod lost another process; see the error of that process for the cause ({line})'
