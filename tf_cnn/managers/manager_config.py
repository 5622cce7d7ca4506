"""The configuration of variable managers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType

import tensorflow.compat.v1 as tf

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.managers.all_reduce import Algorithm
from tf_cnn.managers.config import VariableConfig


@dataclass(frozen=True)
class ManagerConfig:
    """The configuration of a variable manager, the same for all modes.

    Attributes:
      flags: the resolved flags of variables and gradients.
      parameter_devices: the devices that hold the variables of one process, or that receive
        variables from servers.
      server_devices: the CPUs of the parameter servers.
      scalar_device: the device that computes the scalars of a step (its loss, learning rate and
        loss scale) and counts the steps, unless a parameter server counts them.
      is_synchronous: whether the workers take each step together.
      transfer: the dtype of gradients and variables on the way; None: no cast before sending.
      nccl_over_towers: whether NCCL sums over all towers; if not, each worker first sums its towers
        on its host.
      horovod: the module horovod.tensorflow; None without Horovod.
    """

    devices: Sequence[str]
    seed: int
    parameter_devices: Sequence[str]
    algorithm: Algorithm
    flags: VariableConfig = field(default_factory=VariableConfig)
    server_devices: Sequence[str] = ()
    is_synchronous: bool = True
    worker: int = 0
    num_workers: int = 1
    transfer: tf.DType | None = None
    nccl_over_towers: bool = False
    horovod: ModuleType | None = None
    scalar_device: str = HOST_DEVICE
    variable_dtype: tf.DType = tf.float32

    @property
    def is_chief(self) -> bool:
        """Whether this worker initializes variables on parameter servers and applies each
        synchronous step.
        """
        return self.worker == 0
