"""TensorFlow is imported without Keras, which is there as soon as somebody uses it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent.parent
IMPORT = (
    'import gc, sys; from tf_cnn.graph.tensorflow_import import import_tensorflow; '
    'import_tensorflow(); '
)
# The end of TensorFlow's own __init__.py, and a TensorFlow that cannot do without Keras.
GUARDED = (
    'try:\n  importlib.import_module("keras.src.optimizers")\nexcept (ImportError, '
    'AttributeError):\n  pass\n'
)
UNGUARDED = 'importlib.import_module("keras.src.optimizers")\n'


def python(code: str, *folders: Path) -> str:
    """Runs code in a process of its own, with these folders before all others, and returns what it
    prints.
    """
    paths = [*map(str, folders), str(ROOT)]
    command = [sys.executable, '-c', f'import sys; sys.path[:0] = {paths!r}; {code}']
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd='/', check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def make_packages(folder: Path, end: str) -> Path:
    """Writes packages named tensorflow, whose __init__.py ends like this, and keras; returns their
    folder.
    """
    for name in ('tensorflow/compat/v1', 'keras/src/optimizers'):
        (folder / name).mkdir(parents=True)
        for package in [folder / name, *(folder / name).parents][:3]:
            (package / '__init__.py').touch()
    (folder / 'tensorflow' / '__init__.py').write_text(f'import importlib\n{end}')
    return folder


def test_a_run_imports_neither_keras_nor_what_keras_finds() -> None:
    flags = [
        '--model=trivial',
        '--device=cpu',
        '--batch_size=1',
        '--num_batches=1',
        '--num_warmup_batches=0',
    ]
    code = (
        f'from tf_cnn_benchmarks import main; assert main({flags!r}) == 0; import gc; '
        'print("loaded:", *sorted({"keras", "matplotlib", "sklearn", "tf_keras"} & '
        '{*sys.modules})); print("collects:", gc.isenabled()); import tensorflow as tf; '
        'print(tf.keras.layers.Dense(3)(tf.ones([2, 4])).shape); import keras; '
        'print(keras.optimizers.SGD.__name__)'
    )
    *_, loaded, collects, shape, optimizer = python(code).splitlines()
    assert (loaded, collects, shape, optimizer) == ('loaded:', 'collects: True', '(2, 3)', 'SGD')


@pytest.mark.parametrize(
    ('end', 'expected'),
    [(GUARDED, 'False'), (UNGUARDED, 'True'), (f'import keras\n{GUARDED}', 'True')],
    ids=['guarded', 'unguarded', 'imports it itself'],
)
def test_a_tensorflow_that_cannot_do_without_keras_gets_it(
    tmp_path: Path, end: str, expected: str
) -> None:
    folder = make_packages(tmp_path, end)
    show = (
        'print("keras" in sys.modules, sys.modules["tensorflow"].__file__, len(sys.meta_path)); '
        'import keras'
    )
    before = python('print(len(sys.meta_path))', folder)
    assert python(IMPORT + show, folder) == f'{expected} {folder}/tensorflow/__init__.py {before}'


def test_where_tensorflow_is_loaded_nothing_changes(tmp_path: Path) -> None:
    folder = make_packages(tmp_path, GUARDED)
    before = 'import gc, tensorflow; before = gc.get_freeze_count(); '
    assert (
        python(
            f'{before}{IMPORT} print("keras" in sys.modules, gc.get_freeze_count() - before)',
            folder,
        )
        == 'True 0'
    )
