"""Starts TensorFlow without its notices.

Its native code prints them to descriptor 2, some before it reads TF_CPP_MIN_LOG_LEVEL. So until
TensorFlow has started, the descriptor leads to a `grep`, which shows all other lines, also those
before a crash.
"""

import contextlib
import logging
import os
import re
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from typing import TextIO

from tf_cnn.graph.tensorflow_import import import_tensorflow
from tf_cnn.machine.gpus import has_nvidia_gpu

# Patterns of grep -E: lines of severity INFO (also as before TensorFlow 2.21), lines without a
# severity that belong to them, and errors of parts of TensorFlow that register the same things.
_NOTICES = (
    '^I[0-9]{4} |^[0-9-]{10} [0-9.:]+ I |All log messages before absl::InitializeLog\\(\\) is '
    'called|To enable the following instructions:|Unable to register cu[A-Za-z]+ factory|'
    'computation placer already registered|^[[:space:]]*$'
)
# What CUDA's sources print. On a machine with a GPU it tells why the GPU is not used.
_CUDA = '[ /]cuda_[a-z_]+\\.cc:'
_DEPRECATION = re.compile(r'\bdeprecated\b|\bInstructions for updating\b')
# Python warnings of these libraries do not help a user of this program.
_LIBRARIES = r'(tensorflow|keras|google|absl|h5py|jax|ml_dtypes)\b'
# NumPy warns in these modules about numbers beyond its range in a damaged document. The program
# shows such numbers as unknown.
_STATISTICS = r'(comparison|results|numpy)\b'
# A process that TensorFlow's start left behind may keep the pipe open.
_END_SECS = 5.0


class _Filter:
    """Filters descriptor 2 from the import of TensorFlow until end() or the end of the block."""

    _grep: subprocess.Popen[bytes]
    _saved_stderr: int | None = None

    def __enter__(self) -> None:
        # Python calls find_spec for each imported module.
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        sys.meta_path.remove(self)
        self.end()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == 'tensorflow':
            self.begin()

    def begin(self) -> None:
        """Filters what is written from now on."""
        if self._saved_stderr is None:
            pattern = _NOTICES if has_nvidia_gpu() else f'{_NOTICES}|{_CUDA}'
            command = ['grep', '--line-buffered', '-avE', pattern]
            reader, writer = os.pipe()
            # Without grep, everything is shown.
            with contextlib.suppress(OSError):
                # In a separate session, which Ctrl-C and signals to this process group do not
                # reach.
                self._grep = subprocess.Popen(
                    command, stdin=reader, stdout=2, start_new_session=True
                )
                self._saved_stderr = os.dup(2)
                os.dup2(writer, 2)
            os.close(reader)
            os.close(writer)

    def end(self) -> None:
        """Shows later lines unfiltered."""
        if self._saved_stderr is None:
            return
        os.dup2(self._saved_stderr, 2)
        os.close(self._saved_stderr)
        self._saved_stderr = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._grep.wait(_END_SECS)


_FILTER = _Filter()
end_quiet_start = _FILTER.end


@contextlib.contextmanager
def quiet_start(*, verbose: bool) -> Iterator[None]:
    """Hides TensorFlow's notices within the block, until end_quiet_start() is called.

    verbose, or a TF_CPP_MIN_LOG_LEVEL below 2 that the user has set, shows everything.
    """
    # TensorFlow reads this variable when it is imported, and then prints only errors.
    level = os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '2')
    if verbose or level < '2':
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        for category in () if sys.warnoptions else (DeprecationWarning, FutureWarning, UserWarning):
            warnings.filterwarnings('ignore', category=category, module=_LIBRARIES)
        if not sys.warnoptions:
            warnings.filterwarnings('ignore', category=RuntimeWarning, module=_STATISTICS)
        logger = logging.getLogger('tensorflow')
        logger.addFilter(_is_not_deprecation)
        stack.callback(logger.removeFilter, _is_not_deprecation)
        if stream := _unfiltered_stderr():
            stack.enter_context(contextlib.redirect_stderr(stream))
            stack.enter_context(_FILTER)
            if 'tensorflow' in sys.modules:
                # Python code may have imported it before the run looks for GPUs.
                _FILTER.begin()
        yield


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow for Python code that imports a module of this program first."""
    with quiet_start(verbose=False):
        import_tensorflow()


def _is_not_deprecation(record: logging.LogRecord) -> bool:
    return not _DEPRECATION.search(record.getMessage())


def _unfiltered_stderr() -> TextIO | None:
    """Returns a stream like sys.stderr on another descriptor, which is not filtered; None if
    sys.stderr is not on 2.
    """
    with contextlib.suppress(OSError):
        if sys.stderr.fileno() == 2:
            descriptor, encoding = os.dup(2), sys.stderr.encoding
            # absl's log handler may write to it after the block.
            stream = open(  # noqa: SIM115
                descriptor, 'w', 1, encoding, sys.stderr.errors, closefd=False
            )
            weakref.finalize(stream, os.close, descriptor).atexit = False
            return stream
    return None
