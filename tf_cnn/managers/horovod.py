"""The variable manager of processes that Horovod started."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Variable
from tf_cnn.managers.all_reduce import Algorithm, compact_algorithm
from tf_cnn.managers.collective import ring_bytes
from tf_cnn.managers.local import VariableMgrLocalReplicated
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.training.optimizers import Slots

Tensor = Any


class VariableMgrHorovod(VariableMgrLocalReplicated):
    """--variable_update=horovod: every process has all variables on its one device; Horovod sums
    the gradients.

    process 0: v0 <- g0 + g1 + ...        process 1: v1 <- g0 + g1 + ...

    Horovod must support the dtype of transfer (it does not support bfloat16).
    """

    def __init__(self, config: ManagerConfig) -> None:
        super().__init__(config)
        self._algorithm: Algorithm = self._sum
        if config.transfer:
            self._algorithm = compact_algorithm(self._sum, config.devices, config.transfer)
        assert config.horovod
        self._horovod = config.horovod

    def _sum(self, tensors: Sequence[Tensor], index: int) -> list[Tensor]:
        # Horovod orders the sums by their names, which are the same in all processes.
        (tensor,) = tensors
        device = (
            f'/{self._config.flags.horovod_device}:0'
            if self._config.flags.horovod_device
            else self._devices[0]
        )
        # device_dense alone is not enough: Horovod places some of its ops by the device scope.
        with tf.device(device):
            total = self._horovod.allreduce(
                tensor, op=self._horovod.Sum, device_dense=device, name=f'gradient_{index}'
            )
        total.set_shape(tensor.shape)
        return [total]

    @property
    def num_averaged_towers(self) -> int:
        return int(self._horovod.size())

    def leads(self, device_num: int) -> bool:
        return bool(self._horovod.rank() == 0)

    def keeps_statistics(self, device_num: int) -> bool:
        # Every process evaluates with its moving averages.
        return True

    def get_post_init_ops(self, slots: Slots) -> list[tf.Operation]:
        return self._receive(self._first_tower_state(slots), 'initial')

    def get_before_evaluation_ops(self) -> list[tf.Operation]:
        # Each process averages over the images of its tower; checkpoints hold the moving averages
        # of rank 0.
        return self._receive(self._moving_averages(), 'statistics')

    def bytes_of_step(self, *, forward_only: bool) -> int:
        # These processes always train.
        return ring_bytes(
            self.trainable_variables_on_device(0), self._horovod.size(), self._config.transfer
        )

    def _receive(self, variables: Sequence[Variable], name: str) -> list[tf.Operation]:
        return [
            variable.assign(
                self._horovod.broadcast(variable.value, root_rank=0, name=f'{name}_{number}')
            )
            for number, variable in enumerate(variables)
        ]
