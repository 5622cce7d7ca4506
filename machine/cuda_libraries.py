"""The libraries that TensorFlow opens to use NVIDIA's GPUs, and what installs the missing ones. Imports no TensorFlow.

The names are those that tsl::internal::DsoLoader in libtensorflow_framework.so.2 passes to dlopen (TensorFlow 2.21,
seen by LD_DEBUG=libs). If one of the seven that TryDlopenCUDALibraries opens is missing, TensorFlow registers no GPU at
all. The driver's library is opened before these, NCCL with the first collective op, and CUPTI with the first profile.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from errors import to_install
from machine.tensorflow_build import TensorFlowBuild, tensorflow_build

# The "package" of the driver's library; the others are in packages of pip.
DRIVER = 'NVIDIA driver'
# Opening all of them takes a second from a disk cache, and reads 3 GB without one.
_OPEN_SECS = 120.0


@dataclass(frozen=True)
class Library:
    """A library that TensorFlow opens."""

    name: str
    purpose: str
    package: str  # what to install: the pip package with it, or with a missing library that it needs; or DRIVER
    error: str | None = None  # None if it can be opened
    path: str | None = None  # None if there is no such file
    is_required: bool = True  # whether TensorFlow uses no GPU without it


# The libraries of CUDA 12: all builds of the TensorFlow that this program needs are made for it. {} is the version of
# cuDNN.
_LIBRARIES = (
    Library('libcuda.so.1', 'the driver', DRIVER),
    Library('libcudart.so.12', 'the CUDA runtime', 'nvidia-cuda-runtime-cu12'),
    Library('libcublas.so.12', 'matrix products', 'nvidia-cublas-cu12'),
    Library('libcublasLt.so.12', 'matrix products', 'nvidia-cublas-cu12'),
    Library('libcufft.so.11', 'Fourier transforms', 'nvidia-cufft-cu12'),
    Library('libcusolver.so.11', 'linear algebra', 'nvidia-cusolver-cu12'),
    Library('libcusparse.so.12', 'sparse matrices', 'nvidia-cusparse-cu12'),
    Library('libcudnn.so.{}', 'convolutions', 'nvidia-cudnn-cu12'),
    Library('libnccl.so.2', 'sums over GPUs (--all_reduce_spec=nccl)', 'nvidia-nccl-cu12', is_required=False),
    Library('libcupti.so.12', 'profiles (--profile_steps)', 'nvidia-cuda-cupti-cu12', is_required=False),
)

# Libraries that those above are linked with and that are not in the table.
_LINKED = {'libnvJitLink.so.12': 'nvidia-nvjitlink-cu12'}

# Opens the libraries whose candidate paths come as a JSON list, and writes one line for each.
_OPEN = """
import ctypes, json, sys
class LinkMap(ctypes.Structure):
    _fields_ = [('address', ctypes.c_void_p), ('name', ctypes.c_char_p)]
def where(library):
    # RTLD_DI_LINKMAP
    found = ctypes.POINTER(LinkMap)()
    try:
        if ctypes.CDLL(None).dlinfo(ctypes.c_void_p(library._handle), 2, ctypes.byref(found)) == 0:
            return found.contents.name.decode()
    except AttributeError:
        pass
for path in json.loads(sys.argv[1]):
    try:
        print(json.dumps([where(ctypes.CDLL(path)), None]), flush=True)
    except OSError as error:
        print(json.dumps([None, str(error)]), flush=True)
"""


def check_libraries(environ: Mapping[str, str] = os.environ, timeout_secs: float = _OPEN_SECS) -> list[Library]:
    """Opens each library as TensorFlow would, in another process with these environment variables (LD_LIBRARY_PATH).

    If opening a library kills that process, or takes longer than timeout_secs, this is the error of the library. The
    list is empty if TensorFlow is missing or built without CUDA.
    """
    build = tensorflow_build()
    if build is None or build.cuda_version is None:
        return []
    cudnn = (build.cudnn_version or '').partition('.')[0]
    libraries = [replace(library, name=library.name.format(cudnn)) for library in _LIBRARIES]
    answers = _open([_first_file(library, build, environ) for library in libraries], environ, timeout_secs)
    return [
        replace(library, package=_package_for(library, error), error=error, path=path)
        for library, (path, error) in zip(libraries, answers, strict=True)
    ]


def describe_missing(libraries: Sequence[Library]) -> str | None:
    """Says in one line which required libraries cannot be opened, why, and what to install; None if all can be."""
    failed = [library for library in libraries if library.error and library.is_required]
    if not failed:
        return None
    if failed[0].package == DRIVER:
        # Without the driver, the other libraries are useless.
        return (
            f"{failed[0].name}, the library of NVIDIA's driver, cannot be opened ({failed[0].error}); install the "
            'driver, or start the container with its GPUs (docker run --gpus=all needs the NVIDIA Container Toolkit)'
        )
    packages = dict.fromkeys(library.package for library in failed)
    is_there = any(library.path for library in failed)
    return (
        f'TensorFlow needs libraries that cannot be opened: {", ".join(library.name for library in failed)} '
        f'({failed[0].error}); the [cuda] extra has all of them; install {" ".join(packages)}: '
        f'{to_install(*packages, again=is_there)}'
    )


def _package_for(library: Library, error: str | None) -> str:
    """Returns the package to install: that of the library with which the loader's error begins, or of this one."""
    lacking = (error or '').partition(':')[0]
    packages = {other.name: other.package for other in _LIBRARIES} | _LINKED
    return packages.get(lacking, library.package)


def _first_file(library: Library, build: TensorFlowBuild, environ: Mapping[str, str]) -> str:
    """Returns the first file of this name in LD_LIBRARY_PATH, then in TensorFlow's RUNPATH, even if it is unusable.

    If there is none, it returns the name alone, which the loader looks up in the folders of the system.
    """
    folders = [Path(part) for part in environ.get('LD_LIBRARY_PATH', '').split(os.pathsep) if part]
    if library.package != DRIVER:
        # RUNPATH: $ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../nvidia/cublas/lib:...
        packaged = library.package.removeprefix('nvidia-').removesuffix('-cu12').replace('-', '_')
        folders += [base / 'nvidia' / packaged / 'lib' for base in (build.folder.parent.parent, build.folder.parent)]
    return next((str(path) for path in (where / library.name for where in folders) if path.exists()), library.name)


def _open(paths: Sequence[str], environ: Mapping[str, str], timeout_secs: float) -> list[tuple[str | None, str | None]]:
    """Returns for each path where the library was found, and why it could not be opened (None if it could)."""
    answers: list[tuple[str | None, str | None]] = []
    while len(answers) < len(paths):
        command = [sys.executable, '-I', '-S', '-c', _OPEN, json.dumps(paths[len(answers) :])]
        fault = None
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_secs, env=dict(environ))
            out = ran.stdout
            if code := ran.returncode:
                name = signal.Signals(-code).name if code < 0 else f'exit code {code}'
                fault = f'opening it ended the process by {name}'
        except subprocess.TimeoutExpired as expired:
            out = expired.stdout.decode() if isinstance(expired.stdout, bytes) else expired.stdout or ''
            fault = f'opening it took more than {timeout_secs:g} s'
        except OSError as error:
            out, fault = '', f'no process could be started: {error.strerror}'
        answers += [tuple(json.loads(line)) for line in out.splitlines() if line.endswith(']')]
        if len(answers) < len(paths):
            answers.append((None, fault or 'the process that opened it said nothing'))
    return [
        (found or (path if os.path.isabs(path) else None), error)
        for path, (found, error) in zip(paths, answers, strict=True)
    ]
