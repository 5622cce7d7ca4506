"""Finds out what the installed TensorFlow was built for, without importing it, which takes
seconds.
"""

import contextlib
import functools
import importlib.util
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# TensorFlow names the first one in its log only, and the second one in the error of the op.
_KERNEL_ERRORS = ('CUDA_ERROR_INVALID_PTX', 'CUDA_ERROR_INVALID_HANDLE')
_OPENMP_LIBRARIES = ('libiomp5.so', 'libomp.so')


@dataclass(frozen=True)
class TensorFlowBuild:
    """The installed TensorFlow; the versions are None if it was built without CUDA."""

    folder: Path
    cuda_version: str | None  # '12.5.1'
    cudnn_version: str | None  # '9'
    # The kernels in it: 'sm_80' is machine code for GPUs of compute capability 8.0 up to 8.9,
    # 'compute_90' is code that the driver compiles on GPUs of 9.0 and above.
    architectures: tuple[str, ...]


@functools.cache
def tensorflow_build() -> TensorFlowBuild | None:
    """Returns the build that `import tensorflow` would import; None if TensorFlow is missing."""
    spec = importlib.util.find_spec('tensorflow')
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    # The file that TensorFlow's build generates, which imports only the standard library.
    build_info: Mapping[str, Any] = {}
    with contextlib.suppress(OSError, KeyError):
        build_info = runpy.run_path(str(folder / 'python' / 'platform' / 'build_info.py'))[
            'build_info'
        ]
    has_cuda = bool(build_info.get('is_cuda_build'))
    return TensorFlowBuild(
        folder,
        build_info.get('cuda_version') if has_cuda else None,
        build_info.get('cudnn_version') if has_cuda else None,
        tuple(build_info.get('cuda_compute_capabilities') or ()) if has_cuda else (),
    )


def supports_gpu(capability: str, architectures: tuple[str, ...]) -> bool | None:
    """Returns whether a build has machine code for a GPU; None if the driver compiles kernels from
    PTX at first use.

    If False, TensorFlow ignores the GPU. The build info does not say that TensorFlow 2.21 has
    machine code for a part of its kernels on 9.0, nor that a part of the PTX of 2.16 to 2.20 is for
    9.0 alone (sm_90a; docs/gpu.md, Blackwell). NVIDIA, "CUDA C++ Programming Guide", Binary and PTX
    Compatibility: machine code runs on GPUs of the same major and the same or a higher minor
    capability; PTX is compiled for GPUs of the same or a higher capability.
    """
    target = _numbers(capability)
    kernels = [
        (kind == 'sm', _numbers(number))
        for kind, _, number in (name.partition('_') for name in architectures)
    ]
    if any(
        is_machine_code and number[0] == target[0] and number <= target
        for is_machine_code, number in kernels
    ):
        return True
    return (
        None
        if any(not is_machine_code and number <= target for is_machine_code, number in kernels)
        else False
    )


def explain_kernel_fault(message: str) -> str | None:
    """Returns the line for an error of TensorFlow about a kernel that the driver cannot compile;
    None for other errors.
    """
    error = next((name for name in _KERNEL_ERRORS if name in message), None)
    return error and (
        f'the driver cannot load a kernel of TensorFlow for this GPU ({error}): TensorFlow 2.16 to '
        '2.20 have none for compute capabilities above 9.0; use TensorFlow 2.21 or a build for '
        'this GPU (docs/gpu.md, Blackwell), or --device=cpu'
    )


def _numbers(capability: str) -> tuple[int, int]:
    """Returns the major and minor number of '9.0' or '90'."""
    digits = ''.join(letter for letter in capability if letter.isdigit())
    return int(digits[:-1]), int(digits[-1])


def has_openmp() -> bool:
    """Whether the installed TensorFlow brings an OpenMP library, and so reads OpenMP's environment
    variables.

    In builds with --config=mkl (tensorflow-mkl of Anaconda, Intel's images), the kernels of oneDNN
    run on the threads of OpenMP; Intel's library libiomp5.so is beside them. In TensorFlow's own
    packages they run on TensorFlow's threads, and nothing reads these variables.
    """
    if not (build := tensorflow_build()):
        return False
    folder = build.folder
    # Bazel puts third-party libraries in separate folders beside TensorFlow's: _solib_k8/...
    parents = (
        folder,
        *folder.parent.glob('_solib_*/*'),
        *folder.glob('_solib_*/*'),
        *folder.parents[2:3],
    )
    return any((parent / name).exists() for parent in parents for name in _OPENMP_LIBRARIES)
