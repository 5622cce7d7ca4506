"""The variable manager of each mode in each topology. tf_cnn/managers/modes.py has everything else
about a mode.
"""

from collections.abc import Mapping

from tf_cnn.managers import collective, distributed, horovod, local
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.modes import Topology
from variable_mgr import VariableMgr

Managers = Mapping[tuple[str, Topology], type[VariableMgr]]

MANAGERS: Managers = {
    ('parameter_server', Topology.LOCAL): local.VariableMgrLocalFetchFromPS,
    ('parameter_server', Topology.PARAMETER_SERVERS): distributed.VariableMgrDistributedFetchFromPS,
    ('replicated', Topology.LOCAL): local.VariableMgrLocalReplicated,
    ('independent', Topology.LOCAL): local.VariableMgrIndependent,
    (
        'distributed_replicated',
        Topology.PARAMETER_SERVERS,
    ): distributed.VariableMgrDistributedReplicated,
    ('collective_all_reduce', Topology.LOCAL): local.VariableMgrLocalReplicated,
    ('collective_all_reduce', Topology.PEERS): collective.VariableMgrCollectiveAllReduce,
    ('distributed_all_reduce', Topology.CONTROLLER): collective.VariableMgrDistributedAllReduce,
    ('horovod', Topology.PEERS): horovod.VariableMgrHorovod,
}
# With --staged_vars, and with --variable_consistency=relaxed.
STAGED: Managers = {
    ('parameter_server', Topology.LOCAL): local.VariableMgrLocalFetchFromStagedPS,
    (
        'parameter_server',
        Topology.PARAMETER_SERVERS,
    ): distributed.VariableMgrDistributedFetchFromStagedPS,
}
RELAXED: Managers = {('replicated', Topology.LOCAL): local.VariableMgrLocalRelaxedReplicated}


def make_variable_mgr(
    mode: str,
    topology: Topology,
    config: ManagerConfig,
    *,
    staged: bool = False,
    relaxed: bool = False,
) -> VariableMgr:
    """Makes the variable manager of a built-in mode, which must run in this topology."""
    key = mode, topology
    return ((staged and STAGED.get(key)) or (relaxed and RELAXED.get(key)) or MANAGERS[key])(config)
