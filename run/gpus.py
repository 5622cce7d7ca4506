"""The NVIDIA GPUs of this machine, through NVML or nvidia-smi. Does not import TensorFlow."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from run.kernel_files import read

# Without persistence mode, the driver starts each GPU before it answers.
_NVIDIA_SMI_SECS = 20.0
_MEBIBYTE = 2**20
# Values of CUDA_VISIBLE_DEVICES; Slurm writes the last one for jobs without GPUs.
_HIDES_ALL = ('', '-1', 'NoDevFiles')
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
    if environ.get('CUDA_VISIBLE_DEVICES', '0') in _HIDES_ALL:
        return False
    found = any((root / 'proc/driver/nvidia/gpus').glob('*')) or any((root / 'dev').glob('nvidia[0-9]*'))
    # On Windows (WSL) GPUs of all makers are one device file.
    return found or ((root / 'dev/dxg').exists() and (root / 'usr/lib/wsl/lib/libcuda.so.1').exists())


def driver_version(root: Path) -> str | None:
    """The version of NVIDIA's kernel module, '550.54.15'; None if it is not loaded."""
    words = read(root / 'proc/driver/nvidia/version').partition('\n')[0].split()
    return next((word for word in words if word[0].isdigit() and '.' in word), None)


def visible(uuids: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """Which GPUs CUDA may use, as indices of these, which are in the order of their bus numbers."""
    chosen = environ.get('CUDA_VISIBLE_DEVICES')
    if chosen is None:
        return list(range(len(uuids)))
    found = []
    for name in (word.strip() for word in chosen.split(',')):
        matches = [index for index, uuid in enumerate(uuids) if name.startswith('GPU-') and uuid.startswith(name)]
        if name.isdigit() and int(name) < len(uuids):
            matches = [int(name)]
        # CUDA ignores what follows a name that it does not know.
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
