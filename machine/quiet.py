"""Captures what TensorFlow prints while it starts, and shows the lines that matter.

TensorFlow's native code prints notices to descriptor 2, some before it reads TF_CPP_MIN_LOG_LEVEL, so until TensorFlow
has started the descriptor leads to a file. If the process dies before it has shown the file, for example because
TensorFlow was compiled for another processor and aborts, a waiting shell copies it to standard error.
"""

import contextlib
import io
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import TextIO

from errors import UsageError
from machine.gpus import has_nvidia_gpu

_LEVEL = 'TF_CPP_MIN_LOG_LEVEL'
_STANDARD_ERROR = 2
# `read` fails when the pipe is closed, at the end of this process. Descriptor 1 is the file, open for reading.
_WATCHER = 'read -r _ || { %s cat <&1 >&2; }'
_ERASE = r"printf '\r\033[K' >&2;"
# The beginning of a line of severity INFO; after it come time and thread.
_INFO = re.compile(r'I\d{4} ')
_NOTICES = re.compile(
    r'All log messages before absl::InitializeLog\(\) is called|'
    r'oneDNN custom operations are on|'
    r'This TensorFlow binary is optimized|'
    r'To enable the following instructions:|'
    r'Unable to register cu\w+ factory|'
    r'computation placer already registered|'
    r'Could not find TensorRT'
)
# These lines say why TensorFlow sees no GPU.
_ABOUT_GPUS = re.compile(
    r'failed call to cuInit|'
    r'Could not find cuda drivers|'
    r'cuda_diagnostics|'
    r'kernel driver does not appear to be running|'
    r'Could not load dynamic library .lib(cu|nv)|'
    r'Cannot dlopen some GPU libraries|'
    r'Skipping registering GPU devices'
)
_DEPRECATION = re.compile(r'\bdeprecated\b|\bInstructions for updating\b')
# The libraries whose Python warnings do not help a user of this program.
_LIBRARIES = r'(tensorflow|keras|google|absl|h5py|jax|ml_dtypes)\b'


class _Capture:
    """Captures what is written to descriptor 2, from the first import of TensorFlow until end() is called."""

    def __init__(self, shown: TextIO) -> None:
        self._shown = shown
        self._lock = threading.Lock()
        self._has_begun = False
        self._files: contextlib.ExitStack | None = None

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Called by Python before it imports a module; finds no module."""
        if fullname == 'tensorflow':
            self.begin()

    def begin(self) -> None:
        """Starts to capture, unless begin() or end() was called before."""
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            with contextlib.ExitStack() as files:
                try:
                    self._redirect(files)
                except (OSError, NotImplementedError):
                    # Without a file or a process, everything is shown at once.
                    return
                self._files = files.pop_all()

    def _redirect(self, files: contextlib.ExitStack) -> None:
        # Imported here so that the command starts faster; TensorFlow imports it anyway.
        import tempfile

        writing, path = tempfile.mkstemp()
        files.callback(os.close, writing)
        try:
            # Opened again to have a file position of its own.
            self._reading = os.open(path, os.O_RDONLY)
            files.callback(os.close, self._reading)
        finally:
            os.unlink(path)
        pipe, self._pipe = os.pipe()
        try:
            erase = _ERASE if self._shown.isatty() else ''
            self._watcher = os.posix_spawn(
                '/bin/sh',
                ['sh', '-c', _WATCHER % erase],
                {'PATH': os.environ.get('PATH', os.defpath)},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, pipe, 0),
                    (os.POSIX_SPAWN_DUP2, self._reading, 1),
                    (os.POSIX_SPAWN_DUP2, self._shown.fileno(), _STANDARD_ERROR),
                ],
                # Then Ctrl-C and signals to the process group of this process do not reach it.
                setsid=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(pipe)
        files.callback(self._dismiss_watcher)
        os.dup2(writing, _STANDARD_ERROR)

    def _dismiss_watcher(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, b'\n')
        os.close(self._pipe)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._watcher, 0)

    def end(self, *, everything: bool, expects_gpu: bool) -> None:
        """Shows the captured lines, all or only those that matter; later lines are shown at once."""
        with self._lock:
            self._has_begun = True
            if self._files is None:
                return
            with self._files:
                os.dup2(self._shown.fileno(), _STANDARD_ERROR)
                text = os.pread(self._reading, os.fstat(self._reading).st_size, 0).decode(errors='backslashreplace')
                lines = text.splitlines()
                shown = lines if everything else [line for line in lines if _matters(line, expects_gpu)]
                with contextlib.suppress(OSError):
                    self._shown.writelines(f'{line}\n' for line in shown)
                    self._shown.flush()
            self._files = None


_capture: _Capture | None = None


@contextlib.contextmanager
def quiet_start(*, verbose: bool) -> Iterator[None]:
    """Within the block, TensorFlow starts without notices; they are shown if the block fails.

    Wrong use of the program, and errors of the operating system such as a full disk, explain themselves: then only the
    lines that matter are shown, as after success. verbose shows everything at once, as does a TF_CPP_MIN_LOG_LEVEL
    below 2 that the user has set.
    """
    global _capture
    # TensorFlow reads this variable when it is imported, and then prints only errors.
    if os.environ.setdefault(_LEVEL, '2') < '2' or verbose:
        yield
        return
    with _without_deprecations(), _own_stderr() as shown:
        if shown is None or 'tensorflow' in sys.modules:
            yield
            return
        _capture = capture = _Capture(shown)
        sys.meta_path.insert(0, capture)
        is_fault = True
        try:
            yield
            is_fault = False
        except (UsageError, KeyboardInterrupt, OSError):
            is_fault = False
            raise
        finally:
            sys.meta_path.remove(capture)
            _capture = None
            capture.end(everything=is_fault, expects_gpu=True)


@contextlib.contextmanager
def without_gpu_notices(*, verbose: bool) -> Iterator[None]:
    """Within the block, TensorFlow does not say that it sees no GPU on a machine without one.

    For the call that first lists the devices in other Python code; the command line captures more, from the import on.
    """
    if _capture or verbose or os.environ.get(_LEVEL, '2') < '2':
        yield
        return
    try:
        shown = os.fdopen(os.dup(_STANDARD_ERROR), 'w', errors='backslashreplace')
    except OSError:
        # Standard error is closed.
        yield
        return
    with shown:
        capture = _Capture(shown)
        capture.begin()
        is_fault = True
        try:
            yield
            is_fault = False
        finally:
            capture.end(everything=is_fault, expects_gpu=True)


def started(*, expects_gpu: bool) -> None:
    """Called once TensorFlow is imported and has listed the devices: later lines are shown at once.

    expects_gpu: whether to show why TensorFlow sees no GPU, if this machine has one.
    """
    if _capture:
        _capture.end(everything=False, expects_gpu=expects_gpu)


def _matters(line: str, expects_gpu: bool) -> bool:
    if not line.strip() or _NOTICES.search(line):
        return False
    if _ABOUT_GPUS.search(line):
        return expects_gpu and has_nvidia_gpu()
    return not _INFO.match(line)


@contextlib.contextmanager
def _own_stderr() -> Iterator[TextIO | None]:
    """Gives sys.stderr another descriptor, so that redirecting 2 does not affect it; yields None if it was not on 2."""
    before = sys.stderr
    try:
        descriptor = os.dup(_STANDARD_ERROR) if before.fileno() == _STANDARD_ERROR else None
    except (OSError, io.UnsupportedOperation):
        descriptor = None
    if descriptor is None:
        yield None
        return
    before.flush()
    sys.stderr = own = os.fdopen(descriptor, 'w', buffering=1, encoding=before.encoding, errors=before.errors)
    try:
        yield own
    finally:
        with contextlib.suppress(OSError):
            own.flush()
        sys.stderr = before


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """Silences the messages of TensorFlow's Python code about deprecated functions."""

    def is_no_deprecation(record: logging.LogRecord) -> bool:
        return not _DEPRECATION.search(record.getMessage())

    logger = logging.getLogger('tensorflow')
    logger.addFilter(is_no_deprecation)
    try:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                for category in (DeprecationWarning, FutureWarning, UserWarning):
                    warnings.filterwarnings('ignore', category=category, module=_LIBRARIES)
            yield
    finally:
        logger.removeFilter(is_no_deprecation)
