"""Shared libraries for tests, made by the C compiler of the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hardware.tensorflow_build import tensorflow_build

BUILD = tensorflow_build()
NEEDED = [
    pytest.mark.skipif(not (BUILD and BUILD.cuda_version), reason='TensorFlow is built without CUDA'),
    pytest.mark.skipif(shutil.which('cc') is None, reason='there is no C compiler'),
]
_CUDA = Path(__file__).parent / 'cuda_stand_in.c'


def compile_library(folder: Path, name: str, code: str = 'int nothing;', *options: str) -> Path:
    """A shared library of this name, made of C code."""
    command = ['cc', '-shared', '-fPIC', '-x', 'c', '-', '-o', str(folder / name), *options]
    subprocess.run(command, input=code, text=True, check=True)
    return folder / name


def compile_driver(folder: Path) -> Path:
    """A libcuda.so.1 of cuda_stand_in.c."""
    return compile_library(folder, 'libcuda.so.1', _CUDA.read_text())


def folder_with(folder: Path, library: Path, *names: str) -> dict[str, str]:
    """The environment in which the loader finds this library under these names."""
    for name in names:
        shutil.copy(library, folder / name)
    return {**os.environ, 'LD_LIBRARY_PATH': str(folder)}
