"""The public names of the variable managers. tf_cnn/managers/classes.py has the class of each mode."""

from tf_cnn.managers.base import TowerVariables, VariableMgr
from tf_cnn.managers.classes import MANAGERS, RELAXED, STAGED
from tf_cnn.managers.collective import VariableMgrCollectiveAllReduce, VariableMgrDistributedAllReduce
from tf_cnn.managers.distributed import (
    VariableMgrDistributedFetchFromPS,
    VariableMgrDistributedFetchFromStagedPS,
    VariableMgrDistributedReplicated,
)
from tf_cnn.managers.horovod import VariableMgrHorovod
from tf_cnn.managers.local import (
    VariableMgrIndependent,
    VariableMgrLocalFetchFromPS,
    VariableMgrLocalFetchFromStagedPS,
    VariableMgrLocalRelaxedReplicated,
    VariableMgrLocalReplicated,
)
from tf_cnn.managers.modes import Place
from tf_cnn.managers.parts import ManagerParts

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
