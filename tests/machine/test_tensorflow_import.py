"""TensorFlow is imported without Keras, which is imported on first use."""

from pathlib import Path

import pytest

from tests.support.files import write_files
from tests.support.outputs import check_error
from tests.support.programs import run, run_python

pytestmark = pytest.mark.unit

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
