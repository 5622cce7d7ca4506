"""Variable managers of workers that all-reduce their gradients without parameter servers."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.variables import Variable, create_variable, num_bytes
from tf_cnn.managers.all_reduce import Algorithm
from tf_cnn.managers.local import VariableMgrLocalReplicated
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.training.optimizers import OptimizerStep, Slots

Tensor = Any

_ALL_TOWERS, _ALL_WORKERS = 1, 2  # group keys
# The first instance keys of broadcasts; reductions have smaller keys.
_INITIAL, _STATISTICS = 1 << 20, 1 << 21


def collective_algorithm(
    towers: Sequence[str], num_workers: int, transfer: tf.DType | None, *, nccl_over_towers: bool
) -> Algorithm:
    """Sums over the towers of all workers: TensorFlow's ring between hosts, or NCCL between all
    GPUs (nccl_over_towers).

    Between hosts, each worker first sums its towers on its host. `transfer` is the dtype of the
    sent tensors and of the sums.

    All workers must start their NCCL sums in the same order. NCCL does not check what it adds: in
    different orders it hangs, or adds the gradients of different variables of equal size. Therefore
    each sum waits until the previous sum has started, but not until it has ended, so that sums
    overlap with the backward pass. A ring between hosts needs no order, since its messages carry
    the key of their sum.

    NCCL must not sum bfloat16: TensorFlow 2.21 hands it to NCCL as float32, which adds garbage.
    """
    started: list[int] = []  # the instance keys of the NCCL sums, in starting order

    def collect(
        tensor: Tensor, group: int, size: int, index: int, after: Sequence[int] = ()
    ) -> Tensor:
        compact_tensor = tensor if transfer is None else tf.cast(tensor, transfer)
        total = tf.raw_ops.CollectiveReduce(
            input=compact_tensor,
            group_size=size,
            group_key=group,
            instance_key=index + 1,
            merge_op='Add',
            final_op='Id',
            subdiv_offsets=[0],
            wait_for=after,
            communication_hint='nccl' if nccl_over_towers else 'ring',
        )
        total.set_shape(tensor.shape)
        return tf.cast(total, tf.float32)

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        if nccl_over_towers:
            after = started[-1:]
            started.append(index + 1)
            totals = []
            for tower, tensor in zip(towers, tensors, strict=True):
                with tf.device(tower):
                    totals.append(
                        collect(tensor, _ALL_TOWERS, num_workers * len(towers), index, after)
                    )
            return totals
        with tf.device(HOST_DEVICE):
            local_sum = tf.add_n(tensors) if len(tensors) > 1 else tensors[0]
            return [collect(local_sum, _ALL_WORKERS, num_workers, index)] * len(tensors)

    return reduce


def ring_bytes(variables: Sequence[Variable], num_workers: int, transfer: tf.DType | None) -> int:
    """Returns the bytes that a ring of workers transfers to sum the gradients of these variables.

    Each worker sends 2 (W - 1) / W of the bytes of the gradients to its neighbour: Patarasuk & Yuan
    2009 (doi:10.1016/j.jpdc.2008.09.002). transfer is a 16-bit dtype, or None for float32.
    """
    size = sum(num_bytes(variable.shape) for variable in variables)
    return 2 * (num_workers - 1) * size // (1 if transfer is None else 2)


class VariableMgrCollectiveAllReduce(VariableMgrLocalReplicated):
    """--variable_update=collective_all_reduce: every tower of every worker has all variables, no
    parameter servers.

    worker 0: v0 <- g0 + g1 + ...        worker 1: v1 <- g0 + g1 + ...

    Each variable is updated as soon as its gradients are summed, while other sums are still on
    their way. `begun` gets the number of the step before the first update. If a worker is lost
    within a step, the chief then knows whether some of its variables are updated already.
    """

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        begun = create_variable('begun', [], scope='v', device=HOST_DEVICE, dtype=tf.int64)
        with tf.device(HOST_DEVICE):
            self.initializers.append(begun.assign(tf.constant(0, tf.int64)))
        self.begun = [begun]
        # The ops that write the step's number to `begun`: one for each variable, or one for all.
        self._marks: list[tf.Operation] = []
        self._algorithm = collective_algorithm(
            config.devices,
            config.num_workers,
            config.transfer,
            nccl_over_towers=config.nccl_over_towers,
        )

    @property
    def num_averaged_towers(self) -> int:
        return len(self._devices) * self._config.num_workers

    def leads(self, device_num: int) -> bool:
        return device_num == 0 and self._config.worker == 0

    def keeps_statistics(self, device_num: int) -> bool:
        # One tower of every worker, since every worker takes part in evaluations.
        return device_num == 0

    def _begin_update(
        self, step: OptimizerStep, global_step: Variable, combined_grads: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        sums = list(zip(*combined_grads, strict=True))  # V x T
        if step.needs_all_gradients:
            self._marks = [self._mark(global_step, [total for totals in sums for total in totals])]
        elif self._config.nccl_over_towers:
            # NCCL starts the sum of the last variable first, and ends it first. Waiting for this
            # sum alone lets the host wait for GPUs once.
            self._marks = [self._mark(global_step, sums[-1])]
        else:
            self._marks = [self._mark(global_step, totals) for totals in sums]
        marked_sums = []
        for device, totals in zip(self._devices, combined_grads, strict=True):
            with tf.device(device):
                # With one mark, one signal for all variables of a tower.
                gates = (
                    self._marks
                    if len(self._marks) == len(totals)
                    else [tf.group(*self._marks)] * len(totals)
                )
                marked_sums.append(
                    [self._after(gate, total) for gate, total in zip(gates, totals, strict=True)]
                )
        return marked_sums

    def _mark(self, global_step: Variable, sums: Sequence[Tensor]) -> tf.Operation:
        """Returns the op that writes the number of this step to `begun`, after these sums."""
        # tf.group joins the sums of each device on that device, so each device sends one signal.
        with tf.device(HOST_DEVICE), tf.control_dependencies([tf.group(*sums)]):
            return self.begun[0].assign(global_step.value + 1)

    def _after(self, gate: tf.Operation, total: Tensor) -> Tensor:
        with tf.control_dependencies([gate]):
            return tf.identity(total)

    def assign_ops(self) -> list[tf.Operation]:
        # The moving averages are on the first tower and do not depend on any sum.
        with tf.device(self._devices[0]):
            all_marked = tf.group(*self._marks)
        with tf.control_dependencies([all_marked]):
            return super().assign_ops()

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        received = self._receive(self._first_tower_state(slots), _INITIAL)
        # Read again, so that the other towers copy the received values.
        with tf.control_dependencies(received):
            copies = [copy.assign(source.read_again()) for copy, source in self._copies(slots)]
        return received + copies

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        # Each worker averages over the images of its towers; checkpoints hold the moving averages
        # of worker 0.
        return self._receive(self._moving_averages(), _STATISTICS)

    def bytes_of_step(self, *, forward_only: bool) -> int:
        # These workers always train.
        return ring_bytes(
            self.trainable_variables_on_device(0), self._config.num_workers, self._config.transfer
        )

    def _receive(self, variables: Sequence[Variable], first_key: int) -> list[tf.Operation]:
        with tf.device(HOST_DEVICE):
            return [
                variable.assign(self._broadcast(first_key + i, variable))
                for i, variable in enumerate(variables)
            ]

    def _broadcast(self, key: int, variable: Variable) -> Tensor:
        common = {
            'group_size': self._config.num_workers,
            'group_key': _ALL_WORKERS,
            'instance_key': key,
        }
        if self._config.worker == 0:
            return tf.raw_ops.CollectiveBcastSend(
                input=variable.value, shape=variable.shape, **common
            )
        return tf.raw_ops.CollectiveBcastRecv(
            T=variable.value.dtype, shape=variable.shape, **common
        )


class VariableMgrDistributedAllReduce(VariableMgrLocalReplicated):
    """--variable_update=distributed_all_reduce: as replicated, but one process uses the devices of
    all workers.

    worker 0: v0 <- g0 + g1 + ..., v1 <- g0 + g1 + ...
    worker 1: v2 <- g0 + g1 + ..., v3 <- g0 + g1 + ...
    """

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        num_before = len(tf.get_default_graph().get_operations())
        update = super().build_update(step, global_step, device_grads)
        self._update = tf.get_default_graph().get_operations()[num_before:]
        return update

    def bytes_of_step(self, *, forward_only: bool) -> int:
        if forward_only:
            return 0
        # The algorithm decides the transfers, so they are counted in the graph. TensorFlow sends a
        # tensor to each device once.
        transferred_bytes = {
            (tensor.ref(), op.device): tensor.dtype.size * (tensor.shape.num_elements() or 1)
            for op in self._update
            for tensor in op.inputs
            if tensor.device.partition('/device:')[0] != op.device.partition('/device:')[0]
        }
        return sum(transferred_bytes.values())
