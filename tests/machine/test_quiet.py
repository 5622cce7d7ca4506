"""TensorFlow starts without notices and without Keras, and nothing else that it prints is lost.

A stand-in for TensorFlow prints the same lines while a process imports it.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.files import DATA, write_files
from tests.support.outputs import check_error
from tests.support.programs import ROOT, run, run_python

pytestmark = pytest.mark.unit


NOTICES = (DATA / 'logs/tensorflow_notices.txt').read_text()
ABOUT_GPUS = (DATA / 'logs/tensorflow_gpu_errors.txt').read_text()
SUBSTANCE = 'W0000 00:00:1795335784.181936   23215 memory.cc:7] The machine is on fire.\n'
TENSORFLOW = f"""
import logging, os, sys, warnings
os.write(2, {(NOTICES + ABOUT_GPUS).encode()!r})
warnings.warn('Keras will change', FutureWarning)
logging.basicConfig(stream=sys.stderr, format='%(message)s')
logger = logging.getLogger('tensorflow')
logger.warning('From a: b is deprecated and will be removed. Instructions for updating: c')
"""
SCRIPT = """
import ctypes, os, signal, sys
from tf_cnn.system.errors import RunError
from tf_cnn.machine import quiet
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


def run_stand_in(
    folder: Path,
    action: str,
    *,
    preparation: str = '',
    verbose: bool = False,
    has_gpu: bool = False,
    redirection: str = '',
    level: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a process that imports TensorFlow and then takes the action."""
    preparation = f'quiet.has_nvidia_gpu = lambda: {has_gpu}\n{preparation}'
    code = SCRIPT.format(preparation=preparation, verbose=verbose, action=action)
    around = {name: value for name, value in os.environ.items() if not name.startswith('TF_CPP')}
    around |= {'TF_CPP_MIN_LOG_LEVEL': level} if level else {}
    return subprocess.run(
        ['sh', '-c', f'exec "$0" -c "$1" {redirection}', sys.executable, code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**around, 'PYTHONPATH': f'{folder}{os.pathsep}{ROOT}', 'TMPDIR': str(folder)},
    )


def test_notices_are_hidden_and_other_lines_are_shown(stand_in):
    action = f"""
    os.write(2, {SUBSTANCE.encode()!r})
    print('own', file=sys.stderr)
    quiet.end_quiet_start()
    os.write(2, b'later')
"""
    process = run_stand_in(stand_in, action)
    assert (process.returncode, process.stdout) == (0, '')
    # Its own lines do not wait.
    assert sorted(process.stderr.splitlines()) == sorted(
        f'before\nown\n{SUBSTANCE}later'.splitlines()
    )
    assert process.stderr.endswith('later')


@pytest.mark.parametrize(('verbose', 'level'), [(True, None), (False, '0')])
def test_verbose_or_a_log_level_shows_everything_at_once(stand_in, verbose, level):
    process = run_stand_in(
        stand_in, "print('after', file=sys.stderr)", verbose=verbose, level=level
    )
    assert process.stderr.startswith(f'before\n{NOTICES}{ABOUT_GPUS}')
    assert 'deprecated' in process.stderr
    assert process.stderr.endswith('after\n')


@pytest.mark.parametrize('has_gpu', [True, False])
def test_why_a_gpu_is_not_used_is_shown_where_there_is_one(stand_in, has_gpu):
    process = run_stand_in(stand_in, 'quiet.end_quiet_start()', has_gpu=has_gpu)
    assert process.stderr == f'before\n{ABOUT_GPUS if has_gpu else ""}'


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
def test_everything_except_notices_is_shown_however_the_process_fails(stand_in, action, exit_code):
    process = run_stand_in(stand_in, f'os.write(2, {SUBSTANCE.encode()!r}); {action}')
    assert process.returncode == exit_code
    assert SUBSTANCE in process.stderr
    assert 'oneDNN' not in process.stderr


def test_notices_are_shown_where_no_program_can_filter_them(stand_in):
    process = run_stand_in(stand_in, 'pass', preparation="os.environ['PATH'] = '/no/such'")
    assert (process.returncode, process.stderr) == (0, f'before\n{NOTICES}{ABOUT_GPUS}')


@pytest.mark.parametrize('redirection', ['2>&1 | cat', '2>&1'])
def test_standard_error_may_be_a_pipe(stand_in, redirection):
    process = run_stand_in(
        stand_in, f'os.write(2, {SUBSTANCE.encode()!r})', redirection=redirection
    )
    assert (process.stdout, process.stderr) == (f'before\n{SUBSTANCE}', '')


def test_a_loaded_tensorflow_reports_no_missing_gpu(stand_in):
    action = f'os.write(2, {(ABOUT_GPUS + SUBSTANCE).encode()!r})'
    process = run_stand_in(stand_in, action, preparation='import tensorflow')
    assert process.returncode == 0
    # The first time is the user's own import.
    assert process.stderr.count(ABOUT_GPUS) == 1
    assert process.stderr.endswith(SUBSTANCE)


# ---- Keras ---------------------------------------------------------------------------------------


# The end of TensorFlow's own __init__.py, and a TensorFlow that cannot do without Keras.
GUARDED = (
    'try:\n  importlib.import_module("keras.src.optimizers")\nexcept (ImportError, '
    'AttributeError):\n  pass\n'
)
UNGUARDED = 'importlib.import_module("keras.src.optimizers")\n'


def make_packages(folder: Path, end: str) -> str:
    """Writes a package keras, and a package tensorflow with this end of its __init__.py; returns
    their folder.
    """
    packages = 'tensorflow tensorflow/compat tensorflow/compat/v1 keras keras/src'
    files = dict.fromkeys([f'{name}/__init__.py' for name in packages.split()], '')
    files['keras/src/optimizers/__init__.py'] = ''
    files['tensorflow/__init__.py'] = f'import importlib\n{end}'
    return str(write_files(folder, files))


def test_a_run_imports_neither_keras_nor_what_keras_finds():
    code = """
import gc, sys
from tf_cnn_benchmarks import main
flags = '--model=trivial --device=cpu --batch_size=1 --num_batches=1 --num_warmup_batches=0'
assert main(flags.split()) == 0
print('loaded:', *sorted({'keras', 'matplotlib', 'sklearn', 'tf_keras'} & {*sys.modules}))
print('collects:', gc.isenabled())
import tensorflow as tf
print(tf.keras.layers.Dense(3)(tf.ones([2, 4])).shape)
import keras
print(keras.optimizers.SGD.__name__)
"""
    # With scikit-learn, which environment() hides.
    assert run_python(code, PYTHONPATH=None).out.splitlines()[-4:] == [
        'loaded:',
        'collects: True',
        '(2, 3)',
        'SGD',
    ]


@pytest.mark.parametrize(
    ('end', 'expected'),
    [(GUARDED, 'False'), (UNGUARDED, 'True'), (f'import keras\n{GUARDED}', 'True')],
    ids=['guarded', 'unguarded', 'imports it itself'],
)
def test_a_tensorflow_that_cannot_do_without_keras_gets_it(tmp_path, end, expected):
    code = """
import sys
finders = len(sys.meta_path)
from tf_cnn.graph.tensorflow_import import import_tensorflow
import_tensorflow()
print('keras' in sys.modules, sys.modules['tensorflow'].__file__, len(sys.meta_path) - finders)
import keras
"""
    path = make_packages(tmp_path, end)
    assert (
        run_python(code, PYTHONPATH=path).out == f'{expected} {tmp_path}/tensorflow/__init__.py 0\n'
    )


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('TF_XLA_FLAGS', '--nosuch'),
        ('TF_XLA_FLAGS', '--tf_xla_auto_jit=x'),
        ('XLA_FLAGS', 'nosuch'),
    ],
)
def test_flags_that_tensorflow_would_end_the_process_for_are_refused(name, value):
    finished = run('--model=trivial --device=cpu', **{name: value})
    assert finished.code == 2
    check_error(finished.err, f'{name}={value}')


def test_where_tensorflow_is_loaded_nothing_changes(tmp_path):
    code = """
import gc, sys, tensorflow
frozen = gc.get_freeze_count()
from tf_cnn.graph.tensorflow_import import import_tensorflow
import_tensorflow()
print('keras' in sys.modules, gc.get_freeze_count() - frozen)
"""
    assert run_python(code, PYTHONPATH=make_packages(tmp_path, GUARDED)).out == 'True 0\n'
