"""The graph that counts how many images of a validation set a model classifies correctly."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from models.networks import NetworkValues, build_network, label_ranks
from tf_cnn.cluster.worker import Worker
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.event_files import write_scalars
from tf_cnn.graph.variables import Initializer, create_variable
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.results.steps import Accuracy
from tf_cnn.system.signals import SIGNALS
from tf_cnn.training.checkpoints import Slice, full_slice, join_slices

if TYPE_CHECKING:
    from tf_cnn.step.step_graph import StepConfig

Tensor = Any


def sliced_variables(slices: Mapping[str, Sequence[Slice]]) -> NetworkValues:
    """Returns variables with the values that a checkpoint would hold now, read again in each
    session call.
    """
    return NetworkValues(lambda name, *_: read_whole(slices[name]))


class RestoredVariables(NetworkValues):
    """Creates variables for one tower; restore them from a checkpoint before reading them."""

    def __init__(self, device: str, scope: str) -> None:
        super().__init__(self._create)
        self.slices: dict[str, list[Slice]] = {}
        self._device = device
        self._scope = scope

    def _create(
        self, name: str, shape: Sequence[int], initializer: Initializer, trainable: bool
    ) -> Tensor:
        variable = create_variable(
            name, shape, scope=self._scope, device=self._device, trainable=trainable
        )
        self.slices[name] = [full_slice(variable)]
        return read_whole(self.slices[name])


def read_whole(slices: Sequence[Slice]) -> Tensor:
    """Returns the value of a variable, read again in each session call. Variable.value may be an
    older, staged value.
    """
    values = []
    for variable_slice in slices:
        variable = variable_slice.variable
        with tf.device(variable.device):
            value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.value.dtype)
        value.set_shape(variable.shape)
        values.append(value)
    return join_slices(slices, values)


class Evaluation:
    """Adds ops that count correctly classified images.

    It evaluates num_batches batches per tower; None: all images.
    """

    def __init__(
        self,
        config: 'StepConfig',
        sources: Sequence[NetworkValues],
        devices: Sequence[str],
        pipeline: InputPipeline,
        batch_size: int,
        num_batches: int | None,
    ) -> None:
        self._pipeline = pipeline
        self._images_per_call = batch_size * len(devices)
        self._num_batches = num_batches
        tower_counts = []
        for number, (device, variables) in enumerate(zip(devices, sources, strict=True)):
            with tf.device(device), tf.name_scope(f'evaluation_tower_{number}'):
                batch = pipeline.tower_batch(number)
                logits = build_network(
                    config.network,
                    batch.images,
                    config.num_classes,
                    variables,
                    config.params.devices.layout,
                    is_training=False,
                    fused_batch_norm=config.params.devices.fused_batch_norm,
                    dtype=config.precision.compute_dtype,
                ).logits
                tower_counts.append(_count_correct(logits, batch.labels))
        with tf.device(HOST_DEVICE):
            self._fetches = {
                name: tf.add_n([counts[name] for counts in tower_counts])
                for name in tower_counts[0]
            }

    def run(
        self, session: tf.Session, step: int, clock: Callable[[], float] = time.perf_counter
    ) -> Accuracy:
        """Evaluates from the first image on. step is the global step of the variables."""
        session.run(self._pipeline.initializers)
        self._pipeline.warm_up(session)
        totals = dict.fromkeys(self._fetches, 0)
        start, seconds = clock(), 0.0
        for number in range(1, (self._num_batches or 2**62) + 1):
            SIGNALS.check()
            batch_counts, _ = session.run([self._fetches, self._pipeline.per_step_ops])
            for name, count in batch_counts.items():
                totals[name] += int(count)
            # An empty batch shows that the previous batch was the last. Its time does not count.
            if batch_counts['num_images'] or number == 1:
                seconds = clock() - start
            if batch_counts['num_images'] < self._images_per_call or number == self._num_batches:
                break
        return Accuracy(step, **totals, seconds=seconds)


def combine_accuracy(accuracy: Accuracy, worker: Worker, name: str) -> Accuracy:
    """Returns the sum of all workers' counts of the evaluation `name`.

    In asynchronous modes only the chief evaluates, so its counts are returned unchanged.
    """
    if not worker.is_synchronous:
        return accuracy
    shares = [Accuracy(**share) for share in worker.gather(name, asdict(accuracy))]
    return Accuracy(
        shares[0].step,
        sum(share.num_images for share in shares),
        sum(share.num_top_1 for share in shares),
        sum(share.num_top_5 for share in shares),
        max(share.seconds for share in shares),
    )


def write_accuracy_summary(accuracy: Accuracy, folder: str) -> None:
    scalars = {
        'eval_top_1_accuracy': accuracy.top_1,
        'eval_top_5_accuracy': accuracy.top_5,
        'eval_images_per_second': accuracy.images_per_second,
    }
    write_scalars(folder, 'eval_dir', accuracy.step, scalars)


def _count_correct(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Returns int64 scalars by name, for logits [N, K] float32 and labels [N] int32.

    A negative label marks padding.
    """

    def total(flags: Tensor) -> Tensor:
        return tf.reduce_sum(tf.cast(flags, tf.int64))

    ranks = label_ranks(logits, labels)
    top_1, top_5 = (total(ranks < k) for k in (1, 5))
    return {'num_images': total(labels >= 0), 'num_top_1': top_1, 'num_top_5': top_5}
