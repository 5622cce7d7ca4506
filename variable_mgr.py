"""The public names of the variable managers. params/modes.py maps each mode to its class."""

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
    VariableMgrLocalRelaxedReplicated,
    VariableMgrLocalReplicated,
)
from managers.parts import ManagerParts

__all__ = [
    'ManagerParts',
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
    'VariableMgrLocalRelaxedReplicated',
    'VariableMgrLocalReplicated',
    'make_variable_mgr',
]


def make_variable_mgr(manager: type[VariableMgr], parts: ManagerParts) -> VariableMgr:
    """Makes the variable manager of a mode, of the class that params.modes names."""
    made = manager.of(parts)
    made.variable_dtype = parts.variable_dtype
    return made
