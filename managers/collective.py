"""Variable managers of several workers without parameter servers, which sum their gradients among themselves."""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm
from managers.local import VariableMgrLocalReplicated
from packing import Packing
from training.optimizers import OptimizerStep, Slots
from training.variables import HOST_DEVICE, Variable, num_bytes

Tensor = Any

_ALL_TOWERS, _ALL_WORKERS = 1, 2  # group keys
_INITIAL, _STATISTICS = 1 << 20, 1 << 21  # the instance keys of broadcasts come behind those of the sums


def by_collective(towers: Sequence[str], num_workers: int, transfer: tf.DType | None, *, on_towers: bool) -> Algorithm:
    """Sums over the towers of all workers: TensorFlow's ring between hosts, or NCCL between all GPUs.

    Args:
      transfer: the type that tensors have on their way, or None to leave them as they are.
      on_towers: NCCL, every tower takes part; else the towers of a worker are summed on its host first.
    """

    def collect(tensor: Tensor, group: int, size: int, index: int) -> Tensor:
        sent = tensor if transfer is None else tf.cast(tensor, transfer)
        total = tf.raw_ops.CollectiveReduce(
            input=sent,
            group_size=size,
            group_key=group,
            instance_key=index + 1,
            merge_op='Add',
            final_op='Id',
            subdiv_offsets=[0],
            communication_hint='nccl' if on_towers else 'ring',
        )
        total.set_shape(tensor.shape)
        return tf.cast(total, tf.float32)

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        if on_towers:
            totals = []
            for tower, tensor in zip(towers, tensors, strict=True):
                with tf.device(tower):
                    totals.append(collect(tensor, _ALL_TOWERS, num_workers * len(towers), index))
            return totals
        with tf.device(HOST_DEVICE):
            own = tf.add_n(tensors) if len(tensors) > 1 else tensors[0]
            return [collect(own, _ALL_WORKERS, num_workers, index)] * len(tensors)

    return reduce


def bytes_of_ring(variables: Sequence[Variable], num_workers: int, transfer: tf.DType | None) -> int:
    """The bytes that a ring of workers moves to sum the gradients of these variables.

    Each sends 2 (W - 1) / W of them to its neighbour: Patarasuk & Yuan 2009 (doi:10.1016/j.jpdc.2008.09.002).

    Args:
      transfer: the type of 16 bits that gradients have on their way, or None for float32.
    """
    size = sum(num_bytes(variable.shape) for variable in variables)
    return 2 * (num_workers - 1) * size // (1 if transfer is None else 2)


class VariableMgrCollectiveAllReduce(VariableMgrLocalReplicated):
    """--variable_update=collective_all_reduce: every tower of every worker has all variables, no parameter servers.

    worker 0: v0 <- g0 + g1 + ...        worker 1: v1 <- g0 + g1 + ...

    Args:
      worker, num_workers: which of how many workers this is.
      root: the worker whose variables all others start from.
    """

    def __init__(
        self,
        devices: Sequence[str],
        seed: int,
        packing: Packing,
        *,
        worker: int,
        num_workers: int,
        transfer: tf.DType | None,
        on_towers: bool,
        root: int = 0,
    ) -> None:
        algorithm = by_collective(devices, num_workers, transfer, on_towers=on_towers)
        super().__init__(devices, seed, algorithm, packing)
        self._worker = worker
        self._num_workers = num_workers
        self._root = root
        self._transfer = transfer

    @property
    def num_averaged_towers(self) -> int:
        return len(self._devices) * self._num_workers

    def leads(self, device_num: int) -> bool:
        return device_num == 0 and self._worker == 0

    def keeps_statistics(self, device_num: int) -> bool:
        # Of every worker: each may be the one from which the others go on.
        return device_num == 0

    def _before_update(self, met_grads: Sequence[Sequence[Tensor]]) -> Sequence[Any]:
        # All or nothing: when a worker is lost in the middle of a step, each of the others has taken it or has not.
        return [total for own in met_grads for total in own]

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        first = [*self.variables[0].values(), *self.scalars]
        first += [slot for variable in first for slot in slots.get(variable.handle.ref(), {}).values()]
        with tf.device(HOST_DEVICE):
            received = self._receive(first, self._root, _INITIAL)
        # The copies of the other towers read anew, what came.
        with tf.control_dependencies(received):
            copies = [
                own.assign(tf.raw_ops.ReadVariableOp(resource=model.handle, dtype=model.value.dtype))
                for own, model in self._copies(slots)
            ]
        return received + copies

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        # Moving averages are of a worker's own images; those that are saved are worker 0's.
        statistics = [variable for variable in self.variables[0].values() if not variable.trainable]
        with tf.device(HOST_DEVICE):
            return self._receive(statistics, 0, _STATISTICS)

    def bytes_of_step(self) -> int:
        return bytes_of_ring(self.trainable_variables_on_device(0), self._num_workers, self._transfer)

    def _receive(self, variables: Sequence[Variable], root: int, first_key: int) -> list[tf.Operation]:
        """Gives the variables the values that they have on one worker."""
        return [variable.assign(self._broadcast(first_key + i, variable, root)) for i, variable in enumerate(variables)]

    def _broadcast(self, key: int, variable: Variable, root: int) -> Tensor:
        common = {
            'group_size': self._num_workers,
            'group_key': _ALL_WORKERS,
            'instance_key': key,
            'shape': variable.shape,
        }
        if self._worker == root:
            return tf.raw_ops.CollectiveBcastSend(input=variable.value, **common)
        return tf.raw_ops.CollectiveBcastRecv(T=variable.value.dtype, **common)


class VariableMgrDistributedAllReduce(VariableMgrLocalReplicated):
    """--variable_update=distributed_all_reduce: as replicated, where one process has the devices of all workers.

    worker 0: v0 <- g0 + g1 + ..., v1 <- g0 + g1 + ...        worker 1: v2 <- g0 + g1 + ..., v3 <- g0 + g1 + ...
    """

    def build_update(
        self, step: OptimizerStep, global_step: Variable, device_grads: Sequence[Sequence[Tensor]]
    ) -> tuple[tf.Operation, list[tuple[Tensor, Variable]]]:
        num_before = len(tf.get_default_graph().get_operations())
        update = super().build_update(step, global_step, device_grads)
        self._update = tf.get_default_graph().get_operations()[num_before:]
        return update

    def bytes_of_step(self) -> int:
        # Each algorithm has its own. TensorFlow sends a tensor once to each device.
        moved = {
            (tensor.ref(), op.device): tensor.dtype.size * (tensor.shape.num_elements() or 1)
            for op in self._update
            for tensor in op.inputs
            if _task_of(tensor.device) != _task_of(op.device)
        }
        return sum(moved.values())


@functools.cache
def _task_of(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.job, spec.task
