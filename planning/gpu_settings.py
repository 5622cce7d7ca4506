"""Plans what TensorFlow's GPU devices read from the environment.

Does not import TensorFlow. A GPU device reads TF_GPU_THREAD_MODE (by default global) and TF_GPU_THREAD_COUNT (2) when a
session opens it (tensorflow/core/common_runtime/gpu/gpu_device.cc, BaseGPUDevice::Init): with threads of their own,
kernels are not started late because a pool is full of hundreds of operations that decode JPEGs. cuDNN's wrapper reads
TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT at the first batch norm of the process, TF_ENABLE_WINOGRAD_NONFUSED at the
first convolution (xla/stream_executor/cuda/cuda_dnn.cc), and so does TF_AUTOTUNE_THRESHOLD what chooses the algorithm
(tensorflow/core/kernels/gpu_utils.h). A session of one process reads TF_SYNC_ON_FINISH when it is made
(tensorflow/core/common_runtime/direct_session.cc).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from params import Params
from planning.environment import Environment
from planning.found import Found

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
