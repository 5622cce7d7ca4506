"""The names that Python code imports as `from tf_cnn_benchmarks import NAME`, in a checkout and installed."""

import importlib
import sys
from typing import Any

from tf_cnn.machine.quiet import quiet_start

# The module that defines each name.
NAMES = {
    'BenchmarkCNN': 'benchmark_cnn',
    'BenchmarkError': 'errors',
    'RunError': 'errors',
    'UsageError': 'errors',
    'make_params': 'params',
    'register_model': 'models.registry',
    'register_variable_mgr': 'tf_cnn.params.user_modes',
    **dict.fromkeys(
        (
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
        ),
        'variable_mgr',
    ),
}


def find(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'tf_cnn_benchmarks' has no attribute {name!r}")
    module = NAMES[name]
    if module not in sys.modules:
        # BenchmarkCNN imports TensorFlow.
        with quiet_start(verbose=False):
            importlib.import_module(module)
    return getattr(sys.modules[module], name)
