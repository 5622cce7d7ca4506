"""Starts TensorFlow without its notices.

Its native code prints them to descriptor 2, some before it reads TF_CPP_MIN_LOG_LEVEL. So until TensorFlow has started
the descriptor leads to a file, of which only the other lines are then shown. If the process dies before that, for
example because TensorFlow was compiled for another processor and aborts, a waiting shell shows the whole file.
"""

import contextlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from typing import IO, TextIO

from errors import UsageError
from machine.gpus import has_nvidia_gpu

# `read` fails when the pipe is closed, at the end of this process. The live line is then still on the terminal.
_WATCHER = r"read -r _ || { [ ! -t 2 ] || printf '\r\033[K' >&2; cat /dev/fd/%d >&2; }"
# After the severity INFO come time and thread.
_NOTICES = re.compile(
    rb'^I\d{4} |All log messages before absl::InitializeLog\(\) is called|oneDNN custom operations are on|'
    rb'This TensorFlow binary is optimized|To enable the following instructions:|Unable to register cu\w+ factory|'
    rb'computation placer already registered|Could not find TensorRT|^\s*$'
)
# These lines say why TensorFlow sees no GPU.
_ABOUT_GPUS = re.compile(
    rb'failed call to cuInit|Could not find cuda drivers|cuda_diagnostics|kernel driver does not appear to be running|'
    rb'Could not load dynamic library .lib(cu|nv)|Cannot dlopen some GPU libraries|Skipping registering GPU devices'
)
_DEPRECATION = re.compile(r'\bdeprecated\b|\bInstructions for updating\b')
# The libraries whose Python warnings do not help a user of this program.
_LIBRARIES = r'(tensorflow|keras|google|absl|h5py|jax|ml_dtypes)\b'


class _Capture:
    """Captures what is written to descriptor 2, from begin() until end() or until the block is left."""

    _file: IO[bytes] | None = None

    def __enter__(self) -> None:
        # Python asks it for each module to be imported.
        sys.meta_path.insert(0, self)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        sys.meta_path.remove(self)
        self.end(everything=bool(error) and not isinstance(error, UsageError | KeyboardInterrupt | OSError))

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == 'tensorflow' and not self._file:
            self.begin()

    def begin(self) -> None:
        # Imported here so that other commands start faster; TensorFlow imports them anyway.
        import subprocess
        import tempfile

        # Without a file or a process, everything is shown at once.
        with contextlib.suppress(OSError):
            file = tempfile.TemporaryFile()  # noqa: SIM115  # end() closes it
            # In a session of its own, which Ctrl-C and signals to the process group of this process do not reach.
            number = file.fileno()
            watch = ['sh', '-c', _WATCHER % number]
            self._watcher = subprocess.Popen(watch, stdin=subprocess.PIPE, pass_fds=[number], start_new_session=True)
            self._shown = os.dup(2)
            os.dup2(file.fileno(), 2)
            self._file = file

    def end(self, *, everything: bool = False, expects_gpu: bool = True) -> None:
        """Shows the captured lines, all or only those that matter; later lines are shown at once."""
        captured, self._file = self._file, None
        if not captured:
            return
        os.dup2(self._shown, 2)
        os.close(self._shown)
        self._watcher.communicate(b'\n')
        with captured as file, contextlib.suppress(OSError), open(2, 'wb', closefd=False) as shown:
            file.seek(0)
            shown.writelines(line for line in file if everything or _matters(line, expects_gpu))


_CAPTURE = _Capture()


@contextlib.contextmanager
def quiet_start(*, verbose: bool) -> Iterator[None]:
    """Within the block, TensorFlow starts without notices; they are shown if the block fails.

    Wrong use of the program, and errors of the operating system such as a full disk, explain themselves: then only the
    lines that matter are shown, as after success. verbose shows everything at once, as does a TF_CPP_MIN_LOG_LEVEL
    below 2 that the user has set.
    """
    # TensorFlow reads this variable when it is imported, and then prints only errors.
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    if _shows_all(verbose):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for category in () if sys.warnoptions else (DeprecationWarning, FutureWarning, UserWarning):
            warnings.filterwarnings('ignore', category=category, module=_LIBRARIES)
        logger = logging.getLogger('tensorflow')
        logger.addFilter(_is_no_deprecation)
        stack.callback(logger.removeFilter, _is_no_deprecation)
        if 'tensorflow' not in sys.modules and (own := _own_stderr()):
            stack.enter_context(contextlib.redirect_stderr(own))
            stack.enter_context(_CAPTURE)
        yield


@contextlib.contextmanager
def without_gpu_notices(*, verbose: bool) -> Iterator[None]:
    """Within the block, TensorFlow does not say that it sees no GPU on a machine without one.

    For the call that first lists the devices in other Python code; the command line captures more, from the import on.
    """
    if _CAPTURE in sys.meta_path or _shows_all(verbose):
        yield
        return
    with _CAPTURE:
        _CAPTURE.begin()
        yield


def started(*, expects_gpu: bool) -> None:
    """Called once TensorFlow is imported and has listed the devices: later lines are shown at once.

    expects_gpu: whether to show why TensorFlow sees no GPU, if this machine has one.
    """
    _CAPTURE.end(expects_gpu=expects_gpu)


def _shows_all(verbose: bool) -> bool:
    return verbose or os.environ.get('TF_CPP_MIN_LOG_LEVEL', '2') < '2'


def _matters(line: bytes, expects_gpu: bool) -> bool:
    if _ABOUT_GPUS.search(line):
        return expects_gpu and has_nvidia_gpu()
    return not _NOTICES.search(line)


def _is_no_deprecation(record: logging.LogRecord) -> bool:
    return not _DEPRECATION.search(record.getMessage())


def _own_stderr() -> TextIO | None:
    """Returns a stream like sys.stderr on another descriptor, which is not captured; None if sys.stderr is not on 2."""
    with contextlib.suppress(OSError):
        if sys.stderr.fileno() == 2:
            return os.fdopen(os.dup(2), 'w', buffering=1, encoding=sys.stderr.encoding, errors=sys.stderr.errors)
    return None
