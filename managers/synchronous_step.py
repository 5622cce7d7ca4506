"""Synchronous training steps on parameter servers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from managers.parameter_servers import Bucket, Pairs, ParameterServers
from training.variables import Variable, create_variable

# For each variable (the key is a reference to its handle), the op after which it has its new value.
Updated = Mapping[Any, tf.Operation]
# Accept every gradient: workers push one for each step, and only after the previous step.
_NEVER_STALE = tf.int64.max


class SynchronousStep:
    """Sums the gradients of all workers on the parameter servers and applies each sum once per step.

        worker 0: push g0 --+                      +--> take the sum, apply it, release the readers of its variables
        worker 1: push g1 --+-- accumulators (sum) +    after all sums: count the step, release the workers

    Each bucket goes its own way: its variables are updated when the gradients of all workers for them have arrived,
    and then released to their readers. So gradients and values cross a link at the same time.

    Args:
      refresh: adds the ops that let workers read what the variables hold now.
      releases_readers: whether workers read variables within the step that updates them.

    Attributes:
      begun: for each parameter server, the number of the last step that began to update variables there. While one is
        above the global step, the variables are of two steps.
    """

    def __init__(
        self, servers: ParameterServers, refresh: Callable[[], Updated], *, releases_readers: bool = False
    ) -> None:
        self.begun = {
            device: create_variable(f'begun_{number}', [], scope='v', device=device, dtype=tf.int64)
            for number, device in enumerate(servers.devices)
        }
        self._servers = servers
        self._refresh = refresh
        self._releases_readers = releases_readers

    def build(
        self,
        buckets: Sequence[Bucket],
        global_step: Variable,
        take_step: Callable[[Pairs, tf.Operation], tuple[tf.Operation, Updated]],
        *,
        at_once: bool,
    ) -> tuple[tf.Operation, Updated]:
        """Returns the op that takes a step together with all workers, and when each variable has its new value.

        Args:
          buckets: the packed gradients of this worker.
          take_step: adds the ops that apply the summed gradients and count the step. The step may change other
            variables after its second argument. Only called on the chief.
          at_once: whether the step needs all gradients before it changes a variable.
        """
        accumulators = [_accumulators(bucket) for bucket in buckets]
        pushed = []
        for bucket, sums in zip(buckets, accumulators, strict=True):
            # The step ends only after every push. A global step read after the push might count this step already.
            counted_here = [global_step.value.op] if bucket.device == global_step.device else []
            with tf.device(bucket.device), tf.control_dependencies(counted_here):
                own = zip(sums, bucket.tensors, strict=True)
                pushed.append([total.apply_grad(gradient, _NEVER_STALE) for total, gradient in own])
        # tf.group joins the ops of each device there, so that one signal per device is sent, not one per tensor.
        all_pushed = tf.group(*(push for pushes in pushed for push in pushes))
        if not self._servers.is_chief:
            return self._follow(buckets, pushed, all_pushed)
        pairs, marked = self._take(buckets, accumulators, global_step, at_once)
        step_taken, updated = take_step(pairs, marked)
        with tf.control_dependencies([step_taken]):
            releases = [self._step_done(worker).enqueue(0) for worker in range(1, self._servers.num_workers)]
        for bucket in buckets if self._releases_readers else ():
            with tf.control_dependencies([updated[variable.handle.ref()] for variable in bucket.variables]):
                releases += [_updates(bucket, worker).enqueue(0) for worker in range(1, self._servers.num_workers)]
        return tf.group(all_pushed, step_taken, *releases), updated

    def _follow(
        self, buckets: Sequence[Bucket], pushed: Sequence[Sequence[tf.Operation]], all_pushed: tf.Operation
    ) -> tuple[tf.Operation, Updated]:
        """Waits for the chief."""
        worker, updated = self._servers.worker, dict[Any, tf.Operation]()
        for bucket, pushes in zip(buckets, pushed, strict=True) if self._releases_readers else ():
            with tf.control_dependencies(pushes):
                released = _updates(bucket, worker).dequeue().op
            updated |= {variable.handle.ref(): released for variable in bucket.variables}
        with tf.control_dependencies([all_pushed]):
            return self._step_done(worker).dequeue().op, updated

    def _take(
        self, buckets: Sequence[Bucket], accumulators: Sequence[Any], global_step: Variable, at_once: bool
    ) -> tuple[Pairs, tf.Operation]:
        """Returns the sums over all workers, known once `begun` says so, and an op after which all of it does."""
        taken, pairs, marks = [], [], []
        for bucket, sums in zip(buckets, accumulators, strict=True):
            with tf.device(bucket.device):
                taken.append([total.take_grad(self._servers.num_workers) for total in sums])
        with tf.device(global_step.device):
            this_step = global_step.value + 1
            everything = [tf.group(*(total for totals in taken for total in totals))] if at_once else []
        for bucket, totals in zip(buckets, taken, strict=True):
            with tf.device(bucket.device), tf.control_dependencies(everything or totals):
                marks.append(self.begun[bucket.device].assign(this_step))
            with tf.device(bucket.device), tf.control_dependencies(marks[-1:]):
                pairs += bucket.unpack([tf.identity(total) for total in totals])
        with tf.device(global_step.device):
            return pairs, tf.group(*marks)

    def _step_done(self, worker: int) -> tf.FIFOQueue:
        with tf.device(self._servers.devices[0]):
            return _signal(f'step_done_{worker}')

    def restart(self, session: tf.Session, step: int) -> None:
        """Prepares the step after this global step, once the variables have their values. Only the chief calls it."""
        with session.graph.as_default(), tf.control_dependencies(None):
            marks = [begun.assign(tf.constant(step, tf.int64)) for begun in self.begun.values()]
            ready = [*marks, *self._refresh().values()]
        session.run(ready)


def _accumulators(bucket: Bucket) -> list[tf.ConditionalAccumulator]:
    """Returns the sum of each tensor of a bucket, which all workers share by its name."""
    with tf.device(bucket.device):
        return [
            tf.ConditionalAccumulator(
                tf.float32, tensor.shape, shared_name=f'sum_of_{bucket.name}_{number}', reduction_type='SUM'
            )
            for number, tensor in enumerate(bucket.tensors)
        ]


def _updates(bucket: Bucket, worker: int) -> tf.FIFOQueue:
    with tf.device(bucket.device):
        return _signal(f'update_of_{bucket.name}_{worker}')


def _signal(name: str) -> tf.FIFOQueue:
    return tf.FIFOQueue(1, [tf.int32], [[]], shared_name=name)
