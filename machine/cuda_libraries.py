"""The libraries that TensorFlow opens to use NVIDIA's GPUs: whether they can be opened, and what installs the others.

Does not import TensorFlow. The names are those that the functions of tsl::internal::DsoLoader in
libtensorflow_framework.so.2 pass to dlopen (TensorFlow 2.21, seen by LD_DEBUG=libs). TryDlopenCUDALibraries opens seven
libraries; if one of them is missing, TensorFlow registers no GPU at all. The driver's library is opened before these,
NCCL with the first collective op, and CUPTI with the first profile.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import to_install
from machine.tensorflow_build import TensorFlowBuild, tensorflow_build

# The "package" of the driver's library; the others are in packages of pip.
DRIVER = 'NVIDIA driver'
# Opening all of them takes a second from a disk cache, and reads 3 GB without one.
_OPEN_SECS = 120.0


@dataclass(frozen=True)
class Library:
    """A library that TensorFlow opens.

    Attributes:
      name: the name of its file, 'libcudnn.so.9'.
      purpose: what TensorFlow needs it for.
      package: what to install: the pip package with it, or with a missing library that it needs; or DRIVER.
      error: why it cannot be opened; None if it can.
      path: the file; None if there is none.
      is_required: whether TensorFlow uses no GPU without it.
    """

    name: str
    purpose: str
    package: str
    error: str | None
    path: str | None
    is_required: bool = True


@dataclass(frozen=True)
class _Row:
    """A row of the table of libraries.

    Attributes:
      name: the name of its file, with {cudnn} for the version of cuDNN.
      folder: the folder within nvidia/ where its package puts it.
    """

    name: str
    folder: str
    package: str
    purpose: str
    is_required: bool = True


# The libraries of CUDA 12: all builds of the TensorFlow that this program needs are made for it.
_ROWS = (
    _Row('libcuda.so.1', '', DRIVER, 'the driver'),
    _Row('libcudart.so.12', 'cuda_runtime', 'nvidia-cuda-runtime-cu12', 'the CUDA runtime'),
    _Row('libcublas.so.12', 'cublas', 'nvidia-cublas-cu12', 'matrix products'),
    _Row('libcublasLt.so.12', 'cublas', 'nvidia-cublas-cu12', 'matrix products'),
    _Row('libcufft.so.11', 'cufft', 'nvidia-cufft-cu12', 'Fourier transforms'),
    _Row('libcusolver.so.11', 'cusolver', 'nvidia-cusolver-cu12', 'linear algebra'),
    _Row('libcusparse.so.12', 'cusparse', 'nvidia-cusparse-cu12', 'sparse matrices'),
    _Row('libcudnn.so.{cudnn}', 'cudnn', 'nvidia-cudnn-cu12', 'convolutions'),
    _Row('libnccl.so.2', 'nccl', 'nvidia-nccl-cu12', 'sums over GPUs (--all_reduce_spec=nccl)', is_required=False),
    _Row('libcupti.so.12', 'cuda_cupti', 'nvidia-cuda-cupti-cu12', 'profiles (--profile_steps)', is_required=False),
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
    """Opens each library as TensorFlow would, in another process.

    If opening a library kills that process, or takes longer than timeout_secs, this is the error of the library.

    Args:
      environ: the environment variables of that process, such as LD_LIBRARY_PATH.
      timeout_secs: the time limit of that process in seconds.

    Returns:
      An empty list if TensorFlow is missing or built without CUDA.
    """
    build = tensorflow_build()
    if build is None or build.cuda_version is None:
        return []
    names = [row.name.format(cudnn=(build.cudnn_version or '').partition('.')[0]) for row in _ROWS]
    paths = [_first_file(name, row.folder, build, environ) for name, row in zip(names, _ROWS, strict=True)]
    answers = _open(paths, environ, timeout_secs)
    return [
        Library(name, row.purpose, _package_for(row, error), error, path, row.is_required)
        for name, row, (path, error) in zip(names, _ROWS, answers, strict=True)
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


def _package_for(row: _Row, error: str | None) -> str:
    """Returns the package to install: that of the library with which the loader's error begins, or of this one."""
    lacking = (error or '').partition(':')[0]
    return next((other.package for other in _ROWS if other.name == lacking), _LINKED.get(lacking, row.package))


def _first_file(name: str, folder: str, build: TensorFlowBuild, environ: Mapping[str, str]) -> str:
    """Returns the first file of this name in LD_LIBRARY_PATH, then in TensorFlow's RUNPATH, even if it is unusable.

    If there is none, it returns the name alone, which the loader looks up in the folders of the system.
    """
    folders = [Path(part) for part in environ.get('LD_LIBRARY_PATH', '').split(os.pathsep) if part]
    if folder:
        # RUNPATH: $ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../nvidia/cublas/lib:...
        folders += [
            build.folder.parent.parent / 'nvidia' / folder / 'lib',
            build.folder.parent / 'nvidia' / folder / 'lib',
        ]
    return next((str(path) for path in (where / name for where in folders) if path.exists()), name)


def _open(paths: Sequence[str], environ: Mapping[str, str], timeout_secs: float) -> list[tuple[str | None, str | None]]:
    """Returns for each path where the library was found, and why it could not be opened (None if it could)."""
    answers: list[tuple[str | None, str | None]] = []
    while len(answers) < len(paths):
        command = [sys.executable, '-I', '-S', '-c', _OPEN, json.dumps(paths[len(answers) :])]
        fault = None
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_secs, env=dict(environ))
            out = ran.stdout
            if ran.returncode:
                fault = f'opening it ended the process by {_name_of(-ran.returncode)}'
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


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f'exit code {-number}'
