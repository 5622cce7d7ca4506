"""Who may import whom, and what importing does."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(
    path.relative_to(ROOT)
    for path in [
        *ROOT.glob('*.py'),
        *(
            p
            for room in ('cluster', 'managers', 'models', 'training', 'reporting', 'records')
            for p in (ROOT / room).glob('*.py')
        ),
    ]
    if path.name != 'setup.py'
)
OWN = {module.parts[0].removesuffix('.py') for module in MODULES}
# Modules that must work before TensorFlow is there, or do not need it to do their job.
WITHOUT_TENSORFLOW = [
    'tf_cnn_benchmarks',
    'params',
    'flag_table',
    'errors',
    'data_sets',
    'data_folder',
    'array_files',
    'models.catalog',
    'models.registry',
    'models.command',
    'reporting.console',
    'reporting.result',
    'reporting.statistics',
    'training.command',
    'training.schedules',
    'training.step_loop',
    'records',
    'cluster.members',
    'cluster.environments',
    'cluster.command',
    'cluster.launcher',
]
# What a module must not know.
FORBIDDEN = {
    'models': {'params', 'benchmark_cnn', 'step_graph', 'variable_mgr', 'machine', 'reporting', 'input_pipeline'},
    'training': {'params', 'benchmark_cnn', 'step_graph', 'variable_mgr', 'machine', 'models', 'reporting'},
    'reporting': {'benchmark_cnn', 'step_graph', 'variable_mgr', 'machine', 'models', 'input_pipeline', 'tensorflow'},
    'records': {'params', 'benchmark_cnn', 'step_graph', 'variable_mgr', 'machine', 'models', 'input_pipeline'},
    'cluster': {
        'benchmark_cnn',
        'run_state',
        'step_graph',
        'machine',
        'models',
        'managers',
        'variable_mgr',
        'input_pipeline',
    },
    'managers': {
        'params',
        'benchmark_cnn',
        'run_state',
        'step_graph',
        'machine',
        'reporting',
        'input_pipeline',
        'cluster',
    },
    'variable_mgr.py': {'params', 'benchmark_cnn', 'step_graph', 'machine', 'reporting', 'input_pipeline', 'cluster'},
    'packing.py': {
        'params',
        'benchmark_cnn',
        'step_graph',
        'machine',
        'models',
        'managers',
        'variable_mgr',
        'training',
    },
    'staging.py': {
        'params',
        'benchmark_cnn',
        'step_graph',
        'machine',
        'models',
        'managers',
        'variable_mgr',
        'training',
    },
    'run_state.py': {'benchmark_cnn', 'machine', 'models', 'managers', 'variable_mgr', 'input_pipeline'},
    'all_reduce.py': {'params', 'benchmark_cnn', 'step_graph', 'machine', 'models', 'variable_mgr', 'training'},
    'input_pipeline.py': {'params', 'benchmark_cnn', 'step_graph', 'machine', 'models', 'variable_mgr', 'training'},
    'preprocessing.py': {'params', 'benchmark_cnn', 'step_graph', 'machine', 'models', 'variable_mgr', 'training'},
    'step_graph.py': {'params', 'benchmark_cnn', 'run_state', 'reporting', 'records', 'data_sets', 'cluster'},
    'params.py': {'benchmark_cnn', 'step_graph', 'machine', 'tensorflow'},
}


def imports_of(module: Path) -> Iterator[str]:
    """The modules that a file imports, anywhere in it, by their dotted names."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize('module', MODULES, ids=str)
def test_no_module_knows_what_is_none_of_its_business(module: Path) -> None:
    forbidden = FORBIDDEN.get(module.parts[0], set())
    known = {name.split('.')[0] for name in imports_of(module)}
    # The table is where Params comes from.
    known = {'params' if name == 'flag_table' else name for name in known}
    assert not known & forbidden


def test_only_the_command_knows_the_benchmark() -> None:
    users = [str(module) for module in MODULES if 'benchmark_cnn' in set(imports_of(module))]
    assert users == ['tf_cnn_benchmarks.py']


def test_only_one_module_reaches_behind_tensorflows_public_names() -> None:
    users = [
        str(module) for module in MODULES if any(name.startswith('tensorflow.python') for name in imports_of(module))
    ]
    assert users == ['training/instruments.py']


@pytest.mark.parametrize('module', WITHOUT_TENSORFLOW)
def test_importing_loads_no_tensorflow(module: str) -> None:
    code = f'import {module}, sys; assert "tensorflow" not in sys.modules'
    subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT, timeout=60)


def test_importing_everything_leaves_no_trace() -> None:
    names = ', '.join('.'.join(module.with_suffix('').parts).removesuffix('.__init__') for module in MODULES)
    code = (
        'import os, sys, tensorflow.compat.v1 as tf; from absl import flags\n'
        'before = dict(os.environ), set(flags.FLAGS), list(sys.argv)\n'
        f'import {names}\n'
        'assert before == (dict(os.environ), set(flags.FLAGS), list(sys.argv))\n'
        'assert not tf.get_default_graph().get_operations()\n'
    )
    ran = subprocess.run([sys.executable, '-c', code], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ''


def test_modules_stay_short() -> None:
    lengths = {str(module): len((ROOT / module).read_text().splitlines()) for module in MODULES}
    assert {module: length for module, length in lengths.items() if length > 450} == {}
