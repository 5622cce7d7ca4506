"""The public names of the variable managers. managers/classes.py has the class of each mode."""

from managers.base import TowerVariables, VariableMgr
from managers.classes import MANAGERS, RELAXED, STAGED
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
from params.modes import Place

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


def make_variable_mgr(
    mode: str, place: Place, parts: ManagerParts, *, staged: bool = False, relaxed: bool = False
) -> VariableMgr:
    """Makes the variable manager of a built-in mode, which must run in this place."""
    key = mode, place
    return ((staged and STAGED.get(key)) or (relaxed and RELAXED.get(key)) or MANAGERS[key])(parts)
