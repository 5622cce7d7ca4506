"""The variable manager of processes that Horovod started."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm, compacted
from managers.collective import bytes_of_ring
from managers.local import VariableMgrLocalReplicated
from packing import Packing
from training.optimizers import Slots
from training.variables import Variable

Tensor = Any


def by_horovod(horovod: Any, device: str | None) -> Algorithm:
    """Sums the tensor of the one tower of each process.

    Args:
      horovod: the module horovod.tensorflow.
      device: where Horovod sums; None leaves it to the device of the tensor.
    """

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        (own,) = tensors
        total = horovod.allreduce(own, op=horovod.Sum, device_dense=device or '', name=f'gradient_{index}')
        total.set_shape(own.shape)
        return [total]

    return reduce


class VariableMgrHorovod(VariableMgrLocalReplicated):
    """--variable_update=horovod: every process has all variables on its one device; Horovod sums the gradients.

    process 0: v0 <- g0 + g1 + ...        process 1: v1 <- g0 + g1 + ...

    Args:
      horovod: the module horovod.tensorflow.
      device: where Horovod sums gradients; None leaves it to the devices of the gradients.
      transfer: the type that gradients have on their way and are summed in, one that Horovod knows (so not bfloat16),
        or None to leave them as they are.
    """

    def __init__(
        self,
        devices: Sequence[str],
        seed: int,
        packing: Packing,
        horovod: Any,
        *,
        device: str | None,
        transfer: tf.DType | None,
    ) -> None:
        algorithm = by_horovod(horovod, device)
        super().__init__(devices, seed, compacted(algorithm, devices, transfer) if transfer else algorithm, packing)
        self._horovod = horovod
        self._transfer = transfer

    @property
    def num_averaged_towers(self) -> int:
        return self._horovod.size()

    def leads(self, device_num: int) -> bool:
        return self._horovod.rank() == 0

    def keeps_statistics(self, device_num: int) -> bool:
        # Of every process: each evaluates with them.
        return True

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        first = [*self.variables[0].values(), *self.scalars]
        first += [slot for variable in first for slot in slots.get(variable.handle.ref(), {}).values()]
        return self._receive(first, 'initial')

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        # Moving averages are of a process's own images; those that are saved are rank 0's.
        return self._receive([own for own in self.variables[0].values() if not own.trainable], 'statistics')

    def bytes_of_step(self) -> int:
        return bytes_of_ring(self.trainable_variables_on_device(0), self._horovod.size(), self._transfer)

    def _receive(self, variables: Sequence[Variable], name: str) -> list[tf.Operation]:
        """Gives the variables the values that they have in the process of rank 0."""
        return [
            variable.assign(self._horovod.broadcast(variable.value, root_rank=0, name=f'{name}_{number}'))
            for number, variable in enumerate(variables)
        ]
