"""Conflicts between flags, and files and folders that a run cannot write, are refused by flag
before the run.
"""

from pathlib import Path
from typing import Any

import pytest

from models.registry import MODELS
from tests.support.outputs import refused
from tests.support.sample_results import write_sample
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.plan.outputs import check_file, check_outputs, check_path_conflicts
from tf_cnn.plan.params import Params, RuleContext
from tf_cnn.plan.parsing import make_params, parse_argv
from tf_cnn.plan.plan import make_plan
from tf_cnn.system.atomic import write_atomically
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit


PIECEWISE = '--piecewise_learning_rate_schedule'


def check(argv: list[str], *, is_single_process: bool = True) -> None:
    """Checks everything that depends only on the flags and the model."""
    params = parse_argv(argv).params
    is_residual = MODELS.find_model(params.run.model).is_residual
    params.check(RuleContext(is_single_process=is_single_process, is_residual=is_residual))


@pytest.mark.parametrize(
    ('flags', 'more_flags', 'facts'),
    # The flags that are refused, as the line names them; other flags; and what else the line names.
    [
        ('--use_nccl=True --all_reduce_spec=pscpu', '', ''),
        ('--use_nccl=False --all_reduce_spec=nccl', '', ''),
        ('--learning_rate=0.1 --init_learning_rate=0.2', '', ''),
        ('--use_fp16=True --precision=bf16', '', ''),
        ('--optimizer=adam --fp16_vars', '--precision=fp16', '16 --optimizer=momentum sgd'),
        (
            '--hierarchical_copy --all_reduce_spec=xring',
            '--variable_update=replicated --num_gpus=2',
            '',
        ),
        ('--num_epochs=2 --num_batches=50', '', ''),
        ('--target_seconds=2 --num_batches=50', '', ''),
        ('--target_seconds=2 --num_epochs=2', '', ''),
        (f'{PIECEWISE}=0.3;10;0.1 --init_learning_rate=0.3', '', ''),
        ('--resnet_base_lr=0.1 --minimum_learning_rate=0.01', '--model=resnet50', ''),
        (f'{PIECEWISE}=0.3;10;0.1 --resnet_base_lr=0.1', '--model=resnet50', ''),
        ('--staged_vars --variable_update=replicated', '', ''),
        ('--num_gpus=0 --device=gpu', '', ''),
        ('--num_gpus=2 --variable_update=horovod', '', '--num_gpus=1 horovodrun'),
        (
            '--task_index=0 --variable_update=horovod',
            '',
            'horovodrun --variable_update=collective_all_reduce',
        ),
        (
            '--cross_replica_sync=False --variable_update=horovod',
            '',
            '--variable_update=parameter_server',
        ),
        ('--forward_only=True --eval=True', '--train_dir=d', ''),
        ('--eval=True --eval_during_training_every_n_steps=1', '--train_dir=d', ''),
        ('--eval_during_training_every_n_steps=1 --eval_during_training_every_n_epochs=1', '', ''),
        ('--num_eval_epochs=1 --num_eval_batches=1', '--eval --train_dir=d', ''),
        ('--use_fp16=False --precision=fp16', '', ''),
        (f'{PIECEWISE}=0.3;10;0.1 --learning_rate=0.3', '', ''),
        # A flag that lacks another one.
        ('--data_name=records', '--model=mnist', '--data_dir=DIR'),
        ('--num_epochs_per_decay=2', '', '--learning_rate_decay_factor'),
        ('--learning_rate_decay_factor=0.5', '', '--num_epochs_per_decay'),
        ('--profile_steps=10,20', '', '--profile_dir'),
        ('--profile_dir=p', '', '--profile_steps'),
        ('--eval', '', '--train_dir=DIR'),
        ('--stop_at_top_1_accuracy=0.5', '', '--eval_during_training_every_n_epochs=1'),
        ('--num_eval_epochs=1', '--eval --train_dir=d', '--data_dir=DIR'),
        # A value that makes no sense.
        ('--result_file={nonsense}.json', '', '{nonsense} {hostname}'),
        ('--result_file={data_dir}.json', '', '{data_dir} --data_dir=VALUE'),
        ('--gradient_clip=0', '', ''),
        ('--num_epochs=0', '', ''),
        ('--num_eval_epochs=0', '', ''),
        ('--eval_during_training_every_n_epochs=0', '', ''),
        ('--eval_during_training_at_specified_steps=1,x', '', '100,200'),
        ('--eval_during_training_at_specified_epochs=0', '', '0.5,1,2'),
        (f'{PIECEWISE}=0.3', '', "'0.3;10;0.2;25;0.02'"),
        ('--profile_steps=5', '--profile_dir=p', '10,20'),
        ('--profile_steps=20,10', '--profile_dir=p', '10,20'),
        ('--profile_steps=0,3', '--profile_dir=p', '10,20'),
        ('--profile_steps=1,2,3', '--profile_dir=p', '10,20'),
        ('--profile_steps=1:2', '--profile_dir=p', '10,20'),
    ],
)
def test_a_conflict_and_a_wrong_value_are_named(flags, more_flags, facts):
    with refused(*flags.split(), *facts.split()):
        check([*flags.split(), *more_flags.split()])


def test_an_accuracy_ends_a_cluster_only_if_workers_take_steps_together():
    every_step = '--eval_during_training_every_n_steps=1'
    argv = ['--stop_at_top_1_accuracy=0.5', '--nocross_replica_sync', every_step]
    check(argv)
    with refused('--stop_at_top_1_accuracy=0.5', '--cross_replica_sync=False'):
        check(argv, is_single_process=False)


def test_flags_for_one_process_are_refused_in_a_cluster():
    flags = ['--server_protocol=grpc+verbs', '--steps_per_run=2', '--repeat=2']
    flags.append('--input_only=decode')
    check([*flags, '--data_dir=d'])
    check(['--target_seconds=2', '--num_warmup_batches=0'])
    with refused('--target_seconds=2', '--num_warmup_batches=0'):
        check(['--target_seconds=2', '--num_warmup_batches=0'], is_single_process=False)
    with pytest.raises(UsageError) as caught:
        check([*flags, '--data_dir=d'], is_single_process=False)
    assert {line.partition(':')[0] for line in caught.value.lines} == {*flags}


# ---- outputs -------------------------------------------------------------------------------------


def outputs(folder: Path, **names: str) -> Params:
    paths: dict[str, Any] = {name: str(folder / path) for name, path in names.items()}
    return Params().with_values(**paths)


def test_outputs_that_can_be_written_leave_no_trace(tmp_path):
    (tmp_path / 'old').write_text('kept')
    (tmp_path / 'link').symlink_to(tmp_path / 'not yet')
    check_outputs(outputs(tmp_path, trace_file='old', graph_file='new', tfprof_file='link'))
    check_outputs(outputs(tmp_path, partitioned_graph_file_prefix='part'))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['link', 'old']
    assert (tmp_path / 'old').read_text() == 'kept'
    assert (tmp_path / 'link').is_symlink()


def test_missing_folders_of_outputs_are_made(tmp_path):
    check_outputs(outputs(tmp_path, train_dir='a/b', result_file='c/d/r.json'))
    check_outputs(outputs(tmp_path, trace_file='e/t', partitioned_graph_file_prefix='f/p'))
    folders = {path for path in tmp_path.rglob('*') if path.is_dir()}
    assert folders == {tmp_path / folder for folder in ('a', 'a/b', 'c', 'c/d', 'e', 'f')}


def test_only_the_chief_prepares_outputs_of_the_chief(tmp_path):
    params = outputs(tmp_path, profile_dir='p')
    check_outputs(params, is_chief=False)
    assert list(tmp_path.iterdir()) == []
    check_outputs(params)
    assert list(tmp_path.iterdir()) == [tmp_path / 'p']


def test_an_output_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'file').touch()
    for name, path, fact in (
        ('graph_file', '.', 'is a directory'),
        ('tfprof_file', 'file/t', ''),
        ('train_dir', 'file', ''),
        ('train_dir', 'x' * 300, 'file name too long'),
        ('result_file', 'x' * 256, 'file name too long'),
        ('partitioned_graph_file_prefix', 'x' * 250, 'file name too long'),
        ('profile_dir', 'file/p', ''),
    ):
        flag = f'--{name}={tmp_path / path}'
        with refused(flag) as caught:
            check_outputs(outputs(tmp_path, **{name: path}))
        assert fact in str(caught.value).removeprefix(flag).lower()


@pytest.mark.parametrize('flag', ['train_dir', 'backbone_model_path'])
def test_a_folder_in_which_tensorflow_finds_no_checkpoint_is_refused(flag, tmp_path):
    for name in ('a*b', 'a?b', 'a[b]', 'a\\b'):
        with refused(f'--{flag}={tmp_path}/{name}'):
            check_outputs(outputs(tmp_path, **{flag: name}))
    assert list(tmp_path.iterdir()) == []


def test_an_output_may_be_a_device_or_a_pipe():
    for path in ('/dev/stderr', '/dev/null'):
        check_file('trace_file', path)
        write_atomically('', path)


def test_the_device_of_standard_output_is_standard_output():
    assert make_params(result_file='/dev/stdout').results.result_file == '-'
    with refused('--trace_file=/dev/stdout', 'standard', './-'):
        make_params(trace_file='/dev/stdout')


def test_a_path_elsewhere_than_on_this_machine_is_refused():
    for name in ('train_dir', 'data_dir', 'result_file'):
        with refused(f'--{name}=gs://b/t', 'this machine'):
            make_params(**{name: 'gs://b/t'})


def test_outputs_at_the_same_path_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path('link').symlink_to('r.json')
    Path('folder').mkdir()
    Path('of').symlink_to('folder')
    for flags in (
        '--trace_file=t.json --result_file=./t.json',
        '--graph_file=link --result_file=r.json',
        '--trace_file=of/t.json --graph_file=folder/t.json',
        '--result_file=folder/../td --train_dir=td',
        '--trace_file=a --graph_file=a/b',
        '--graph_file=m.py --model_file=./m.py',
    ):
        paths = dict(flag.removeprefix('--').split('=') for flag in flags.split())
        with refused(*flags.split()):
            check_path_conflicts(paths)


def test_outputs_at_different_paths_are_allowed():
    for paths in (
        {'train_dir': 'td', 'eval_dir': 'td', 'result_file': 'td/r.json', 'trace_file': 'td/t'},
        {'trace_file': '/dev/null', 'graph_file': '/dev/null', 'result_file': '-'},
    ):
        check_path_conflicts(paths)


def test_outputs_at_the_same_path_after_filling_in_a_name_are_refused(tmp_path):
    trace, result = f'{tmp_path}/lenet.json', f'{tmp_path}/{{model}}.json'
    params = make_params(model='lenet', trace_file=trace, result_file=result)
    with refused('--trace_file', '--result_file'):
        make_plan(params, ProcessEnvironment())


def test_a_result_replaces_a_result_or_an_empty_file_only(tmp_path):
    notes = tmp_path / 'notes.json'
    notes.write_text('{"mine": 1}')
    with refused(f'--result_file={notes}'):
        check_file('result_file', str(notes))
    check_file('trace_file', str(notes))
    (tmp_path / 'empty').touch()
    check_file('result_file', str(tmp_path / 'empty'))
    check_file('result_file', str(write_sample(tmp_path / 'result.json')))
    assert notes.read_text() == '{"mine": 1}'


def test_a_result_file_is_not_named_after_a_flag_without_a_value():
    values = {'data_dir': '/data', 'train_dir': '/train', 'device': 'cpu', 'num_epochs': 2.0}
    for name, value in values.items():
        template = f'{{{name}}}-x.json'
        with refused(f'--result_file={template}', f'--{name}=VALUE'):
            make_params(result_file=template)
        params = make_params(result_file=template, **{name: value})
        assert params.results.result_file == template
