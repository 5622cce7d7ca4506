"""What surrounds a test, the same in every shell and on every machine.

`command &` in a script and nohup make a process ignore signals, and its children inherit that.
Warnings about the machine have a code, by which tests/support/outputs.py leaves them out.

`python -m tests.support.surroundings` runs the tests marked `surroundings` where these differ most:
as a script starts them in the background, on one core of a processor without oneDNN, with a blank
in the folder of temporary files and no home.
"""

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tf_cnn.machine.run_environment import free_memory
from tf_cnn.system.kernel_files import ROOT

WITHOUT_ONEDNN = Path(__file__).parent / 'without_onednn'
# Several processes with TensorFlow, of 0.4 GB each, and what they train.
LEAST_MEMORY = 2e9
# Python itself ignores these.
_OF_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}
# These change what a program writes, or when.
_OF_OUTPUT = ('COLUMNS', 'FORCE_COLOR', 'LINES', 'NO_COLOR', 'PYTHONUNBUFFERED', 'PYTHONWARNINGS')


def restore_signals() -> None:
    """Restores the defaults of signals that this process inherited ignored or blocked."""
    for number in signal.valid_signals() - _OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            is_ctrl_c = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_ctrl_c else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def forget_output_variables() -> None:
    """Removes the variables of a shell that change the output of this process's children."""
    for name in _OF_OUTPUT:
        os.environ.pop(name, None)


def why_not(root: Path = ROOT) -> str | None:
    """Returns why no test can run here, and what to do; None if tests can run."""
    try:
        tempfile.TemporaryFile(dir=root / 'dev/shm').close()
    except OSError as error:
        return (
            f'/dev/shm: processes share memory there, and no file can be made ({error.strerror}); '
            'mount a tmpfs on it'
        )
    try:
        subprocess.run(['true'], check=True)
    except OSError as error:
        return f'no process can be started ({error.strerror}); raise the limit (ulimit -u)'
    address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [address_space] if address_space != resource.RLIM_INFINITY else []
    if (memory := min([free_memory(root), *limits])) < LEAST_MEMORY:
        return (
            f'this process may use {memory / 1e9:.1f} GB of memory, and tests need '
            f'{LEAST_MEMORY / 1e9:.0f} GB; end other programs, or raise the limit'
        )
    return None


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.umask(0o077)
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    with tempfile.TemporaryDirectory(prefix='a blank ') as folder:
        # No file can be made in /proc, not even by root.
        changes = {'HOME': '/proc', 'LC_ALL': 'C', 'TMPDIR': folder}
        environ = {**os.environ, **changes, 'PYTHONPATH': str(WITHOUT_ONEDNN)}
        environ.pop('TF_ENABLE_ONEDNN_OPTS', None)
        command = [sys.executable, '-m', 'pytest', '-q', '-m', 'surroundings', *sys.argv[1:]]
        sys.exit(subprocess.run(command, env=environ).returncode)


if __name__ == '__main__':
    _main()
