"""The classes of the modes, by mode and place. The other facts about a mode are in
tf_cnn/managers/modes.py.
"""

from collections.abc import Mapping

from tf_cnn.managers import collective, distributed, horovod, local
from tf_cnn.managers.modes import Place
from tf_cnn.managers.parts import ManagerParts
from variable_mgr import VariableMgr

Managers = Mapping[tuple[str, Place], type[VariableMgr]]

MANAGERS: Managers = {
    ('parameter_server', Place.ALONE): local.VariableMgrLocalFetchFromPS,
    ('parameter_server', Place.WITH_SERVERS): distributed.VariableMgrDistributedFetchFromPS,
    ('replicated', Place.ALONE): local.VariableMgrLocalReplicated,
    ('independent', Place.ALONE): local.VariableMgrIndependent,
    ('distributed_replicated', Place.WITH_SERVERS): distributed.VariableMgrDistributedReplicated,
    ('collective_all_reduce', Place.ALONE): local.VariableMgrLocalReplicated,
    ('collective_all_reduce', Place.AS_PEERS): collective.VariableMgrCollectiveAllReduce,
    ('distributed_all_reduce', Place.CONTROLLED): collective.VariableMgrDistributedAllReduce,
    ('horovod', Place.AS_PEERS): horovod.VariableMgrHorovod,
}
# With --staged_vars, and with --variable_consistency=relaxed.
STAGED: Managers = {
    ('parameter_server', Place.ALONE): local.VariableMgrLocalFetchFromStagedPS,
    ('parameter_server', Place.WITH_SERVERS): distributed.VariableMgrDistributedFetchFromStagedPS,
}
RELAXED: Managers = {('replicated', Place.ALONE): local.VariableMgrLocalRelaxedReplicated}


def make_variable_mgr(
    mode: str, place: Place, parts: ManagerParts, *, staged: bool = False, relaxed: bool = False
) -> VariableMgr:
    """Makes the variable manager of a built-in mode, which must run in this place."""
    key = mode, place
    return ((staged and STAGED.get(key)) or (relaxed and RELAXED.get(key)) or MANAGERS[key])(parts)
