"""The NVIDIA GPUs of this machine, through NVML and the files of the driver. Does not import
TensorFlow.
"""

import contextlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tf_cnn.system.atomic import make_folder
from tf_cnn.system.kernel_files import ROOT, read_text

# The environment variable that lists the GPUs that CUDA shows to a process.
VISIBLE_VARIABLE = 'CUDA_VISIBLE_DEVICES'
# The driver keeps 4 GiB of compiled kernels, its maximum.
KERNEL_CACHE = {'CUDA_CACHE_MAXSIZE': '4294967296'}
# An entry of that list: an index, a UUID or its beginning, or the name of a MIG instance.
_LISTED = re.compile(r'[0-9]+|GPU-.+|MIG-.+')
# NVIDIA's driver creates an entry for each GPU in these folders, with these names.
_DEVICES = (('proc/driver/nvidia/gpus', '*'), ('dev', 'nvidia[0-9]*'))
# In PCI's numbering: the vendor NVIDIA, and the classes of VGA and 3D controllers.
_NVIDIA, _DISPLAYS = '0x10de', ('0x0300', '0x0302')


@contextlib.contextmanager
def nvml() -> Iterator[Any]:
    """Yields NVIDIA's management library, the module pynvml of nvidia-ml-py; None without the
    package or a driver.
    """
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


def query_nvml(library: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function of NVML; returns None if this GPU or driver does not support it."""
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def describe_gpus() -> tuple[list[dict[str, Any]], str | None]:
    """Returns the GPUs by bus number, and the version of the driver; [] and None without NVML."""
    with nvml() as library:
        if library is None:
            return [], None
        return [_describe_gpu(library, gpu) for gpu in gpu_handles(library)], query_nvml(
            library, library.nvmlSystemGetDriverVersion
        )


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[dict[str, Any]]:
    """Returns the descriptions of the GPUs that CUDA_VISIBLE_DEVICES shows, in its order."""
    gpus, _ = describe_gpus()
    return [gpus[index] for index in visible_indices([gpu['uuid'] or '' for gpu in gpus], environ)]


def format_gpus(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a text for each kind of GPU, without unknown values, such as 'NVIDIA A100 x 8, 40 GiB
    each, compute capability 8.0'.
    """
    kinds = Counter(
        (gpu.get('name') or 'GPU', gpu.get('memory_bytes'), gpu.get('compute_capability'))
        for gpu in gpus
    )
    texts = []
    for (name, memory, capability), number in kinds.items():
        times, each = (f' x {number}', ' each') if number > 1 else ('', '')
        size = f', {memory / 2**30:.0f} GiB{each}' if memory else ''
        kind = f', compute capability {capability}' if capability else ''
        texts.append(f'{name}{times}{size}{kind}')
    return texts


def has_nvidia_gpu(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> bool:
    """Whether this machine has an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide; fast.

    GPUs of other makers do not count, since the supported TensorFlow packages do not use them.
    """
    if listed_gpus(environ) == []:
        return False
    has_driver_entry = any(any((root / folder).glob(names)) for folder, names in _DEVICES)
    # On Windows (WSL) GPUs of all makers are one device file.
    return has_driver_entry or (
        (root / 'dev/dxg').exists() and (root / 'usr/lib/wsl/lib/libcuda.so.1').exists()
    )


def count_gpus(root: Path = ROOT) -> int | None:
    """Returns how many NVIDIA GPUs this process could use without CUDA_VISIBLE_DEVICES; None if
    unknown.

    NVML does not count GPUs that a job scheduler or a container hides from the process; /proc and
    /dev may.
    """
    with nvml() as library:
        if library is not None and (gpus := gpu_handles(library)):
            return len(gpus)
    numbers = [len([*(root / folder).glob(names)]) for folder, names in _DEVICES]
    return max(numbers) or (None if has_nvidia_gpu({}, root) else 0)


def count_visible_gpus(environ: Mapping[str, str]) -> int | None:
    """Returns how many GPUs CUDA shows to a process; None if unknown."""
    listed = listed_gpus(environ)
    return count_gpus() if listed is None else len(listed)


def kernel_cache_warning(environ: Mapping[str, str]) -> str | None:
    """Returns a warning if the driver cannot keep the kernels that it compiles; else None."""
    if environ.get('CUDA_CACHE_DISABLE') == '1':
        return None
    folder = Path(environ.get('CUDA_CACHE_PATH') or '~/.nv/ComputeCache')
    try:
        make_folder(folder.expanduser())
    except (OSError, RuntimeError) as error:
        return (
            f'{folder}: the driver cannot keep the kernels that it compiles for GPUs there '
            f'({getattr(error, "strerror", error)}), so each run compiles them again; use '
            'CUDA_CACHE_PATH=FOLDER with a writable folder that outlives a container'
        )
    return None


def gpus_on_bus(root: Path) -> list[Path]:
    """Returns the folders of NVIDIA's GPUs on the PCI bus, with or without a driver, in the order
    of their numbers.
    """
    devices = sorted((root / 'sys/bus/pci/devices').glob('*'))
    return [
        gpu
        for gpu in devices
        if read_text(gpu / 'vendor') == _NVIDIA and read_text(gpu / 'class').startswith(_DISPLAYS)
    ]


def listed_gpus(environ: Mapping[str, str]) -> list[str] | None:
    """Returns the entries of CUDA_VISIBLE_DEVICES; None if it is not set, so that all GPUs are
    visible.

    CUDA ignores everything from the first entry that names no GPU, such as -1, or NoDevFiles, which
    Slurm writes for jobs without GPUs.
    """
    text = environ.get(VISIBLE_VARIABLE)
    if text is None:
        return None
    return list(itertools.takewhile(_LISTED.fullmatch, (word.strip() for word in text.split(','))))


def visible_indices(uuids: Sequence[str], environ: Mapping[str, str]) -> list[int]:
    """Returns the GPUs that CUDA may use, as indices of uuids, which are in the order of the bus
    numbers.

    CUDA numbers GPUs by bus if they are equally fast, or with CUDA_DEVICE_ORDER=PCI_BUS_ID.
    """
    entries = listed_gpus(environ)
    if entries is None:
        return list(range(len(uuids)))
    indices = []
    for name in entries:
        matches = [
            index
            for index, uuid in enumerate(uuids)
            if name.startswith('GPU-') and uuid.startswith(name)
        ]
        if name.isdigit() and int(name) < len(uuids):
            matches = [int(name)]
        if len(matches) != 1:
            break
        indices += matches
    return indices


def gpu_handles(library: Any) -> list[Any]:
    """Returns NVML's handles of the GPUs, except those that the driver has lost."""
    indices = range(query_nvml(library, library.nvmlDeviceGetCount) or 0)
    all_handles = [
        query_nvml(library, library.nvmlDeviceGetHandleByIndex, index) for index in indices
    ]
    return [gpu for gpu in all_handles if gpu is not None]


def visible_handles(library: Any, environ: Mapping[str, str]) -> list[Any]:
    """Returns NVML's handles of the GPUs that CUDA_VISIBLE_DEVICES shows, in its order."""
    gpus = gpu_handles(library)
    uuids = [query_nvml(library, library.nvmlDeviceGetUUID, gpu) or '' for gpu in gpus]
    return [gpus[index] for index in visible_indices(uuids, environ)]


def _describe_gpu(library: Any, gpu: Any) -> dict[str, Any]:
    memory = query_nvml(library, library.nvmlDeviceGetMemoryInfo, gpu)
    capability = query_nvml(library, library.nvmlDeviceGetCudaComputeCapability, gpu)
    milliwatts = query_nvml(library, library.nvmlDeviceGetEnforcedPowerLimit, gpu)
    default_milliwatts = query_nvml(library, library.nvmlDeviceGetPowerManagementDefaultLimit, gpu)
    return {
        'name': query_nvml(library, library.nvmlDeviceGetName, gpu),
        'uuid': query_nvml(library, library.nvmlDeviceGetUUID, gpu),
        'memory_bytes': memory and memory.total,
        'compute_capability': capability and '.'.join(map(str, capability)),
        'max_clock_mhz': query_nvml(
            library, library.nvmlDeviceGetMaxClockInfo, gpu, library.NVML_CLOCK_SM
        ),
        'max_memory_clock_mhz': query_nvml(
            library, library.nvmlDeviceGetMaxClockInfo, gpu, library.NVML_CLOCK_MEM
        ),
        'power_limit_watts': milliwatts and milliwatts / 1000,
        'default_power_limit_watts': default_milliwatts and default_milliwatts / 1000,
    }
