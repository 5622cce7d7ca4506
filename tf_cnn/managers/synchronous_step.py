"""Synchronous training steps on parameter servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Variable, create_variable
from tf_cnn.managers.parameter_servers import Bucket, Pairs, Segments
from tf_cnn.managers.parts import ManagerParts

Tensor = Any
# For each variable (the key is a reference to its handle), the op after which it has its new value.
Updated = Mapping[Any, tf.Operation]
# Accept every gradient: workers push one for each step, and only after the previous step.
_NEVER_STALE = tf.int64.max


class SynchronousStep:
    """Sums the gradients of all workers on the parameter servers and applies each sum once per
    step.

        worker 0: push g0 --+                      +--> take the sum, apply it, release its readers
        worker 1: push g1 --+-- accumulators (sum) +    after all sums: count the step, release
                                                        the workers

    Each bucket goes its own way: its variables are updated when the gradients of all workers for
    them have arrived, and then released to their readers. So gradients and values cross a link at
    the same time.

    Attributes:
      begun: for each parameter server, the number of the last step that began to update variables
        there. While one is above the global step, the variables are of two steps.
    """

    def __init__(
        self, parts: ManagerParts, refresh: Callable[[], Updated], *, releases_readers: bool = False
    ) -> None:
        self.begun = {
            device: create_variable(f'begun_{number}', [], scope='v', device=device, dtype=tf.int64)
            for number, device in enumerate(parts.server_devices)
        }
        self._parts = parts
        self._refresh = refresh
        self._releases_readers = releases_readers

    def build(
        self,
        buckets: Sequence[Bucket],
        segments: Mapping[str, Segments],
        global_step: Variable,
        take_step: Callable[[Pairs, tf.Operation], tuple[tf.Operation, Updated]],
        *,
        at_once: bool,
        in_step: bool,
        after: Sequence[tf.Operation] = (),
    ) -> tuple[tf.Operation, Updated]:
        """Returns the op that takes a step together with all workers, and when each variable has
        its new value.

        Args:
          take_step: adds the ops that apply the summed gradients and count the step. The step may
            change other variables after its second argument. Only called on the chief.
          at_once: whether the step needs all gradients before it changes a variable.
          in_step: whether each bucket is updated with no gradients but its own.
          after: ops of this worker that must finish before the update.
        """
        others = range(1, self._parts.num_workers)
        # Workers that read the updates wait for each other: if one sent its gradients much earlier
        # than the others, all sums would be late.
        in_step = in_step and self._releases_readers
        pushed: list[tf.Operation] = []
        taken: list[list[Tensor]] = []
        updated: dict[Any, tf.Operation] = {}
        for bucket in buckets:
            own = bucket.send(segments[bucket.device].before(bucket.num_bytes))
            sums = _accumulators(bucket)
            # The step ends only after every push. A global step read after the push might count
            # this step already.
            counted_here = [global_step.value.op] if bucket.device == global_step.device else []
            with tf.device(bucket.device), tf.control_dependencies([*after, *counted_here]):
                pushes = [
                    total.apply_grad(gradient, _NEVER_STALE)
                    for total, gradient in zip(sums, own, strict=True)
                ]
            pushed += pushes
            done: Sequence[Any] = own
            if self._parts.is_chief:
                with tf.device(bucket.device):
                    taken.append([total.take_grad(self._parts.num_workers) for total in sums])
                done = taken[-1] if in_step else own
            elif self._releases_readers:
                with tf.control_dependencies(pushes):
                    released = _updates(bucket, self._parts.worker).dequeue().op
                updated |= {variable.handle.ref(): released for variable in bucket.variables}
                done = [released] if in_step else own
            segments[bucket.device].add(done)
        # tf.group joins the ops of each device there, so that one signal per device is sent, not
        # one per tensor.
        all_pushed = tf.group(*pushed)
        if not self._parts.is_chief:
            with tf.control_dependencies([all_pushed]):
                return self._step_done(self._parts.worker).dequeue().op, updated
        pairs, marked = self._mark(buckets, taken, global_step, at_once)
        step_taken, readable = take_step(pairs, marked)
        with tf.control_dependencies([step_taken]):
            releases = [_release(self._step_done(worker)) for worker in others]
        for bucket in buckets if self._releases_readers else ():
            with tf.control_dependencies(
                [readable[variable.handle.ref()] for variable in bucket.variables]
            ):
                releases += [_release(_updates(bucket, worker)) for worker in others]
        return tf.group(all_pushed, step_taken, *releases), readable

    def _mark(
        self,
        buckets: Sequence[Bucket],
        taken: Sequence[Sequence[Tensor]],
        global_step: Variable,
        at_once: bool,
    ) -> tuple[Pairs, tf.Operation]:
        """Returns the sums over all workers, after `begun` says so, and an op after which all of it
        does.
        """
        pairs, marks = [], []
        with tf.device(global_step.device):
            this_step = global_step.value + 1
            everything = (
                [tf.group(*(total for totals in taken for total in totals))] if at_once else []
            )
        for bucket, totals in zip(buckets, taken, strict=True):
            with tf.device(bucket.device), tf.control_dependencies(everything or totals):
                marks.append(self.begun[bucket.device].assign(this_step))
            with tf.device(bucket.device), tf.control_dependencies(marks[-1:]):
                pairs += bucket.unpack([tf.identity(total) for total in totals])
        with tf.device(global_step.device):
            return pairs, tf.group(*marks)

    def _step_done(self, worker: int) -> tf.FIFOQueue:
        with tf.device(self._parts.server_devices[0]):
            return _signal(f'step_done_{worker}')

    def restart(self, session: tf.Session, step: int) -> None:
        """Prepares the step after this global step, once the variables have their values. Only the
        chief calls it.
        """
        with session.graph.as_default(), tf.control_dependencies(None):
            marks = [begun.assign(tf.constant(step, tf.int64)) for begun in self.begun.values()]
            ready = [*marks, *self._refresh().values()]
        session.run(ready)


def _accumulators(bucket: Bucket) -> list[tf.ConditionalAccumulator]:
    """Returns the sum of each tensor of a bucket, which all workers share by its name."""
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


def _updates(bucket: Bucket, worker: int) -> tf.FIFOQueue:
    with tf.device(bucket.device):
        return _signal(f'update_of_{bucket.name}_{worker}')


def _release(signal: tf.FIFOQueue) -> tf.Operation:
    with tf.device(signal.queue_ref.device):
        return signal.enqueue(tf.constant(0))


def _signal(name: str) -> tf.FIFOQueue:
    return tf.FIFOQueue(1, [tf.int32], [[]], shared_name=name)
