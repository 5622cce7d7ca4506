"""The machine of a run, the versions of its software, and environment variables. Does not import TensorFlow itself."""

import functools
import hashlib
import importlib.metadata
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from machine import cgroups
from machine.gpus import gpu_facts
from machine.kernel_files import ROOT, read_key_values, read_text
from machine.processors import processor_facts, usable_cores

_PROGRAM = Path(__file__).resolve().parent.parent
_ASK_SECS = 1.0
_GIBIBYTE = 2**30
# The environment variables with which libraries are set, by their first word. Only these are stored and passed to other
# hosts: others that begin alike may be secrets, such as TF_TOKEN_* and TF_VAR_* of Terraform. Sources: the names in the
# libraries of TensorFlow 2.21, the manuals of glibc and jemalloc, and Horovod 0.28.
_LIBRARY_VARIABLES = {
    'TF': """
        AUTOTUNE_MIN_WARMUP_ITERATIONS AUTOTUNE_THRESHOLD AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE
        AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL CONV2D_USE_FP16_ACCUMULATE CPP_MAX_VLOG_LEVEL CPP_MIN_LOG_LEVEL
        CPP_VMODULE CPU_ALLOCATOR_USE_BFC CPU_BFC_MEM_LIMIT_IN_MB CUBLAS_WORKSPACE_LIMIT_IN_MB
        CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC CUDA_PLATFORM_GPU_DEVICE_SCHEDULE CUDNN_DETERMINISTIC
        CUDNN_DISABLE_CONV_1X1_OPTIMIZATION CUDNN_USE_AUTOTUNE CUDNN_USE_FRONTEND CUDNN_USE_RUNTIME_FUSION
        CUDNN_WORKSPACE_LIMIT_IN_MB DATA_EXPERIMENT_OPT_IN DATA_EXPERIMENT_OPT_OUT DETERMINISTIC_ALLOCATOR
        DETERMINISTIC_OPS DEVICE_MIN_SYS_MEMORY_IN_MB DISABLE_JIT_KERNELS DUMP_GRAPH_PREFIX
        ENABLE_CUBLAS_TENSOR_OP_MATH_FP32 ENABLE_CUDNN_TENSOR_OP_MATH_FP32 ENABLE_MAXPOOL_NANPROP ENABLE_ONEDNN_OPTS
        ENABLE_ONEDNN_SPMM ENABLE_WINOGRAD_NONFUSED ENABLE_ZENDNN_OPTS FORCE_GPU_ALLOW_GROWTH FORCE_UNIFIED_MEMORY
        FP16_CONV_USE_FP32_COMPUTE FP16_MATMUL_USE_FP32_COMPUTE FUNCTION_JIT_COMPILE_DEFAULT GPU_ALLOCATOR
        GPU_HOST_MEM_LIMIT_IN_MB GPU_THREAD_COUNT GPU_THREAD_MODE GRAPH_CACHING GRPC_DEFAULT_OPTIONS
        GRPC_WORKER_CACHE_QUEUES GRPC_WORKER_CACHE_THREADS JIT_COMPILE_REWRITE JIT_PROFILING LOG_XLA_ACTIVITY
        MATMUL_AUTOTUNE_ENABLE MATMUL_AUTOTUNE_MAX_ALGORITHMS MIN_GPU_MULTIPROCESSOR_COUNT MKL_ALLOC_MAX_BYTES
        MKL_OPTIMIZE_PRIMITIVE_MEMUSE NUM_INTEROP_THREADS NUM_INTRAOP_THREADS ONEDNN_ASSUME_FROZEN_WEIGHTS
        ONEDNN_THREADPOOL_USE_CALLER_THREAD ONEDNN_USE_SYSTEM_ALLOCATOR OVERRIDE_GLOBAL_THREADPOOL
        PER_DEVICE_MEMORY_LIMIT_MB SET_ONEDNN_FPMATH_MODE SYNC_ON_FINISH USE_CUBLASLT
        USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT USE_DEEP_CONV2D USE_DEFAULT_CONV_ALGO
        USE_EIGEN_PARALLEL_FOR_IN_WORK_SHARDER USE_LEGACY_KERAS USE_ROCM_NHWC XLA_FLAGS""",
    'GRPC': 'DNS_RESOLVER ENABLE_FORK_SUPPORT EXPERIMENTS POLL_STRATEGY TRACE VERBOSITY',
    'MALLOC': 'ARENA_MAX ARENA_TEST CHECK_ CONF MMAP_MAX_ MMAP_THRESHOLD_ PERTURB_ TOP_PAD_ TRIM_THRESHOLD_',
    'HOROVOD': """
        ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_LOG BATCH_D2D_MEMCOPIES CACHE_CAPACITY CCL_BGT_AFFINITY CCL_CACHE
        CONTROLLER CPU_OPERATIONS CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ENABLE_ASYNC_COMPLETION
        ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GPU_OPERATIONS HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE
        LOG_LEVEL MPI_THREADS_DISABLE NUM_NCCL_STREAMS STALL_CHECK_DISABLE THREAD_AFFINITY TIMELINE""",
    'GLIBC': 'TUNABLES',
    'NVIDIA': 'TF32_OVERRIDE',
}
_NAMES = frozenset(f'{word}_{name}' for word, names in _LIBRARY_VARIABLES.items() for name in names.split())
# NCCL, XLA, OpenMP and oneDNN have their first words for themselves; two of NCCL name one run and one host.
_OF_LIBRARIES = re.compile('(?!NCCL_COMM_ID$|NCCL_HOSTID$)(NCCL|XLA|OMP|GOMP|KMP|ONEDNN|DNNL)_[A-Z0-9_]+')
# They are of one host, and not passed to others.
_HOST_VARIABLES = frozenset(('CUDA_VISIBLE_DEVICES', 'LD_PRELOAD'))
# The names that container runtimes generate: the first digits of a container's id, and the name of a pod, which
# Kubernetes ends with five characters of its alphabet.
_CONTAINER = re.compile('[0-9a-f]{12}')
_POD = re.compile('.+-[bcdfghjklmnpqrstvwxz2456789]{5}')
# How kubelet begins /etc/hosts in a pod with a host name of its own; in one with the name of its node, with more words.
_HOSTS_OF_POD = '# Kubernetes-managed hosts file.'


def machine_facts(
    num_intra_threads: int = 0,
    num_inter_threads: int = 0,
    threads_reason: str | None = None,
    cores: Sequence[int] | None = None,
    root: Path = ROOT,
) -> dict[str, Any]:
    """Returns the facts of this machine, the object "machine" of results; unknown values are None.

    A number of threads of 0 is TensorFlow's default, a thread for each core of the affinity. cores are those that this
    process may use when the run starts; None for those that it may use now.
    """
    found = processor_facts(root)
    found['cpu_model'] = found['cpu_model'] or _model_by_lscpu(root) or platform.machine() or None
    affinity = list(cores) if cores else usable_cores()
    default = len(affinity or ()) or found['num_cores']
    gpus, driver = gpu_facts()
    facts: dict[str, Any] = {
        'hostname': platform.node() or None,
        'os': read_key_values(root / 'etc/os-release').get('PRETTY_NAME', platform.system()).strip('\'"') or None,
        'kernel': platform.release() or None,
        **found,
        'memory_bytes': psutil.virtual_memory().total,
        'affinity': affinity,
        'cgroup_cpus': cgroups.cpu_limit(root),
        'cgroup_memory_bytes': cgroups.memory_limit(root),
        'load_average': load_average(),
        'gpus': gpus,
        'versions': _versions(driver, has_gpus=bool(gpus)),
        'threads': {
            'intra_op': num_intra_threads or default,
            'inter_op': num_inter_threads or default,
            'reason': threads_reason,
        },
        'fingerprint': '',
    }
    facts['fingerprint'] = fingerprint(facts, root)
    return facts


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns only the environment variables that change how libraries compute, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if is_of_library(name) or name in _HOST_VARIABLES}


def is_of_library(name: str) -> bool:
    """Whether an environment variable sets a library in a way that every host of a run should share."""
    return name in _NAMES or _OF_LIBRARIES.fullmatch(name) is not None


def fingerprint(machine: Mapping[str, Any], root: Path = ROOT) -> str:
    """Returns a short hash that identifies a machine: its name, processor, cores, memory and GPUs, not its software.

    The name that Docker, Podman or Kubernetes generates for a container changes with each start, so the GPUs' UUIDs
    replace it. Names of hosts may look alike (rack-22475), so the files of the container must show it, too. Equal
    machines without GPUs then have the same hash, unless the user names their containers (docker run --hostname).
    /etc/machine-id does not help: in a container it is the image's, and often empty.
    """
    memory = machine['memory_bytes']
    is_generated = _is_generated(machine['hostname'] or '', root)
    parts = [
        None if is_generated else machine['hostname'],
        machine['cpu_model'],
        machine['num_cores'],
        # Rounded, since kernels reserve different amounts.
        memory and round(memory / _GIBIBYTE),
        *(gpu['uuid' if is_generated else 'name'] for gpu in machine['gpus']),
    ]
    return hashlib.sha256('\n'.join(map(str, parts)).encode()).hexdigest()[:12]


def _is_generated(hostname: str, root: Path) -> bool:
    """Whether a container runtime generated the host name of this process."""
    if _CONTAINER.fullmatch(hostname):
        # The whole id, 64 digits, is in the paths of the files that the runtime mounts, such as /etc/hostname.
        return re.search(rf'\b{hostname}[0-9a-f]{{52}}\b', read_text(root / 'proc/self/mountinfo')) is not None
    return bool(_POD.fullmatch(hostname)) and read_text(root / 'etc/hosts').startswith(_HOSTS_OF_POD)


@functools.cache
def git_commit(folder: Path = _PROGRAM) -> str | None:
    """Returns the commit that is checked out in a folder, or from which the program there was built; None if unknown.

    The answer is kept for the life of the process, since the code that runs is the code that was imported.
    """
    # A program that is installed within the checkout of another project does not belong to that checkout.
    if not (folder / '.git').exists():
        # Written by setup.py.
        return read_text(folder / 'commit.txt').strip() or None
    return _output('git', '-C', str(folder), 'rev-parse', '--verify', 'HEAD')


def load_average() -> list[float]:
    """Returns how many threads ran or waited for a core on average, in the last 1, 5 and 15 minutes."""
    return [round(load, 2) for load in psutil.getloadavg()]


def free_memory(root: Path = ROOT) -> int:
    """Returns the bytes that this process can still allocate without swapping, within the limits of its group."""
    available: int = psutil.virtual_memory().available
    left = cgroups.memory_left(root)
    return available if left is None else min(available, left)


def _model_by_lscpu(root: Path) -> str | None:
    """Returns the names that lscpu has for ARM processors, of which Linux knows only numbers; some have two kinds."""
    shown = _output('lscpu', '--sysroot', str(root)) or ''
    return ' + '.join(re.findall(r'^\s*Model name:\s*(.+)$', shown, re.MULTILINE)) or None


def _output(*command: str) -> str | None:
    """Returns the output of a program; None if it is missing, fails or takes more than a second."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() or None


def _versions(driver: str | None, *, has_gpus: bool) -> dict[str, str | None]:
    # TensorFlow is not imported for this, which would take seconds. Its build info names the versions of CUDA for which
    # it was made: without packages of these, the system has them.
    tensorflow = sys.modules.get('tensorflow')
    build = tensorflow.sysconfig.get_build_info() if tensorflow else {}
    libraries = {
        'cuda': _package('nvidia-cuda-runtime-cu12') or build.get('cuda_version'),
        'cudnn': _package('nvidia-cudnn-cu12') or build.get('cudnn_version'),
        'nccl': _package('nvidia-nccl-cu12'),
    }
    return {
        'python': platform.python_version(),
        'tensorflow': tensorflow.__version__ if tensorflow else tensorflow_version(),
        'numpy': _package('numpy'),
        **(libraries if has_gpus else dict.fromkeys(libraries)),
        'driver': driver,
    }


def tensorflow_version() -> str | None:
    """Returns the version of the installed TensorFlow, without importing it."""
    return _package('tensorflow', 'tensorflow-cpu')


@functools.cache
def _package(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
