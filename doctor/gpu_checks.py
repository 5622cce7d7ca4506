"""Checks of the GPUs: driver, libraries, and whether TensorFlow has kernels for them. Does not import TensorFlow."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from doctor.verdicts import NO_GPU, Context, Verdict, ok, skipped, warning, wrong
from errors import counted, to_install
from machine.cuda_driver import check_driver, describe_driver_fault
from machine.cuda_libraries import check_libraries, describe_missing
from machine.gpus import driver_version, gpu_facts, has_nvidia_gpu, has_nvml_package
from machine.kernel_files import read
from machine.surroundings import is_container
from machine.tensorflow_build import PARTLY_COMPILED, runs_on, tensorflow_build

# In PCI's numbering: the vendor NVIDIA, and the first byte of the classes of display controllers.
_NVIDIA, _DISPLAY = '0x10de', '0x03'
# The driver of devices that are passed through to a virtual machine.
_PASSED_THROUGH = 'vfio-pci'
_GUIDE = 'see docs/gpu.md'


def driver(context: Context, root: str = '/', environ: Mapping[str, str] = os.environ) -> Verdict:
    """Checks that the driver is loaded and starts, drives all GPUs on the bus, and fits TensorFlow.

    Args:
      root: the folder with proc/, dev/, sys/, run/ and usr/.
      environ: the environment variables of this process.
    """
    folder = Path(root)
    on_bus = gpus_on_bus(folder)
    if not has_nvidia_gpu({}, folder) and driver_version(folder) is None:
        if not on_bus:
            return skipped(NO_GPU)
        return wrong(
            f'{counted(on_bus, "GPU")} of NVIDIA on the PCI bus, but no driver is loaded',
            f'install the driver ({_GUIDE}); if it is installed, dmesg says why it was not loaded',
            gpus_on_bus=on_bus,
        )
    if not has_nvidia_gpu(environ, folder):
        return skipped('CUDA_VISIBLE_DEVICES hides the GPUs')
    context.doing('starting the driver')
    found = check_driver(root=folder)
    context.doing('asking the driver for its GPUs')
    gpus, version = gpu_facts()
    version = version or found.version
    figures = {'driver': vars(found), 'gpus': gpus, 'gpus_on_bus': on_bus}
    build = tensorflow_build()
    fault = describe_driver_fault(found, build) if build else found.error
    if fault:
        return wrong(fault, _GUIDE, **figures)
    shown = f'driver {version or "of unknown version"}'
    if found.cuda_version:
        shown += f' for CUDA {".".join(map(str, found.cuda_version))}'
    shown += f'; {list_gpus(gpus)}' if gpus else ''
    if lost := _describe_lost(len(gpus), on_bus, folder, environ):
        advice = 'look for Xid errors in dmesg, and restart, unless something keeps the others from this process'
        return warning(f'{shown}, but {lost}', advice, **figures)
    if not gpus and not has_nvml_package():
        return warning(
            f'{shown}; names, memory and energy of the GPUs are unknown without nvidia-ml-py, of the [cuda] extra',
            f'write {to_install("nvidia-ml-py")}',
            **figures,
        )
    return ok(shown, **figures)


def _describe_lost(num_listed: int, on_bus: int, root: Path, environ: Mapping[str, str]) -> str | None:
    """Describes the GPUs that the driver has lost; None if it has lost none.

    In containers and jobs that may use only some GPUs (Slurm's ConstrainDevices), /sys and /proc show all GPUs of the
    host, so that the numbers prove nothing.

    Args:
      num_listed: how many GPUs NVML lists; 0 without NVML.
      on_bus: how many GPUs are on the PCI bus.
      root: the folder with proc/.
      environ: the environment variables of this process.
    """
    if is_container(root) or 'SLURM_JOB_ID' in environ:
        return None
    driven = len([*(root / 'proc/driver/nvidia/gpus').glob('*')])
    if driven and driven < on_bus:
        return f'it drives {driven} of {on_bus} on the PCI bus'
    if 0 < num_listed < driven:
        return f'it drives {driven}'
    return None


def libraries(context: Context) -> Verdict:
    """Checks that every library that TensorFlow opens for GPUs can be opened here."""
    context.doing('opening the libraries of CUDA')
    found = check_libraries()
    if not found:
        return wrong('the installed TensorFlow is built without CUDA', f'write {to_install("tensorflow[and-cuda]")}')
    figures = {'libraries': [vars(library) for library in found]}
    missing = describe_missing(found)
    if missing:
        return wrong(missing, _GUIDE, **figures)
    optional = [library for library in found if library.error]
    if optional:
        listed = ', '.join(f'{library.name} for {library.purpose}' for library in optional)
        packages = dict.fromkeys(library.package for library in optional)
        return warning(
            f'cannot be opened: {listed}', f'install {" ".join(packages)}: {to_install(*packages)}', **figures
        )
    return ok(f'all {len(found)} can be opened', **figures)


def architecture(context: Context) -> Verdict:
    """Checks that TensorFlow has machine code for every GPU that CUDA_VISIBLE_DEVICES shows."""
    context.doing('starting the driver')
    capabilities = check_driver().capabilities
    build = tensorflow_build()
    architectures = build.architectures if build else ()
    has = {capability: runs_on(capability, architectures) for capability in capabilities}
    figures = {'architectures': architectures, 'capabilities': capabilities}
    shown = f'TensorFlow has kernels for {", ".join(architectures)}'
    lacking = ', '.join(capability for capability, code in has.items() if code is False)
    compiled = [capability for capability, code in has.items() if code is None]
    if lacking:
        return wrong(
            f'{shown}, and ignores GPUs of compute capability {lacking}',
            'install an older TensorFlow for an older GPU, or hide these by CUDA_VISIBLE_DEVICES',
            **figures,
        )
    if compiled:
        what, takes = 'each of them', 'up to half an hour'
        if PARTLY_COMPILED.issuperset(compiled):
            what, takes = 'the small ones among them (elementwise ops)', 'some minutes'
        return warning(
            f'{shown}; for compute capability {", ".join(compiled)} the driver compiles {what} at first use',
            f'the first run may take {takes} to start; set CUDA_CACHE_MAXSIZE=4294967296, so that later ones find all '
            'of them compiled',
            **figures,
        )
    return ok(f'{shown}; the GPUs have {", ".join(has)}', **figures)


def gpus_on_bus(root: Path) -> int:
    """Returns how many GPUs of NVIDIA are on the PCI bus, with or without a driver.

    GPUs that are passed through to virtual machines (vfio-pci) do not count.
    """
    return sum(
        read(folder / 'vendor') == _NVIDIA
        and read(folder / 'class').startswith(_DISPLAY)
        and (folder / 'driver').resolve().name != _PASSED_THROUGH
        for folder in (root / 'sys/bus/pci/devices').glob('*')
    )


def list_gpus(gpus: Sequence[dict[str, Any]]) -> str:
    """Returns text such as '8 x NVIDIA A100-SXM4-40GB (compute capability 8.0, 39.6 GiB)'."""
    shown = []
    for gpu in gpus:
        memory = f', {gpu["memory_bytes"] / 2**30:.1f} GiB' if gpu['memory_bytes'] else ''
        shown.append(f'{gpu["name"] or "unknown GPU"} (compute capability {gpu["compute_capability"]}{memory})')
    return ', '.join(f'{shown.count(text)} x {text}' for text in dict.fromkeys(shown))
