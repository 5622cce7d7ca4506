"""Explains why TensorFlow sees no GPU on a machine with an NVIDIA GPU. Does not import TensorFlow."""

import os
from collections.abc import Mapping
from pathlib import Path

from machine.cuda_driver import check_driver, describe_driver_fault
from machine.cuda_libraries import check_libraries, describe_missing
from machine.gpus import has_nvidia_gpu
from machine.kernel_files import ROOT
from machine.tensorflow_build import tensorflow_build


def explain_missing_gpu(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> str | None:
    """Returns the reason and what to do about it, in one line; None if this machine has no NVIDIA GPU.

    Call it only if TensorFlow sees none: it starts processes that open the libraries for GPUs, which takes seconds.
    """
    if not has_nvidia_gpu({}, root):
        return None
    if not has_nvidia_gpu(environ, root):
        return f'CUDA_VISIBLE_DEVICES={environ["CUDA_VISIBLE_DEVICES"]} in the environment hides the GPUs; unset it'
    build = tensorflow_build()
    if build is None or build.cuda_version is None:
        return 'the installed TensorFlow is built without CUDA; install the [cuda] extra instead of tensorflow-cpu'
    libraries = check_libraries(environ)
    # The driver's own library is the first.
    fault = None if libraries[0].error else describe_driver_fault(check_driver(environ, root), build)
    return (
        fault
        or describe_missing(libraries)
        or 'the driver starts and all libraries can be opened; --verbose shows what TensorFlow says'
    )
