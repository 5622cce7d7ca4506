"""Stand-ins for NVIDIA's libraries, made by the C compiler of the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tf_cnn.machine.missing_gpu import check_libraries
from tf_cnn.machine.tensorflow_build import tensorflow_build

BUILD = tensorflow_build()
NEEDED = [
    pytest.mark.skipif(
        not (BUILD and BUILD.cuda_version), reason='TensorFlow is built without CUDA'
    ),
    pytest.mark.skipif(shutil.which('cc') is None, reason='there is no C compiler'),
]


def compile_library(folder: Path, name: str, code: str = 'int nothing;') -> Path:
    command = ['cc', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(folder / name)]
    subprocess.run(command, input=code, text=True, check=True)
    return folder / name


def compile_cuda(folder: Path, *left_out: str) -> dict[str, str]:
    """Compiles stand-ins for NVIDIA's libraries; returns the environment that makes the loader find
    them.
    """
    library = compile_library(folder, 'libgood.so')
    for name in check_libraries():
        if not name.startswith(left_out):
            shutil.copy(library, folder / name)
    return {**os.environ, 'LD_LIBRARY_PATH': str(folder)}
