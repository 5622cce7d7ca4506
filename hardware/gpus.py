"""The NVIDIA GPUs of this machine, through NVML or nvidia-smi. Does not import TensorFlow."""

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hardware.kernel_files import read

# Without persistence mode, the driver starts each GPU before it answers.
_NVIDIA_SMI_SECS = 20.0
_MEBIBYTE = 2**20
# The environment variable with the GPUs that CUDA shows to a process.
VISIBLE = 'CUDA_VISIBLE_DEVICES'
# An entry of it: an index, a UUID or its beginning, or the name of a MIG instance.
_LISTED = re.compile(r'[0-9]+|GPU-.+|MIG-.+')
# What NVIDIA's driver makes for each GPU: a folder, and the names in it.
_DEVICES = (('proc/driver/nvidia/gpus', '*'), ('dev', 'nvidia[0-9]*'))
# The fields of nvidia-smi, and as what a GPU has them here.
_FIELDS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    'name': ('name', str),
    'uuid': ('uuid', str),
    'memory.total': ('memory_bytes', lambda text: round(float(text) * _MEBIBYTE)),
    'compute_cap': ('compute_capability', str),
    'clocks.max.sm': ('max_clock_mhz', lambda text: round(float(text))),
    'clocks.max.memory': ('max_memory_clock_mhz', lambda text: round(float(text))),
    'power.limit': ('power_limit_watts', float),
    'driver_version': ('driver', str),
}


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """NVIDIA's management library, as the module pynvml of nvidia-ml-py; None if there is none or no driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except (ImportError, OSError):
        yield None
        return
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def asked(library: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer of NVML to a question; None if this GPU or driver does not know it."""
    try:
        return question(*arguments)
    except library.NVMLError:
        return None


def gpu_facts() -> tuple[list[dict[str, Any]], str | None]:
    """The GPUs in the order of their bus numbers, and the version of the driver; [] and None if there are none.

    Each GPU has name, uuid, memory_bytes, compute_capability ('8.0'), max_clock_mhz, max_memory_clock_mhz and
    power_limit_watts; None for what is unknown.
    """
    with nvml() as library:
        if library is not None:
            return _from_nvml(library), asked(library, library.nvmlSystemGetDriverVersion)
    return _from_nvidia_smi()


def has_nvidia_gpu(environ: Mapping[str, str] = os.environ, root: Path = Path('/')) -> bool:
    """Whether a GPU of NVIDIA is in this machine and not hidden by CUDA_VISIBLE_DEVICES; takes no time.

    GPUs of others do not count: the packages of TensorFlow that this program is made for do not use them.

    Args:
      root: the folder that holds proc/, dev/ and usr/.
    """
    if listed_gpus(environ) == []:
        return False
    found = any(any((root / folder).glob(names)) for folder, names in _DEVICES)
    # On Windows (WSL) GPUs of all makers are one device file.
    return found or ((root / 'dev/dxg').exists() and (root / 'usr/lib/wsl/lib/libcuda.so.1').exists())


def count_gpus(root: Path = Path('/')) -> int | None:
    """How many GPUs of NVIDIA this process could use without CUDA_VISIBLE_DEVICES; None if that is not known.

    NVML and nvidia-smi do not count those that a job scheduler or a container keeps from it; /proc and /dev may.

    Args:
      root: the folder that holds proc/ and dev/.
    """
    if gpus := gpu_facts()[0]:
        return len(gpus)
    numbers = [len([*(root / folder).glob(names)]) for folder, names in _DEVICES]
    return max(numbers) or (None if has_nvidia_gpu({}, root) else 0)


def driver_version(root: Path) -> str | None:
    """The version of NVIDIA's kernel module, '550.54.15'; None if it is not loaded."""
    words = read(root / 'proc/driver/nvidia/version').partition('\n')[0].split()
    return next((word for word in words if word[0].isdigit() and '.' in word), None)


def listed_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """The entries of CUDA_VISIBLE_DEVICES; None if it is not set, and then all GPUs are visible.

    CUDA ignores what follows an entry that names no GPU. Such are -1, and what Slurm writes for jobs without GPUs,
    NoDevFiles.
    """
    text = environ.get(VISIBLE)
    if text is None:
        return None
    return list(itertools.takewhile(_LISTED.fullmatch, (word.strip() for word in text.split(','))))


def visible(uuids: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """Which GPUs CUDA may use, as indices of these, which are in the order of their bus numbers.

    CUDA counts in that order if its GPUs are equally fast, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    chosen = listed_gpus(environ)
    if chosen is None:
        return list(range(len(uuids)))
    found = []
    for name in chosen:
        matches = [index for index, uuid in enumerate(uuids) if name.startswith('GPU-') and uuid.startswith(name)]
        if name.isdigit() and int(name) < len(uuids):
            matches = [int(name)]
        if len(matches) != 1:
            break
        found += matches
    return found


def _from_nvml(library: Any) -> list[dict[str, Any]]:
    gpus = []
    for index in range(library.nvmlDeviceGetCount()):
        gpu = library.nvmlDeviceGetHandleByIndex(index)
        memory = asked(library, library.nvmlDeviceGetMemoryInfo, gpu)
        capability = asked(library, library.nvmlDeviceGetCudaComputeCapability, gpu)
        milliwatts = asked(library, library.nvmlDeviceGetEnforcedPowerLimit, gpu)
        gpus.append(
            {
                'name': asked(library, library.nvmlDeviceGetName, gpu),
                'uuid': asked(library, library.nvmlDeviceGetUUID, gpu),
                'memory_bytes': memory and memory.total,
                'compute_capability': capability and '.'.join(map(str, capability)),
                'max_clock_mhz': asked(library, library.nvmlDeviceGetMaxClockInfo, gpu, library.NVML_CLOCK_SM),
                'max_memory_clock_mhz': asked(library, library.nvmlDeviceGetMaxClockInfo, gpu, library.NVML_CLOCK_MEM),
                'power_limit_watts': milliwatts and milliwatts / 1000,
            }
        )
    return gpus


def _from_nvidia_smi() -> tuple[list[dict[str, Any]], str | None]:
    program = shutil.which('nvidia-smi')
    if program is None:
        return [], None
    command = [program, f'--query-gpu={",".join(_FIELDS)}', '--format=csv,noheader,nounits']
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECS, check=True)
    except (OSError, subprocess.SubprocessError):
        return [], None
    gpus = [_gpu(line) for line in ran.stdout.splitlines() if line.strip()]
    drivers = {gpu.pop('driver') for gpu in gpus}
    return gpus, next(iter(drivers), None)


def _gpu(line: str) -> dict[str, Any]:
    """A GPU from a line of nvidia-smi; what it does not know is '[N/A]' there."""
    gpu: dict[str, Any] = {}
    for text, (name, convert) in zip(line.split(', '), _FIELDS.values(), strict=False):
        try:
            gpu[name] = None if text.strip().startswith('[') else convert(text.strip())
        except ValueError:
            gpu[name] = None
    return {name: gpu.get(name) for name, _ in _FIELDS.values()}
