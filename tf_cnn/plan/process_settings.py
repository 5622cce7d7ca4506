"""Chooses the settings of a run for its whole process: the start of TensorFlow, GPUs, threads, and
the binding to a NUMA node.

Does not import TensorFlow. A GPU device reads TF_GPU_THREAD_MODE (by default global) and
TF_GPU_THREAD_COUNT (2) when a session opens it (tensorflow/core/common_runtime/gpu/gpu_device.cc,
BaseGPUDevice::Init): kernels with private threads do not wait for a pool full of JPEGs to decode.
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT is read at the first batch norm of the process,
TF_ENABLE_WINOGRAD_NONFUSED (both: xla/stream_executor/cuda/cuda_dnn.cc) and TF_AUTOTUNE_THRESHOLD
(tensorflow/core/kernels/gpu_utils.h) at the first convolution, TF_SYNC_ON_FINISH when a session of
one process is made (tensorflow/core/common_runtime/direct_session.cc).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tf_cnn.graph.onednn import ONEDNN_VARIABLE, read_switch
from tf_cnn.machine.cgroups import cpu_limit
from tf_cnn.machine.config import TARGETS, parse_gpu_indices
from tf_cnn.machine.gpus import KERNEL_CACHE, VISIBLE_VARIABLE, kernel_cache_warning
from tf_cnn.machine.numa import NumaBinding, choose_node, cores_by_node, gpu_nodes
from tf_cnn.machine.processors import process_cores
from tf_cnn.machine.tensorflow_build import has_openmp
from tf_cnn.machine.this_process import (
    INTRA,
    MEMORY_FLAGS,
    NUMA,
    ProcessEnvironment,
    ProcessSettings,
)
from tf_cnn.machine.visible_gpus import RankAndSize, choose_visible_gpus
from tf_cnn.system.errors import UsageError, format_flag, plural

if TYPE_CHECKING:
    from tf_cnn.plan.cluster_role import ClusterRole
    from tf_cnn.plan.devices import Devices
    from tf_cnn.plan.params import Params

XLA_ON_CPU = '--tf_xla_cpu_global_jit'
_XLA_FLAGS = 'TF_XLA_FLAGS'
# Environment variables that configure malloc or replace it.
_MALLOC_VARIABLES = re.compile('MALLOC_|GLIBC_TUNABLES$|LD_PRELOAD$')
# Environment variables that limit the threads of OpenMP and MKL.
_OPENMP_THREADS = ('OMP_NUM_THREADS', 'OMP_THREAD_LIMIT', 'MKL_NUM_THREADS')
# What a job asked for. Slurm binds a task to as many cores only where it is set up to.
_SLURM_CPUS = 'SLURM_CPUS_PER_TASK'
_NO_OPENMP = (
    "this TensorFlow has no OpenMP: oneDNN's kernels run on TensorFlow's threads, see "
    '--num_intra_threads'
)

_THREAD_MODE, _THREAD_COUNT = 'TF_GPU_THREAD_MODE', 'TF_GPU_THREAD_COUNT'
# The environment variable of each flag that sets one. A flag without a value does not set it.
_VARIABLES = {name: target for name, target in TARGETS.items() if target.isupper()}
_OPENMP = {flag: name for flag, name in _VARIABLES.items() if name.startswith('KMP_')}
_GPUS = {
    flag: name
    for flag, name in _VARIABLES.items()
    if flag not in _OPENMP and name != ONEDNN_VARIABLE
}
_SHARED_POOL = 'global'
# One thread for kernels and one for copies, as in the original.
_THREADS_OF_GPU = 2


def find_visible_gpus(
    params: 'Params', environment: ProcessEnvironment, place: RankAndSize, *, computes: bool = True
) -> str | None:
    """Returns CUDA_VISIBLE_DEVICES for this process; None if its host has no GPU.

    computes: whether the process has towers.
    """
    needed = params.devices.num_gpus if computes and params.devices.device != 'cpu' else 0
    indices = parse_gpu_indices(params.tensorflow.gpu_indices) if needed else ()
    return choose_visible_gpus(needed, place, environment.variables, indices)


def choose_start(
    params: 'Params',
    environment: ProcessEnvironment,
    cluster_role: 'ClusterRole',
    gpus: str | None,
    warnings: list[str],
) -> ProcessSettings:
    """Chooses the settings that TensorFlow reads when it starts; warns of ignored settings of
    OpenMP, of kernels that the driver cannot keep, and of more cores than Slurm gives a task.
    """
    if (
        cluster_role.has_local_towers
        and params.devices.num_intra_threads is None
        and (cpus := environment.variables.get(_SLURM_CPUS, '')).isdecimal()
        and int(cpus) < (num_cores := len(process_cores()))
    ):
        warnings.append(
            f'{_SLURM_CPUS}={cpus}: this process may use {plural(num_cores, "core")}, and does; '
            f'use srun --cpus-per-task={cpus} --cpu-bind=cores, or --num_intra_threads={cpus}'
        )
    flag_values = {flag: params.value(flag) for flag in _OPENMP}
    values: dict[str, object] = {}
    if has_openmp():
        values = {_OPENMP[flag]: _as_text(value) for flag, value in flag_values.items()}
    else:
        given_values = {flag: value for flag, value in flag_values.items() if value is not None}
        warnings += (
            f'{format_flag(flag, value)} has no effect: {_NO_OPENMP}'
            for flag, value in given_values.items()
        )
        warnings += (
            f'{name}={text} has no effect on TensorFlow: {_NO_OPENMP}'
            for name, text in environment.variables.items()
            if name in _OPENMP_THREADS and cluster_role.has_local_towers
        )
    values[ONEDNN_VARIABLE] = _onednn_switch(params, environment)
    if params.devices.xla and not cluster_role.is_parameter_server:
        of_user = environment.variables.get(_XLA_FLAGS, '')
        values[_XLA_FLAGS] = of_user if XLA_ON_CPU in of_user else f'{of_user} {XLA_ON_CPU}'.strip()
    may_use_gpus = (
        gpus is not None and cluster_role.has_local_towers and params.devices.device != 'cpu'
    )
    if may_use_gpus and not KERNEL_CACHE.keys() & environment.variables:
        values |= KERNEL_CACHE
        if warning := kernel_cache_warning(environment.variables):
            warnings.append(warning)
    has_server = cluster_role.cluster is not None and cluster_role.horovod is None
    keeps_memory = has_server and not any(map(_MALLOC_VARIABLES.match, environment.variables))
    memory = memory_flags(params) if may_use_gpus else None
    return ProcessSettings(gpus, memory, keeps_memory, values)


def memory_flags(params: 'Params') -> dict[str, Any]:
    """Returns the values of the flags that set a field of GPUOptions, by name."""
    return {name: params.value(name) for name in MEMORY_FLAGS}


def _onednn_switch(params: 'Params', environment: ProcessEnvironment) -> str | None:
    """Returns the value of TF_ENABLE_ONEDNN_OPTS; None: do not set it.

    Raises UsageError if TensorFlow or the environment has another value already.
    """
    if params.tensorflow.onednn is None:
        return None
    written, value = params.flag_text('onednn'), str(int(params.tensorflow.onednn))
    of_user = environment.variables.get(ONEDNN_VARIABLE)
    if of_user and read_switch(of_user) is not params.tensorflow.onednn:
        raise UsageError(
            f'{written}: the environment has {ONEDNN_VARIABLE}={of_user}, the same switch with '
            'another value; remove one of them'
        )
    if environment.has_tensorflow and environment.process.setting(ONEDNN_VARIABLE) != value:
        raise UsageError(
            f'{written}: TensorFlow was already imported in this process, and reads '
            f'{ONEDNN_VARIABLE} only during the import; remove the flag and set '
            f'{ONEDNN_VARIABLE}={value} before the import, or start a new process'
        )
    return value


def choose_gpu_variables(
    params: 'Params', environment: ProcessEnvironment, warnings: list[str]
) -> Mapping[str, str | None]:
    """Returns the environment variables for GPUs, except the ones that the user has set; warns of
    flags that they override.
    """
    user_variables, variables = (
        environment.variables,
        {name: _as_text(params.value(flag)) for flag, name in _GPUS.items()},
    )
    warnings += (
        f'{params.given_flags[flag]} has no effect: {name}={user_variables[name]} is set in '
        'the environment; unset '
        'it'
        for flag, name in _GPUS.items()
        if flag in params.given_flags and name in user_variables
    )
    if params.devices.gpu_thread_mode != _SHARED_POOL:
        # With gpu_shared, one pool has the threads of all GPUs.
        num_gpus = params.devices.num_gpus if params.devices.gpu_thread_mode == 'gpu_shared' else 1
        variables[_THREAD_COUNT] = str(_threads_per_gpu(params) * num_gpus)
    return {name: value for name, value in variables.items() if name not in user_variables}


def _threads_per_gpu(params: 'Params') -> int:
    """Returns the threads of each GPU if it has private threads."""
    return params.devices.per_gpu_thread_count or _THREADS_OF_GPU


def _as_text(value: object) -> str | None:
    return None if value is None else str(int(value) if isinstance(value, bool) else value)


@dataclass(frozen=True)
class Threads:
    """The threads of sessions; 0 is TensorFlow's default, one for each usable core."""

    intra_op: int  # within an operation; all CPU devices of a process share this pool
    inter_op: int  # operations that run at the same time
    reason: str


def choose_threads(
    params: 'Params',
    environment: ProcessEnvironment,
    devices: 'Devices',
    num_cores: int,
    warnings: list[str],
) -> Threads:
    """Chooses the threads of a process: by flags, an earlier run of the process, or its towers.

    On CPUs, the operations of several towers run at the same time. If there are as many towers as
    cores, each operation has one thread: sharing it would only move work between busy cores (8
    towers of ResNet-50 on 2 cores: +3 to +8 %). Each image of a batch always has one thread
    (tf_cnn/inputs/pipeline.py).
    """
    threads = (
        _threads_beside_gpus(params, environment, devices, num_cores)
        if devices.kind == 'gpu' and devices.is_local
        else _threads_for_cores(params, environment, devices, num_cores)
    )
    given_flags = [
        params.given_flags[name]
        for name in ('num_intra_threads', 'num_inter_threads')
        if name in params.given_flags
    ]
    if params.devices.num_intra_threads is not None:
        threads = Threads(params.devices.num_intra_threads, threads.inter_op, ' '.join(given_flags))
    threads = _apply_thread_variables(threads, params, environment, warnings)
    # TensorFlow keeps the threads within operations from the first session of a process.
    earlier: int | None = environment.process.setting(INTRA)
    is_open = params.devices.num_intra_threads is None
    if is_open and earlier not in (None, threads.intra_op):
        reason = 'an earlier run of this process used this number'
        return Threads(earlier, threads.inter_op, reason)
    return threads


def _apply_thread_variables(
    threads: Threads, params: 'Params', environment: ProcessEnvironment, warnings: list[str]
) -> Threads:
    """Returns the threads that TensorFlow uses with the environment's variables for them.

    TensorFlow reads these variables only if the session does not set the number
    (tensorflow/core/common_runtime/local_device.cc and process_util.cc). Warns of variables
    without effect.
    """
    for flag, field, name in (
        ('num_intra_threads', 'intra_op', 'TF_NUM_INTRAOP_THREADS'),
        ('num_inter_threads', 'inter_op', 'TF_NUM_INTEROP_THREADS'),
    ):
        text, number = environment.variables.get(name), getattr(threads, field)
        if not text or text == str(number):
            continue
        setting = f'{name}={text}'
        if not (text.isdecimal() and 0 < int(text) < 2**31):
            warnings.append(
                f'{setting} has no effect: it must be an integer of at least 1; use --{flag}'
            )
        elif number:
            given_flag = params.given_flags.get(flag)
            reason = (
                f'{given_flag} is given'
                if given_flag
                else f'the run has {plural(number, "thread")}, as {threads.reason}'
            )
            warnings.append(
                f'{setting} has no effect: {reason}; use --{flag}={text}, or unset the variable'
            )
        else:
            reason = f'{threads.reason}, {setting}' if threads.reason else setting
            threads = replace(threads, **{field: int(text)}, reason=reason)
    return threads


def _threads_beside_gpus(
    params: 'Params', environment: ProcessEnvironment, devices: 'Devices', num_cores: int
) -> Threads:
    """Chooses the threads of a process with GPUs.

    As in the original, if GPUs have private threads, an operation has one thread, and the number of
    operations at a time is the number of cores minus the threads of GPUs.

    Two exceptions differ from the original. If the host updates variables, TensorFlow decides the
    threads of an operation, because one core is too slow for a step. At least half of the cores
    run operations, to decode images.
    """
    reason = params.given_flags.get('num_inter_threads', 'GPUs start their own kernels')
    if (
        environment.variables.get(_THREAD_MODE, params.devices.gpu_thread_mode).lower()
        == _SHARED_POOL
    ):
        return Threads(0, params.devices.num_inter_threads, reason)
    updates_on_host = devices.parameter_kind == 'cpu' or 'pscpu' in (
        params.variables.all_reduce_spec or ''
    )
    num_inter_threads = max(
        num_cores - _threads_per_gpu(params) * params.devices.num_gpus, (num_cores + 1) // 2, 2
    )
    return Threads(
        0 if updates_on_host else 1, params.devices.num_inter_threads or num_inter_threads, reason
    )


def _threads_for_cores(
    params: 'Params', environment: ProcessEnvironment, devices: 'Devices', num_cores: int
) -> Threads:
    num_towers, inter = (
        len(devices.towers) if devices.is_local else 1,
        params.devices.num_inter_threads,
    )
    quota = cpu_limit(environment.root)
    if quota is not None and quota < num_cores:
        intra = 1 if num_towers >= quota else int(quota)
        reason = (
            f'the CPU quota of the cgroup is {quota:.3g} cores, for {plural(num_towers, "tower")}'
        )
        return Threads(intra, inter or max(2, math.ceil(quota)), reason)
    if num_towers == 1:
        return Threads(0, inter, 'one tower has all usable cores')
    shared = f'{num_towers} towers share {plural(num_cores, "core")}'
    return Threads(1 if num_towers >= num_cores else 0, inter, shared)


def choose_binding(
    params: 'Params',
    environment: ProcessEnvironment,
    cluster_role: 'ClusterRole',
    devices: 'Devices',
    gpus: str | None,
    warnings: list[str],
) -> NumaBinding:
    """Chooses the NUMA node for this process, which is bound before TensorFlow starts threads."""
    if not params.tensorflow.use_numa_affinity or not devices.is_local:
        return NumaBinding()
    if cluster_role.is_server:
        # In a worker of a controller, only TensorFlow can bind the devices.
        return NumaBinding(by_tensorflow=True)
    if bound := environment.process.setting(NUMA):
        return NumaBinding(bound)
    # Without a list, all GPUs are visible.
    of_gpus = gpu_nodes(environment.root, {} if gpus is None else {VISIBLE_VARIABLE: gpus})[
        : len(devices.towers)
    ]
    binding = choose_node(
        cores_by_node(environment.root, process_cores()),
        cluster_role.place_on_host,
        of_gpus if devices.kind == 'gpu' else None,
        len(devices.towers),
    )
    if binding.reason:
        warnings.append(f'{NUMA}=True has no effect: {binding.reason}')
    return binding
