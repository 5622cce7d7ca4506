"""The public names of the variable managers. params/modes.py maps each mode to its class."""

import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

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

__all__ = [
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


def make_variable_mgr(manager: str, *, variable_dtype: tf.DType = tf.float32, **parts: Any) -> VariableMgr:
    """Makes the variable manager of a mode.

    Args:
      manager: the class as 'module:name', see params.modes.Mode.manager.
      variable_dtype: the dtype of the trainable variables.
      parts: constructor arguments of all classes, by name: devices, seed and so on. Each class gets those it declares.
    """
    make: Callable[..., VariableMgr] = pkgutil.resolve_name(manager)
    made = make(**{name: parts[name] for name in inspect.signature(make).parameters})
    made.variable_dtype = variable_dtype
    return made
