"""A process that Horovod started, as a worker: Horovod meets the others, and ends all when one is lost."""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from cluster.members import Cluster
from errors import UsageError


def load_horovod() -> Any:
    """The module horovod.tensorflow, ready for use.

    Raises:
      UsageError: it is not installed, or does not fit this TensorFlow.
    """
    try:
        import horovod.tensorflow as horovod
    except Exception as error:
        # Horovod raises errors of several kinds when its library was built for another TensorFlow.
        raise UsageError(
            f'--variable_update=horovod: the package horovod cannot be imported ({" ".join(str(error).split())}); '
            'install it for this TensorFlow, or write --variable_update=collective_all_reduce'
        ) from error
    horovod.init()
    return horovod


def horovod_cluster(horovod: Any) -> Cluster:
    """The processes that Horovod started; their hosts are its business."""
    hosts = tuple(f'rank-{rank}:0' for rank in range(horovod.size()))
    return Cluster((), hosts, 'worker', horovod.rank(), 'Horovod')


class HorovodWorker:
    """What cluster.worker.Worker is for other clusters. Processes take their steps together, none can be replaced."""

    device = None
    target = ''
    together = True
    generation = 1

    def __init__(self, horovod: Any, cluster: Cluster, config: tf.ConfigProto) -> None:
        self.cluster = cluster
        self.legacy: dict[str, Any] = {}
        self.agreed: Mapping[str, Any] = {}
        self._horovod = horovod
        self.config = tf.ConfigProto.FromString(config.SerializeToString())
        # One process for each GPU.
        self.config.gpu_options.visible_device_list = str(horovod.local_rank())

    def join(self, state_step: int | None) -> Mapping[str, Any]:
        """All start from the variables of rank 0, at its step."""
        (step,) = self._from_chief([-1 if state_step is None else state_step])
        self.agreed = {'end': None, 'root': 0, 'step': int(step)}
        return self.agreed

    def share_total(self, images: int, seconds: float) -> tuple[int, float]:
        """The images and seconds that rank 0 measured."""
        images, seconds = self._from_chief([images, seconds])
        return int(images), float(seconds)

    def gather(self, name: str, value: Any) -> list[Any]:
        """What all processes gave, in their order; value is what JSON can hold."""
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            own = tf.constant(list(json.dumps(value).encode()), tf.int32)
            texts = self._horovod.allgather(own, name=f'gather_{name}')
            lengths = self._horovod.allgather(tf.shape(own), name=f'gather_{name}_lengths')
        with tf.Session(graph=graph, config=self.config) as session:
            found, sizes = session.run([texts, lengths])
        ends = list(itertools.accumulate(sizes))
        return [
            json.loads(bytes(found[end - size : end].astype('uint8'))) for end, size in zip(ends, sizes, strict=True)
        ]

    def _from_chief(self, values: list[float]) -> Any:
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            received = self._horovod.broadcast(tf.constant(values, tf.float64), root_rank=0, name='from_chief')
        with tf.Session(graph=graph, config=self.config) as session:
            return session.run(received)

    def watch(self, session: tf.Session) -> None:
        """Horovod watches."""

    def unwatch(self) -> None:
        """What a process of Horovod does when the others end is not decided here."""

    def verdict(self) -> None:
        """The error of a step tells: see is_of_others."""

    def is_of_others(self, error: tf.errors.OpError) -> bool:
        """Whether a step failed since another process is gone. Not all errors of Horovod's operations name these."""
        is_ours = error.op is not None and not error.op.type.startswith('Horovod')
        return isinstance(error, tf.errors.UnknownError) and not is_ours

    def end(self, exit_code: int, reason: str = '') -> None:
        """Horovod notices."""
