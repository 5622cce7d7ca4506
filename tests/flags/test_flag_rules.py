"""The rules between flags: combinations that are refused, and what the refusal names."""

from pathlib import Path
from typing import Any

import pytest

from models.registry import MODELS
from tests.support.outputs import refused
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.run.params import RuleContext
from tf_cnn.run.parsing import make_params, parse_argv
from tf_cnn.run.plan import make_plan
from tf_cnn.system.errors import UsageError

pytestmark = pytest.mark.unit

PIECEWISE = '--piecewise_learning_rate_schedule=0.3;10;0.1'

# What is refused: the line names each of these flags as it reads it, and the facts; then what
# stands beside them.
CLASHES = [
    ('--use_nccl=True --all_reduce_spec=pscpu', []),
    ('--use_nccl=False --all_reduce_spec=nccl', []),
    ('--learning_rate=0.1 --init_learning_rate=0.2', []),
    ('--use_fp16=True --precision=bf16', []),
    ('--optimizer=adam --fp16_vars', ['16', '--optimizer=momentum', 'sgd'], '--precision=fp16'),
    (
        '--hierarchical_copy --all_reduce_spec=xring',
        [],
        '--variable_update=replicated --num_gpus=2',
    ),
    ('--num_epochs=2 --num_batches=50', []),
    (f'{PIECEWISE} --init_learning_rate=0.3', []),
    ('--resnet_base_lr=0.1 --minimum_learning_rate=0.01', [], '--model=resnet50'),
    (f'{PIECEWISE} --resnet_base_lr=0.1', [], '--model=resnet50'),
    ('--staged_vars --variable_update=replicated', []),
    ('--num_gpus=0 --device=gpu', []),
    ('--num_gpus=2 --variable_update=horovod', ['--num_gpus=1', 'horovodrun']),
    (
        '--task_index=0 --variable_update=horovod',
        ['horovodrun', '--variable_update=collective_all_reduce'],
    ),
    (
        '--cross_replica_sync=False --variable_update=horovod',
        ['--variable_update=parameter_server'],
    ),
    ('--tfprof_file=p --num_warmup_batches=0', ['--num_warmup_batches=1']),
    ('--forward_only=True --eval=True', [], '--train_dir=d'),
    ('--eval=True --eval_during_training_every_n_steps=1', [], '--train_dir=d'),
    ('--eval_during_training_every_n_steps=1 --eval_during_training_every_n_epochs=1', []),
    ('--num_eval_epochs=1 --num_eval_batches=1', [], '--eval --train_dir=d'),
    ('--use_fp16=False --precision=fp16', []),
    (f'{PIECEWISE} --learning_rate=0.3', []),
    # A flag that lacks another one.
    ('--data_name=records', ['--data_dir=DIR'], '--model=mnist'),
    ('--num_epochs_per_decay=2', ['--learning_rate_decay_factor']),
    ('--learning_rate_decay_factor=0.5', ['--num_epochs_per_decay']),
    ('--profile_steps=10,20', ['--profile_dir']),
    ('--profile_dir=p', ['--profile_steps']),
    ('--eval', ['--train_dir=DIR']),
    ('--stop_at_top_1_accuracy=0.5', ['--eval_during_training_every_n_epochs=1']),
    ('--num_eval_epochs=1', ['--data_dir=DIR'], '--eval --train_dir=d'),
    # A value that makes no sense.
    *((f'--{name}=0', []) for name in ('gradient_clip', 'num_epochs', 'num_eval_epochs')),
    ('--eval_during_training_every_n_epochs=0', []),
    ('--eval_during_training_at_specified_steps=1,x', ['100,200']),
    ('--eval_during_training_at_specified_epochs=0', ['0.5,1,2']),
    ('--piecewise_learning_rate_schedule=0.3', ["'0.3;10;0.2;25;0.02'"]),
    *(
        (f'--profile_steps={steps}', ['10,20'], '--profile_dir=p')
        for steps in ('5', '20,10', '0,3', '1,2,3', '1:2')
    ),
]


def check(argv: list[str], *, alone: bool = True) -> None:
    """Refuses what the settings and the model alone decide, in a run of one process or in a
    cluster.
    """
    given = parse_argv(argv).params
    model = MODELS.find_model(given.run.model)
    given.check(RuleContext(is_single_process=alone, is_residual=model.is_residual))


@pytest.mark.parametrize('case', CLASHES, ids=lambda case: case[0])
def test_a_clash_and_a_wrong_value_are_named(case: tuple[Any, ...]) -> None:
    pair, facts, *others = case
    with refused(*pair.split(), *facts):
        check([*pair.split(), *' '.join(others).split()])


def test_what_fits_one_process_only_is_refused_in_a_cluster() -> None:
    # Workers reach an accuracy at different steps.
    stop = [
        '--stop_at_top_1_accuracy=0.5',
        '--nocross_replica_sync',
        '--eval_during_training_every_n_steps=1',
    ]
    alone = [
        '--server_protocol=grpc+verbs',
        '--steps_per_run=2',
        '--repeat=2',
    ]
    alone.append('--input_only=decode')
    with refused('--stop_at_top_1_accuracy=0.5', '--cross_replica_sync=False'):
        check(stop, alone=False)
    with pytest.raises(UsageError) as caught:
        check([*alone, '--data_dir=d'], alone=False)
    assert {line.partition(':')[0] for line in caught.value.lines} == {*alone}
    check(stop)
    check([*alone, '--data_dir=d'])


def test_a_data_folder_without_shards_is_refused(tmp_path: Path) -> None:
    with refused(f'--data_dir={tmp_path}', 'train-00000-of-00001'):
        make_plan(make_params(data_dir=str(tmp_path)), ProcessEnvironment({}))
