"""Which room may import which, and which modules start without TensorFlow."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
# Imports that are for type annotations alone do not count. Rooms that are no key see everything below the commands.
MAY_IMPORT = {
    'cluster': {'errors', 'machine', 'params', 'results'},
    'comparison': {'errors', 'params', 'results'},
    'errors': set(),
    'inputs': {'errors', 'machine', 'params', 'preprocessing', 'records', 'training'},
    'machine': {'errors'},
    'managers': {'errors', 'params', 'training'},
    'models': {'errors', 'inputs', 'machine', 'training'},
    'params': {'errors', 'inputs', 'machine', 'models', 'training'},
    'planning': {'cluster', 'errors', 'inputs', 'machine', 'models', 'params', 'results', 'training'},
    'preprocessing': set(),
    'records': {'errors', 'machine'},
    'results': {'errors', 'inputs', 'machine', 'params'},
    'sweeps': {'cluster', 'comparison', 'errors', 'machine', 'models', 'params', 'results'},
    'training': {'errors', 'machine'},
    'variable_mgr': {'managers', 'params'},
}
WITHOUT_TENSORFLOW = ('commands', 'comparison', 'params', 'planning', 'records', 'results', 'sweeps')
# The parts of planning that a run with TensorFlow asks last; and a process of `doctor` that uses the whole program.
WITH_TENSORFLOW, DOCTOR = ('tf_cnn.planning.session', 'tf_cnn.planning.step'), 'tf_cnn/machine/doctor_program.py'


def imported(path: Path) -> set[str]:
    """Returns the dotted names of the modules that a file imports at run time, anywhere in it."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
            node.body = []
    nodes = [*ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or '' for node in nodes if isinstance(node, ast.ImportFrom)}


@pytest.mark.parametrize('room', [*MAY_IMPORT, 'run'])
def test_a_room_imports_only_what_it_may_know(room: str) -> None:
    paths = {*ROOT.glob(f'{room}.py'), *ROOT.glob(f'{room}/*.py')} - {ROOT / DOCTOR}
    found = {name for path in paths for name in imported(path)}
    ours = {path.stem for path in [*ROOT.glob('*.py'), *(init.parent for init in ROOT.glob('*/__init__.py'))]}
    allowed = MAY_IMPORT.get(room, ours - {'benchmark_cnn', 'commands', 'sweeps', 'tests', 'tf_cnn_benchmarks'})
    assert {name.split('.')[0] for name in found} & ours - {room} <= allowed
    # What no public function does: write a trace, and say whether oneDNN is on.
    private = {'run': {'tensorflow.python.client'}, 'machine': {'tensorflow.python.util'}}
    assert {name for name in found if name.startswith('tensorflow.python')} <= private.get(room, set())


def test_what_is_needed_before_a_run_imports_no_tensorflow() -> None:
    paths = [path.relative_to(ROOT) for room in WITHOUT_TENSORFLOW for path in (ROOT / room).glob('*.py')]
    names = {'.'.join(path.with_suffix('').parts).removesuffix('.__init__') for path in paths} - {*WITH_TENSORFLOW}
    names |= {'tf_cnn.cluster.launcher', 'models.registry', 'sys'}
    code = f'import {", ".join(names)}; sys.exit("tensorflow" in sys.modules)'
    subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT, timeout=60)
