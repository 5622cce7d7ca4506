"""Synchronous training steps on parameter servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Variable, create_variable
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.parameter_servers import Bucket, Pairs, TransferQueue

Tensor = Any
# For each variable, by a reference to its handle: the op that gives it its new value.
Updated = Mapping[Any, tf.Operation]
# Accept every gradient: workers push one for each step, and only after the previous step.
_NEVER_STALE = tf.int64.max


class SynchronousStep:
    """Sums the gradients of all workers on the parameter servers and applies each sum once per
    step.

        worker 0: push g0 --+                      +--> take the sum, apply it, release its readers
        worker 1: push g1 --+-- accumulators (sum) +    after all sums: count the step, release
                                                        the workers

    The variables of a bucket are updated when the gradients of all workers for the bucket have
    arrived, and then released to their readers. So gradients and values use both directions of a
    link at the same time.

    Attributes:
      begun: for each parameter server, the number of the last step that began to update variables
        there. While a number is above the global step, some variables are updated and others not.
    """

    def __init__(
        self,
        config: ManagerConfig,
        refresh: Callable[[], Updated],
        *,
        releases_readers: bool = False,
    ) -> None:
        self.begun = {
            device: create_variable(f'begun_{number}', [], scope='v', device=device, dtype=tf.int64)
            for number, device in enumerate(config.server_devices)
        }
        self._config = config
        self._refresh = refresh
        self._releases_readers = releases_readers

    def build(
        self,
        buckets: Sequence[Bucket],
        queues: Mapping[str, TransferQueue],
        global_step: Variable,
        take_step: Callable[[Pairs, tf.Operation], tuple[tf.Operation, Updated]],
        *,
        needs_all_gradients: bool,
        buckets_are_independent: bool,
        after: Sequence[tf.Operation] = (),
    ) -> tuple[tf.Operation, Updated]:
        """Returns the op that takes a step together with all workers, and the op that updates each
        variable.

        Args:
          queues: the order of the gradients to each server, by device; without a queue all start at
            once.
          take_step: adds the ops that apply the summed gradients and count the step. Its second
            argument is an op that must run before other variables change. Only called on the
            chief.
          needs_all_gradients: whether the step needs all gradients before it changes a variable.
          buckets_are_independent: whether the update of a bucket needs the bucket's gradients only.
          after: ops of this worker that must finish before the update.
        """
        other_workers = range(1, self._config.num_workers)
        # Where workers read the updates, a queue waits for the sums and not only for the transfers:
        # if a worker sent its gradients much earlier than the others, all sums would be late.
        buckets_are_independent = buckets_are_independent and self._releases_readers
        pushed: list[tf.Operation] = []
        bucket_sums: list[list[Tensor]] = []
        updated: dict[Any, tf.Operation] = {}
        for bucket in buckets:
            queue = queues.get(bucket.device)
            sent_gradients = bucket.send(queue.ops_to_wait_for(bucket.num_bytes) if queue else ())
            sums = _accumulators(bucket)
            # The step ends only after every push. A global step read after the push might count
            # this step already.
            counted_here = [global_step.value.op] if bucket.device == global_step.device else []
            with tf.device(bucket.device), tf.control_dependencies([*after, *counted_here]):
                pushes = [
                    total.apply_grad(gradient, _NEVER_STALE)
                    for total, gradient in zip(sums, sent_gradients, strict=True)
                ]
            pushed += pushes
            segment_end: Sequence[Any] = sent_gradients
            if self._config.is_chief:
                with tf.device(bucket.device):
                    bucket_sums.append(
                        [total.take_grad(self._config.num_workers) for total in sums]
                    )
                segment_end = bucket_sums[-1] if buckets_are_independent else sent_gradients
            elif self._releases_readers:
                with tf.control_dependencies(pushes):
                    released = _update_signal(bucket, self._config.worker).dequeue().op
                updated |= {variable.handle.ref(): released for variable in bucket.variables}
                segment_end = [released] if buckets_are_independent else sent_gradients
            if queue:
                queue.add(segment_end)
        # tf.group joins the ops of each device on that device, so each device sends one signal
        # instead of one per tensor.
        all_pushed = tf.group(*pushed)
        if not self._config.is_chief:
            with tf.control_dependencies([all_pushed]):
                return self._step_done_signal(self._config.worker).dequeue().op, updated
        pairs, mark = self._mark_step(buckets, bucket_sums, global_step, needs_all_gradients)
        step_taken, readable = take_step(pairs, mark)
        with tf.control_dependencies([step_taken]):
            releases = [_release(self._step_done_signal(worker)) for worker in other_workers]
        for bucket in buckets if self._releases_readers else ():
            with tf.control_dependencies(
                [readable[variable.handle.ref()] for variable in bucket.variables]
            ):
                releases += [_release(_update_signal(bucket, worker)) for worker in other_workers]
        return tf.group(all_pushed, step_taken, *releases), readable

    def _mark_step(
        self,
        buckets: Sequence[Bucket],
        bucket_sums: Sequence[Sequence[Tensor]],
        global_step: Variable,
        needs_all_gradients: bool,
    ) -> tuple[Pairs, tf.Operation]:
        """Returns the sums over all workers, available after `begun` has the number of this step on
        their server, and an op that runs after all servers have it.
        """
        pairs, marks = [], []
        with tf.device(global_step.device):
            this_step = global_step.value + 1
            everything = (
                [tf.group(*(total for totals in bucket_sums for total in totals))]
                if needs_all_gradients
                else []
            )
        for bucket, totals in zip(buckets, bucket_sums, strict=True):
            with tf.device(bucket.device), tf.control_dependencies(everything or totals):
                marks.append(self.begun[bucket.device].assign(this_step))
            with tf.device(bucket.device), tf.control_dependencies(marks[-1:]):
                pairs += bucket.unpack([tf.identity(total) for total in totals])
        with tf.device(global_step.device):
            return pairs, tf.group(*marks)

    def _step_done_signal(self, worker: int) -> tf.FIFOQueue:
        with tf.device(self._config.server_devices[0]):
            return _signal(f'step_done_{worker}')

    def restart(self, session: tf.Session, step: int) -> None:
        """Prepares the step after this global step, once the variables are restored or initialized.
        Only the chief calls it.
        """
        with session.graph.as_default(), tf.control_dependencies(None):
            marks = [begun.assign(tf.constant(step, tf.int64)) for begun in self.begun.values()]
            ready = [*marks, *self._refresh().values()]
        session.run(ready)


def _accumulators(bucket: Bucket) -> list[tf.ConditionalAccumulator]:
    """Returns an accumulator for each tensor of a bucket; all workers share it by its name."""
    with tf.device(bucket.device):
        return [
            tf.ConditionalAccumulator(
                tf.float32,
                tensor.shape,
                shared_name=f'sum_of_{bucket.name}_{number}',
                reduction_type='SUM',
            )
            for number, tensor in enumerate(bucket.tensors)
        ]


def _update_signal(bucket: Bucket, worker: int) -> tf.FIFOQueue:
    with tf.device(bucket.device):
        return _signal(f'update_of_{bucket.name}_{worker}')


def _release(signal: tf.FIFOQueue) -> tf.Operation:
    with tf.device(signal.queue_ref.device):
        return signal.enqueue(tf.constant(0))


def _signal(name: str) -> tf.FIFOQueue:
    return tf.FIFOQueue(1, [tf.int32], [[]], shared_name=name)
