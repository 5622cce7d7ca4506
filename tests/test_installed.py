"""An installation from the wheel has two packages, which work beside foreign modules with the names
of a checkout's modules.
"""

import ast
import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
import sysconfig
import venv
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.support.documents import python_block
from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, ROOT, run_process
from tf_cnn.machine.run_environment import short_commit

pytestmark = pytest.mark.distributed

NOT_NEEDED = shutil.ignore_patterns(
    '.*', 'tests', 'docs', 'benchmarks', 'data', 'build', '__pycache__', '*.egg-info'
)
PACKAGES = (ROOT / 'models', ROOT / 'tf_cnn')
TOP = sorted(path for path in ROOT.glob('*.py') if path.name != 'setup.py')
MANAGER = python_block('extending.md', 'after_backward.py')
FOREIGN = 'raise SystemExit("the module of somebody else was imported")\n'


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('wheel')
    # A copy keeps the build out of the checkout.
    shutil.copytree(ROOT, folder / 'copy', ignore=NOT_NEEDED)
    git(folder / 'copy', 'init', '--quiet')
    git(folder / 'copy', 'remote', 'add', 'origin', 'git@github.com:a-team/benchmarks.git')
    author = ['-c', 'user.name=A', '-c', 'user.email=a@example.org']
    git(folder / 'copy', *author, 'commit', '--quiet', '--allow-empty', '-mA')
    options = ['--no-deps', '--no-index', '--no-build-isolation', f'--wheel-dir={folder}']
    pip('wheel', *options, folder / 'copy')
    (path,) = folder.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns bin/ of an environment with this wheel and the dependencies of the tests."""
    folder = tmp_path_factory.mktemp('environment')
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob('lib/python*/site-packages')
    # Python does not read .pth files in these folders, so it does not find an editable installation
    # of a checkout.
    (packages / 'dependencies.pth').write_text(
        '\n'.join(sysconfig.get_path(name) for name in ('purelib', 'platlib'))
    )
    bin_ = folder / 'bin'
    options = ['--no-deps', '--no-index', '--ignore-installed']
    pip(f'--python={bin_ / "python"}', 'install', *options, wheel)
    return bin_


@pytest.fixture
def hostile(tmp_path: Path) -> dict[str, str]:
    """Makes foreign modules with the names of our top modules; returns a variable that finds them
    first.
    """
    for name in ('models', 'errors', 'results', *(path.stem for path in TOP)):
        if name != 'tf_cnn_benchmarks':
            (tmp_path / f'{name}.py').write_text(FOREIGN)
    return {'PYTHONPATH': str(tmp_path)}


def output_of(command: Sequence[object], cwd: Path, environ: dict[str, str]) -> str:
    process = run_process(command, cwd, **environ)
    assert process.code == 0, process.err
    return process.out


def git(folder: Path, *arguments: str) -> str:
    return output_of(['git', *arguments], folder, {}).strip()


def pip(*arguments: object) -> None:
    command = [sys.executable, '-m', 'pip', '--disable-pip-version-check', '--quiet']
    output_of([*command, *arguments], ROOT, {})


def test_the_wheel_has_two_packages_with_all_files_of_the_program_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    (information,) = {name.split('/')[0] for name in names} - {'tf_cnn', 'tf_cnn_benchmarks'}
    assert information.endswith('.dist-info')
    files = (path for room in PACKAGES for path in room.rglob('*') if path.is_file())
    here = {path.relative_to(ROOT) for path in (*files, *TOP) if '__pycache__' not in path.parts}
    here -= {Path('tf_cnn_benchmarks.py')}
    packaged = {f'tf_cnn/{path}'.replace('tf_cnn/tf_cnn/', 'tf_cnn/') for path in here}
    command = {f'tf_cnn_benchmarks/{name}' for name in ('__init__.py', '__main__.py', 'py.typed')}
    installed = {name for name in names if '.dist-info/' not in name}
    assert installed == {*packaged, *command, 'tf_cnn/commit.txt'}


def test_the_metadata_names_what_is_installed_and_completes_the_links_of_the_readme(wheel):
    archive = zipfile.ZipFile(wheel)
    files = {name.split('/')[1]: name for name in archive.namelist() if '.dist-info/' in name}
    assert archive.read(files['top_level.txt']).split() == [b'tf_cnn', b'tf_cnn_benchmarks']
    text = archive.read(files['METADATA']).decode()
    assert {'Author', 'Keywords'} <= {line.partition(':')[0] for line in text.splitlines()}
    assert 'Classifier: Development Status :: ' in text
    pictures, links = (re.findall(rf'{sign}\[[^]]*\]\((.*?)\)', text) for sign in ('!', r'\s'))
    assert len(pictures) == 2
    assert len(links) > 10
    origin = 'a-team/benchmarks'
    assert all(url.startswith(f'https://raw.githubusercontent.com/{origin}/') for url in pictures)
    assert all(url.startswith('https://github.com/') for url in links)
    assert f'Project-URL: Source, https://github.com/{origin}\n' in text


# Loads every module and every name in the tables, then runs a model of a file in a mode of this
# program.
PROGRAM_OF_A_USER = """
import importlib, pkgutil, sys
import tf_cnn
import tf_cnn_benchmarks
from tf_cnn_benchmarks import BenchmarkCNN, make_params

for module in pkgutil.walk_packages(tf_cnn.__path__, 'tf_cnn.'):
    importlib.import_module(module.name)
for name in tf_cnn_benchmarks.__all__:
    getattr(tf_cnn_benchmarks, name)
from tf_cnn.cli.subcommands import SUBCOMMANDS
from tf_cnn.inputs.catalog import INPUTS
from tf_cnn.managers.modes import MANAGERS
from tf_cnn.training.config import OPTIMIZERS

for path in (
    *MANAGERS.values(),
    *(row.rule for row in OPTIMIZERS.values()),
    *(row.pipeline for row in INPUTS),
    *(f'tf_cnn.cli.{name}:main' for name in SUBCOMMANDS),
):
    pkgutil.resolve_name(path)
import after_backward

workload = {'model_file': 'my_model.py', 'model': 'narrow', 'device': 'cpu', 'num_batches': 2}
params = make_params(**workload, variable_update='after_backward', num_gpus=2)
benchmark = BenchmarkCNN(params)
assert benchmark.run()['num_steps'] == 2
print(benchmark.result.run.variable_update)
print({'models', 'variable_mgr', 'preprocessing', 'benchmark_cnn', 'errors'} & {*sys.modules})
"""


def test_every_module_and_every_name_of_the_wheel_loads_and_python_code_runs_its_model_and_mode(
    binaries, hostile, tmp_path
):
    (tmp_path / 'after_backward.py').write_text(MANAGER)
    (tmp_path / 'my_layers.py').write_text('WIDTH = 3\n')
    (tmp_path / 'my_model.py').write_text(
        'import my_layers\nfrom tf_cnn_benchmarks import register_model\n'
        'def narrow(cnn, x, num_classes):\n'
        '    x = cnn.relu(cnn.conv(x, my_layers.WIDTH, 5, "conv", strides=8))\n'
        '    return cnn.dense(cnn.global_avg_pool(x), num_classes, "logits")\n'
        'register_model("narrow", narrow, data_set="imagenet", image_size=32, batch_size=2, '
        'learning_rate=0.1)\n'
    )
    out = output_of([binaries / 'python', '-c', PROGRAM_OF_A_USER], tmp_path, hostile)
    assert out.endswith('after_backward\nset()\n')


def test_a_type_checker_sees_the_types_of_the_public_names(binaries, tmp_path):
    (tmp_path / 'program.py').write_text(
        'from pathlib import Path\n'
        'from tf_cnn_benchmarks import BenchmarkCNN, Result, VariableMgr, make_params, '
        'read_result, register_model\n'
        'reveal_type(BenchmarkCNN(make_params(model="lenet")).result)\n'
        'reveal_type(read_result(Path("r.json")))\nreveal_type(VariableMgr.get_devices)\n'
        'reveal_type(register_model)\ndef rate(result: Result) -> float | None:\n'
        '    return result.images_per_second\nmake_params(3)\n'
    )
    # mypy is in the environment of the tests, and looks into the environment with the wheel.
    flags = ['--strict', f'--python-executable={binaries / "python"}']
    checked = run_process([sys.executable, '-m', 'mypy', *flags, 'program.py'], tmp_path).out
    assert re.findall(r'Revealed type is "([^"(]*)', checked) == [
        'tf_cnn.results.document.Result',
        ' | '.join(
            f'tf_cnn.results.document.{name}' for name in ('Result', 'CommandResult', 'Failure')
        ),
        'def ',
        'def ',
    ], checked
    assert re.findall(r'^(\S+): error: (.*?)  ', checked, re.MULTILINE) == [
        ('program.py:9', 'Too many arguments for "make_params"')
    ], checked


def test_every_package_that_the_project_imports_is_declared(wheel):
    archive = zipfile.ZipFile(wheel)
    (path,) = (name for name in archive.namelist() if name.endswith('.dist-info/METADATA'))
    declared = defaultdict(set)
    for line in re.findall(
        r'^Requires-Dist: (.+)$', archive.read(path).decode(), flags=re.MULTILINE
    ):
        (extra,) = re.findall(r'extra == .(\w+)', line) or ['']
        declared[extra].add(canonical(re.findall(r'^[\w.-]+', line)[0]))
    program = [*TOP, *(path for room in PACKAGES for path in room.rglob('*.py'))]
    tests = [ROOT / 'setup.py', *(ROOT / 'tests').rglob('*.py')]
    packages = packages_of(program)
    assert declared[''] <= packages
    assert packages <= declared[''] | declared['records'] | declared['report'] | declared['cuda']
    assert packages_of(tests) <= declared[''] | declared['all'] | declared['dev']


def packages_of(paths: Iterable[Path]) -> set[str]:
    """Returns the third-party packages that modules import."""
    our_modules = {path.stem for path in [*ROOT.iterdir(), *(ROOT / 'tests').rglob('*.py')]}
    imported = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition('.')[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.partition('.')[0])
    # Several packages of Google share this name. Horovod has no wheel, see docs/launchers.md.
    packages = {**importlib.metadata.packages_distributions(), 'google': ['protobuf']}
    third_party = imported - our_modules - {*sys.stdlib_module_names} - {'horovod'}
    return {canonical(packages.get(name, [name])[0]) for name in third_party}


def canonical(package: str) -> str:
    return re.sub(r'[-_.]+', '-', package).lower()


def test_a_missing_package_is_named_with_the_command_that_installs_it(binaries, tmp_path):
    (tmp_path / 'PIL.py').write_text(
        'raise ModuleNotFoundError("No module named PIL", name="PIL")\n'
    )
    records = [binaries / 'tf_cnn_benchmarks', 'records', '--input=a', '--output=b']
    refusal = refusal_of(records, PYTHONPATH=str(tmp_path))
    assert refusal.endswith(f'run: {quoted(binaries / "python")} -m pip install pillow')
    # A checkout, started with a Python without packages.
    venv.create(tmp_path / 'bare', symlinks=True)
    line = refusal_of([tmp_path / 'bare/bin/python', PROGRAM[1], '--model=lenet'])
    assert f'; run: {quoted(tmp_path / "bare/bin/python")} -m pip install ' in line


def refusal_of(command: Sequence[object], **environ: str) -> str:
    """Returns the single line of the refusal of a command."""
    process = run_process(command, Path('/'), **environ)
    assert (process.code, process.out) == (2, ''), process.err
    (line,) = process.err.splitlines()
    return check_line(line, 'not installed')


def test_the_command_runs_beside_foreign_modules_of_the_same_names(
    wheel, binaries, hostile, tmp_path
):
    (tmp_path / 'my_mode.py').write_text(MANAGER)
    command = binaries / 'tf_cnn_benchmarks'
    commit = zipfile.ZipFile(wheel).read('tf_cnn/commit.txt').decode().strip()
    # The copy has this checkout's changes.
    assert commit.removesuffix('-dirty') == git(wheel.parent / 'copy', 'rev-parse', 'HEAD')
    version = rf'tf_cnn_benchmarks \d+\.\d+\.\d+ \(commit {short_commit(commit)}, TensorFlow '
    for start in ([command], [binaries / 'python', '-m', 'tf_cnn_benchmarks']):
        assert re.match(version, output_of([*start, '--version'], tmp_path, hostile))
    mode = '--variable_mgr_file=my_mode.py'
    for words, text in ((f'--help {mode}', 'after_backward'), ('models resnet50', 'resnet50')):
        assert text in output_of([command, *words.split()], tmp_path, hostile)
    # A sweep starts further processes.
    grid = '--grid=--variable_update=after_backward --grid=shape=1*2'
    run = f'{mode} --model=lenet --device=cpu --batch_size=2 --num_batches=2'
    sweep = f'sweep {grid} --output=sweep -- {run}'
    answer = output_of([command, *sweep.split()], tmp_path, hostile)
    assert re.match(r'lenet, after_backward, batch 2, 1\*2: [! ]*[1-9]', answer)
    (result,) = tmp_path.glob('sweep/results/*.json')
    document = json.loads(result.read_text())
    assert document['program']['git_commit'] == commit
    assert document['run']['variable_update'] == 'after_backward'
    digest = hashlib.sha256(MANAGER.encode()).hexdigest()
    assert document['run']['variable_mgr_file_sha256'] == digest


def test_python_code_uses_the_package_and_may_spawn_processes(binaries, hostile, tmp_path):
    (tmp_path / 'program.py').write_text(
        'import multiprocessing, sys, tf_cnn_benchmarks\nif __name__ == "__main__":\n'
        '    assert tf_cnn_benchmarks.__version__[0].isdigit()\n'
        '    assert {"BenchmarkCNN", "make_params"} <= {*dir(tf_cnn_benchmarks)}\n'
        '    assert not hasattr(tf_cnn_benchmarks, "Benchmark")\n'
        'from tf_cnn_benchmarks import UsageError, make_params, register_model\n'
        'assert "tensorflow" not in sys.modules\ndef size_of(number):\n'
        '    return make_params(batch_size=number).run.batch_size\nif __name__ == "__main__":\n'
        '    with multiprocessing.get_context("spawn").Pool(1) as pool:\n'
        '        print(pool.map_async(size_of, [3]).get(60))\n'
    )
    assert output_of([binaries / 'python', 'program.py'], tmp_path, hostile) == '[3]\n'
    # Beside modules of the same names, whichever is imported first.
    (tmp_path / 'errors.py').write_text('')
    ours = 'from tf_cnn_benchmarks import make_params'
    for code in (f'import errors; {ours}', f'{ours}; import errors'):
        command = [binaries / 'python', '-c', f'{code}; print(errors.__file__)']
        assert output_of(command, tmp_path, hostile) == f'{tmp_path / "errors.py"}\n'
