"""Synchronous training steps on parameter servers."""

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from managers.parameter_servers import Bucket, Pairs, ParameterServers
from training.variables import Variable, create_variable

# Accept every gradient: workers push one for each step, and only after the previous step.
_NEVER_STALE = tf.int64.max


class SynchronousStep:
    """Sums the gradients of all workers on the parameter servers and applies the sum once per step.

        worker 0: push g0 --+                      +--> take the sum, apply it, count the step, release the workers
        worker 1: push g1 --+-- accumulators (sum) +
        worker 1: ... wait until worker 0 has taken the step

    The update starts after all gradients of all workers have arrived: a step is applied completely or not at all.

    Args:
      refresh: adds the ops that let workers read what the variables hold now.

    Attributes:
      begun: the number of the step whose update started last. While it differs from the global step, the update is
        in progress.
    """

    def __init__(self, servers: ParameterServers, refresh: Callable[[], Sequence[tf.Operation]]) -> None:
        self.begun = create_variable('begun', [], scope='v', device=servers.devices[0], dtype=tf.int64)
        self._servers = servers
        self._refresh = refresh
        with tf.device(servers.devices[0]):
            self._released = [
                tf.FIFOQueue(1, [tf.int64], [[]], shared_name=f'step_done_{worker}')
                for worker in range(servers.num_workers)
            ]

    def build(
        self,
        buckets: Sequence[Bucket],
        global_step: Variable,
        take_step: Callable[[Pairs], tf.Operation],
        after: Sequence[tf.Operation],
    ) -> tf.Operation:
        """Returns the op that takes a step together with all workers.

        Args:
          buckets: the packed gradients of this worker.
          take_step: adds the ops that apply the summed gradients and count the step. Only called on the chief.
          after: ops of this worker that must finish before the update.
        """
        # tf.group joins the ops of each device there, so that one signal per device is sent, not one per tensor.
        before = [tf.group(*after)] if after else []
        pushed, taken = [], []  # taken: the sums of each bucket
        for bucket in buckets:
            with tf.device(bucket.device):
                accumulators = [
                    tf.ConditionalAccumulator(
                        tf.float32,
                        tensor.shape,
                        shared_name=f'sum_of_{bucket.variables[0].name}_{number}',
                        reduction_type='SUM',
                    )
                    for number, tensor in enumerate(bucket.tensors)
                ]
                # The step ends only after every push. A global step read after the push might count this step already.
                counted_here = [global_step.value.op] if bucket.device == global_step.device else []
                with tf.control_dependencies([*before, *counted_here]):
                    pushed += [
                        accumulator.apply_grad(tensor, _NEVER_STALE)
                        for accumulator, tensor in zip(accumulators, bucket.tensors, strict=True)
                    ]
                if self._servers.is_chief:
                    taken.append([accumulator.take_grad(self._servers.num_workers) for accumulator in accumulators])
        if not self._servers.is_chief:
            with tf.control_dependencies([tf.group(*pushed)]):
                return self._released[self._servers.worker].dequeue().op
        with tf.control_dependencies([tf.group(*(total for totals in taken for total in totals))]):
            begun = self.begun.assign(global_step.value + 1)
        with tf.control_dependencies([begun]):
            pairs = [pair for bucket, totals in zip(buckets, taken, strict=True) for pair in bucket.unpack(totals)]
            step_taken = take_step(pairs)
        with tf.device(self._servers.devices[0]), tf.control_dependencies([step_taken]):
            releases = [queue.enqueue(tf.constant(0, tf.int64)) for queue in self._released[1:]]
        # With a single worker, releases is empty.
        return tf.group(*pushed, step_taken, *releases)

    def restart(self, session: tf.Session, step: int) -> None:
        """Prepares the step after this global step, once the variables have their values. Only the chief calls it."""
        with session.graph.as_default(), tf.control_dependencies(None):
            ready = [self.begun.assign(tf.constant(step, tf.int64)), *self._refresh()]
        session.run(ready)
