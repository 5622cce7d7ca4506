"""The variable manager of processes that Horovod started."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm
from managers.local import VariableMgrLocalReplicated
from packing import Packing
from training.optimizers import Slots

Tensor = Any


def by_horovod(horovod: Any, device: str | None, *, compact: bool) -> Algorithm:
    """Sums the tensor of the one tower of each process.

    Args:
      horovod: the module horovod.tensorflow.
      device: where Horovod sums; None leaves it to the device of the tensor.
      compact: tensors are rounded to float16 on their way.
    """
    compression = horovod.Compression.fp16 if compact else horovod.Compression.none

    def reduce(tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        (own,) = tensors
        total = horovod.allreduce(
            own, op=horovod.Sum, compression=compression, device_dense=device or '', name=f'gradient_{index}'
        )
        total.set_shape(own.shape)
        return [total]

    return reduce


class VariableMgrHorovod(VariableMgrLocalReplicated):
    """--variable_update=horovod: every process has all variables on its one device; Horovod sums the gradients.

    process 0: v0 <- g0 + g1 + ...        process 1: v1 <- g0 + g1 + ...

    Args:
      horovod: the module horovod.tensorflow.
      device: where Horovod sums gradients; None leaves it to the devices of the gradients.
      compact: gradients are rounded to float16 on their way.
    """

    def __init__(
        self, devices: Sequence[str], seed: int, packing: Packing, horovod: Any, *, device: str | None, compact: bool
    ) -> None:
        super().__init__(devices, seed, by_horovod(horovod, device, compact=compact), packing)
        self._horovod = horovod

    @property
    def num_averaged_towers(self) -> int:
        return self._horovod.size()

    def leads(self, device_num: int) -> bool:
        return self._horovod.rank() == 0

    def keeps_statistics(self, device_num: int) -> bool:
        return self._horovod.rank() == 0

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        # Only what is trained, and so is there in every process.
        first = [*self.trainable_variables_on_device(0), *self.scalars]
        first += [slot for variable in first for slot in slots.get(variable.handle.ref(), {}).values()]
        return [
            variable.assign(self._horovod.broadcast(variable.value, root_rank=0, name=f'initial_{number}'))
            for number, variable in enumerate(first)
        ]
