"""The rules between flags: combinations that are refused, and what the refusal names."""

from pathlib import Path
from typing import Any

import pytest

from models.registry import MODELS
from params import RunFacts, check_run, make_params, parse_argv
from planning.environment import Environment
from planning.make_plan import make_plan
from tests.support.outputs import refused

pytestmark = pytest.mark.unit

PIECEWISE = '--piecewise_learning_rate_schedule=0.3;10;0.1'

# Two flags that cannot go together; the line names both, as it reads them.
CLASHES = [
    ('--use_nccl=True --all_reduce_spec=pscpu', []),
    ('--use_nccl=False --all_reduce_spec=nccl', []),
    ('--learning_rate=0.1 --init_learning_rate=0.2', []),
    ('--use_fp16=True --precision=bf16', []),
    ('--use_fp16=False --precision=fp16', []),
    ('--optimizer=adam --fp16_vars', ['16', '--optimizer=momentum', 'sgd'], '--precision=fp16'),
    ('--gradient_repacking=4 --agg_small_grads_max_bytes=9', []),
    ('--hierarchical_copy --all_reduce_spec=xring', [], '--variable_update=replicated --num_gpus=2'),
    ('--num_epochs=2 --num_batches=50', []),
    (f'{PIECEWISE} --init_learning_rate=0.3', []),
    ('--resnet_base_lr=0.1 --minimum_learning_rate=0.01', [], '--model=resnet50'),
    (f'{PIECEWISE} --resnet_base_lr=0.1', [], '--model=resnet50'),
    ('--staged_vars --variable_update=replicated', []),
    ('--num_gpus=2 --variable_update=horovod', ['--num_gpus=1', 'horovodrun']),
    ('--task_index=0 --variable_update=horovod', ['horovodrun', '--variable_update=collective_all_reduce']),
    ('--cross_replica_sync=False --variable_update=horovod', ['--variable_update=parameter_server']),
    ('--tfprof_file=p --num_warmup_batches=0', ['--num_warmup_batches=1']),
    ('--forward_only=True --eval=True', [], '--train_dir=d'),
    ('--eval=True --eval_during_training_every_n_steps=1', [], '--train_dir=d'),
    ('--eval_during_training_every_n_steps=1 --eval_during_training_every_n_epochs=1', []),
    ('--num_eval_epochs=1 --num_eval_batches=1', [], '--eval --train_dir=d'),
]


def check(argv: list[str], *, alone: bool = True) -> None:
    """Refuses what the settings and the model alone decide, in a run of one process or in a cluster."""
    params = parse_argv(argv).params
    check_run(params, RunFacts(alone=alone, residual=MODELS.find_model(params.model).residual))


@pytest.mark.parametrize('case', CLASHES, ids=lambda case: case[0])
def test_a_clash_names_both_flags(case: tuple[Any, ...]) -> None:
    pair, facts, *others = case
    with refused(*pair.split(), *facts):
        check([*pair.split(), *' '.join(others).split()])


def test_an_older_name_that_contradicts_the_newer_one_is_named_as_it_was_read() -> None:
    with refused('--use_fp16=False', '--precision=fp16'):
        parse_argv(['--nouse_fp16', '--precision=fp16'])
    # --learning_rate is read as --init_learning_rate.
    with refused(PIECEWISE, '--init_learning_rate=0.3'):
        check([PIECEWISE, '--learning_rate=0.3'])


@pytest.mark.parametrize(
    ('argv', 'missing'),
    [
        ('--data_name=records --model=mnist', '--data_dir=DIR'),
        ('--num_epochs_per_decay=2', '--learning_rate_decay_factor'),
        ('--learning_rate_decay_factor=0.5', '--num_epochs_per_decay'),
        ('--profile_steps=10,20', '--profile_dir'),
        ('--profile_dir=p', '--profile_steps'),
        ('--eval', '--train_dir=DIR'),
        ('--stop_at_top_1_accuracy=0.5', '--eval_during_training_every_n_epochs=1'),
        ('--num_eval_epochs=1 --eval --train_dir=d', '--data_dir=DIR'),
    ],
)
def test_a_flag_that_lacks_another_one_names_it(argv: str, missing: str) -> None:
    with refused(argv.split()[0], missing):
        parse_argv(argv.split())


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        (['--gradient_clip=0'], []),
        (['--num_epochs=0'], []),
        (['--eval_during_training_every_n_epochs=0'], []),
        (['--num_eval_epochs=0'], []),
        (['--eval_during_training_at_specified_steps=1,x'], ['100,200']),
        (['--eval_during_training_at_specified_epochs=0'], ['0.5,1,2']),
        (['--piecewise_learning_rate_schedule=0.3'], ["'0.3;10;0.2;25;0.02'"]),
        *(([f'--profile_steps={steps}', '--profile_dir=p'], ['10,20']) for steps in ('5', '20,10', '0,3', '1,2,3')),
        *(([f'--profile_steps={steps}', '--profile_dir=p'], ['10,20']) for steps in ('all', '1:2')),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_an_example(argv: list[str], facts: list[str]) -> None:
    with refused(argv[0], *facts):
        parse_argv(argv)


def test_a_training_run_cannot_stop_at_an_accuracy_that_its_workers_reach_at_different_steps() -> None:
    argv = [
        '--stop_at_top_1_accuracy=0.5',
        '--nocross_replica_sync',
        '--eval_during_training_every_n_steps=1',
    ]
    with refused('--stop_at_top_1_accuracy=0.5', '--cross_replica_sync=False'):
        check(argv, alone=False)
    check(argv, alone=True)


def test_processes_are_connected_by_the_protocol_that_tensorflow_has() -> None:
    with refused('--server_protocol=grpc+verbs', 'grpc', '--variable_update=horovod'):
        check(['--server_protocol=grpc+verbs', '--variable_update=collective_all_reduce'], alone=False)
    check(['--server_protocol=grpc+verbs'])


def test_python_is_refused_the_same_combinations() -> None:
    for overrides, facts in (
        ({'staged_vars': True, 'variable_update': 'replicated'}, ['--staged_vars', '--variable_update=replicated']),
        ({'task_index': 0, 'variable_update': 'horovod'}, ['--task_index=0', '--variable_update=horovod']),
        (
            {'cross_replica_sync': False, 'variable_update': 'horovod'},
            ['--cross_replica_sync=False', '--variable_update=horovod'],
        ),
    ):
        with refused(*facts):
            make_params(**overrides)


def test_a_data_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with refused(f'--data_dir={tmp_path}', 'train-00000-of-00001'):
        make_plan(make_params(data_dir=str(tmp_path)), Environment({}))
