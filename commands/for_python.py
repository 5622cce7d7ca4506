"""The names that Python code imports as `from tf_cnn_benchmarks import NAME`, in a checkout and installed."""

import importlib
from typing import Any

# The module that defines each name.
NAMES = {
    'BenchmarkCNN': 'benchmark_cnn',
    'BenchmarkError': 'errors',
    'RunError': 'errors',
    'UsageError': 'errors',
    'make_params': 'params',
    'register_model': 'models.registry',
}


def find(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module 'tf_cnn_benchmarks' has no attribute {name!r}")
    return getattr(importlib.import_module(NAMES[name]), name)
