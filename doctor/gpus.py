"""Checks of the GPUs: driver, libraries, and whether TensorFlow has code for them."""

import ctypes
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doctor.verdicts import Context, Verdict, ok, skipped, warning, wrong
from errors import counted
from run.cuda_libraries import check_libraries, describe_missing
from run.gpus import driver_version, gpu_facts, has_nvidia_gpu
from run.kernel_files import read

# Of PCI: NVIDIA, and the classes of display controllers.
_NVIDIA, _DISPLAY = '0x10de', '0x03'
_INSTALL_DRIVER = "install NVIDIA's driver (docs/gpu.md)"


def driver(context: Context, root: str = '/') -> Verdict:
    """Whether the driver is loaded, answers, and sees all GPUs that are on the bus."""
    on_bus = gpus_on_bus(Path(root))
    version = driver_version(Path(root))
    if not has_nvidia_gpu(os.environ, Path(root)) and version is None:
        if on_bus:
            return wrong(
                f'there {"is" if on_bus == 1 else "are"} {counted(on_bus, "GPU")} of NVIDIA on the PCI bus, and no '
                'driver is loaded',
                f'{_INSTALL_DRIVER}; if it is installed, look at dmesg for why it was not loaded',
                gpus_on_bus=on_bus,
            )
        return skipped('this machine has no NVIDIA GPU, or CUDA_VISIBLE_DEVICES hides it')
    context.doing('asking the driver for its GPUs')
    gpus, answered = gpu_facts()
    figures = {'kernel_module': version, 'driver': answered, 'gpus': gpus, 'gpus_on_bus': on_bus}
    if not gpus:
        return wrong(
            f'the kernel module {version or "of NVIDIA"} is loaded, but neither NVML nor nvidia-smi lists a GPU',
            'run nvidia-smi: if its versions do not match, restart the machine; in a container, start it with '
            'docker run --gpus=all and the NVIDIA Container Toolkit',
            **figures,
        )
    supported = _cuda_of_driver()
    figures['cuda_of_driver'] = supported
    shown = f'driver {answered or version}{f", for CUDA {supported}" if supported else ""}; {list_gpus(gpus)}'
    if version and answered and version != answered:
        return wrong(
            f'{shown}; the kernel module is {version}', 'restart the machine: the driver was updated', **figures
        )
    if on_bus > len(gpus) and not Path(root, '.dockerenv').exists():
        return warning(
            f'{shown}; there are {on_bus} on the PCI bus', 'look for Xid errors in dmesg, restart the machine', **figures
        )
    return ok(shown, **figures)


def libraries(context: Context) -> Verdict:
    """Whether every library that TensorFlow opens for GPUs can be opened here."""
    context.doing('opening the libraries of CUDA')
    found = check_libraries()
    if not found:
        return wrong('TensorFlow is built without CUDA', "install '.[cuda]': pip install 'tensorflow[and-cuda]'")
    figures = {'libraries': [vars(library) for library in found]}
    missing = describe_missing(found)
    if missing:
        return wrong(missing, "install the [cuda] extra: pip install '.[cuda]'", **figures)
    optional = [library for library in found if library.error]
    if optional:
        listed = ', '.join(f'{library.name} for {library.purpose}' for library in optional)
        packages = ' '.join(dict.fromkeys(library.package for library in optional))
        return warning(f'missing: {listed}', f'pip install {packages}', **figures)
    return ok(f'all {len(found)} libraries can be opened', **figures)


def architecture(context: Context) -> Verdict:
    """Whether TensorFlow was compiled for the compute capability of every GPU."""
    import tensorflow as tf

    del context
    build = list(tf.sysconfig.get_build_info().get('cuda_compute_capabilities', []))
    lacking, translated, shown, figures = [], [], [], []
    for device in tf.config.list_physical_devices('GPU'):
        details = tf.config.experimental.get_device_details(device)
        capability = details.get('compute_capability')
        name = f'{details.get("device_name", device.name)} ({".".join(map(str, capability or ("unknown",)))})'
        code = code_for(capability, build) if capability else None
        figures.append({'name': name, 'compute_capability': capability, 'code': code})
        shown.append(name)
        if code is None:
            lacking.append(name)
        elif code.startswith('compute_'):
            translated.append(name)
    made_for = f'TensorFlow is made for {", ".join(build)}'
    known = {'build': build, 'gpus': figures}
    if lacking:
        return wrong(
            f'{made_for}, which does not run on {", ".join(sorted(set(lacking)))}',
            'install a build for this GPU: a newer TensorFlow for a newer one, an older TensorFlow for an older one',
            **known,
        )
    if translated:
        return warning(
            f'{made_for}; for {", ".join(sorted(set(translated)))} the driver compiles each kernel at its first use',
            'the first start takes up to half an hour; set CUDA_CACHE_MAXSIZE=4294967296 so that later ones do not, '
            'or install a TensorFlow that is made for this GPU',
            **known,
        )
    return ok(f'{made_for}; here: {", ".join(sorted(set(shown)))}', **known)


def code_for(capability: Sequence[int], build: Sequence[str]) -> str | None:
    """Which code of a build a GPU runs: machine code ('sm_80'), or one that the driver translates ('compute_90').

    Machine code for X.y runs on X.z with z >= y; the intermediate code (PTX) for X.y is translated by the driver for
    every later GPU: CUDA C++ Programming Guide, sections "Binary Compatibility" and "PTX Compatibility". TensorFlow's
    configure.py: "compute_xy" includes both, "sm_xy" machine code only. A letter at the end ('sm_90a') restricts code
    to exactly this GPU.

    Args:
      capability: (major, minor). build: as in tf.sysconfig.get_build_info()['cuda_compute_capabilities'].
    """
    major, minor = capability
    machine_code, translated = [], []
    for name in build:
        match = re.fullmatch(r'(sm|compute)_(\d+)(\d)([a-z]?)', name)
        if not match:
            continue
        made_for = int(match[2]), int(match[3])
        if match[4] and made_for != (major, minor):
            continue
        if made_for[0] == major and made_for[1] <= minor:
            machine_code.append((made_for, f'sm_{match[2]}{match[3]}{match[4]}'))
        elif match[1] == 'compute' and made_for < (major, minor):
            translated.append((made_for, name))
    found = machine_code or translated
    return max(found)[1] if found else None


def gpus_on_bus(root: Path) -> int:
    """How many GPUs of NVIDIA are on the PCI bus, whether or not a driver is there."""
    return sum(
        read(folder / 'vendor') == _NVIDIA and read(folder / 'class').startswith(_DISPLAY)
        for folder in (root / 'sys/bus/pci/devices').glob('*')
    )


def list_gpus(gpus: Sequence[dict[str, Any]]) -> str:
    """Such as '8 × NVIDIA A100-SXM4-40GB'."""
    names = [gpu['name'] or 'unknown GPU' for gpu in gpus]
    return ', '.join(f'{names.count(name)} × {name}' for name in dict.fromkeys(names))


def _cuda_of_driver() -> str | None:
    """The newest version of CUDA that the driver runs, from a number like 12040."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL('libcuda.so.1').cuDriverGetVersion(ctypes.byref(version)):
            return None
    except (OSError, AttributeError):
        return None
    return f'{version.value // 1000}.{version.value % 1000 // 10}'
