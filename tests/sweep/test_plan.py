"""Files and grids become lists of configurations; impossible ones are refused before any run."""

import itertools

import pytest

from models.registry import MODELS
from tests.support.outputs import check_line, refused
from tests.sweep.fake_runs import plan_of
from tf_cnn.cluster.topology import Shape
from tf_cnn.lab.sweep_file import find_sweep_file, list_shipped_sweeps, read_sweep_file
from tf_cnn.managers.modes import MODES
from tf_cnn.plan.params import Params
from tf_cnn.plan.plan import check_launch
from tf_cnn.sweep.configurations import SweepPlan, make_sweep_plan
from tf_cnn.sweep.plan_sweep import format_length, format_seconds, guess_seconds, plan_sweep
from tf_cnn.sweep.request import SweepOptions, add_device_cpu, override, read_grid
from tf_cnn.sweep.search import check_search
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit

TABLE = """
title = "Modes"
[flags]
model = "lenet"
device = "cpu"
num_batches = 5
[grid]
variable_update = ["replicated", "parameter_server"]
batch_size = [32, 64]
shape = ["1*1", "1*2", "2*1+1"]
"""


def test_a_grid_is_all_combinations_in_order_except_impossible_ones(tmp_path):
    plan = plan_of(tmp_path, TABLE)
    assert plan.columns == ('variable_update', 'batch_size', 'shape')
    assert [tuple(configuration.varied.values()) for configuration in plan.configurations] == [
        ('replicated', '32', '1*1'),
        ('replicated', '32', '1*2'),
        ('replicated', '64', '1*1'),
        ('replicated', '64', '1*2'),
        ('parameter_server', '32', '1*1'),
        ('parameter_server', '32', '1*2'),
        ('parameter_server', '32', '2*1+1'),
        ('parameter_server', '64', '1*1'),
        ('parameter_server', '64', '1*2'),
        ('parameter_server', '64', '2*1+1'),
    ]
    assert len({configuration.id for configuration in plan.configurations}) == 10
    left_out = [
        (configuration.varied['batch_size'], configuration.varied['shape'])
        for configuration in plan.left_out
    ]
    assert left_out == [('32', '2*1+1'), ('64', '2*1+1')]
    check_line(plan.left_out[0].reason, 'replicated')


def test_a_shape_says_how_a_run_is_started(tmp_path):
    commands = {
        configuration.caption: configuration.command
        for configuration in plan_of(tmp_path, TABLE).configurations
    }
    flags = '--model=lenet --device=cpu --num_batches=5 --variable_update=parameter_server'
    alone = commands['variable_update=parameter_server batch_size=32 shape=1*2']
    assert ' '.join(alone) == f'{flags} --batch_size=32 --num_gpus=2'
    several = commands['variable_update=parameter_server batch_size=64 shape=2*1+1']
    start = 'cluster --workers=2 --ps=1 --'
    assert ' '.join(several) == f'{start} {flags} --batch_size=64 --num_gpus=1'


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


def test_several_grids_and_included_rows(tmp_path):
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
    plan = plan_of(tmp_path, text)
    assert [configuration.caption for configuration in plan.configurations] == [
        'variable_update=replicated batch_size=8 xla=false shape=1*1',
        'variable_update=parameter_server batch_size=8 xla=false shape=1*1',
        'variable_update=parameter_server batch_size=8 xla=false shape=2*1+1',
        'variable_update=parameter_server batch_size=default xla=true shape=1*1',
    ]
    assert not plan.left_out


def test_flags_after_the_dashes_replace_flags_of_the_file(tmp_path):
    plan = plan_of(tmp_path, TABLE, '--model', 'alexnet', '--xla', '--num_batches=7')
    argv = plan.configurations[0].argv
    assert [word for word in argv if 'model' in word or 'num_batches' in word] == [
        '--model=alexnet',
        '--num_batches=7',
    ]
    assert '--xla=True' in argv
    with refused('--batch_size=8', '[grid]'):
        plan_of(tmp_path, TABLE, '--batch_size=8')
    with refused('--modle', '--model'):
        plan_of(tmp_path, TABLE, '--modle=lenet')


def plan_grid(grid: list[str], flags: list[str] | None = None, **settings: object) -> SweepPlan:
    request = override(read_grid(grid), flags or [], settings)
    return make_sweep_plan(request, lambda params, alone: None)


def test_a_grid_of_flags_is_one_of_a_file():
    plan = plan_grid(['--batch_size=8,16', 'shape=1*1,1*2'])
    varied = [tuple(configuration.varied.values()) for configuration in plan.configurations]
    assert varied == [('8', '1*1'), ('8', '1*2'), ('16', '1*1'), ('16', '1*2')]


def test_a_wrong_grid_is_refused_with_all_of_its_mistakes():
    for text, *facts in (
        ('--batch_size',),
        ('--batch_size=8,two', 'batch_size', 'two'),
        ('x=1', 'x'),
        ('num_gpus=1,2', 'use --grid=shape=1*1,1*2'),
    ):
        with refused('--grid', *facts):
            read_grid([text])
    with pytest.raises(UsageError) as caught:
        read_grid(['batch_size=one,2,three', 'modle=lenet', 'num_gpus=4,8'])
    facts = ['"one"', '"three"', '--modle', 'shape=1*4,1*8']
    for line, fact in zip(caught.value.lines, facts, strict=True):
        check_line(line, '--grid=', fact)


def test_without_a_gpu_a_sweep_of_one_process_that_names_no_device_gets_the_cpu():
    assert add_device_cpu(read_grid(['shape=1*1,1*2'])).flags == {'device': 'cpu'}
    for grid in ('shape=1*1,2*1+1', 'device=cpu,gpu'):
        request = read_grid([grid])
        assert add_device_cpu(request) is request


def test_a_wrong_file_is_refused_in_one_line(tmp_path):
    grid = '[grid]\nbatch_size = [8, 16]\n'
    cluster = 'variable_update = "replicated"\nshape = "2*1+1"\n'
    for text, *facts in (
        (f'[flags]\nbatch_sizes = 3\n{grid}', '[flags]', 'batch_sizes', 'batch_size'),
        (f'[flags]\nnum_batches = "two"\n{grid}', '[flags]', 'num_batches = "two"', 'integer'),
        (f'[flags]\nnum_gpus = 2\n{grid}', 'num_gpus = 2', 'use shape = "1*2"'),
        ('[grid]\nnum_gpus = [1, 8]\n', 'num_gpus = [1, 8]', 'use shape = ["1*1", "1*8"]'),
        (f'[flags]\ntrain_dir = "out"\n{grid}', '--train_dir=out'),
        ('[grid]\nshape = ["two"]\n', '[grid]', 'shape = "two"', 'W*G'),
        ('[grid]\nbatch_size = []\n', '[grid]', 'batch_size'),
        ('', '[grid]'),
        ('grids = 3\n', 'grids'),
        (f'repeats = "many"\n{grid}', 'repeats = "many"'),
        ('[[include]]\nbatch_size = 1\npublished = -2\n', 'float', '> 0'),
        (f'repeat = 3\n{grid}', 'repeat'),
        (f'[[include]]\nbatch_sise = 1\n{grid}', '[[include]] 1', 'batch_sise'),
        ('[grid\n', 'line 1'),
        (f'[[include]]\n{cluster}', '[[include]] 1', 'replicated'),
        ('[grid]\nvariable_update = "horovod"\n', '[grid]', 'horovod'),
    ):
        with refused('sweep_file.toml', *facts):
            plan_of(tmp_path, text)


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / 'binary.toml').write_bytes(b'\xff\xfe\x00')
    with refused(tmp_path / 'binary.toml'):
        read_sweep_file(tmp_path / 'binary.toml')


def check_launch_of(params: Params, alone: bool) -> None:
    check_launch(params, is_single_process=alone)


@pytest.mark.parametrize('name', list_shipped_sweeps())
def test_the_sweeps_that_come_with_the_program_can_run(name):
    plan = make_sweep_plan(add_device_cpu(read_sweep_file(find_sweep_file(name))), check_launch_of)
    assert len(plan.configurations) > 2
    assert plan.title != name
    if name == 'all_models':
        assert [
            configuration.varied['model'] for configuration in plan.configurations
        ] == MODELS.list_models()


@pytest.mark.parametrize('has_gpu', [False, True])
def test_sums_that_this_machine_has_no_devices_for_are_left_out(has_gpu, monkeypatch):
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '0,1,2,3')
    monkeypatch.setattr('tf_cnn.sweep.plan_sweep.has_nvidia_gpu', lambda: has_gpu)
    plan, _ = plan_sweep('all_reduce', SweepOptions(), frozenset(), [])
    planned, left_out = (
        {(row.varied['all_reduce_spec'], row.varied['shape']) for row in rows}
        for rows in (plan.configurations, plan.left_out)
    )
    specs, sizes = ('pscpu', 'psgpu', 'xring', 'nccl', 'nccl/xring'), ('1*2', '1*4', '1*8')
    assert planned | left_out == {*itertools.product(specs, sizes)}
    if has_gpu:
        assert {shape for _, shape in left_out} == {'1*8'}
        assert {shape for _, shape in planned} == {'1*2', '1*4'}
    else:
        assert {spec for spec, _ in left_out} == {'nccl', 'nccl/xring'}
        assert len(planned) == 9


def test_the_published_table_is_planned_row_by_row_also_for_a_laptop():
    alone = ['1*1', '1*2', '1*4']
    servers = ['1*1+1', '1*2+1', '1*4+1', '2*1+1', '4*1+1', '2*2+1', '8*1+1', '2*4+1', '4*2+1']
    rows = [
        (mode, size, shape)
        for size in ('32', '64')
        for mode in ('replicated', 'parameter_server', 'distributed_replicated')
        for shape in (alone if mode == 'replicated' else servers)
    ]
    published = read_sweep_file(find_sweep_file('seed_table'))
    assert published.flags == {'model': 'inception3', 'num_batches': 200}
    laptop = ['--model=lenet', '--num_batches=20']
    for request in (published, add_device_cpu(override(published, laptop, {}))):
        plan = make_sweep_plan(request, check_launch_of)
        assert [
            tuple(configuration.varied.values()) for configuration in plan.configurations
        ] == rows
        assert not plan.left_out
        assert [plan.configurations[row].published for row in (0, 11, 41)] == [27.21, 196.96, 206.3]
        # As the report prints them, although the rates give 1.00, 3.35 and 6.79.
        speed_ups = [plan.configurations[row].published_speed_up for row in (24, 26, 19)]
        assert speed_ups == [1.005, 3.45, 6.7]
        assert 'K40' in plan.published_in
    assert all({*laptop} <= {*configuration.argv} for configuration in plan.configurations)


def test_the_guess_of_the_duration_knows_the_data_set_and_computes_nothing_on_a_gpu():
    def guess(*flags: str, has_gpu: bool = False) -> float:
        return guess_seconds(plan_grid(['batch_size=8,16', *flags]), 2, has_gpu=has_gpu)

    # Nothing but the starts of two processes.
    starts = guess('model=alexnet', has_gpu=True)
    assert 2 < starts < 20
    large = guess('model=alexnet') - starts
    # The network for images of 32 pixels has a 25th of the multiply-adds.
    assert 20 < large / (guess('model=alexnet', 'data_name=cifar10') - starts) < 30
    assert guess('model=alexnet', 'num_batches=490') - starts == pytest.approx(large * 500 / 110)
    # A time for each of two runs.
    assert guess('model=alexnet', 'target_seconds=30') == pytest.approx(starts + 60)


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [(8.7, '8 seconds'), (95.0, '1 minute'), (9000.0, '2 hours')],
)
def test_a_duration_has_one_unit(seconds, text):
    assert format_seconds(seconds) == text


def test_a_plan_says_how_many_runs_remain_and_how_long_they_take_at_least():
    plan = plan_grid(['batch_size=8,16', 'target_seconds=100'], repeats=3)
    # Of six runs of 104 seconds, half remain.
    check_line(format_length(plan, 3), '2 configurations, 3 runs of each', 'least 5 minutes')


def test_a_search_needs_a_limit_of_memory_and_no_other_batch_sizes():
    def check(grid: str, *, has_limit: bool = True, **settings: object) -> None:
        plan = plan_grid([grid], ['--device=cpu'], **settings)
        check_search(plan, has_gpu=True, has_limit=has_limit)

    check('xla=true,false')
    with refused('--find_batch_size', 'CPU'):
        check('xla=true,false', has_limit=False)
    for grid, repeats in (('batch_size=1,2', 1), ('xla=true,false', 2)):
        with refused('--find_batch_size', '--repeats', 'batch_size'):
            check(grid, repeats=repeats)
