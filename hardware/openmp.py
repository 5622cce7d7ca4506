"""What OpenMP reads from the environment, for a TensorFlow that was built with it. Does not import TensorFlow.

The kernels of oneDNN run on OpenMP's threads in TensorFlow's builds with --config=mkl (tensorflow-mkl of Anaconda,
Intel's images), which have Intel's library libiomp5.so beside them. In TensorFlow's own packages they run on
TensorFlow's threads, and nothing reads these variables.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from hardware.tensorflow_build import tensorflow_build

_LIBRARIES = ('libiomp5.so', 'libomp.so')


def has_openmp() -> bool:
    """Whether the installed TensorFlow brings an OpenMP library of its own."""
    build = tensorflow_build()
    return build is not None and _is_beside(build.folder)


def _is_beside(folder: Path) -> bool:
    # Bazel keeps the libraries of others in folders of its own, beside those of TensorFlow: _solib_k8/...
    places = (folder, *folder.parent.glob('_solib_*/*'), *folder.glob('_solib_*/*'), *folder.parents[2:3])
    return any((place / name).exists() for place in places for name in _LIBRARIES)


def set_openmp(wanted: Mapping[str, tuple[str, str]]) -> list[str]:
    """Sets variables that OpenMP reads when its first threads start.

    Args:
      wanted: by the variable: the flag as it was written, and the value.

    Returns:
      A warning for each flag that has no effect.
    """
    if wanted and not has_openmp():
        reason = "this TensorFlow has no OpenMP: oneDNN's kernels run on its own threads, see --num_intra_threads"
        return [f'{written} has no effect: {reason}' for written, _ in wanted.values()]
    os.environ.update({name: value for name, (_, value) in wanted.items()})
    return []
