"""The checks of `doctor` on the host, the GPUs and TensorFlow's view of them. Only the last one imports TensorFlow."""

import os
import resource
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

from errors import plural, to_install
from machine import cgroups
from machine.cuda_driver import check_driver, describe_driver_fault
from machine.cuda_libraries import check_libraries, describe_missing
from machine.gpus import VISIBLE, count_gpus, driver_version, gpu_facts, gpus_on_bus, has_nvidia_gpu, visible
from machine.kernel_files import ROOT
from machine.missing_gpu import explain_missing_gpu
from machine.tensorflow_build import PARTLY_COMPILED, runs_on, tensorflow_build
from machine.tensorflow_import import import_tensorflow, memory_limits

# WARNING: runs work, but slower than they could. WRONG: some runs fail, or compute something wrong.
OK, WARNING, WRONG, SKIPPED = 'ok', 'warning', 'wrong', 'skipped'

_GIBIBYTE = 2**30
# Training ResNet-50 with a batch of 32 takes 4.4 GB on a CPU; with a GPU, TensorFlow, CUDA and the input take 3 GB.
_FEWEST_BYTES = 5 * _GIBIBYTE
# NCCL needs some MB for each pair of GPUs there, and Docker gives 64 MB unless it is told --shm-size.
_FEWEST_SHARED_BYTES = _GIBIBYTE
# Libraries, shards, and sockets to all tasks of a cluster: some hundreds.
_FEWEST_FILES = 1024
# TensorFlow ignores GPUs with fewer multiprocessors than this variable says, by default 8 or as many as the largest GPU
# has (GetMinGPUMultiprocessorCount in gpu_device.cc).
_FEWEST_MULTIPROCESSORS = 'TF_MIN_GPU_MULTIPROCESSOR_COUNT'
_GUIDE = 'see docs/gpu.md'
_SIZE = 256


class Finding(Struct, frozen=True):
    """A check's outcome, a line with what was found (or why it was skipped), one of advice, and its facts as JSON."""

    outcome: str
    found: str
    advice: str | None = None
    figures: Mapping[str, Any] = {}  # a Struct copies it
    name: str = ''


# ---- the host --------------------------------------------------------------------------------------------------------


def cores(root: Path = ROOT) -> Finding:
    """Checks that this process may use as many cores as TensorFlow starts threads.

    By default TensorFlow starts a thread for each core of the affinity (tsl::port::MaxParallelism). It ignores the CPU
    quotas of control groups, which limit containers: when a quota is used up, all threads stop until the next period.
    """
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = cgroups.cpu_limit(root)
    figures = {'cores': present, 'affinity': usable, 'cgroup_cpus': quota}
    shown = plural(present, 'logical core')
    if usable < present:
        shown += f', of which this process may use {usable}'
    if quota is not None and quota < usable:
        shown += f'; a CPU quota leaves {quota:g} cores, and TensorFlow starts {plural(usable, "thread")} for each pool'
        advice = f'give the container {usable} cores (docker run --cpus={usable}, a limit in Kubernetes), or write '
        return Finding(WARNING, shown, f'{advice}--num_intra_threads={max(1, round(quota))}', figures)
    return Finding(OK, f'{shown}; as many threads', None, figures)


def memory(root: Path = ROOT) -> Finding:
    for limit, can_start in memory_limits().items():
        what = 'TensorFlow cannot start' if not can_start else 'TensorFlow may end without a message'
        advice = f'write {limit.rpartition(" ")[0]} unlimited, or ask the batch system for more'
        return Finding(WARNING if can_start else WRONG, f'{limit}: {what}', advice)
    found, left = psutil.virtual_memory(), cgroups.memory_left(root)
    usable = found.available if left is None else min(found.available, left)
    figures = {'bytes': found.total, 'available_bytes': found.available, 'cgroup_bytes_left': left}
    shown = f'{usable / _GIBIBYTE:.1f} GiB of {found.total / _GIBIBYTE:.1f} GiB are available'
    if left is not None and left < found.available:
        shown += ' to this control group'
    if usable < _FEWEST_BYTES:
        advice = 'free memory, raise the limit of the container, or write a small --batch_size'
        return Finding(WARNING, shown, advice, figures)
    return Finding(OK, shown, None, figures)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return Finding(OK, 'a process may have any number of open files')
    shown = f'a process may have {soft} open files'
    if soft < _FEWEST_FILES:
        limit = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        shown += '; sockets of a cluster and shards may need more'
        return Finding(WARNING, shown, f'write ulimit -n {limit} before a run')
    return Finding(OK, shown)


# ---- the GPUs --------------------------------------------------------------------------------------------------------


def driver(root: Path = ROOT, environ: Mapping[str, str] = os.environ) -> Finding:
    if not has_nvidia_gpu({}, root) and driver_version(root) is None:
        if not (on_bus := gpus_on_bus(root)):
            return Finding(SKIPPED, 'this machine has no GPU of NVIDIA')
        advice = f'install the driver ({_GUIDE}); if it is installed, dmesg says why it was not loaded'
        shown = f'{plural(len(on_bus), "GPU")} of NVIDIA on the PCI bus, but no driver is loaded'
        return Finding(WRONG, shown, advice)
    if not has_nvidia_gpu(environ, root):
        return Finding(SKIPPED, f'{VISIBLE} hides the GPUs')
    found, build, (gpus, version) = check_driver(root=root), tensorflow_build(), gpu_facts()
    figures = {'driver': vars(found), 'gpus': gpus}
    if fault := describe_driver_fault(found, build) if build else found.error:
        return Finding(WRONG, fault, _GUIDE, figures)
    shown = f'driver {version or found.version or "of unknown version"}'
    if found.cuda_version:
        shown += f' for CUDA {".".join(map(str, found.cuda_version))}'
    listed = list_gpus(gpus) if gpus else f'it names no GPUs without nvidia-ml-py: {to_install("nvidia-ml-py")}'
    return Finding(OK, f'{shown}; {listed}', None, figures)


def libraries() -> Finding:
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no GPU of NVIDIA')
    found = check_libraries()
    if not found:
        install = to_install('tensorflow[and-cuda]')
        return Finding(WRONG, 'the installed TensorFlow is built without CUDA', f'write {install}')
    figures = {'libraries': [vars(library) for library in found]}
    if missing := describe_missing(found):
        return Finding(WRONG, missing, _GUIDE, figures)
    if optional := [library for library in found if library.error]:
        listed = ', '.join(f'{library.name} for {library.purpose}' for library in optional)
        packages = dict.fromkeys(library.package for library in optional)
        advice = f'install {" ".join(packages)}: {to_install(*packages)}'
        return Finding(WARNING, f'cannot be opened: {listed}', advice, figures)
    return Finding(OK, f'all {len(found)} can be opened', None, figures)


def architecture() -> Finding:
    """Checks that TensorFlow has machine code for every GPU that CUDA_VISIBLE_DEVICES shows."""
    if not has_nvidia_gpu():
        return Finding(SKIPPED, 'no GPU of NVIDIA')
    capabilities, build = check_driver().capabilities, tensorflow_build()
    architectures = build.architectures if build else ()
    if not capabilities or not architectures:
        return Finding(SKIPPED, 'the driver does not start, or TensorFlow is built without CUDA')
    has = {capability: runs_on(capability, architectures) for capability in capabilities}
    figures = {'architectures': architectures, 'capabilities': capabilities}
    shown = f'TensorFlow has kernels for {", ".join(architectures)}'
    if lacking := [capability for capability, code in has.items() if code is False]:
        shown += f', and ignores GPUs of compute capability {", ".join(lacking)}'
        advice = f'install an older TensorFlow for an older GPU, or hide these by {VISIBLE}'
        return Finding(WRONG, shown, advice, figures)
    if compiled := [capability for capability, code in has.items() if code is None]:
        what, takes = 'each of them', 'up to half an hour'
        if PARTLY_COMPILED.issuperset(compiled):
            what, takes = 'the small ones among them (elementwise ops)', 'some minutes'
        shown += f'; for compute capability {", ".join(compiled)} the driver compiles {what} at first use'
        advice = f'the first run may take {takes} to start; set CUDA_CACHE_MAXSIZE=4294967296, so that later ones find '
        return Finding(WARNING, shown, f'{advice}all of them compiled', figures)
    return Finding(OK, f'{shown}; the GPUs have {", ".join(has)}', None, figures)


def shared_memory(folder: Path = Path('/dev/shm')) -> Finding:
    """Checks that /dev/shm is large enough for NCCL, which uses it to move data between GPUs without a link."""
    if (count_gpus() or 0) < 2:
        return Finding(SKIPPED, 'fewer than two GPUs')
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding(WARNING, f'{folder} cannot be read ({error.strerror})', 'mount a tmpfs there: NCCL needs it')
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    shown = f'{folder} has {free / _GIBIBYTE:.2f} GiB free of {size / _GIBIBYTE:.2f} GiB'
    if free < _FEWEST_SHARED_BYTES:
        advice = 'start the container with docker run --shm-size=8g (or --ipc=host), or remove what is in the folder'
        return Finding(WARNING, f'{shown}, and NCCL may need more between several GPUs', advice)
    return Finding(OK, shown)


def list_gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Returns text such as '8 x NVIDIA A100-SXM4-40GB (compute capability 8.0, 39.6 GiB)'."""
    shown = []
    for gpu in gpus:
        size = f', {gpu["memory_bytes"] / _GIBIBYTE:.1f} GiB' if gpu['memory_bytes'] else ''
        shown.append(f'{gpu["name"] or "unknown GPU"} (compute capability {gpu["compute_capability"]}{size})')
    return ', '.join(f'{shown.count(text)} x {text}' for text in dict.fromkeys(shown))


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def devices() -> Finding:
    """Checks that TensorFlow can be imported, sees all GPUs that the driver shows it, and computes on each device."""
    try:
        import_tensorflow()
        import tensorflow.compat.v1 as tf
    # A damaged package may raise anything.
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or ['no message']
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == 'tensorflow'
        install = to_install('tensorflow', again=not is_missing)
        return Finding(WRONG, f'TensorFlow cannot be imported: {type(error).__name__}: {lines[0]}', f'write {install}')
    found = tf.config.list_physical_devices('GPU')
    details = [tf.config.experimental.get_device_details(device) for device in found]
    figures = {'tensorflow': tf.__version__, 'build': dict(tf.sysconfig.get_build_info()), 'gpus': details}
    uuids = [gpu['uuid'] or '' for gpu in gpu_facts()[0]] if has_nvidia_gpu() else []
    expected = max(len(visible(uuids, os.environ)), int(has_nvidia_gpu()))
    if expected and not found:
        why = explain_missing_gpu()
        return Finding(WRONG, f'TensorFlow {tf.__version__} sees no GPU: {why}', _GUIDE, figures)
    names = ['/cpu:0', *(f'/gpu:{index}' for index in range(len(found)))]
    for name in names:
        _multiply(tf, name)
    return compare_counts(f'TensorFlow {tf.__version__} computes on {", ".join(names)}', len(found), expected, figures)


def compare_counts(shown: str, num_gpus: int, expected: int, figures: Mapping[str, Any]) -> Finding:
    """Returns the finding on a TensorFlow that computes on num_gpus; the driver shows it the expected number."""
    if num_gpus >= expected:
        return Finding(OK, shown, None, figures)
    return Finding(
        WARNING,
        f'{shown}, and ignores {expected - num_gpus} of {plural(expected, "GPU")}',
        f'if these have few multiprocessors, set {_FEWEST_MULTIPROCESSORS}=1 to use them, or {VISIBLE} to hide them; '
        "else see gpu/architecture, and TensorFlow's own lines below",
        figures,
    )


def _multiply(tf: Any, device: str) -> None:
    """Multiplies a matrix of ones with itself on a device; raises ArithmeticError if the product is wrong."""
    with tf.Graph().as_default(), tf.device(device):
        ones = tf.fill([_SIZE, _SIZE], tf.placeholder_with_default(1.0, []))
        product = tf.matmul(ones, ones)
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    with tf.Session(graph=product.graph, config=config) as session:
        values = session.run(product)
    if not (values == _SIZE).all():
        raise ArithmeticError(f'the product of matrices on {device} is {values.min()} to {values.max()}, not {_SIZE}')


FAMILIES: Mapping[str, Mapping[str, Callable[[], Finding]]] = {
    'host': {'cores': cores, 'memory': memory, 'open_files': open_files},
    'gpu': {'driver': driver, 'libraries': libraries, 'architecture': architecture, 'shared_memory': shared_memory},
    'tensorflow': {'devices': devices},
}
