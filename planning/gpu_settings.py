"""What TensorFlow's GPU devices read from the environment, and the threads of the host beside them.

Does not import TensorFlow. A GPU device reads TF_GPU_THREAD_MODE (by default global) and TF_GPU_THREAD_COUNT (2) when a
session opens it (tensorflow/core/common_runtime/gpu/gpu_device.cc, BaseGPUDevice::Init): with threads of their own,
kernels are not started late because a pool is full of hundreds of operations that decode JPEGs. cuDNN's wrapper reads
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT at the first batch norm of the process, TF_ENABLE_WINOGRAD_NONFUSED at the
first convolution (xla/stream_executor/cuda/cuda_dnn.cc), and so does TF_AUTOTUNE_THRESHOLD what chooses the algorithm
(tensorflow/core/kernels/gpu_utils.h). A session of one process reads TF_SYNC_ON_FINISH when it is made
(tensorflow/core/common_runtime/direct_session.cc).
"""

import os
from collections.abc import Mapping

from params import Params

_MODE, _COUNT = 'TF_GPU_THREAD_MODE', 'TF_GPU_THREAD_COUNT'
_BATCH_NORM = 'TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT'
_WINOGRAD, _AUTOTUNE, _SYNC = 'TF_ENABLE_WINOGRAD_NONFUSED', 'TF_AUTOTUNE_THRESHOLD', 'TF_SYNC_ON_FINISH'
_SHARED_POOL = 'global'
# One for kernels, one for copies, as in the original.
_THREADS_OF_GPU = 2

_set_here: dict[str, str] = {}


def prepare_gpus(params: Params) -> None:
    """Sets the environment variables that the flags ask for, unless the user has set them.

    To be called before the first session. A variable that an earlier run of this process has set is set anew, or
    removed.
    """
    wanted = _wanted(params)
    for name in [name for name in _set_here if name not in wanted and not _is_users(name, os.environ)]:
        del _set_here[name]
        os.environ.pop(name, None)
    for name, (_, value) in wanted.items():
        if not _is_users(name, os.environ):
            os.environ[name] = _set_here[name] = value


def has_persistent_batch_norm() -> bool:
    """Whether cuDNN's wrapper uses the persistent kernels of batch norm, if it reads the variable now."""
    return _plain(os.environ.get(_BATCH_NORM, '')) == '1'


def read_once() -> dict[str, str | None]:
    """By the flag: the variables that TensorFlow reads once in a process, as they are now."""
    return {
        'winograd_nonfused': os.environ.get(_WINOGRAD),
        'autotune_threshold': os.environ.get(_AUTOTUNE),
    }


def contradictions(params: Params) -> list[str]:
    """A warning for each flag that was given and that a variable of the environment contradicts."""
    return [
        f'{params.given[flag]} has no effect: {name}={os.environ[name]} is set in the environment; unset it'
        for name, (flag, value) in _wanted(params).items()
        if flag in params.given and _is_users(name, os.environ) and _plain(os.environ[name]) != _plain(value)
    ]


def host_threads(params: Params, intra_of_process: int | None = None, *, updates_on_host: bool) -> tuple[int, int]:
    """The threads within an operation, and the operations at the same time, of a process that computes on GPUs.

    0 is TensorFlow's default. As in the original, beside GPUs with threads of their own each operation has one thread,
    and all other operations together have the cores less those threads. In contrast to it:

    - TensorFlow decides on the former if variables are updated on the host: a momentum update of 100 million weights
      by one core takes longer than a step.
    - At least half of the cores are left to the latter, since many GPUs in a machine need many decoded images.

    Args:
      intra_of_process: the former, if an earlier run of this process has set it.
      updates_on_host: whether variables of the towers, or their sums, are on the CPU.
    """
    intra, inter = params.num_intra_threads, params.num_inter_threads
    if intra is None:
        intra = intra_of_process
    if os.environ.get(_MODE, _SHARED_POOL).lower() == _SHARED_POOL:
        return intra or 0, inter
    if intra is None:
        intra = 0 if updates_on_host else 1
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    others = max(num_cores - _threads_per_gpu(params) * params.num_gpus, (num_cores + 1) // 2, 2)
    return intra, inter or others


def _wanted(params: Params) -> Mapping[str, tuple[str, str]]:
    """By the variable: the flag that sets it and the value."""
    wanted = {
        _MODE: ('gpu_thread_mode', params.gpu_thread_mode),
        _BATCH_NORM: ('batchnorm_persistent', str(int(params.batchnorm_persistent))),
    }
    if params.gpu_thread_mode != _SHARED_POOL:
        # The threads that GPUs share are in one pool.
        num_gpus = params.num_gpus if params.gpu_thread_mode == 'gpu_shared' else 1
        wanted[_COUNT] = ('per_gpu_thread_count', str(_threads_per_gpu(params) * num_gpus))
    # These are left to TensorFlow unless a flag asks for something.
    if 'winograd_nonfused' in params.given:
        wanted[_WINOGRAD] = ('winograd_nonfused', str(int(params.winograd_nonfused)))
    if params.autotune_threshold is not None:
        wanted[_AUTOTUNE] = ('autotune_threshold', str(params.autotune_threshold))
    if params.sync_on_finish is not None:
        wanted[_SYNC] = ('sync_on_finish', str(int(params.sync_on_finish)))
    return wanted


def _threads_per_gpu(params: Params) -> int:
    return params.per_gpu_thread_count or _THREADS_OF_GPU


def _is_users(name: str, environ: Mapping[str, str]) -> bool:
    return name in environ and environ[name] != _set_here.get(name)


def _plain(value: str) -> str:
    """A value as TensorFlow reads it: truths as numbers, modes in lower case."""
    return {'true': '1', 'false': '0'}.get(value.lower(), value.lower())
