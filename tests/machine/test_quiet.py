"""TensorFlow starts without notices, and nothing that it prints is lost.

Each test runs a process in which a stand-in for TensorFlow prints, while it is imported, what the real one prints.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tf_cnn_benchmarks

pytestmark = pytest.mark.unit

ROOT = Path(tf_cnn_benchmarks.__file__).parent
NOTICES = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795335780.221861   23215 port.cc:153] oneDNN custom operations are on. You may see slightly different \
numerical results. To turn them off, set the environment variable `TF_ENABLE_ONEDNN_OPTS=0`.
I0000 00:00:1795335780.272145   23215 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available \
CPU instructions in performance-critical operations.
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow.
I0000 00:00:1795335780.222230   23215 some.cc:31] Something that is only for information.
"""
ABOUT_GPUS = """\
I0000 00:00:1795335780.222230   23215 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will \
not be used.
E0000 00:00:1795335784.181936   23215 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: \
UNKNOWN ERROR (303)
"""
SUBSTANCE = 'W0000 00:00:1795335784.181936   23215 memory.cc:7] The machine is on fire.\n'
TENSORFLOW = f"""
import logging, os, sys, warnings
os.write(2, {(NOTICES + ABOUT_GPUS).encode()!r})
warnings.warn('Keras will change', FutureWarning)
logging.basicConfig(stream=sys.stderr, format='%(message)s')
logging.getLogger('tensorflow').warning('From a: b is deprecated and will be removed. Instructions for updating: c')
"""
SCRIPT = """
import ctypes, os, signal, sys
from errors import RunError, UsageError
from machine import quiet
{preparation}
with quiet.quiet_start(verbose={verbose}):
    print('before', file=sys.stderr)
    import tensorflow
    {action}
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    (tmp_path / 'tensorflow.py').write_text(TENSORFLOW)
    return tmp_path


def run(
    folder: Path,
    action: str,
    *,
    preparation: str = '',
    verbose: bool = False,
    has_gpu: bool = False,
    redirection: str = '',
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a process in which TensorFlow starts and then the action is taken."""
    preparation = f'quiet.has_nvidia_gpu = lambda: {has_gpu}\n{preparation}'
    code = SCRIPT.format(preparation=preparation, verbose=verbose, action=action)
    around = {name: value for name, value in os.environ.items() if not name.startswith('TF_CPP')}
    return subprocess.run(
        ['sh', '-c', f'exec "$0" -c "$1" {redirection}', sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**around, 'PYTHONPATH': f'{folder}{os.pathsep}{ROOT}', 'TMPDIR': str(folder), **environ},
    )


def test_notices_are_not_shown_and_the_rest_is(stand_in: Path) -> None:
    action = f"""
    os.write(2, {SUBSTANCE.encode()!r})
    print('own', file=sys.stderr)
    quiet.started(expects_gpu=True)
    os.write(2, b'later')
"""
    done = run(stand_in, action)
    assert (done.returncode, done.stdout) == (0, '')
    # Its own lines do not wait.
    assert done.stderr == f'before\nown\n{SUBSTANCE}later'
    assert [path.name for path in stand_in.iterdir() if not path.name.startswith(('__', 'tensorflow'))] == []


@pytest.mark.parametrize('around', [{'verbose': True}, {'TF_CPP_MIN_LOG_LEVEL': '0'}])
def test_all_is_shown_at_once_to_those_who_ask(stand_in: Path, around: dict[str, str]) -> None:
    # The values of the table have several types.
    done = run(stand_in, "print('after', file=sys.stderr)", **around)  # type: ignore[arg-type]
    before, shown = done.stderr.split('before\n')
    assert (before, shown.startswith(NOTICES + ABOUT_GPUS), shown.endswith('after\n')) == ('', True, True)
    assert 'deprecated' in shown


@pytest.mark.parametrize(('has_gpu', 'expects_gpu'), [(True, True), (True, False), (False, True)])
def test_why_a_gpu_is_not_used_is_shown_where_there_is_one(stand_in: Path, has_gpu: bool, expects_gpu: bool) -> None:
    done = run(stand_in, f'quiet.started(expects_gpu={expects_gpu})', has_gpu=has_gpu)
    assert done.stderr == 'before\n' + (ABOUT_GPUS if has_gpu and expects_gpu else '')


@pytest.mark.parametrize(('has_gpu', 'verbose'), [(False, False), (True, False), (False, True)])
def test_a_python_program_hears_about_gpus_only_where_there_is_one(
    stand_in: Path, has_gpu: bool, verbose: bool
) -> None:
    action = f"""
with quiet.without_gpu_notices(verbose={verbose}):
    os.write(2, {(ABOUT_GPUS + SUBSTANCE).encode()!r})
os.write(2, b'later')
os._exit(0)
"""
    # Before the command line holds anything back.
    done = run(stand_in, 'pass', preparation=action, has_gpu=has_gpu)
    assert done.stderr == f'{ABOUT_GPUS if has_gpu or verbose else ""}{SUBSTANCE}later'


@pytest.mark.parametrize(
    ('action', 'exit_code'),
    [
        ("raise RunError('a fault')", 1),
        ('os.abort()', -signal.SIGABRT),
        ('ctypes.string_at(0)', -signal.SIGSEGV),
        ('os.kill(os.getpid(), signal.SIGKILL)', -signal.SIGKILL),
        ('os._exit(7)', 7),
    ],
)
def test_all_is_shown_however_the_process_fails(stand_in: Path, action: str, exit_code: int) -> None:
    done = run(stand_in, action)
    assert done.returncode == exit_code
    shown = done.stderr.removeprefix('before\n')
    assert shown.startswith(NOTICES + ABOUT_GPUS)
    # Shown once.
    assert shown.count(NOTICES) == 1


# In the last case no watcher is left to wait for.
@pytest.mark.parametrize(
    'action',
    [
        *("raise UsageError('wrong')", 'raise KeyboardInterrupt', 'raise BrokenPipeError'),
        'quiet.started(expects_gpu=True); os.waitpid(-1, 0)',
    ],
)
def test_what_is_no_fault_or_fails_later_shows_no_notices(stand_in: Path, action: str) -> None:
    done = run(stand_in, action)
    assert done.stderr.startswith('before\nTraceback')
    assert 'oneDNN' not in done.stderr


def test_notices_are_shown_where_no_file_can_hold_them(stand_in: Path) -> None:
    done = run(stand_in, 'pass', preparation="import tempfile; tempfile.tempdir = '/no/such'")
    assert (done.returncode, done.stderr) == (0, f'before\n{NOTICES}{ABOUT_GPUS}')


@pytest.mark.parametrize('redirection', ['2>&1 | cat', '2>&1'])
def test_standard_error_may_be_a_pipe(stand_in: Path, redirection: str) -> None:
    done = run(stand_in, f'os.write(2, {SUBSTANCE.encode()!r})', redirection=redirection)
    assert (done.stdout, done.stderr) == (f'before\n{SUBSTANCE}', '')
