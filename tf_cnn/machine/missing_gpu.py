"""Checks what TensorFlow needs to use an NVIDIA GPU: its libraries and the driver. Does not import
TensorFlow.

The names are those that tsl::internal::DsoLoader in libtensorflow_framework.so.2 passes to dlopen
(TensorFlow 2.21, seen by LD_DEBUG=libs). If one of those that TryDlopenCUDALibraries opens is
missing, TensorFlow registers no GPU at all, and does not say which it is. The driver's library is
opened before these, NCCL with the first collective op, and CUPTI with the first profile.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.machine.findings import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.machine.gpus import (
    VISIBLE_VARIABLE,
    describe_gpus,
    format_gpus,
    gpus_on_bus,
    has_nvidia_gpu,
    nvml,
    query_nvml,
    visible_gpus,
)
from tf_cnn.machine.tensorflow_build import TensorFlowBuild, supports_gpu, tensorflow_build
from tf_cnn.system.errors import install_command, plural
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
_GUIDE = 'see docs/gpu.md'
# The newest compute capability that the PTX of all supported versions of TensorFlow fits.
_HOPPER = 9.0


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver according to NVML; empty without the package nvidia-ml-py."""

    version: str | None = None  # '550.54.15'
    cuda_version: tuple[int, int] | None = None  # the newest that it supports
    # One for each GPU that CUDA_VISIBLE_DEVICES shows: ('8.0', '8.0').
    capabilities: tuple[str, ...] = ()


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
    capabilities = tuple(
        gpu['compute_capability'] for gpu in visible_gpus(environ) if gpu['compute_capability']
    )
    with nvml() as library:
        number = (library and query_nvml(library, library.nvmlSystemGetCudaDriverVersion)) or 0
    return Driver(
        describe_gpus()[1], (number // 1000, number % 1000 // 10) if number else None, capabilities
    )


def describe_driver_fault(driver: Driver, build: TensorFlowBuild) -> str | None:
    """Returns why this driver is too old for TensorFlow, and a remedy; None if it is not."""
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
    if None in support.values() and driver.cuda_version and driver.cuda_version < needed:
        compiled = ', '.join(name for name, code in support.items() if code is None)
        return (
            f'{driver_text} cannot compile the kernels of TensorFlow for GPUs of compute '
            f'capability {compiled}; {remedy}'
        )
    return None


# ---- the checks ----------------------------------------------------------------------------------


def check_driver(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> Finding:
    if not has_nvidia_gpu({}, root):
        if not (on_bus := gpus_on_bus(root)):
            return Finding(SKIPPED, 'this machine has no NVIDIA GPU')
        advice = (
            f'install the driver ({_GUIDE}); if it is installed, dmesg says why it was not loaded'
        )
        summary = f'{plural(len(on_bus), "GPU")} of NVIDIA on the PCI bus, but no driver is loaded'
        return Finding(WRONG, summary, advice)
    if not has_nvidia_gpu(environ, root):
        hidden = f'{VISIBLE_VARIABLE}={environ[VISIBLE_VARIABLE]} in the environment hides the GPUs'
        return Finding(SKIPPED, hidden, 'unset it to use them')
    nvidia_driver, build, (gpus, _) = query_driver(environ), tensorflow_build(), describe_gpus()
    figures = {'driver': vars(nvidia_driver), 'gpus': gpus}
    if build and (fault := describe_driver_fault(nvidia_driver, build)):
        return Finding(WRONG, fault, _GUIDE, figures)
    if not gpus:
        advice = f'nvidia-smi may say why; without nvidia-ml-py: {install_command("nvidia-ml-py")}'
        return Finding(WARNING, 'the driver names no GPUs', advice, figures)
    cuda = '.'.join(map(str, nvidia_driver.cuda_version or ())) or 'of unknown version'
    return Finding(
        OK,
        f'driver {nvidia_driver.version} for CUDA {cuda}; {"; ".join(format_gpus(gpus))}',
        None,
        figures,
    )


def check_cuda_libraries(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> Finding:
    if not has_nvidia_gpu(environ, root):
        return Finding(SKIPPED, 'no NVIDIA GPU')
    errors, install = check_libraries(environ), install_command('tensorflow[and-cuda]')
    if not errors:
        return Finding(WRONG, 'the installed TensorFlow is built without CUDA', f'use {install}')
    if missing := describe_missing(errors):
        return Finding(WRONG, missing, _GUIDE, errors)
    if lacking := [f'{name} for {OPTIONAL[name]}' for name, error in errors.items() if error]:
        return Finding(WARNING, f'cannot be opened: {", ".join(lacking)}', f'use {install}', errors)
    return Finding(OK, f'all {len(errors)} can be opened', None, errors)


def check_architectures(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> Finding:
    """Checks that TensorFlow has machine code for every GPU visible in CUDA_VISIBLE_DEVICES."""
    if not has_nvidia_gpu(environ, root):
        return Finding(SKIPPED, 'no NVIDIA GPU')
    capabilities, build = query_driver(environ).capabilities, tensorflow_build()
    architectures = build.architectures if build else ()
    if not capabilities or not architectures:
        return Finding(SKIPPED, 'the driver names no GPUs, or TensorFlow is built without CUDA')
    has = {capability: supports_gpu(capability, architectures) for capability in capabilities}
    figures = {'architectures': architectures, 'capabilities': capabilities}
    summary = f'TensorFlow has kernels for {", ".join(architectures)}'
    if lacking := [capability for capability, code in has.items() if code is False]:
        summary += f', and ignores GPUs of compute capability {", ".join(lacking)}'
        advice = (
            f'install an older TensorFlow for an older GPU, hide these with {VISIBLE_VARIABLE}, or '
            'use --device=cpu'
        )
        return Finding(WRONG, summary, advice, figures)
    if compiled := [capability for capability, code in has.items() if code is None]:
        summary += (
            f'; for compute capability {", ".join(compiled)} the driver compiles kernels at first '
            'use'
        )
        advice = (
            'the first run may take up to half an hour to start; CUDA_CACHE_PATH '
            '(~/.nv/ComputeCache) must be a folder that can keep its kernels'
        )
        if any(float(capability) > _HOPPER for capability in compiled):
            summary += f', which fails above {_HOPPER} with TensorFlow 2.16 to 2.20'
            advice = f'see tensorflow/devices, which tries it, and docs/gpu.md, Blackwell; {advice}'
        return Finding(WARNING, summary, advice, figures)
    return Finding(OK, f'{summary}; the GPUs have {", ".join(has)}', None, figures)


# By the name of the check. A fault of an earlier check may cause later ones.
GPU_CHECKS: Mapping[str, Callable[..., Finding]] = {
    'driver': check_driver,
    'libraries': check_cuda_libraries,
    'architecture': check_architectures,
}


def explain_missing_gpu(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> str | None:
    """Returns the reason and what to do about it, in one line; None if this machine has no NVIDIA
    GPU.

    Call it only if TensorFlow sees no GPU: opening the libraries for GPUs in processes takes
    seconds.
    """
    if not has_nvidia_gpu({}, root) and not gpus_on_bus(root):
        return None
    for check in GPU_CHECKS.values():
        finding = check(environ, root)
        if finding.outcome in (WRONG, SKIPPED) and finding.advice:
            return f'{finding.found}; {finding.advice}'
    return (
        "all libraries can be opened; the lines of TensorFlow above may have the driver's error, "
        '--verbose shows all'
    )
