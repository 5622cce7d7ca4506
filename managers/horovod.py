"""The variable manager of processes that Horovod started."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from managers.all_reduce import Algorithm, compacted
from managers.base import VariableMgr
from managers.buckets import Packing
from managers.collective import bytes_of_ring
from managers.local import VariableMgrLocalReplicated
from managers.parts import ManagerParts
from training.optimizers import Slots
from training.variables import Variable

Tensor = Any


def by_horovod(horovod: Any, device: str) -> Algorithm:
    """Sums a tensor over all processes, each with one tower. They agree on an order by the names of the tensors."""

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        (tensor,) = tensors
        # device_dense alone is not enough: Horovod places some of its ops by the device scope.
        with tf.device(device):
            total = horovod.allreduce(tensor, op=horovod.Sum, device_dense=device, name=f'gradient_{index}')
        total.set_shape(tensor.shape)
        return [total]

    return reduce


class VariableMgrHorovod(VariableMgrLocalReplicated):
    """--variable_update=horovod: every process has all variables on its one device; Horovod sums the gradients.

    process 0: v0 <- g0 + g1 + ...        process 1: v1 <- g0 + g1 + ...

    Horovod must support the dtype of transfer (it does not support bfloat16).
    """

    def __init__(
        self,
        devices: Sequence[str],
        seed: int,
        packing: Packing,
        horovod: Any,
        *,
        horovod_device: str | None,
        transfer: tf.DType | None,
    ) -> None:
        algorithm = by_horovod(horovod, f'/{horovod_device}:0' if horovod_device else devices[0])
        super().__init__(devices, seed, compacted(algorithm, devices, transfer) if transfer else algorithm, packing)
        self._horovod = horovod
        self._transfer = transfer

    @classmethod
    def of(cls, parts: ManagerParts) -> VariableMgr:
        return cls(
            parts.devices,
            parts.seed,
            parts.packing,
            parts.horovod,
            horovod_device=parts.horovod_device,
            transfer=parts.transfer,
        )

    @property
    def num_averaged_towers(self) -> int:
        return self._horovod.size()

    def leads(self, device_num: int) -> bool:
        return self._horovod.rank() == 0

    def keeps_statistics(self, device_num: int) -> bool:
        # Every process needs moving averages, because each evaluates with its own.
        return True

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        first = [*self.variables[0].values(), *self.scalars]
        first += [slot for variable in first for slot in slots.get(variable.handle.ref(), {}).values()]
        return self._receive(first, 'initial')

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        # Each process averages over its own images only; checkpoints hold the moving averages of rank 0.
        statistics = [variable for variable in self.variables[0].values() if not variable.trainable]
        return self._receive(statistics, 'statistics')

    def bytes_of_step(self) -> int:
        return bytes_of_ring(self.trainable_variables_on_device(0), self._horovod.size(), self._transfer)

    def _receive(self, variables: Sequence[Variable], name: str) -> list[tf.Operation]:
        return [
            variable.assign(self._horovod.broadcast(variable.value, root_rank=0, name=f'{name}_{number}'))
            for number, variable in enumerate(variables)
        ]
