"""The machine of a run, the versions of its software, and environment variables. Does not import TensorFlow itself."""

import ctypes
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
from machine.gpus import driver_version, gpu_facts
from machine.kernel_files import ROOT, read_key_values, read_text
from machine.processors import processor_facts, usable_cores

_PROGRAM = Path(__file__).resolve().parent.parent
_ASK_SECS = 1.0
_GIBIBYTE = 2**30
# The environment variables with which libraries are set, by their first word. Only these are stored and passed to other
# hosts: others that begin alike may be secrets, such as TF_TOKEN_* and TF_VAR_* of Terraform. Sources: the names in the
# libraries of TensorFlow 2.21, the manuals of NCCL 2.28, libgomp, LLVM's OpenMP, oneDNN, glibc and jemalloc, and
# Horovod 0.28.
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
    'XLA': 'FLAGS PYTHON_CLIENT_ALLOCATOR PYTHON_CLIENT_MEM_FRACTION PYTHON_CLIENT_PREALLOCATE',
    'GRPC': 'DNS_RESOLVER ENABLE_FORK_SUPPORT EXPERIMENTS POLL_STRATEGY TRACE VERBOSITY',
    'NCCL': """
        ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CHECKS_DISABLE CHECK_POINTERS COLLNET_ENABLE COLLNET_NODE_THRESHOLD
        COMM_BLOCKING CONF_FILE CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_SUBSYS DMABUF_ENABLE
        GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DISABLE
        IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT
        IB_ROCE_VERSION_NUM IB_SL IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY IGNORE_DISABLED_P2P
        LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LL_THRESHOLD LL128_BUFFSIZE LL_BUFFSIZE LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS
        MAX_NRINGS MIN_CTAS MIN_NCHANNELS MIN_NRINGS MNNVL_ENABLE NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY
        NET_DISABLE_INTRA NET_FORCE_MERGE NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_OVERHEAD NET_PLUGIN
        NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLS_CHUNKSIZE NVLS_ENABLE
        NVLS_NCHANNELS P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE
        P2P_PXN_LEVEL P2P_USE_CUDA_MEMCPY PROTO PXN_C2C PXN_DISABLE RUNTIME_CONNECT SET_STACK_SIZE SET_THREAD_NAME
        SHM_DISABLE SHM_USE_CUDA_MEMCPY SINGLE_PROC_MEM_REG_ENABLE SINGLE_RING_THRESHOLD SOCKET_FAMILY SOCKET_IFNAME
        SOCKET_NTHREADS TOPO_FILE TREE_THRESHOLD TUNER_CONFIG_FILE TUNER_PLUGIN WIN_ENABLE WORK_ARGS_BYTES
        WORK_FIFO_BYTES WORK_FIFO_DEPTH""",
    'OMP': """
        CANCELLATION DISPLAY_AFFINITY DISPLAY_ENV DYNAMIC MAX_ACTIVE_LEVELS NESTED NUM_THREADS PLACES PROC_BIND SCHEDULE
        STACKSIZE TEAMS_THREAD_LIMIT THREAD_LIMIT WAIT_POLICY""",
    'GOMP': 'CPU_AFFINITY DEBUG SPINCOUNT STACKSIZE',
    'KMP': """
        AFFINITY ALL_THREADS BLOCKTIME DETERMINISTIC_REDUCTION DYNAMIC_MODE FORCE_REDUCTION FORKJOIN_BARRIER
        FORKJOIN_BARRIER_PATTERN HOT_TEAMS_MAX_LEVEL HOT_TEAMS_MODE HW_SUBSET INIT_AT_FORK LIBRARY PLAIN_BARRIER
        PLAIN_BARRIER_PATTERN REDUCTION_BARRIER REDUCTION_BARRIER_PATTERN SETTINGS STACKSIZE TPAUSE USE_YIELD""",
    'ONEDNN': """
        CPU_ISA_HINTS DEFAULT_FPMATH_MODE MAX_CPU_ISA PRIMITIVE_CACHE_CAPACITY VERBOSE JIT_PROFILE JIT_DUMP""",
    'DNNL': """
        CPU_ISA_HINTS DEFAULT_FPMATH_MODE GRAPH_COMPILED_PARTITION_CACHE_CAPACITY JIT_DUMP JIT_PROFILE MAX_CPU_ISA
        PRIMITIVE_CACHE_CAPACITY VERBOSE""",
    'MALLOC': 'ARENA_MAX ARENA_TEST CHECK_ CONF MMAP_MAX_ MMAP_THRESHOLD_ PERTURB_ TOP_PAD_ TRIM_THRESHOLD_',
    'HOROVOD': """
        ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_LOG BATCH_D2D_MEMCOPIES CACHE_CAPACITY CCL_BGT_AFFINITY CCL_CACHE
        CONTROLLER CPU_OPERATIONS CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ENABLE_ASYNC_COMPLETION
        ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GPU_OPERATIONS HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE
        LOG_LEVEL MPI_THREADS_DISABLE NUM_NCCL_STREAMS STALL_CHECK_DISABLE THREAD_AFFINITY TIMELINE""",
    'GLIBC': 'TUNABLES',
    'NVIDIA': 'TF32_OVERRIDE',
}
LIBRARY_VARIABLES = frozenset(f'{word}_{name}' for word, names in _LIBRARY_VARIABLES.items() for name in names.split())
# They are of one host, and not passed to others.
_HOST_VARIABLES = frozenset(('CUDA_VISIBLE_DEVICES', 'LD_PRELOAD'))
# The control groups of a container's first process, with cgroup v1 or in the host's namespace.
_CONTAINER = re.compile(r'docker|containerd|crio|kubepods|libpod')
# The first digits of a container's id, or the name of a pod: Kubernetes ends it with five of these characters.
_GENERATED = re.compile(r'[0-9a-f]{12}|[0-9a-f]{64}|.+-[bcdfghjklmnpqrstvwxz2456789]{5}')
_TENSORFLOW_PACKAGES = ('tensorflow', 'tensorflow-cpu', 'tf-nightly')


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
    if sys.platform == 'darwin':
        found |= _mac_facts()
    found['cpu_model'] = found['cpu_model'] or platform.processor() or platform.machine() or None
    affinity = list(cores) if cores else usable_cores()
    default = len(affinity or ()) or found['num_cores']
    gpus, driver = gpu_facts()
    facts: dict[str, Any] = {
        'hostname': platform.node() or None,
        'os': _system(root),
        'kernel': platform.release() or None,
        **found,
        'memory_bytes': psutil.virtual_memory().total,
        'affinity': affinity,
        'cgroup_cpus': cgroups.cpu_limit(root),
        'cgroup_memory_bytes': cgroups.memory_limit(root),
        'load_average': load_average(),
        'gpus': gpus,
        'versions': _versions(driver or driver_version(root), has_gpus=bool(gpus)),
        'threads': {
            'intra_op': num_intra_threads or default,
            'inter_op': num_inter_threads or default,
            'reason': threads_reason,
        },
        'fingerprint': '',
    }
    facts['fingerprint'] = fingerprint(facts, in_container=_is_container(root))
    return facts


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns only the environment variables that change how libraries compute, sorted by name."""
    return {name: environ[name] for name in sorted(environ) if name in LIBRARY_VARIABLES | _HOST_VARIABLES}


def fingerprint(machine: Mapping[str, Any], *, in_container: bool) -> str:
    """Returns a short hash that identifies a machine: its name, processor, cores, memory and GPUs, not its software.

    The name that Docker, Podman or Kubernetes generates for a container changes with each start, so the GPUs' UUIDs
    replace it. Equal machines without GPUs then have the same hash, unless the user names their containers (docker run
    --hostname). /etc/machine-id does not help: in a container it is that of the image, and often empty.
    """
    memory = machine['memory_bytes']
    is_generated = in_container and _GENERATED.fullmatch(machine['hostname'] or '')
    parts = [
        None if is_generated else machine['hostname'],
        machine['cpu_model'],
        machine['num_cores'],
        # Rounded, since kernels reserve different amounts.
        memory and round(memory / _GIBIBYTE),
        *(gpu['uuid' if is_generated else 'name'] for gpu in machine['gpus']),
    ]
    return hashlib.sha256('\n'.join(map(str, parts)).encode()).hexdigest()[:12]


def _is_container(root: Path) -> bool:
    if any((root / mark).exists() for mark in ('.dockerenv', 'run/.containerenv')):
        return True
    return bool(_CONTAINER.search(read_text(root / 'proc/1/cgroup')))


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


def _system(root: Path) -> str | None:
    name = read_key_values(root / 'etc/os-release').get('PRETTY_NAME', '').strip('\'"')
    return name or f'{platform.system()} {platform.mac_ver()[0] or platform.release()}'.strip() or None


def free_memory(root: Path = ROOT) -> int:
    """Returns the bytes that this process can still allocate without swapping, within the limits of its group."""
    available: int = psutil.virtual_memory().available
    left = cgroups.memory_left(root)
    return available if left is None else min(available, left)


def _mac_facts() -> dict[str, Any]:
    model, sockets = (_output('sysctl', '-n', name) for name in ('machdep.cpu.brand_string', 'hw.packages'))
    return {'cpu_model': model, 'num_sockets': int(sockets) if sockets else None}


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
    return {
        'python': platform.python_version(),
        'tensorflow': tensorflow.__version__ if tensorflow else tensorflow_version(),
        'numpy': _package('numpy'),
        **(_gpu_libraries(build) if has_gpus else dict.fromkeys(('cuda', 'cudnn', 'nccl'))),
        'driver': driver,
    }


def _gpu_libraries(build: Mapping[str, str]) -> dict[str, str | None]:
    return {
        'cuda': _package('nvidia-cuda-runtime-cu12') or build.get('cuda_version'),
        'cudnn': _package('nvidia-cudnn-cu12') or build.get('cudnn_version'),
        'nccl': _package('nvidia-nccl-cu12', 'nvidia-nccl-cu13') or _nccl_version(),
    }


def _nccl_version() -> str | None:
    """Returns the version of the library that the loader finds. NCCL encodes 2.21.3 as 22103 (before 2.9: 2808)."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL('libnccl.so.2').ncclGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    number = version.value
    major, rest = divmod(number, 10_000) if number >= 10_000 else divmod(number, 1000)
    return f'{major}.{rest // 100}.{rest % 100}'


def tensorflow_version() -> str | None:
    """Returns the version of the installed TensorFlow, without importing it."""
    return _package(*_TENSORFLOW_PACKAGES)


@functools.cache
def _package(*names: str) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
