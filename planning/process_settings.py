"""Plans what a run sets for its whole process: the start of TensorFlow, GPUs, threads, and the binding to a NUMA node.

Does not import TensorFlow. A GPU device reads TF_GPU_THREAD_MODE (by default global) and TF_GPU_THREAD_COUNT (2) when a
session opens it (tensorflow/core/common_runtime/gpu/gpu_device.cc, BaseGPUDevice::Init): with threads of their own,
kernels are not started late because a pool is full of hundreds of operations that decode JPEGs. cuDNN's wrapper reads
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT at the first batch norm of the process, TF_ENABLE_WINOGRAD_NONFUSED at the
first convolution (xla/stream_executor/cuda/cuda_dnn.cc), and so does TF_AUTOTUNE_THRESHOLD what chooses the algorithm
(tensorflow/core/kernels/gpu_utils.h). A session of one process reads TF_SYNC_ON_FINISH when it is made
(tensorflow/core/common_runtime/direct_session.cc).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from errors import UsageError, counted, spelled
from machine.gpu_memory import GpuMemory
from machine.numa import choose_node
from params import Params
from params.tensorflow_flags import OPENMP
from planning.environment import Environment
from planning.found import Found
from planning.plan import Machine, Processes
from planning.this_process import INTRA, NUMA, XLA_ON_CPU, StartSettings, VisibleGpus

_XLA_FLAGS = 'TF_XLA_FLAGS'
# Environment variables by which users set up malloc, or choose another one.
_OF_MALLOC = re.compile('MALLOC_|GLIBC_TUNABLES$|LD_PRELOAD$')
_NO_OPENMP = "this TensorFlow has no OpenMP: oneDNN's kernels run on its own threads, see --num_intra_threads"


def find_visible_gpus(params: Params, environment: Environment, processes: Processes) -> Found[VisibleGpus | None]:
    """The GPUs that this process is to see; None if its host has none.

    Raises:
      UsageError: the host has fewer GPUs than its processes need.
    """
    return Found(environment.visible_gpus(params, processes.place_on_host, computes=processes.computes_here))


def choose_start(
    params: Params, environment: Environment, processes: Processes, gpus: VisibleGpus | None
) -> Found[StartSettings]:
    """What TensorFlow reads when it starts, with a warning for each flag about OpenMP or memory without effect."""
    asked = {flag: getattr(params, flag) for flag in OPENMP if getattr(params, flag) is not None}
    variables: dict[str, str] = {}
    warnings: tuple[str, ...] = ()
    if environment.has_openmp():
        variables = {OPENMP[flag]: str(value) for flag, value in asked.items()}
    else:
        warnings = tuple(f'{spelled(flag, value)} has no effect: {_NO_OPENMP}' for flag, value in asked.items())
    if params.xla and not processes.holds_variables_only:
        flags = environment.variables.get(_XLA_FLAGS, '')
        variables[_XLA_FLAGS] = flags if XLA_ON_CPU in flags else f'{flags} {XLA_ON_CPU}'.strip()
    may_use_gpus = gpus is not None and processes.computes_here and params.device != 'cpu'
    memory = GpuMemory.of(params) if may_use_gpus else None
    has_server = processes.cluster is not None and processes.horovod is None
    keeps_memory = has_server if params.keep_memory is None else params.keep_memory
    if own := sorted(filter(_OF_MALLOC.match, environment.variables)):
        keeps_memory = False
        if 'keep_memory' in params.given:
            warnings += (f'{params.given["keep_memory"]} has no effect: {own[0]} is set in the environment; unset it',)
    return Found(StartSettings(gpus, variables, memory, params.verbose, keeps_memory), warnings)


THREAD_MODE, _COUNT = 'TF_GPU_THREAD_MODE', 'TF_GPU_THREAD_COUNT'
_BATCH_NORM = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'
_WINOGRAD, _AUTOTUNE, _SYNC = 'TF_ENABLE_WINOGRAD_NONFUSED', 'TF_AUTOTUNE_THRESHOLD', 'TF_SYNC_ON_FINISH'
SHARED_POOL = 'global'
# One for kernels, one for copies, as in the original.
_THREADS_OF_GPU = 2


@dataclass(frozen=True)
class GpuSettings:
    """What the GPU devices of this process read.

    Attributes:
      variables: the environment variables that the flags ask for, unless the user has set them, by name.
      kept: by the flag, the values that TensorFlow reads once in a process.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)


def choose_gpu_settings(params: Params, environment: Environment) -> Found[GpuSettings]:
    """What the flags ask for, with a warning for each flag that was given and that the environment contradicts."""
    own, wanted = environment.variables, _wanted(params)
    variables = {name: value for name, (_, value) in wanted.items() if name not in own}
    after = {**own, **variables}
    kept = {
        'batchnorm_persistent': _plain(after.get(_BATCH_NORM, '')) == '1',
        'winograd_nonfused': after.get(_WINOGRAD),
        'autotune_threshold': after.get(_AUTOTUNE),
    }
    warnings = tuple(
        f'{params.given[flag]} has no effect: {name}={own[name]} is set in the environment; unset it'
        for name, (flag, value) in wanted.items()
        if flag in params.given and name in own and _plain(own[name]) != _plain(value)
    )
    return Found(GpuSettings(variables, kept), warnings)


def _wanted(params: Params) -> Mapping[str, tuple[str, str]]:
    """By the variable: the flag that sets it and the value."""
    wanted = {
        THREAD_MODE: ('gpu_thread_mode', params.gpu_thread_mode),
        _BATCH_NORM: ('batchnorm_persistent', str(int(params.batchnorm_persistent))),
    }
    if params.gpu_thread_mode != SHARED_POOL:
        # The threads that GPUs share are in one pool.
        num_gpus = params.num_gpus if params.gpu_thread_mode == 'gpu_shared' else 1
        wanted[_COUNT] = ('per_gpu_thread_count', str(threads_per_gpu(params) * num_gpus))
    # These are left to TensorFlow unless a flag asks for something.
    if 'winograd_nonfused' in params.given:
        wanted[_WINOGRAD] = ('winograd_nonfused', str(int(params.winograd_nonfused)))
    if params.autotune_threshold is not None:
        wanted[_AUTOTUNE] = ('autotune_threshold', str(params.autotune_threshold))
    if params.sync_on_finish is not None:
        wanted[_SYNC] = ('sync_on_finish', str(int(params.sync_on_finish)))
    return wanted


def threads_per_gpu(params: Params) -> int:
    """The threads of each GPU, if it has threads of its own."""
    return params.per_gpu_thread_count or _THREADS_OF_GPU


def _plain(value: str) -> str:
    """A value as TensorFlow reads it: truths as numbers, modes in lower case."""
    return {'true': '1', 'false': '0'}.get(value.lower(), value.lower())


@dataclass(frozen=True)
class Threads:
    """The threads of sessions.

    Attributes:
      intra_op: threads within operations, a pool that all CPU devices of a process share; 0 is TensorFlow's default: as
        many as cores in the affinity.
      inter_op: operations at the same time; 0 as for intra_op.
      reason: why, in words, for those who read the result.
    """

    intra_op: int
    inter_op: int
    reason: str


def choose_threads(
    params: Params, environment: Environment, machine: Machine, variables: Mapping[str, str], num_cores: int
) -> Found[Threads]:
    """The threads of a process: those of the flags, else what fits its towers.

    On CPUs, the operations of several towers run at the same time. If there are as many towers as cores, each operation
    has one thread: sharing it would only move work between busy cores. (8 towers of ResNet-50 with a global batch of 32
    on 2 cores have 0.90 to 0.94 of the images/sec of one tower with two threads for each operation, 0.93 to 1.02 with
    one.) The images of a batch have one thread each whatever is chosen here (inputs/each_image.py).

    Args:
      variables: the environment variables of GPU devices, as the run sets them.
      num_cores: those that this process may use.
    """
    # TensorFlow keeps its threads, so that a later run of a process to which no flag gives others has them too.
    earlier: int | None = environment.process.kept(INTRA)
    given = ' '.join(
        spelled(name, getattr(params, name))
        for name in ('num_intra_threads', 'num_inter_threads')
        if name in params.given
    )
    if machine.kind == 'gpu' and machine.is_here:
        mode = {**environment.variables, **variables}.get(THREAD_MODE, SHARED_POOL)
        intra, inter = _beside_gpus(params, machine, mode, num_cores, earlier)
        return Found(Threads(intra, inter, given or 'GPUs start their own kernels'))
    if params.num_intra_threads is not None:
        return Found(Threads(params.num_intra_threads, params.num_inter_threads, given))
    num_towers = len(machine.towers) if machine.is_here else 1
    chosen = _for_cores(num_cores, environment.cpu_quota(), num_towers, params.num_inter_threads)
    if earlier is None or earlier == chosen.intra_op:
        return Found(chosen)
    warnings: tuple[str, ...] = ()
    if (earlier or num_cores) < (chosen.intra_op or num_cores):
        warnings = (
            f'an operation has {counted(earlier, "thread")}, as in an earlier run of this process, since '
            'TensorFlow keeps its threads until the process ends; start a new process for each run',
        )
    return Found(Threads(earlier, chosen.inter_op, 'an earlier run of this process had them'), warnings)


def _beside_gpus(
    params: Params, machine: Machine, mode: str, num_cores: int, intra_of_process: int | None
) -> tuple[int, int]:
    """The threads within an operation, and the operations at the same time, of a process that computes on GPUs.

    0 is TensorFlow's default. As in the original, beside GPUs with threads of their own each operation has one thread,
    and all other operations together have the cores less those threads. In contrast to it:

    - TensorFlow decides on the former if variables are updated on the host: a momentum update of 100 million weights
      by one core takes longer than a step.
    - At least half of the cores are left to the latter, since many GPUs in a machine need many decoded images.
    """
    intra, inter = params.num_intra_threads, params.num_inter_threads
    if intra is None:
        intra = intra_of_process
    if mode.lower() == SHARED_POOL:
        return intra or 0, inter
    if intra is None:
        updates_on_host = machine.parameter_device_kind == 'cpu' or 'pscpu' in (machine.all_reduce_spec or '')
        intra = 0 if updates_on_host else 1
    others = max(num_cores - threads_per_gpu(params) * params.num_gpus, (num_cores + 1) // 2, 2)
    return intra, inter or others


def _for_cores(num_cores: int, quota: float | None, num_towers: int, inter: int) -> Threads:
    if quota is not None and quota < num_cores:
        intra = 1 if num_towers >= quota else int(quota)
        reason = f'the CPU quota of the cgroup is {quota:.3g} cores, for {counted(num_towers, "tower")}'
        return Threads(intra, inter or max(2, math.ceil(quota)), reason)
    if num_towers == 1:
        return Threads(0, inter, 'one tower has all cores')
    shared = f'{num_towers} towers share {counted(num_cores, "core")}'
    return Threads(1 if num_towers >= num_cores else 0, inter, shared)


@dataclass(frozen=True)
class NumaBinding:
    """What is bound.

    Attributes:
      shown: for the banner; empty if nothing is bound.
      cores: those to which this process is to be bound; empty if it is not, or already is.
      by_tensorflow: whether TensorFlow binds the threads of each device of the CPU itself.
    """

    shown: str = ''
    cores: tuple[int, ...] = ()
    by_tensorflow: bool = False


def choose_binding(
    params: Params, environment: Environment, processes: Processes, machine: Machine, gpus: VisibleGpus | None
) -> Found[NumaBinding]:
    """The NUMA node that fits this process, to which it is bound before TensorFlow starts its threads.

    The workers of a controller are servers, and only TensorFlow binds their devices.

    Args:
      gpus: those that this process sees.

    Raises:
      UsageError: an earlier run bound this process, and this one asks for none.
    """
    bound = environment.process.kept(NUMA)
    if not params.use_numa_affinity:
        if bound:
            raise UsageError(
                f'--{NUMA}=False: an earlier run in this process had {bound}, and it stays bound until it ends; '
                f'start a new process, or write --{NUMA}=True for this run'
            )
        return Found(NumaBinding())
    if bound:
        return Found(NumaBinding(bound))
    if not machine.is_here:
        return Found(NumaBinding())
    if not environment.can_bind:
        return _idle('only Linux binds processes to cores')
    nodes = environment.numa_nodes()
    of_gpus = environment.gpu_nodes(gpus.value if gpus else None)[: len(machine.towers)]
    choice = choose_node(nodes, processes.place_on_host, of_gpus if machine.kind == 'gpu' else None)
    if choice.node is not None:
        shown = f'True (node {choice.node}, {len(choice.cores)} cores)'
        return Found(NumaBinding(shown, choice.cores))
    if choice.reason:
        return _idle(choice.reason)
    # tensorflow/core/common_runtime/threadpool_device_factory.cc: device i is on node i modulo their number.
    numbers = [list(nodes)[index % len(nodes)] for index in range(len(machine.towers))]
    devices = ', '.join(f'cpu:{index} on node {node}' for index, node in enumerate(numbers))
    return Found(NumaBinding(f'True ({devices})', by_tensorflow=True))


def _idle(reason: str) -> Found[NumaBinding]:
    return Found(NumaBinding(), (f'--{NUMA}=True has no effect: {reason}',))
