"""The order of the rooms: a room imports only from lower floors, and some import no TensorFlow."""

import ast
import functools
from itertools import chain
from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_python

pytestmark = pytest.mark.unit

# From the ground up. A room imports from lower floors, and on its floor from rooms to its left.
# Names for callers of the original stand on the last floor: nothing in the program needs them.
FLOORS = (
    ('system',),
    ('flags',),
    ('graph', 'machine'),
    ('training', 'preprocessing', 'inputs', 'models', 'variable_mgr', 'managers'),
    ('results',),
    ('cluster',),
    ('plan', 'step', 'run', 'benchmark_cnn'),
    ('launch', 'lab', 'convert', 'doctor'),
    ('cli', 'cnn_util', 'tf_cnn_benchmarks'),
)
ROOMS = [*chain(*FLOORS)]


def files_of(room: str) -> list[Path]:
    return [
        path
        for folder in (ROOT, ROOT / 'tf_cnn')
        for path in (*folder.glob(f'{room}.py'), *folder.glob(f'{room}/*.py'))
    ]


@functools.cache
def imported(path: Path) -> set[str]:
    """Returns the dotted names of modules that a file imports at run time or names in a string."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
            node.body = []
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module='tf_cnn', names=aliases):
                names |= {f'tf_cnn.{alias.name}' for alias in aliases}
            case ast.ImportFrom(module=str(name)):
                names.add(name)
            case ast.Constant(value=str(text)) if (
                ':' in text and text.replace(':', '.').replace('.', '_').isidentifier()
            ):
                names.add(text.partition(':')[0])
    return names


def test_every_room_stands_on_one_floor():
    packages = [path.parent.name for path in ROOT.glob('tf_cnn/*/__init__.py')]
    modules = [path.stem for path in ROOT.glob('*.py') if path.stem != 'setup']
    assert sorted(ROOMS) == sorted(['models', *packages, *modules])


@pytest.mark.parametrize('room', ROOMS)
def test_a_room_imports_only_from_below_and_from_its_left(room):
    names = {name for path in files_of(room) for name in imported(path)}
    used = {name.removeprefix('tf_cnn.').partition('.')[0] for name in names} & {*ROOMS}
    if room == 'variable_mgr':
        # The documents prescribe that it has the names of all managers; it imports them lazily.
        used -= {'managers'}
    assert used - {room} <= {*ROOMS[: ROOMS.index(room)]}


def test_below_the_plan_only_the_groups_of_flags_know_all_flags():
    rooms = ROOMS[: ROOMS.index('plan')]
    files = {path for room in rooms for path in files_of(room) if 'tf_cnn.plan' in path.read_text()}
    assert files == {path for path in files if path.name == 'config.py'}
    assert not [path for path in files for name in imported(path) if name.startswith('tf_cnn.plan')]


def test_private_modules_of_tensorflow_are_imported_in_few_places():
    for room in {*ROOMS} - {'run', 'graph'}:
        for path in files_of(room):
            assert not [name for name in imported(path) if 'tensorflow.python' in name], path


def test_modules_that_answer_before_a_run_import_no_tensorflow():
    rooms = ('cli', 'convert', 'flags', 'lab', 'results')
    paths = [path for room in rooms for path in files_of(room)]
    parts = [
        path.relative_to(ROOT).with_suffix('').parts
        for path in (*paths, *ROOT.glob('tf_cnn/*/config.py'))
    ]
    names = {'.'.join(part).removesuffix('.__init__') for part in parts}
    # A refused flag needs no other modules.
    names |= {
        'tf_cnn.launch.launcher',
        'tf_cnn.plan.plan',
        'tf_cnn.plan.parsing',
        'models.registry',
    }
    run_python(f'import {", ".join(names)}, sys; assert "tensorflow" not in sys.modules')
