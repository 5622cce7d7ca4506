"""Whether the installed TensorFlow uses OpenMP, and so reads its environment variables. Does not import TensorFlow.

In builds of TensorFlow with --config=mkl (tensorflow-mkl of Anaconda, Intel's images), the kernels of oneDNN run on the
threads of OpenMP; Intel's library libiomp5.so is beside them. In TensorFlow's own packages they run on TensorFlow's
threads, and nothing reads these variables.
"""

from pathlib import Path

from hardware.tensorflow_build import tensorflow_build

_LIBRARIES = ('libiomp5.so', 'libomp.so')


def has_openmp() -> bool:
    """Whether the installed TensorFlow brings an OpenMP library of its own."""
    build = tensorflow_build()
    return build is not None and _is_beside(build.folder)


def _is_beside(folder: Path) -> bool:
    # Bazel puts third-party libraries in folders of its own beside those of TensorFlow: _solib_k8/...
    places = (folder, *folder.parent.glob('_solib_*/*'), *folder.glob('_solib_*/*'), *folder.parents[2:3])
    return any((place / name).exists() for place in places for name in _LIBRARIES)
