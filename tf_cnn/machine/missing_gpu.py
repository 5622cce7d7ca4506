"""Finds out why TensorFlow uses no NVIDIA GPU: its libraries and the driver. Does not import
TensorFlow.

The names are those that tsl::internal::DsoLoader in libtensorflow_framework.so.2 passes to dlopen
(TensorFlow 2.21, seen by LD_DEBUG=libs). If one of those that TryDlopenCUDALibraries opens is
missing, TensorFlow registers no GPU at all, and does not say which it is. The driver's library is
opened before these, NCCL with the first collective op, and CUPTI with the first profile.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.machine.gpus import (
    VISIBLE_VARIABLE,
    describe_gpus,
    has_nvidia_gpu,
    nvml,
    query_nvml,
    visible_indices,
)
from tf_cnn.machine.tensorflow_build import TensorFlowBuild, supports_gpu, tensorflow_build
from tf_cnn.system.errors import install_command
from tf_cnn.system.kernel_files import ROOT

_DRIVER = 'libcuda.so.1'
# The libraries of CUDA 12: all supported versions of TensorFlow are built for it. {} is the version
# of cuDNN.
_REQUIRED = (
    _DRIVER,
    'libcudart.so.12',
    'libcublas.so.12',
    'libcublasLt.so.12',
    'libcufft.so.11',
    'libcusolver.so.11',
    'libcusparse.so.12',
    'libcudnn.so.{}',
)
# The features that need each optional library.
OPTIONAL = {
    'libnccl.so.2': 'sums over GPUs (--all_reduce_spec=nccl)',
    'libcupti.so.12': 'profiles (--profile_steps)',
}
# Libraries of several hundred megabytes may come from a slow disk.
_OPEN_SECS = 60.0


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver according to NVML; empty without the package nvidia-ml-py."""

    version: str | None = None  # '550.54.15'
    cuda_version: tuple[int, int] | None = None  # the newest that it supports
    # One for each GPU that CUDA_VISIBLE_DEVICES shows: ('8.0', '8.0').
    capabilities: tuple[str, ...] = ()


def explain_missing_gpu(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> str | None:
    """Returns the reason and what to do about it, in one line; None if this machine has no NVIDIA
    GPU.

    Call it only if TensorFlow sees no GPU: opening the libraries for GPUs in processes takes
    seconds.
    """
    if not has_nvidia_gpu({}, root):
        return None
    if not has_nvidia_gpu(environ, root):
        return (
            f'{VISIBLE_VARIABLE}={environ[VISIBLE_VARIABLE]} in the environment hides the '
            'GPUs; unset it'
        )
    build = tensorflow_build()
    if build is None or build.cuda_version is None:
        return (
            'the installed TensorFlow is built without CUDA; install the [cuda] extra instead of '
            'tensorflow-cpu'
        )
    return (
        describe_missing(check_libraries(environ))
        or describe_driver_fault(query_driver(environ), build)
        or "all libraries can be opened; the lines of TensorFlow above may have the driver's "
        'error, --verbose shows all'
    )


def check_libraries(
    environ: Mapping[str, str] = os.environ, timeout_secs: float = _OPEN_SECS
) -> dict[str, str | None]:
    """Opens each library as TensorFlow would, in processes with these environment variables
    (LD_LIBRARY_PATH).

    Returns for each name why it cannot be opened, None if it can; nothing if TensorFlow is missing
    or without CUDA.
    """
    build = tensorflow_build()
    if build is None or build.cuda_version is None:
        return {}
    # The packages of pip are in TensorFlow's RUNPATH, where the loader looks after LD_LIBRARY_PATH.
    folders = [
        environ.get('LD_LIBRARY_PATH', ''),
        *map(str, build.folder.parent.glob('nvidia/*/lib')),
    ]
    environ = {**environ, 'LD_LIBRARY_PATH': os.pathsep.join(filter(None, folders))}
    names = (
        name.format((build.cudnn_version or '').partition('.')[0])
        for name in (*_REQUIRED, *OPTIONAL)
    )
    return {name: _library_fault(name, environ, timeout_secs) for name in names}


def _library_fault(name: str, environ: Mapping[str, str], timeout_secs: float) -> str | None:
    command = [sys.executable, '-I', '-S', '-c', f'import ctypes; ctypes.CDLL({name!r})']
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_secs, env=environ
        )
    except subprocess.TimeoutExpired:
        return f'opening it takes more than {timeout_secs:g} s'
    lines = process.stderr.splitlines() or [
        f'opening it ends the process with code {process.returncode}'
    ]
    return lines[-1].removeprefix('OSError: ') if process.returncode else None


def describe_missing(errors: Mapping[str, str | None]) -> str | None:
    """Returns a line with the required libraries that cannot be opened and what to install, or
    None.
    """
    failed = {name: error for name, error in errors.items() if error and name not in OPTIONAL}
    if not failed:
        return None
    listed = f'{", ".join(failed)} ({next(iter(failed.values()))})'
    if _DRIVER in failed:
        return (
            f"NVIDIA's driver is missing: TensorFlow cannot open {listed}; install it, or "
            'start the container with its GPUs (docker run --gpus=all needs the NVIDIA Container '
            'Toolkit)'
        )
    return (
        f'TensorFlow cannot open {listed}; the [cuda] extra has all of them: '
        f'{install_command("tensorflow[and-cuda]")}'
    )


def query_driver(environ: Mapping[str, str] = os.environ) -> Driver:
    gpus, version = describe_gpus()
    visible_gpus = (
        gpus[index] for index in visible_indices([gpu['uuid'] or '' for gpu in gpus], environ)
    )
    with nvml() as library:
        number = (library and query_nvml(library, library.nvmlSystemGetCudaDriverVersion)) or 0
    capabilities = tuple(
        gpu['compute_capability'] for gpu in visible_gpus if gpu['compute_capability']
    )
    return Driver(version, (number // 1000, number % 1000 // 10) if number else None, capabilities)


def describe_driver_fault(driver: Driver, build: TensorFlowBuild) -> str | None:
    """Returns why TensorFlow cannot use the GPUs with this driver, and a remedy; None if it can."""
    if build.cuda_version is None:
        return None
    needed = tuple(int(number) for number in build.cuda_version.split('.')[:2])
    driver_text = (
        f'the driver {driver.version}, which knows CUDA '
        f'{".".join(map(str, driver.cuda_version or ()))},'
    )
    remedy = f'install a driver for CUDA {build.cuda_version} or a newer one'
    # NVIDIA, "CUDA Compatibility": machine code runs on all drivers of a major version of CUDA;
    # code that the driver compiles (PTX) needs the same or a newer minor version.
    if driver.cuda_version and driver.cuda_version[0] < needed[0]:
        return f'{driver_text} is too old for TensorFlow; {remedy}'
    support = {name: supports_gpu(name, build.architectures) for name in driver.capabilities}
    if support and set(support.values()) == {False}:
        return (
            'TensorFlow has no kernels for GPUs of compute capability '
            f'{", ".join(support)} (it has '
            f'{", ".join(build.architectures)}); use --device=cpu, or install an older TensorFlow'
        )
    if None in support.values() and driver.cuda_version and driver.cuda_version < needed:
        compiled = ', '.join(name for name, code in support.items() if code is None)
        return (
            f'{driver_text} cannot compile the kernels of TensorFlow for GPUs of compute '
            f'capability {compiled}; {remedy}'
        )
    return None
