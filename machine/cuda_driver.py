"""NVIDIA's driver: whether it starts, its GPUs, and whether it fits TensorFlow. Does not import TensorFlow."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from machine.gpus import driver_version
from machine.kernel_files import ROOT
from machine.tensorflow_build import TensorFlowBuild, runs_on

# Without persistence mode, the driver starts each GPU before it answers.
_ASK_SECS = 60.0

# The oldest drivers for Linux that run programs of a major version of CUDA: NVIDIA, "CUDA Compatibility", table "CUDA
# minor version compatibility".
_OLDEST_OF_MAJOR: Mapping[int, str] = {11: '450.80.02', 12: '525.60.13', 13: '580.65.06'}
# What to do about errors of cuInit (cuda.h, CUresult).
_ADVICE: Mapping[str, str] = {
    'CUDA_ERROR_STUB_LIBRARY': 'a stub of the CUDA toolkit was found instead of the driver; take stubs/ out of '
    'LD_LIBRARY_PATH',
    'CUDA_ERROR_NO_DEVICE': 'CUDA_VISIBLE_DEVICES names no GPU of this machine, or the container has none',
    'CUDA_ERROR_SYSTEM_NOT_READY': 'start nvidia-fabricmanager, which GPUs that are joined by NVSwitch need',
    'CUDA_ERROR_SYSTEM_DRIVER_MISMATCH': "the driver's library and kernel module have different versions; restart the "
    'machine after an update of the driver',
    'CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE': 'the libraries of cuda-compat do not work with this GPU; take them '
    'out of LD_LIBRARY_PATH, and install a newer driver',
    'CUDA_ERROR_UNKNOWN': 'load the module nvidia-uvm (nvidia-modprobe -u -c=0), or restart the machine',
}

_ASK = """
import ctypes, json
try:
    cuda = ctypes.CDLL('libcuda.so.1')
except OSError as error:
    print(json.dumps({'error': str(error)}))
    raise SystemExit
found = {'capabilities': []}
number = ctypes.c_int()
if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0:
    found['cuda_version'] = [number.value // 1000, number.value % 1000 // 10]
code = cuda.cuInit(0)
if code == 0:
    code = cuda.cuDeviceGetCount(ctypes.byref(number))
if code:
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    found['error'] = (name.value or b'error %d' % code).decode()
else:
    for index in range(number.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGet(ctypes.byref(device), index)
        # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and MINOR
        cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
        found['capabilities'].append('%d.%d' % (major.value, minor.value))
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Driver:
    """The facts that the driver reports."""

    version: str | None  # of its kernel module, '550.54.15'; None if that is not loaded
    cuda_version: tuple[int, int] | None = None  # the newest that it supports; None if its library cannot be opened
    error: str | None = None  # why it does not start: a name of CUresult or a text
    capabilities: tuple[str, ...] = ()  # of each GPU that CUDA_VISIBLE_DEVICES shows, ('8.0', '8.0')


def check_driver(environ: Mapping[str, str] = os.environ, root: Path = ROOT, timeout_secs: float = _ASK_SECS) -> Driver:
    """Starts the driver's library in another process with these environment variables, which may take some seconds."""
    version, command = driver_version(root), [sys.executable, '-I', '-S', '-c', _ASK]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_secs, env=dict(environ))
        found = json.loads(ran.stdout)
    except subprocess.TimeoutExpired:
        return Driver(version, error=f'it did not start within {timeout_secs:g} s')
    except (OSError, ValueError):
        return Driver(version, error='starting it ended the process')
    cuda_version = tuple(found['cuda_version']) if 'cuda_version' in found else None
    return Driver(version, cuda_version, found.get('error'), tuple(found.get('capabilities', ())))


def describe_driver_fault(driver: Driver, build: TensorFlowBuild) -> str | None:
    """Says in one line why TensorFlow cannot use GPUs with this driver, and what to do; None if it can."""
    if build.cuda_version is None:
        return None
    major, minor = (int(number) for number in build.cuda_version.split('.')[:2])
    has = f'the driver {driver.version}' if driver.version else 'the driver'
    if driver.cuda_version:
        has += f', which knows CUDA {".".join(map(str, driver.cuda_version))},'
    oldest = _OLDEST_OF_MAJOR.get(major)
    if oldest and _is_too_old(driver, major, oldest):
        return f'{has} is too old for CUDA {build.cuda_version}, which TensorFlow uses; install {oldest} or a newer one'
    if driver.error:
        advice = _ADVICE.get(driver.error)
        return f'{has} does not start: {driver.error}{f"; {advice}" if advice else "; nvidia-smi may say more"}'
    ignored = [name for name in driver.capabilities if runs_on(name, build.architectures) is False]
    if ignored and len(ignored) == len(driver.capabilities):
        return (
            f'TensorFlow has no kernels for GPUs of compute capability {ignored[0]} '
            f'(it has {", ".join(build.architectures)}); write --device=cpu, or install an older TensorFlow'
        )
    compiled = [name for name in driver.capabilities if runs_on(name, build.architectures) is None]
    if compiled and driver.cuda_version and driver.cuda_version < (major, minor):
        # "CUDA Compatibility": code that the driver compiles (PTX) has no minor version compatibility.
        return (
            f'{has} cannot compile the kernels that TensorFlow has for GPUs of compute capability {compiled[0]}; '
            f'install a driver for CUDA {major}.{minor} or a newer one'
        )
    return None


def _is_too_old(driver: Driver, major: int, oldest: str) -> bool:
    # The library counts: it may be newer than the kernel module (cuda-compat).
    if driver.cuda_version:
        return driver.cuda_version[0] < major
    return driver.version is not None and _numbers(driver.version) < _numbers(oldest)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split('.') if part.isdigit()]
