"""Conflicts between flags are refused, and the refusal names both."""

import pytest

from models.registry import MODELS
from tests.support.outputs import refused
from tf_cnn.plan.params import RuleContext
from tf_cnn.plan.parsing import parse_argv
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
