"""Synchronous training steps on parameter servers."""

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from managers.parameter_servers import Bucket, Pairs, ParameterServers
from managers.shared_servers import SharedExchange
from training.variables import Variable, create_variable

# Accept every gradient: workers push one for each step, and only after the previous step.
_NEVER_STALE = tf.int64.max


class SynchronousStep:
    """Sums the gradients of all workers on the parameter servers and applies the sum once per step.

        worker 0: push g0 --+                      +--> take the sum, apply it, count the step, release the workers
        worker 1: push g1 --+-- accumulators (sum) +
        worker 1: ... wait until worker 0 has taken the step

    The update starts after all gradients of all workers have arrived: a step is applied completely or not at all.

    Attributes:
      begun: the number of the step whose update started last. While it differs from the global step, the update is
        in progress.
    """

    def __init__(self, servers: ParameterServers) -> None:
        self.begun = create_variable('begun', [], scope='v', device=servers.devices[0], dtype=tf.int64)
        self._servers = servers
        self._accumulators: list[tf.ConditionalAccumulator] = []
        self._queues: list[tf.QueueBase] = []
        self._released = self._add_queues('step_done')

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
                self._accumulators += accumulators
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
        return tf.group(*pushed, step_taken, *self._release(self._released, [step_taken]))

    def build_shared(
        self,
        exchange: SharedExchange,
        global_step: Variable,
        take_step: Callable[[Pairs], tf.Operation],
        after: Sequence[tf.Operation],
    ) -> tf.Operation:
        """As build, for tasks that share memory: only the signals between them are sent.

        Args:
          exchange: the gradients of this worker. after: ops after which nothing reads the variables any more, so that
            their memory may be overwritten; but for what adds weight decay, see SharedSums.add.
        """
        releases: list[tf.Operation] = []

        def barrier(written: Sequence[tf.Operation]) -> tf.Operation:
            # The step ends only after every arrival. A global step read after it might count this step already.
            arrived, all_there = self._arrive('written', [*written, *after, global_step.value.op])
            queues = self._add_queues('all_written')
            if not self._servers.is_chief:
                with tf.control_dependencies([arrived]):
                    return queues[self._servers.worker].dequeue().op
            releases.extend(self._release(queues, [all_there]))
            return tf.group(arrived, all_there)

        arrived, all_there = self._arrive('added', exchange.add(barrier))
        if not self._servers.is_chief:
            with tf.control_dependencies([arrived]):
                return self._released[self._servers.worker].dequeue().op
        with tf.control_dependencies([all_there]):
            begun = self.begun.assign(global_step.value + 1)
        with tf.control_dependencies([begun]):
            step_taken = take_step(exchange.read_sums())
        with tf.control_dependencies([step_taken]):
            written = tf.group(*exchange.write_variables())
        return tf.group(arrived, *releases, written, *self._release(self._released, [written]))

    def _arrive(self, name: str, after: Sequence[tf.Operation]) -> tuple[tf.Operation, tf.Operation]:
        """Returns an op that says that this worker has run the ops, and the chief's op that waits for all workers."""
        with tf.device(self._servers.devices[0]):
            accumulator = tf.ConditionalAccumulator(tf.float32, [], shared_name=f'all_{name}', reduction_type='SUM')
            self._accumulators.append(accumulator)
            with tf.control_dependencies([tf.group(*after)]):
                arrived = accumulator.apply_grad(tf.zeros([]), _NEVER_STALE)
            if not self._servers.is_chief:
                return arrived, arrived
            return arrived, accumulator.take_grad(self._servers.num_workers).op

    def _add_queues(self, name: str) -> list[tf.QueueBase]:
        """Returns a queue for each worker, in which the chief tells it to go on."""
        with tf.device(self._servers.devices[0]):
            queues = [
                tf.FIFOQueue(1, [tf.int64], [[]], shared_name=f'{name}_{worker}')
                for worker in range(self._servers.num_workers)
            ]
        self._queues += queues
        return queues

    def _release(self, queues: Sequence[tf.QueueBase], after: Sequence[tf.Operation]) -> list[tf.Operation]:
        """Returns the ops with which the chief tells the other workers to go on; none if it is the only worker."""
        with tf.device(self._servers.devices[0]), tf.control_dependencies(after):
            return [queue.enqueue(tf.constant(0, tf.int64)) for queue in queues[1:]]

    def clear(self, session: tf.Session) -> None:
        """Removes the gradients and releases of an unfinished step. Only call it while no worker takes steps."""
        with session.graph.as_default(), tf.control_dependencies(None):
            sizes = [accumulator.num_accumulated() for accumulator in self._accumulators]
            takes = [accumulator.take_grad(1).op for accumulator in self._accumulators]
            releases = [(queue.size(), queue.dequeue().op) for queue in self._queues]
        session.run([take for take, size in zip(takes, session.run(sizes), strict=True) if size])
        session.run(
            [
                dequeue
                for (_, dequeue), size in zip(releases, session.run([s for s, _ in releases]), strict=True)
                if size
            ]
        )
