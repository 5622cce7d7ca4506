"""The variable managers by their public names, and the one table from --variable_update to class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow.compat.v1 as tf

from all_reduce import Algorithm, compacted
from errors import UsageError
from managers.base import TowerVariables, VariableMgr
from managers.collective import VariableMgrCollectiveAllReduce, VariableMgrDistributedAllReduce
from managers.distributed import (
    VariableMgrDistributedFetchFromPS,
    VariableMgrDistributedFetchFromStagedPS,
    VariableMgrDistributedReplicated,
)
from managers.horovod import VariableMgrHorovod
from managers.local import (
    VariableMgrIndependent,
    VariableMgrLocalFetchFromPS,
    VariableMgrLocalFetchFromStagedPS,
    VariableMgrLocalReplicated,
)
from managers.masters import ParameterServers
from packing import Packing

__all__ = [
    'Placement',
    'TowerVariables',
    'VariableMgr',
    'VariableMgrCollectiveAllReduce',
    'VariableMgrDistributedAllReduce',
    'VariableMgrDistributedFetchFromPS',
    'VariableMgrDistributedFetchFromStagedPS',
    'VariableMgrDistributedReplicated',
    'VariableMgrHorovod',
    'VariableMgrIndependent',
    'VariableMgrLocalFetchFromPS',
    'VariableMgrLocalFetchFromStagedPS',
    'VariableMgrLocalReplicated',
    'make_variable_mgr',
]


@dataclass(frozen=True)
class Placement:
    """What the classes need to know: the towers' devices, the seed of initial values, and where parameters live.

    parameter_devices is for parameter_server on one machine, algorithm for replicated. transfer is the type that
    gradients have on their way between replicas, and in a cluster variables too (None leaves them as they are),
    variable_dtype the one in which trained variables are kept. Of a cluster: server_devices are the CPUs of its
    parameter servers, worker is this one of num_workers, root the one whose variables the others start from where there
    are no parameter servers, sync whether they take their steps together. horovod is the module horovod.tensorflow
    where that started the processes, horovod_device where it sums.
    """

    devices: Sequence[str]
    seed: int
    parameter_devices: Sequence[str]
    algorithm: Algorithm
    packing: Packing
    transfer: tf.DType | None = None
    variable_dtype: tf.DType = tf.float32
    server_devices: Sequence[str] = field(default=())
    worker: int = 0
    num_workers: int = 1
    root: int = 0
    sync: bool = True
    horovod: Any = None
    horovod_device: str | None = None

    @property
    def servers(self) -> ParameterServers:
        """The parameter servers of the cluster."""
        return ParameterServers(self.server_devices, self.worker, self.num_workers, self.packing, self.transfer)

    def replicate(
        self, make: type[VariableMgrLocalReplicated] = VariableMgrLocalReplicated
    ) -> VariableMgrLocalReplicated:
        """The manager of replicas in one graph."""
        algorithm = compacted(self.algorithm, self.devices, self.transfer) if self.transfer else self.algorithm
        return make(self.devices, self.seed, algorithm, self.packing)


# From (--variable_update, whether there are other processes, --staged_vars) to the class.
_CLASSES: dict[tuple[str, bool, bool], Callable[[Placement], VariableMgr]] = {
    ('parameter_server', False, False): lambda at: VariableMgrLocalFetchFromPS(
        at.devices, at.seed, at.parameter_devices
    ),
    ('parameter_server', False, True): lambda at: VariableMgrLocalFetchFromStagedPS(
        at.devices, at.seed, at.parameter_devices
    ),
    ('replicated', False, False): Placement.replicate,
    ('collective_all_reduce', False, False): Placement.replicate,
    ('independent', False, False): lambda at: VariableMgrIndependent(at.devices, at.seed),
    ('parameter_server', True, False): lambda at: VariableMgrDistributedFetchFromPS(
        at.devices, at.seed, at.servers, sync=at.sync
    ),
    ('parameter_server', True, True): lambda at: VariableMgrDistributedFetchFromStagedPS(
        at.devices, at.seed, at.servers, sync=at.sync
    ),
    ('distributed_replicated', True, False): lambda at: VariableMgrDistributedReplicated(
        at.devices, at.seed, at.servers
    ),
    ('distributed_all_reduce', True, False): lambda at: at.replicate(VariableMgrDistributedAllReduce),
    ('horovod', True, False): lambda at: VariableMgrHorovod(
        at.devices, at.seed, at.packing, at.horovod, device=at.horovod_device, transfer=at.transfer
    ),
    ('collective_all_reduce', True, False): lambda at: VariableMgrCollectiveAllReduce(
        at.devices,
        at.seed,
        at.packing,
        worker=at.worker,
        num_workers=at.num_workers,
        transfer=at.transfer,
        on_towers='gpu' in at.devices[0],
        root=at.root,
    ),
}


def make_variable_mgr(
    variable_update: str, placement: Placement, *, distributed: bool = False, staged: bool = False
) -> VariableMgr:
    """The variable manager of a mode.

    Raises:
      UsageError: there is none for this combination.
    """
    make = _CLASSES.get((variable_update, distributed, staged))
    if make is None:
        raise UsageError(_refusal(variable_update, distributed, staged))
    if distributed and placement.variable_dtype != tf.float32:
        raise UsageError(
            f'--fp16_vars clashes with the other processes of --variable_update={variable_update}: what they share is '
            'kept in 32 bits, and travels in 16 with --compact_gradient_transfer; leave --fp16_vars out'
        )
    manager = make(placement)
    manager.variable_dtype = placement.variable_dtype
    return manager


def _refusal(variable_update: str, distributed: bool, staged: bool) -> str:
    where = 'several processes' if distributed else 'one process'
    if staged and (variable_update, distributed, False) in _CLASSES:
        modes = ', '.join(sorted({mode for mode, _, is_staged in _CLASSES if is_staged}))
        return f'--staged_vars: --variable_update={variable_update} has no variables to stage; it belongs to {modes}'
    known = ', '.join(mode for mode, on_several, is_staged in _CLASSES if on_several == distributed and not is_staged)
    return f'--variable_update={variable_update}: not in {where}; write one of {known}'
