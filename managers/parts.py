"""What variable managers are made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from managers.all_reduce import Algorithm
from managers.buckets import Packing
from managers.parameter_servers import ParameterServers
from managers.shared_sums import ShareMemory


@dataclass(frozen=True)
class ManagerParts:
    """What the managers of all modes need; VariableMgr.of takes what its class needs.

    Attributes:
      devices: the devices of the T towers.
      seed: of the initial values.
      parameter_devices: where the variables of one process live, or those of parameter servers are received.
      algorithm: how the towers of a process sum gradients.
      packing: how gradients are packed before they are summed.
      servers: the parameter servers; None if there are none.
      sync: whether the workers take their steps together.
      worker: the number of this worker.
      num_workers: how many workers there are.
      root: the worker whose variables the others copy at the start.
      transfer: the dtype in which gradients are sent; None: their own.
      on_towers: whether workers sum on the towers' devices, by NCCL, rather than on the host.
      share: makes memory that the workers share; None if they cannot.
      horovod: the module horovod.tensorflow; None without Horovod.
      horovod_device: 'cpu' or 'gpu', where Horovod sums; None: on the towers.
      variable_dtype: of the trainable variables.
    """

    devices: Sequence[str]
    seed: int
    parameter_devices: Sequence[str]
    algorithm: Algorithm
    packing: Packing = field(default_factory=Packing)
    servers: ParameterServers | None = None
    sync: bool = True
    worker: int = 0
    num_workers: int = 1
    root: int = 0
    transfer: tf.DType | None = None
    on_towers: bool = False
    share: ShareMemory | None = None
    horovod: Any = None
    horovod_device: str | None = None
    variable_dtype: tf.DType = tf.float32
