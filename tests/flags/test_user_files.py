"""A --model_file and a --variable_mgr_file that cannot be run are refused by file and line; modes
of users, from Python and from files.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark_cnn import BenchmarkCNN
from tests.support.outputs import check_error, check_line, refused
from tests.support.programs import run_main
from tests.support.runs import losses, make_benchmark, run_benchmark
from tf_cnn.cluster.topology import Cluster
from tf_cnn.lab.runs import repeat_key
from tf_cnn.managers.local import VariableMgrLocalReplicated
from tf_cnn.managers.modes import MODES
from tf_cnn.managers.user_modes import register_variable_mgr
from tf_cnn.plan.discovery import check_mode
from tf_cnn.plan.params import RuleContext
from tf_cnn.plan.parsing import make_params

pytestmark = [
    pytest.mark.graph,
    pytest.mark.usefixtures('forget_modes', 'forget_models', 'same_path'),
]


# ---- files that fail -----------------------------------------------------------------------------


_FLAGS = ['--device=cpu', '--batch_size=4', '--num_batches=2', '--num_warmup_batches=0']
_MODEL = """\
from tf_cnn_benchmarks import register_model
def mine(cnn, images, num_classes): {body}
register_model('mine', mine, image_size={size})
"""
_MANAGER = """\
from tf_cnn_benchmarks import VariableMgrLocalReplicated, register_variable_mgr
@register_variable_mgr({arguments})
class Mine(VariableMgrLocalReplicated):
    pass
"""
_GOOD = _MANAGER.format(arguments="'mine', summary='Ours.'")
_BESIDE = 'def divide():\n    1 /\n'
# Files, and what the error names.
_MODEL_FILES = {
    'x = 1': 'register_model',
    'x = (\n': 'line 1: SyntaxError',
    'x = 1\0': 'null bytes',
    '\nimport nothing': "line 2: ModuleNotFoundError: No module named 'nothing'",
    "import json\njson.loads('{')": 'line 2: JSONDecodeError',
    'raise SystemExit(3)': 'line 1: SystemExit: 3',
    "raise ValueError('first\\nsecond')": 'line 1: ValueError: first second',
    'import user_beside': 'line 1: SyntaxError: invalid syntax (user_beside.py, line 2)',
    _MODEL.format(body='pass', size=0): 'line 3: ValueError: image_size=0',
    _MODEL.format(body='pass', size="'8'"): 'line 3: TypeError',
}
_MANAGER_FILES = {
    'x = 1': 'register_variable_mgr',
    f'{_GOOD}1 / 0': 'line 5: ZeroDivisionError',
    **{
        _MANAGER.format(arguments=arguments): f'line 2: {error}'
        for arguments, error in (
            ("'a,b', summary='A.'", "ValueError: 'a,b'"),
            ("'mine', summary='A.', topologies=['ps']", "ValueError: topologies: ['ps']"),
            ("'mine', summary='A.', parameter_device='gpu'", 'ValueError: parameter_device'),
            (
                "'mine', summary='A.', topologies=['peers'], always_synchronous=False",
                'ValueError: always_synchronous=False',
            ),
            ("'mine'", 'TypeError'),
            ("'replicated', summary='A.'", 'ValueError: replicated'),
        )
    },
}


@pytest.fixture
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the folders of users' files from sys.path afterwards."""
    monkeypatch.setattr(sys, 'path', list(sys.path))


def flags_of(path: Path, flag: str) -> list[str]:
    model = ['--model=mine'] if flag == 'model_file' else ['--variable_update=mine']
    return [f'--{flag}={path}', *model, *_FLAGS]


@pytest.mark.parametrize(
    ('flag', 'content', 'fact'),
    [
        *(('model_file', *row) for row in _MODEL_FILES.items()),
        *(('variable_mgr_file', *row) for row in _MANAGER_FILES.items()),
    ],
)
def test_a_file_that_fails_is_one_line_that_names_it(flag, content, fact, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(content)
    (tmp_path / 'user_beside.py').write_text(_BESIDE)
    _, err = run_main(*flags_of(path, flag), code=2)
    check_error(err, f'--{flag}={path}', fact)


def test_a_file_can_be_corrected(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f'{_GOOD}1 / 0\n')
    for _ in range(2):
        run_main(*flags_of(path, 'variable_mgr_file'), code=2)
    path.write_text(_GOOD)
    assert 'Variables:   mine\n' in run_main(*flags_of(path, 'variable_mgr_file'))[0]


def test_a_fault_after_the_file_has_run_is_a_traceback(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(_MODEL.format(body='1 / 0', size=8))
    with pytest.raises(ZeroDivisionError) as caught:
        run_main(*flags_of(path, 'model_file'))
    last_frame = caught.traceback[-1]
    assert (last_frame.path, last_frame.lineno + 1) == (path, 2)


def test_verbose_adds_the_traceback(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text('1 / 0\n')
    out, err = run_main(*flags_of(path, 'model_file'), '--verbose', code=2)
    assert (out, err[:9]) == ('', 'Traceback')
    check_line(err.splitlines()[-1], f'--model_file={path}, line 1: ZeroDivisionError')


# ---- modes ---------------------------------------------------------------------------------------


HEAD = (
    'from tf_cnn_benchmarks import VariableMgr, VariableMgrLocalReplicated, register_variable_mgr\n'
)
CLASS = 'class Mine(VariableMgrLocalReplicated):\n    """Ours."""\n'
DECORATOR = "@register_variable_mgr('mine', summary='Our own.')\n"
MANAGER = HEAD + DECORATOR + CLASS


def write(folder: Path, text: str = MANAGER) -> Path:
    path = folder / 'mine.py'
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_mode_of_python_or_of_a_file_takes_the_steps_of_the_manager_it_extends(tmp_path):
    expected = losses(variable_update='replicated', num_gpus=2)
    file = str(write(tmp_path))
    run = run_benchmark(variable_mgr_file=file, variable_update='mine', num_gpus=2)
    assert run.losses == expected
    assert 'Variables:   mine\n' in run.out

    register_variable_mgr('from_python', summary='Ours.')(VariableMgrLocalReplicated)
    run = run_benchmark(variable_update='from_python', num_gpus=2)
    assert run.losses == expected
    assert run.result.run.variable_mgr_file_sha256 is None


def test_a_name_that_a_mode_has_is_refused():
    for mode in ('parameter_server', 'HOROVOD'):
        with pytest.raises(ValueError, match=mode):
            register_variable_mgr(mode, summary='A')(VariableMgrLocalReplicated)


def test_a_missing_file_is_named_once_and_an_unknown_mode_says_how_to_add_one(tmp_path):
    with refused(f'--variable_mgr_file={tmp_path}/none.py'):
        make_params(variable_mgr_file=f'{tmp_path}/none.py', variable_update='mine')
    with refused('--variable_update=mine', '--variable_mgr_file=FILE'):
        make_params(variable_update='mine')


@pytest.mark.parametrize(
    'topologies',
    [
        ['alone'],
        ['parameter_servers'],
        ['peers'],
        ['alone', 'peers'],
        ('alone', 'parameter_servers', 'peers'),
    ],
)
def test_a_mode_runs_in_its_topologies_and_the_refusal_elsewhere_names_it(topologies):
    register_variable_mgr('mine', summary='A', topologies=topologies)(VariableMgrLocalReplicated)
    params = make_params(variable_update='mine')
    workers = ('a:1', 'b:1')
    for name, cluster in {
        'alone': None,
        'peers': Cluster((), workers, 'worker', 0, 'the flags'),
        'parameter_servers': Cluster(('c:1',), workers, 'worker', 0, 'the flags'),
        'controller': Cluster((), workers, 'controller', 0, 'the flags', ('c:1',)),
    }.items():
        if name in topologies:
            check_mode(params, cluster)
        else:
            with refused('--variable_update=mine', '--variable_update='):
                check_mode(params, cluster)


def test_runs_with_the_same_content_are_repeats_wherever_the_file_is(tmp_path):
    def run_in(folder: str, end: str = '') -> Any:
        path = write(tmp_path / folder, MANAGER.replace('Our own.', f'Our own{end}.'))
        result = run_benchmark(variable_mgr_file=str(path), variable_update='mine').result
        assert result.run.variable_mgr_file_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        MODES.pop('mine')
        return result

    first, same, changed = run_in('a'), run_in('b'), run_in('a', ' new one')
    assert repeat_key(first) == repeat_key(same) != repeat_key(changed)


def test_each_run_of_a_process_has_the_mode_of_its_own_file(tmp_path):
    body = '    def preprocess_device_grads(self, device_grads):\n        raise {}Error\n'
    files = {
        name: str(write(tmp_path / name, MANAGER + body.format(name))) for name in ('Key', 'Index')
    }
    runs = {
        name: make_benchmark(variable_mgr_file=file, variable_update='mine')
        for name, file in files.items()
    }
    for run, error in zip(runs.values(), (KeyError, IndexError), strict=True):
        with pytest.raises(error):
            run.run()


def test_a_file_with_a_renamed_mode_is_refused(tmp_path):
    params = make_params(variable_mgr_file=str(write(tmp_path)), variable_update='mine')
    write(tmp_path, MANAGER.replace('mine', 'renamed'))
    with refused('--variable_update=mine', 'renamed'):
        BenchmarkCNN(params)


@pytest.mark.parametrize('is_in_file', [False, True])
def test_versions_of_a_file_are_compared_in_a_sweep(is_in_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [str(write(Path(name), f'{MANAGER}# {name}\n')) for name in ('a', 'b')]
    request = [
        '--grid=--variable_update=mine,replicated',
        f'--grid=--variable_mgr_file={",".join(files)}',
    ]
    if is_in_file:
        grid = f"variable_update = ['mine', 'replicated']\nvariable_mgr_file = {files}\n"
        (tmp_path / 'versions.toml').write_text(f'[grid]\n{grid}')
        request = ['./versions.toml']
    out, _ = run_main('sweep', '--dry_run', *request, '--', '--model=lenet', '--device=cpu')
    assert out.count(' --variable_mgr_file=') == 4


def test_a_file_of_another_mode_than_the_runs_has_no_effect(tmp_path):
    file = str(write(tmp_path))
    params = make_params(variable_mgr_file=file, variable_update='replicated')
    (line,) = params.ignored_flag_warnings(RuleContext(is_single_process=True, is_residual=False))
    check_line(line, f'--variable_mgr_file={file}', '--variable_update')
    run = run_benchmark(variable_mgr_file=file, variable_update='replicated')
    assert run.result.run.variable_mgr_file_sha256 is None
