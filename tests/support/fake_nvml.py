"""NVIDIA's management library, as its package pynvml shows it, on a machine with equal GPUs."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_MODULE = """
class NVMLError(Exception):
    pass

class _Memory:
    total = {memory_bytes}

NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
nvmlInit = nvmlShutdown = lambda: None
nvmlSystemGetDriverVersion = lambda: '550.54.15'
nvmlDeviceGetCount = lambda: {num_gpus}
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetName = lambda gpu: '{name}'
nvmlDeviceGetUUID = lambda gpu: f'GPU-{{gpu}}5a2'
nvmlDeviceGetMemoryInfo = lambda gpu: _Memory
nvmlDeviceGetCudaComputeCapability = lambda gpu: {capability}
nvmlDeviceGetMaxClockInfo = lambda gpu, kind: 1410 if kind == NVML_CLOCK_SM else 1215
nvmlDeviceGetEnforcedPowerLimit = lambda gpu: 400_000
"""


def write_pynvml(
    folder: Path, num_gpus: int, *, name: str = 'NVIDIA A100-SXM4-40GB', capability: tuple[int, int] = (8, 0)
) -> Path:
    """Writes pynvml.py to a folder, which a process finds by PYTHONPATH, and returns its path."""
    folder.mkdir(exist_ok=True)
    path = folder / 'pynvml.py'
    path.write_text(_MODULE.format(num_gpus=num_gpus, name=name, capability=capability, memory_bytes=40 * 2**30))
    return path


def use_pynvml(monkeypatch: pytest.MonkeyPatch, path: Path) -> ModuleType:
    """Lets this process import the module that write_pynvml wrote."""
    spec = importlib.util.spec_from_file_location('pynvml', path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, 'pynvml', module)
    return module


def without_pynvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process find no such package, as where it is not installed."""
    monkeypatch.setitem(sys.modules, 'pynvml', None)
