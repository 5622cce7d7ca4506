"""Who may import whom, what importing does, and which names stand where."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from params.modes import MODES
from params.optimizer_table import OPTIMIZERS

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parent.parent
ROOMS = (
    'cluster',
    'commands',
    'comparison',
    'machine',
    'inputs',
    'managers',
    'models',
    'params',
    'planning',
    'records',
    'results',
    'run',
    'sweeps',
    'training',
)
AT_THE_TOP = ('benchmark_cnn', 'errors', 'preprocessing', 'tf_cnn_benchmarks', 'variable_mgr')
PATHS = [ROOT / f'{name}.py' for name in AT_THE_TOP] + sorted(
    path for room in ROOMS for path in (ROOT / room).glob('*.py')
)


def dotted(path: Path) -> str:
    """The name under which a file is imported."""
    return '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')


MODULES = {dotted(path): path for path in PATHS}
# Modules that must work without TensorFlow.
WITHOUT_TENSORFLOW = [
    'tf_cnn_benchmarks',
    'errors',
    'cluster.agent',
    'cluster.child_process',
    'cluster.discovery',
    'cluster.environments',
    'cluster.hosts',
    'cluster.launcher',
    'cluster.roster',
    'cluster.ssh',
    'cluster.topology',
    'commands.benchmark',
    'commands.checkpoint',
    'commands.cluster',
    'commands.compare',
    'commands.completion',
    'commands.doctor',
    'commands.help',
    'commands.models',
    'commands.predict',
    'commands.records',
    'commands.report',
    'commands.sweep',
    'machine.atomic',
    'machine.cgroups',
    'machine.cuda_driver',
    'machine.cuda_libraries',
    'machine.data_formats',
    'machine.doctor_checks',
    'machine.doctor_process',
    'machine.gpus',
    'machine.meters',
    'machine.missing_gpu',
    'machine.numa',
    'machine.tensorflow_build',
    'machine.processors',
    'machine.quiet',
    'machine.surroundings',
    'machine.tensorflow_import',
    'machine.visible_gpus',
    'inputs.array_files',
    'inputs.catalog',
    'inputs.data_folder',
    'inputs.data_sets',
    'inputs.buffers',
    'inputs.preprocessors',
    'inputs.stages',
    'inputs.tf_data_settings',
    'models.costs',
    'models.model_facts',
    'models.registry',
    'params',
    'params.help_text',
    'params.modes',
    'params.optimizer_table',
    'params.descriptions',
    'records',
    'records.framing',
    'planning.counts',
    'planning.data',
    'planning.environment',
    'planning.found',
    'planning.line',
    'planning.machine',
    'planning.outputs',
    'planning.plan',
    'planning.process_settings',
    'planning.processes',
    'planning.subject',
    'planning.this_process',
    'results.advice',
    'results.document',
    'results.schema',
    'results.benchmark_log',
    'comparison.ratios',
    'comparison.changes',
    'comparison.predict',
    'results.console',
    'comparison.intervals',
    'results.live',
    'comparison.original_logs',
    'comparison.report_page',
    'comparison.regression',
    'results.result',
    'results.sections',
    'results.statistics',
    'results.summary',
    'comparison.tables',
    'run.input_stages',
    'run.schedule',
    'run.step_loop',
    *(dotted(path) for path in PATHS if path.parent.name == 'sweeps'),
    'sweeps.repeat',
    'training.checkpoint_files',
    'training.schedules',
]
# Modules that every room may import.
FOR_ALL_ROOMS = {'machine.atomic', 'machine.tensorflow_import'}
# Runs in a process of its own, and uses the whole program; no module imports it.
CHECKS_OF_THE_PROGRAM = 'machine.doctor_program'
# The rooms and top-level modules that each room may import, directly or through other modules.
MAY_KNOW = {
    'errors': set(),
    'machine': {'errors'},
    'params': {'errors', 'inputs', 'models', 'training', 'records'},
    'records': {'errors', 'params'},
    'training': {'errors'},
    'models': {'errors', 'inputs', 'params', 'training', 'records'},
    'preprocessing': set(),
    'inputs': {'errors', 'preprocessing', 'records', 'training', 'params'},
    'managers': {'errors', 'training', 'params'},
    'variable_mgr': {'errors', 'managers', 'models', 'training', 'params', 'inputs', 'records'},
    'results': {'errors', 'params', 'inputs', 'models', 'training', 'records'},
    'comparison': {'errors', 'params', 'inputs', 'models', 'training', 'records', 'results'},
    'planning': {
        'cluster',
        'errors',
        'machine',
        'inputs',
        'models',
        'params',
        'preprocessing',
        'records',
        'results',
        'training',
    },
    'cluster': {'errors', 'machine', 'params', 'results', 'inputs', 'models', 'training', 'records'},
    'sweeps': {
        'errors',
        'cluster',
        'comparison',
        'machine',
        'params',
        'results',
        'inputs',
        'models',
        'training',
        'records',
    },
}
# The rooms that may read Params: before the plan is made, or to record them.
PARAMS_READERS = {
    'benchmark_cnn',
    'cluster',
    'commands',
    'comparison',
    'machine',
    'params',
    'planning',
    'results',
    'run',
    'sweeps',
}


@functools.cache
def syntax_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path: Path, *, at_runtime: bool = True) -> tuple[str, ...]:
    """The modules that a file imports, anywhere in it, by their dotted names.

    Args:
      path: the file.
      at_runtime: whether to skip imports for type annotations only.
    """
    skipped = set()
    found: list[str] = []
    tree = syntax_of(path)
    for node in ast.walk(tree):
        if at_runtime and isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
            skipped |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += (f'{node.module}.{alias.name}' for alias in node.names if f'{node.module}.{alias.name}' in MODULES)
    return tuple(found)


def reachable(start: str) -> set[str]:
    """Returns the modules of this program that a module imports, directly or not, at any time."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports_of(MODULES[waiting.pop()]):
            if name in MODULES and name not in found:
                found.add(name)
                waiting.append(name)
    return found - {start}


def room_of(module: str) -> str:
    return module.partition('.')[0]


def docstrings(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            # mypy cannot see that a node with a docstring begins with an expression.
            found.add(id(node.body[0].value))  # type: ignore[attr-defined]
    return found


def strings_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of every string of a file that is not a docstring."""
    tree = syntax_of(path)
    skipped = docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.lineno, node.value


def test_the_whole_house_stands_on_one_screen() -> None:
    assert {path.stem for path in ROOT.glob('*.py')} == {*AT_THE_TOP, 'setup'}
    rooms = {path.parent.name for path in ROOT.glob('*/__init__.py')}
    # installed/ is the package around an installation, see setup.py.
    assert rooms == {*ROOMS, 'benchmarks', 'installed', 'tests'}


def test_no_two_classes_and_no_two_modules_share_a_name() -> None:
    paths = [*PATHS, *(ROOT / 'benchmarks').rglob('*.py')]
    classes = [node.name for path in paths for node in syntax_of(path).body if isinstance(node, ast.ClassDef)]
    assert not [name for name, count in Counter(classes).items() if count > 1 and not name.startswith('_')]
    # A subcommand has the name that users write; a session is planned and then opened.
    known = {*(path for path in paths if path.parent.name == 'commands'), ROOT / 'planning/session.py'}
    modules = Counter(path.stem for path in paths if path.stem != '__init__' and path not in known)
    assert not [name for name, count in modules.items() if count > 1]


@pytest.mark.parametrize('module', MODULES)
def test_no_module_knows_what_is_none_of_its_business(module: str) -> None:
    room = room_of(module)
    assert CHECKS_OF_THE_PROGRAM not in imports_of(MODULES[module])
    if room in MAY_KNOW and module != CHECKS_OF_THE_PROGRAM:
        known = {room_of(name) for name in reachable(module) - FOR_ALL_ROOMS} - {room}
        assert known <= MAY_KNOW[room], known - MAY_KNOW[room]


def test_only_few_rooms_know_the_flags() -> None:
    users = {room_of(module) for module, path in MODULES.items() if {'params', 'params.table'} & set(imports_of(path))}
    assert users <= PARAMS_READERS
    # After the plan is made nobody reads a flag.
    assert not [module for module, path in MODULES.items() if room_of(module) == 'run' and 'params' in imports_of(path)]
    assert [
        module for module in MODULES if room_of(module) == 'cluster' and 'params' in imports_of(MODULES[module])
    ] == ['cluster.discovery']


def test_planners_ask_the_environment_and_nothing_else() -> None:
    world = {'glob', 'os', 'pathlib', 'platform', 'shutil', 'socket', 'subprocess', 'sys', 'time'}
    planners = [module for module in MODULES if room_of(module) == 'planning']
    asking = {module for module in planners if world & set(imports_of(MODULES[module]))}
    assert asking == {'planning.environment', 'planning.this_process'}


def test_only_the_command_and_a_check_of_it_know_the_benchmark() -> None:
    users = [module for module, path in MODULES.items() if 'benchmark_cnn' in set(imports_of(path))]
    assert users == ['commands.benchmark', CHECKS_OF_THE_PROGRAM]


def test_only_the_plan_refuses_settings() -> None:
    graph_builders = [
        module
        for module in MODULES
        if room_of(module) in ('managers', 'training', 'preprocessing', 'variable_mgr')
        or module in ('run.build', 'run.step_graph', 'run.evaluation', 'run.state', 'models.layers', 'models.networks')
        or module in ('inputs.pipeline', 'inputs.synthetic', 'inputs.staged', 'inputs.record_pipeline')
        or module in ('inputs.array_pipeline', 'inputs.validation', 'inputs.array_draws')
        or module in ('inputs.device_input', 'inputs.feed_input')
    ]
    raising = [module for module in graph_builders if 'raise UsageError' in MODULES[module].read_text()]
    # The last one finds the checkpoint that a flag names, while the plan is made.
    assert raising == ['training.checkpoint_files']


@pytest.mark.parametrize(
    ('table', 'names'),
    [
        ('params.modes', [name for name in MODES if name not in ('independent', 'horovod')]),
        ('params.optimizer_table', []),
    ],
)
def test_the_names_of_a_table_stand_nowhere_else(table: str, names: list[str]) -> None:
    words = re.compile(rf'\b({"|".join(names)})\b') if names else None
    exact = {*MODES} if table == 'params.modes' else {*OPTIMIZERS} - {'momentum'}
    found = [
        f'{module}:{line}: {text}'
        for module, path in MODULES.items()
        if module != table
        for line, text in strings_in(path)
        if text in exact or (words and words.search(text))
    ]
    assert found == []


def test_only_tables_name_what_they_do_not_import() -> None:
    users = [module for module, path in MODULES.items() if re.search(r'= LazyPackage\(', path.read_text())]
    assert [each for each in users if each != 'machine.tensorflow_import'] == [
        'inputs.catalog',
        'models.zoo',
        'params.modes',
        'params.optimizer_table',
    ]


def test_only_one_module_reaches_behind_tensorflows_public_names() -> None:
    users = [
        module
        for module, path in MODULES.items()
        if any(name.startswith('tensorflow.python') for name in imports_of(path))
    ]
    assert users == ['run.instruments']


@pytest.mark.parametrize('module', WITHOUT_TENSORFLOW)
def test_importing_reaches_no_tensorflow(module: str) -> None:
    found = [name for name in (module, *sorted(_imported_at_once(module))) if _imports_tensorflow(name)]
    assert found == []


def _imported_at_once(start: str) -> set[str]:
    """Returns the modules of this program that importing one imports too, packages included."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        tree = syntax_of(MODULES[waiting.pop()])
        for name in _top_level_imports(tree):
            parts = name.split('.')
            for prefix in ('.'.join(parts[:end]) for end in range(1, len(parts) + 1)):
                if prefix in MODULES and prefix not in found:
                    found.add(prefix)
                    waiting.append(prefix)
    return found


def _top_level_imports(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f'{node.module}.{alias.name}' for alias in node.names)


def _imports_tensorflow(module: str) -> bool:
    return any(name.split('.')[0] == 'tensorflow' for name in _top_level_imports(syntax_of(MODULES[module])))


def test_the_command_and_the_plan_load_no_tensorflow() -> None:
    names = ', '.join(WITHOUT_TENSORFLOW)
    code = f'import {names}, sys; assert "tensorflow" not in sys.modules'
    subprocess.run([sys.executable, '-c', code], check=True, cwd=ROOT, timeout=60)


def test_importing_everything_leaves_no_trace() -> None:
    code = (
        'import os, sys, tensorflow.compat.v1 as tf; from absl import flags\n'
        'before = dict(os.environ), set(flags.FLAGS), list(sys.argv)\n'
        f'import {", ".join(MODULES)}\n'
        'assert before == (dict(os.environ), set(flags.FLAGS), list(sys.argv))\n'
        'assert not tf.get_default_graph().get_operations()\n'
    )
    ran = subprocess.run([sys.executable, '-c', code], cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == ''
