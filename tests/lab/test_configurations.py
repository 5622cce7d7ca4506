"""Files and grids become lists of configurations; impossible ones are refused before any run."""

import itertools
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.registry import MODELS
from tests.support.outputs import check_line, refused
from tests.support.programs import run_main
from tf_cnn.cluster.topology import Shape
from tf_cnn.lab.config import SweepOptions
from tf_cnn.lab.configurations import (
    Configuration,
    check_placeholders,
    pair_up,
    run_of_command,
)
from tf_cnn.lab.measure import order_of_round
from tf_cnn.lab.sources import plan_sweep, read_sweep
from tf_cnn.lab.sweep_file import list_shipped_sweeps
from tf_cnn.managers.modes import MODES
from tf_cnn.system.errors import UsageError
from tf_cnn.system.place import PROGRAM

pytestmark = pytest.mark.unit

TABLE = """
[flags]
model = "lenet"
device = "cpu"
num_batches = 5
[grid]
variable_update = ["replicated", "parameter_server"]
batch_size = [32, 64]
shape = ["1*1", "1*2", "2*1+1"]
"""
SERVERS = '--variable_update=parameter_server'


@pytest.fixture(autouse=True)
def _four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0,1,2,3')


class Sweep(NamedTuple):
    """What a sweep measures, and the captions of what cannot run, by the reason."""

    configurations: list[Configuration]
    left_out: dict[str, list[str]]


def plan(text: str, *argv: str, grid: Sequence[str] = ()) -> Sweep:
    """Plans the sweep of a file with this text, of a name, or of a grid."""
    name = text if text in list_shipped_sweeps() else 'sweep_file.toml' if text else ''
    if name == 'sweep_file.toml':
        Path(name).write_text(text)
    file = read_sweep(name, grid)
    return Sweep(*plan_sweep(file, file.fill(SweepOptions(), ()), argv))


def settings_in(sweep: Sweep) -> list[tuple[str, ...]]:
    return [tuple(each.setting.values()) for each in sweep.configurations]


def commands_in(sweep: Sweep) -> list[str]:
    """The command lines without the program and the flag that prints the document."""
    start, end = f'{shlex.join(PROGRAM)} ', ' --result_file=-'
    lines = [shlex.join(each.argv) for each in sweep.configurations]
    assert all(line.startswith(start) and line.endswith(end) for line in lines)
    return [line.removeprefix(start).removesuffix(end) for line in lines]


def test_a_grid_is_all_combinations_in_order_except_impossible_ones():
    sweep = plan(TABLE)
    everything = itertools.product(
        ('replicated', 'parameter_server'), ('32', '64'), ('1*1', '1*2', '2*1+1')
    )
    impossible = [('replicated', size, '2*1+1') for size in ('32', '64')]
    assert settings_in(sweep) == [values for values in everything if values not in impossible]
    [(reason, captions)] = sweep.left_out.items()
    check_line(reason, 'replicated')
    assert captions == [
        f'variable_update=replicated batch_size={size} shape=2*1+1' for size in (32, 64)
    ]
    # A shape says how a run is started.
    flags = f'--model=lenet --device=cpu --num_batches=5 {SERVERS}'
    assert commands_in(sweep)[5] == f'{flags} --batch_size=32 --num_gpus=2'
    cluster = 'cluster --workers=2 --ps=1 --'
    assert commands_in(sweep)[9] == f'{cluster} {flags} --batch_size=64 --num_gpus=1'
    # The same on the command line.
    grid = ('--batch_size=32,64', 'shape=1*1,1*2')
    assert settings_in(plan('', grid=grid)) == [*itertools.product(('32', '64'), ('1*1', '1*2'))]


def test_each_mode_has_its_shapes():
    alone, peers, servers = ['1*1', '1*2'], ['1*1', '1*2', '2*1'], ['1*1+1', '2*2+1']
    for mode, shapes in {
        'replicated': alone,
        'independent': alone,
        'parameter_server': alone + servers,
        'horovod': [],
        'distributed_replicated': servers,
        'collective_all_reduce': peers,
        'distributed_all_reduce': peers,
    }.items():
        reasons = {
            text: Shape.parse(text).unsupported_reason(MODES[mode]) for text in peers + servers
        }
        assert [text for text, reason in reasons.items() if reason is None] == shapes, mode
    for text, mode, reason in (
        ('2*1', 'independent', 'independent works within one process'),
        ('2*1', 'distributed_replicated', 'distributed_replicated needs parameter servers'),
        ('2*1+1', 'collective_all_reduce', 'collective_all_reduce has no parameter servers'),
    ):
        assert Shape.parse(text).unsupported_reason(MODES[mode]) == reason


def test_grids_included_rows_and_flags_after_the_dashes():
    text = """
    [flags]
    model = "lenet"
    [[grids]]
    variable_update = "replicated"
    batch_size = 8
    [[grids]]
    variable_update = "parameter_server"
    shape = ["1*1", "2*1+1"]
    batch_size = 8
    [[include]]
    xla = true
    [[include]]
    variable_update = "replicated"
    batch_size = 8
    """
    sweep = plan(text, '--model', 'alexnet', '--num_batches=7')
    assert settings_in(sweep) == [
        ('replicated', '8', 'default', 'default'),
        ('parameter_server', '8', '1*1', 'default'),
        ('parameter_server', '8', '2*1+1', 'default'),
        ('default', 'default', 'default', 'true'),
    ]
    assert all('--model=lenet --model alexnet --num_batches=7' in c for c in commands_in(sweep))


def test_without_a_gpu_a_sweep_over_devices_runs_on_the_cpu(capsys):
    assert all(
        '--device=cpu' in command for command in commands_in(plan('', grid=['shape=1*1,1*2']))
    )
    check_line(capsys.readouterr().err.strip(), '--device=cpu')
    for grid in (['shape=1*1,2*1+1', 'variable_update=parameter_server'], ['device=cpu,gpu']):
        assert not any(
            '--device=cpu' in command for command in commands_in(plan('', grid=grid))[1:]
        )


GRID = '[grid]\nbatch_size = [8, 16]\n'


@pytest.mark.parametrize(
    ('text', 'facts'),
    [
        (f'[flags]\nbatch_sizes = 3\n{GRID}', ['batch_sizes', 'batch_size']),
        (f'[flags]\nnum_batches = "two"\n{GRID}', ['num_batches', 'two', 'integer']),
        (f'[flags]\nnum_gpus = 2\n{GRID}', ['num_gpus = 2', 'shape=1*2']),
        ('[grid]\nnum_gpus = [1, 8]\n', ['num_gpus=1', 'shape=1*2']),
        (f'[flags]\ntrain_dir = "out"\n{GRID}', ['--train_dir=out']),
        ('[grid]\nshape = ["two"]\n', ['shape=two', 'W*G']),
        ('[grid]\nbatch_size = []\n', ['[grid] batch_size']),
        ('title = "x"', ['[grid]']),
        ('grids = 3\n', ['grids']),
        (f'repeats = "many"\n{GRID}', ['repeats']),
        (f'repeats = 0\n{GRID}', ['repeats']),
        (f'repeat = 3\n{GRID}', ['repeat']),
        (f'[[include]]\nbatch_sise = 1\n{GRID}', ['batch_sise', 'batch_size']),
        ('[grid\n', ['line 1']),
        ('[grid]\nvariable_update = "horovod"\n', ['horovod']),
        (f'command = "x {{batch_size}}"\n[flags]\nmodel = "lenet"\n{GRID}', ['[flags]']),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text, facts):
    with refused(*facts):
        plan(text)


def test_a_grid_is_refused_with_all_of_its_mistakes():
    with pytest.raises(UsageError) as caught:
        plan('', grid=['batch_size=one,2,three', 'modle=lenet', 'num_gpus=4', 'HOME=a,b'])
    values = ('batch_size=one', 'batch_size=three', 'modle=lenet', 'num_gpus=4', 'HOME=a,b')
    for line, value in zip(caught.value.lines, values, strict=True):
        check_line(line, '--grid', value)


@pytest.mark.parametrize('name', list_shipped_sweeps())
def test_the_sweeps_that_come_with_the_program_can_run(name, monkeypatch):
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES')
    sweep = plan(name)
    assert len(sweep.configurations) > 2
    assert read_sweep(name, ()).title not in (None, '', name)
    if name == 'all_models':
        assert [each.setting['model'] for each in sweep.configurations] == MODELS.list_models()
    if name == 'seed_table':
        assert (len(sweep.configurations), sweep.left_out) == (42, {})


@pytest.mark.parametrize('has_gpu', [False, True])
def test_sums_that_this_machine_has_no_devices_for_are_left_out(has_gpu, monkeypatch):
    monkeypatch.setattr('tf_cnn.lab.sources.has_nvidia_gpu', lambda: has_gpu)
    sweep = plan('all_reduce')
    planned = {
        (each.setting['all_reduce_spec'], each.setting['shape']) for each in sweep.configurations
    }
    specs = {'pscpu', 'psgpu', 'xring', 'nccl', 'nccl/xring'}
    shapes = {'1*2', '1*4'} if has_gpu else {'1*2', '1*4', '1*8'}
    specs -= set() if has_gpu else {'nccl', 'nccl/xring'}
    assert planned == {*itertools.product(specs, shapes)}


@pytest.mark.parametrize(
    ('command', 'setting', 'line'),
    [
        ('t.py {bs}', {'bs': '32'}, 't.py 32'),
        ('t.py {bs} {bs}', {'bs': 'a b'}, "t.py 'a b' 'a b'"),
        ("awk '{print $1}' {file}", {'file': "it's"}, "awk '{print $1}' 'it'\"'\"'s'"),
        ("sh -c 'echo {n}'", {'n': '3'}, "sh -c 'echo 3'"),
        ('t.py {a} {b}', {'a': '{b}', 'b': '1'}, "t.py '{b}' 1"),
        ('t.py', {'THREADS': '2'}, 't.py'),
        ("sh -c 'echo {n}'", {'n': 'a b'}, ''),
        ('t.py $bs', {'bs': '32'}, ''),
    ],
)
def test_a_name_is_filled_in_quoted_or_a_variable_or_refused(command, setting, line):
    make = run_of_command(command, {'rate': ['r (\\S+)']})
    if not line:
        with refused(f'--command={command}', f'{{{next(iter(setting))}}}'):
            check_placeholders(command, [{name: [value] for name, value in setting.items()}])
        return
    *_, task, filled, _ = make(setting, ()).argv
    document = json.loads(task)
    assert filled == line
    assert document['variables'] == {n: v for n, v in setting.items() if n.isupper()}
    assert document['flags'] == {'command': command, 'rate': 'r (\\S+)', **setting}


def test_clusters_of_a_sweep_are_on_the_hosts_after_the_dashes():
    for hosts, shape, flags in (
        ('a,b', '2*1+1', '--hosts=a,b --remote_dir=/x --workers=2 --ps=1'),
        ('a,[fd00::1],c', '2*1+1', '--hosts=a,[fd00::1] --remote_dir=/x --workers=2 --ps=1'),
        ('a:0,b,c', '1*1+1', '--hosts=a:0,b --remote_dir=/x --workers=1 --ps=1'),
        ('a:2,b:2', '2*1+1', '--hosts=a:2 --remote_dir=/x --workers=2 --ps=1'),
        ('a,b', '4*1+2', '--hosts=a,b --remote_dir=/x --workers=4 --ps=2'),
        # One process, on the first host.
        ('a,b', '1*2', '--hosts=a --remote_dir=/x --workers=1 --ps=0'),
    ):
        argv = (f'--hosts={hosts}', SERVERS, '--remote_dir=/x')
        sweep = plan('', *argv, grid=[f'shape=8*1,{shape}'])
        [command] = map(shlex.split, commands_in(sweep))
        # A GPU of this machine does not show whether the hosts have one.
        assert command[:5] == ['cluster', *flags.split()]
        assert '--device=cpu' not in command
        assert [*sweep.left_out.values()] == [['shape=8*1']]


def test_a_dry_run_lists_commands_and_runs_nothing(tmp_path):
    grids = ('--grid=--variable_update=replicated,parameter_server', '--grid', 'shape=1*1,2*1+1')
    out, err = run_main('sweep', *grids, '--repeats=3', '--dry_run', '--', '--model=lenet')
    first, *lines = out.splitlines()
    check_line(first, '3 configurations', '3 runs of each')
    assert sum('--model=lenet' in line for line in lines) == 3
    check_line(lines[-1], 'left out 1 combination', 'replicated', '2*1+1')
    assert (err, [*tmp_path.iterdir()]) == ('', [])
    assert ', '.join(list_shipped_sweeps()) in ' '.join(run_main('sweep', '--help')[0].split())


# ---- rounds and pairs ----------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 6))
def test_a_steady_drift_cancels_over_each_pair_of_rounds(count, pair):
    first, second = (order_of_round(count, number) for number in (2 * pair - 1, 2 * pair))
    assert sorted(first) == sorted(second) == list(range(count))
    assert first == order_of_round(count, 2 * pair - 1)
    # When each configuration runs, counted over both rounds.
    assert {first.index(i) + count + second.index(i) for i in range(count)} == {2 * count - 1}


def test_the_first_round_is_in_order_and_no_configuration_always_follows_the_same_one():
    assert order_of_round(8, 1) == list(range(8))
    orders = [order_of_round(6, number) for number in range(1, 11)]
    pairs = {pair for order in orders for pair in itertools.pairwise(order)}
    assert min(Counter(first for first, _ in pairs).values()) >= 3


@pytest.mark.parametrize('count', range(2, 9))
def test_each_pair_meets_once_and_disjoint_pairs_at_the_same_time(count):
    names = [f'node{number}' for number in range(count)]
    rounds = pair_up(names)
    assert len(rounds) == count - 1 + count % 2
    pairs = [pair for simultaneous in rounds for pair in simultaneous]
    assert sorted(pairs) == [*itertools.combinations(names, 2)]
    for simultaneous in rounds:
        assert len({*itertools.chain(*simultaneous)}) == 2 * len(simultaneous) == count // 2 * 2
