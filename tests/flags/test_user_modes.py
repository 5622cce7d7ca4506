"""Modes of users: their files are read without TensorFlow, run when TensorFlow is there, and
refused in one line.
"""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from tests.support.outputs import check_line, refused
from tests.support.runs import losses, made, ran
from tf_cnn.cluster.discovery import check_mode
from tf_cnn.cluster.topology import Cluster
from tf_cnn.compare.repeats import repeat_key
from tf_cnn.managers.local import VariableMgrLocalReplicated
from tf_cnn.managers.modes import MODES
from tf_cnn.managers.user_modes import register_variable_mgr
from tf_cnn.run.params import RuleContext
from tf_cnn.run.parsing import make_params
from variable_mgr import VariableMgr

pytestmark = [pytest.mark.graph, pytest.mark.usefixtures('forget_modes', 'forget_models')]

ROOT = Path(__file__).resolve().parents[2]
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


def test_a_mode_takes_the_steps_of_the_manager_that_it_extends_from_python_and_from_a_file(
    tmp_path: Path,
) -> None:
    expected = losses(variable_update='replicated', num_gpus=2)
    file = str(write(tmp_path))
    run = ran(variable_mgr_file=file, variable_update='mine', num_gpus=2)
    assert run.losses == expected
    assert 'Variables:   mine\n' in run.out

    register_variable_mgr('from_python', summary='Ours.')(VariableMgrLocalReplicated)
    run = ran(variable_update='from_python', num_gpus=2)
    assert run.losses == expected
    assert run.result.run.variable_mgr_file_sha256 is None


def test_a_file_is_read_without_tensorflow_and_without_running_it(tmp_path: Path) -> None:
    path = write(tmp_path, f'{MANAGER}raise SystemExit("it ran")\n')
    code = (
        'import sys; from tf_cnn.run.parsing import parse_argv; from tf_cnn.managers.modes import '
        'MODES; parse_argv(sys.argv[1:]); print(MODES["mine"].summary, "tensorflow" in sys.modules)'
    )
    command = [sys.executable, '-c', code, '--variable_update=mine', f'--variable_mgr_file={path}']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == 'Our own. False\n', done.stderr


# By name: the content of the file, and what the error names besides the file.
WRONG_FILES: dict[str, tuple[str, list[str]]] = {
    'no mode': ('x = 1\n', ['@register_variable_mgr']),
    'syntax': (f'{HEAD}def f(:\n', ['line 2', 'SyntaxError']),
    'a name that exists': (
        f"{HEAD}@register_variable_mgr('Replicated', summary='A')\n{CLASS}",
        ['line 2', 'Replicated'],
    ),
    'a name that is no word': (
        f"{HEAD}@register_variable_mgr('a,b', summary='A')\n{CLASS}",
        ['line 2', "'a,b'"],
    ),
    'no summary': (
        f"{HEAD}@register_variable_mgr('mine', summary=' ')\n{CLASS}",
        ['line 2', 'summary='],
    ),
    'an unknown argument': (
        f"{HEAD}@register_variable_mgr('mine', about='A')\n{CLASS}",
        ['line 2', 'about'],
    ),
    'an unknown topology': (
        f"{HEAD}@register_variable_mgr('mine', summary='A', topologies=['ps'])\n{CLASS}",
        ['line 2', "['ps']", 'parameter_servers'],
    ),
    'a variable as argument': (
        f"{HEAD}NAME = 'mine'\n@register_variable_mgr(NAME, summary='A')\n{CLASS}",
        ['line 3', 'literals'],
    ),
    'asynchronous peers': (
        f"{HEAD}@register_variable_mgr('mine', summary='A', topologies=['peers'], "
        f'always_synchronous=False)\n{CLASS}',
        ['line 2', 'always_synchronous=False', 'peers'],
    ),
    'no manager': (f'{HEAD}{DECORATOR}class Mine:\n    pass\n', ['line 2', 'Mine', 'VariableMgr']),
    'a function': (
        f'{HEAD}{DECORATOR}def mine(parts):\n    pass\n',
        ['line 2', 'mine', 'VariableMgr'],
    ),
    'a manager without methods': (
        f'{HEAD}{DECORATOR}class Mine(VariableMgr):\n    pass\n',
        ['line 2', 'create'],
    ),
    'a file that raises': (f'{MANAGER}1 / 0\n', ['line 5', 'ZeroDivisionError']),
    'a manager that raises': (
        f'{MANAGER}    def create(self, *arguments):\n        raise KeyError("no")\n',
        ['line 6', 'KeyError'],
    ),
    'a manager that returns too little': (
        f'{MANAGER}    def preprocess_device_grads(self, device_grads):\n        return [[]]\n',
        ['ValueError'],
    ),
    'a condition': (
        f'{HEAD}if not VariableMgr:\n    {DECORATOR}    class Mine:\n        pass\n',
        ['mine'],
    ),
}


@pytest.mark.parametrize('case', WRONG_FILES)
def test_a_wrong_file_is_refused_in_one_line_and_can_be_corrected(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, facts = WRONG_FILES[case]
    path = write(tmp_path, content)
    flags = [
        f'--variable_mgr_file={path}',
        '--variable_update=mine',
        '--model=lenet',
        '--device=cpu',
    ]
    flags += ['--batch_size=2', '--num_batches=1', '--num_warmup_batches=0']
    assert tf_cnn_benchmarks.main(flags) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if 'error: ' in line]
    assert len(lines) == 1, err
    line = check_line(lines[0], *facts)
    assert line.startswith(f'tf_cnn_benchmarks: error: --variable_mgr_file={path}')
    assert 'total images/sec' not in out
    write(tmp_path)
    assert tf_cnn_benchmarks.main(flags) == 0
    assert 'Variables:   mine\n' in capsys.readouterr().out


def test_wrong_use_from_python_is_refused_where_it_stands() -> None:
    for taken in ('parameter_server', 'HOROVOD'):
        with pytest.raises(ValueError, match=taken):
            register_variable_mgr(taken, summary='A')(VariableMgrLocalReplicated)
    for wrong in (int, print, VariableMgr):
        with pytest.raises(TypeError, match=wrong.__name__):
            # That mypy refuses it too is the point.
            register_variable_mgr('mine', summary='A')(wrong)  # type: ignore[type-var]
    assert 'mine' not in MODES

    class Mine(VariableMgrLocalReplicated):
        def each_tower_has_variables(self) -> bool:
            raise RuntimeError('not today')

    register_variable_mgr('mine', summary='A')(Mine)
    run = made(variable_update='mine')
    with refused('--variable_update=mine', 'RuntimeError: not today'):
        run.run()


def test_a_missing_file_is_named_once_and_an_unknown_mode_says_how_to_add_one(
    tmp_path: Path,
) -> None:
    with refused(f'--variable_mgr_file={tmp_path}/none.py'):
        make_params(variable_mgr_file=f'{tmp_path}/none.py', variable_update='mine')
    with refused('--variable_update=mine', '--variable_mgr_file=FILE'):
        make_params(variable_update='mine')


ALONE, PEERS = None, Cluster((), ('a:1', 'b:1'), 'worker', 0, 'the flags')
SERVERS = Cluster(('c:1',), ('a:1', 'b:1'), 'worker', 0, 'the flags')
CONTROLLED = Cluster((), ('a:1', 'b:1'), 'controller', 0, 'the flags', ('c:1',))


@pytest.mark.parametrize(
    ('topologies', 'places'),
    [
        (['alone'], [ALONE]),
        (['parameter_servers'], [SERVERS]),
        (['peers'], [PEERS]),
        (['alone', 'peers'], [ALONE, PEERS]),
        (('alone', 'parameter_servers', 'peers'), [ALONE, PEERS, SERVERS]),
    ],
)
def test_a_mode_runs_in_its_topologies_and_the_refusal_elsewhere_names_it(
    topologies: list[str], places: list[Cluster | None]
) -> None:
    register_variable_mgr('mine', summary='A', topologies=topologies)(VariableMgrLocalReplicated)
    params = make_params(variable_update='mine')
    for place in (ALONE, PEERS, SERVERS, CONTROLLED):
        if place in places:
            check_mode(params, place)
        else:
            with refused('--variable_update=mine', '--variable_update='):
                check_mode(params, place)


def test_runs_with_the_same_content_are_repeats_wherever_the_file_is(tmp_path: Path) -> None:
    def run_in(folder: str, end: str = '') -> Any:
        path = write(tmp_path / folder, MANAGER.replace('Our own.', f'Our own{end}.'))
        result = ran(variable_mgr_file=str(path), variable_update='mine').result
        assert result.run.variable_mgr_file_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        MODES.pop('mine')
        return result

    first, same, changed = run_in('a'), run_in('b'), run_in('a', ' new one')
    assert repeat_key(first) == repeat_key(same) != repeat_key(changed)


def test_each_run_of_a_process_has_the_mode_of_its_own_file(tmp_path: Path) -> None:
    body = '    def preprocess_device_grads(self, device_grads):\n        raise {}Error\n'
    files = [str(write(tmp_path / name, MANAGER + body.format(name))) for name in ('Key', 'Index')]
    runs = [made(variable_mgr_file=file, variable_update='mine') for file in files]
    for run, file, name in zip(runs, files, ('KeyError', 'IndexError'), strict=True):
        with refused(f'--variable_mgr_file={file}, line 6', name):
            run.run()
    params = make_params(
        variable_mgr_file=files[0], variable_update='mine', model='lenet', device='cpu'
    )
    write(tmp_path / 'Key', MANAGER.replace('mine', 'renamed'))
    with refused('--variable_update=mine', 'renamed'):
        BenchmarkCNN(params)


def test_versions_of_a_file_are_compared_in_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(write(tmp_path / name, f'{MANAGER}# {name}\n')) for name in ('a', 'b')]
    grid = [
        '--grid=--variable_update=mine,replicated',
        f'--grid=--variable_mgr_file={",".join(files)}',
    ]
    toml = tmp_path / 'versions.toml'
    toml.write_text(
        f"[grid]\nvariable_update = ['mine', 'replicated']\nvariable_mgr_file = {files}\n"
    )
    for request in (grid, [str(toml)]):
        MODES.pop('mine', None)
        assert (
            tf_cnn_benchmarks.main(
                ['sweep', '--dry_run', *request, '--', '--model=lenet', '--device=cpu']
            )
            == 0
        )
        commands = [
            line for line in capsys.readouterr().out.splitlines() if '--variable_mgr_file=' in line
        ]
        assert len(commands) == 4


def test_a_file_of_another_mode_than_that_of_the_run_has_no_effect(tmp_path: Path) -> None:
    params = make_params(
        variable_mgr_file=str(write(tmp_path)), variable_update='replicated', num_gpus=2
    )
    (line,) = params.ignored_flag_warnings(RuleContext(is_single_process=True, is_residual=False))
    check_line(line, f'--variable_mgr_file={tmp_path}/mine.py', '--variable_update')
    assert (
        ran(
            **{name: params.value(name) for name in params.given_flags}
        ).result.run.variable_mgr_file_sha256
        is None
    )
