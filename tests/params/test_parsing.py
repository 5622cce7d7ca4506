"""The flags: what a command line and Python may say, and each line that refuses."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import legacy_flags
from errors import UsageError
from flag_help import format_help
from flag_rules import check_inputs
from output_files import check_outputs
from params import SPECS, Params, make_params, parse_argv

pytestmark = pytest.mark.unit


def refusal(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_argv(argv)
    message = str(caught.value)
    assert '\n' not in message
    return message


def test_no_flags_give_the_defaults() -> None:
    parsed = parse_argv([])
    assert parsed.params == Params() == make_params()
    assert parsed.warnings == ()
    assert (parsed.params.batch_size, parsed.params.num_warmup_batches) == (0, 10)


def test_every_flag_has_a_default_that_it_accepts() -> None:
    for name, spec in SPECS.items():
        if spec.default is not None:
            assert spec.read(spec.default) == spec.read(str(spec.default)) == spec.default, name
        assert (spec.default is None) <= spec.optional, name


def test_each_form_of_a_flag_is_read() -> None:
    argv = ['--batch_size=32', '--num_gpus', '2', '-model=lenet', '--forward_only', '--nouse_chrome_trace_format']
    params = parse_argv([*argv, '--allow_growth=T', '--gradient_clip=1e-2', '--trace_file=t']).params
    expected = Params(
        batch_size=32,
        num_gpus=2,
        model='lenet',
        forward_only=True,
        use_chrome_trace_format=False,
        allow_growth=True,
        gradient_clip=0.01,
        trace_file='t',
    )
    assert params == expected


def test_the_last_of_two_values_counts() -> None:
    assert parse_argv(['--batch_size=1', '--batch_size=2']).params.batch_size == 2


def test_flags_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / 'flags'
    file.write_text('--batch_size=8\n--model=lenet\n')
    assert parse_argv([f'--flagfile={file}', '--num_batches=3']).params == Params(
        model='lenet', batch_size=8, num_batches=3
    )
    assert refusal(f'--flagfile={tmp_path}/none').startswith('--flagfile: Unable to open flagfile: ')
    file.write_text('--batch_size=8\nstray\n')
    assert refusal(f'--flagfile={file}') == "'stray' is not a flag; flags look like --batch_size=64, see --help"


@pytest.mark.parametrize(
    ('text', 'name', 'value'),
    [('CPU', 'device', 'cpu'), ('nhwc', 'data_format', 'NHWC'), ('GPU', 'local_parameter_device', 'gpu')],
)
def test_choices_are_read_in_any_case(text: str, name: str, value: str) -> None:
    assert getattr(parse_argv([f'--{name}={text}']).params, name) == value


def test_an_empty_value_of_a_flag_without_default_is_none() -> None:
    assert parse_argv(['--data_dir=', '--device=', '--trace_file=', '--init_learning_rate=']).params == Params()


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (['--batchsize=3'], '--batchsize: there is no such flag; did you mean --batch_size?'),
        (['--nodistortion'], '--nodistortion: there is no such flag; did you mean --distortions?'),
        (['--qqq'], '--qqq: there is no such flag; see --help'),
        (['--batch_size=x'], '--batch_size=x: it must be an integer of at least 0'),
        (['--batch_size=1.5'], '--batch_size=1.5: it must be an integer of at least 0'),
        (['--batch_size=-1'], '--batch_size=-1: it must be an integer of at least 0'),
        (['--batch_size='], '--batch_size=: it has no value; it must be an integer of at least 0'),
        (['--batch_size'], '--batch_size: it has no value; write --batch_size=VALUE, see --help'),
        (['--batch_size=a\nb'], "--batch_size='a\\nb': it must be an integer of at least 0"),
        (['--num_batches=0'], '--num_batches=0: it must be an integer of at least 1'),
        (['--momentum=1.1'], '--momentum=1.1: it must be a number from 0 to 1'),
        (['--weight_decay=nan'], '--weight_decay=nan: it must be a number of at least 0'),
        (['--summary_verbosity=4'], '--summary_verbosity=4: it must be an integer from 0 to 3'),
        (['--forward_only=maybe'], '--forward_only=maybe: it must be true or false'),
        (
            ['--optimizer=sdg'],
            '--optimizer=sdg: it must be one of sgd, momentum, rmsprop, adam, lars; did you mean --optimizer=sgd?',
        ),
        (
            ['--data_name=imagnet'],
            '--data_name=imagnet: it must be one of imagenet, cifar10, mnist, records; did you mean '
            '--data_name=imagenet?',
        ),
        (
            ['--forward_only', 'True'],
            "'True' stands alone; a switch has its value behind an equal sign: --forward_only=True",
        ),
        (['--batch_size', '32', '64'], "'64' is not a flag; flags look like --batch_size=64, see --help"),
        (
            ['--use_nccl=True', '--all_reduce_spec=pscpu'],
            '--use_nccl=True contradicts --all_reduce_spec=pscpu; '
            'it is the older name of --all_reduce_spec: leave it out',
        ),
        (
            ['--use_nccl=False', '--all_reduce_spec=nccl'],
            '--use_nccl=False contradicts --all_reduce_spec=nccl; '
            'it is the older name of --all_reduce_spec: leave it out',
        ),
        (
            ['--learning_rate=0.1', '--init_learning_rate=0.2'],
            '--learning_rate=0.1 contradicts --init_learning_rate=0.2; '
            'it is the older name of --init_learning_rate: leave it out',
        ),
        (
            ['--use_fp16', '--precision=bf16'],
            '--use_fp16=True contradicts --precision=bf16; it is the older name of --precision: leave it out',
        ),
        (
            ['--nouse_fp16', '--precision=fp16'],
            '--use_fp16=False contradicts --precision=fp16; it is the older name of --precision: leave it out',
        ),
        (
            ['--precision=fp16', '--fp16_vars', '--optimizer=adam'],
            '--fp16_vars clashes with --optimizer=adam: it works with squares and norms of gradients, for which 16 '
            'bits are not enough; write --optimizer=momentum or sgd, or leave --fp16_vars out',
        ),
        (['--fp16_loss_scale=0.5'], '--fp16_loss_scale=0.5: it must be a number of at least 1'),
        (['--learning_rate=-1'], '--learning_rate=-1: it must be a number of at least 0'),
        (
            ['--data_name=records', '--model=mnist'],
            '--data_name=records: the folder tells the classes; add --data_dir=DIR, or leave it out',
        ),
        (
            ['--save_summaries_steps=5'],
            '--save_summaries_steps=5: summaries need a folder; add --train_dir=DIR',
        ),
        (['--summary_verbosity=1'], '--summary_verbosity=1: summaries need a folder; add --train_dir=DIR'),
        (
            ['--tfprof_file=p', '--num_warmup_batches=0'],
            '--tfprof_file=p: the last warm-up step is the traced one, and --num_warmup_batches=0 leaves none; '
            'write --num_warmup_batches=1 or more',
        ),
        (
            ['--gradient_repacking=4', '--agg_small_grads_max_bytes=9'],
            '--gradient_repacking=4 clashes with --agg_small_grads_max_bytes=9: each packs the gradients in its own '
            'way; leave one out',
        ),
        (
            ['--hierarchical_copy', '--all_reduce_spec=xring'],
            '--hierarchical_copy clashes with --all_reduce_spec=xring: each sums the gradients in its own way; '
            'leave one out',
        ),
        (
            ['--graph_file=g', '--trace_file=g'],
            '--graph_file=g clashes with --trace_file=g: write another path in one of them',
        ),
        (
            ['--gradient_clip=0'],
            '--gradient_clip=0: it would make every gradient zero; leave it out, or write a magnitude above 0',
        ),
        (
            ['--num_epochs=2', '--num_batches=50'],
            '--num_epochs=2.0 clashes with --num_batches=50: each ends the run; leave one out',
        ),
        (
            ['--num_epochs=0'],
            '--num_epochs=0.0: there would be nothing to do; write a number above 0, a fraction will do',
        ),
        (['--num_epochs=-1'], '--num_epochs=-1: it must be a number from 0 to 1e+09'),
        (['--num_eval_epochs=1e300'], '--num_eval_epochs=1e300: it must be a number from 0 to 1e+09'),
        (['--label_smoothing=1.5'], '--label_smoothing=1.5: it must be a number from 0 to 1'),
        (
            ['--piecewise_learning_rate_schedule=0.3;10;0.1', '--learning_rate=0.3'],
            '--piecewise_learning_rate_schedule=0.3;10;0.1 clashes with --init_learning_rate=0.3: the first sets the '
            'learning rate of the whole training; leave one out',
        ),
        (
            ['--resnet_base_lr=0.1', '--minimum_learning_rate=0.01', '--model=resnet50'],
            '--resnet_base_lr=0.1 clashes with --minimum_learning_rate=0.01: the first sets the learning rate of the '
            'whole training; leave one out',
        ),
        (
            ['--resnet_base_lr=0.1', '--piecewise_learning_rate_schedule=0.3;10;0.1', '--model=resnet50'],
            '--piecewise_learning_rate_schedule=0.3;10;0.1 clashes with --resnet_base_lr=0.1: the first sets the '
            'learning rate of the whole training; leave one out',
        ),
        (
            ['--piecewise_learning_rate_schedule=0.3'],
            '--piecewise_learning_rate_schedule=0.3: it has one rate; put a schedule in quotes, since '
            "semicolons end a command; write 'RATE;EPOCH;RATE;...', such as '0.3;10;0.2;25;0.02'",
        ),
        (
            ['--num_epochs_per_decay=2'],
            '--num_epochs_per_decay=2.0: it takes both to lower the learning rate; add --learning_rate_decay_factor, '
            'above 0',
        ),
        (
            ['--learning_rate_decay_factor=0.5'],
            '--learning_rate_decay_factor=0.5: it takes both to lower the learning rate; add --num_epochs_per_decay, '
            'above 0',
        ),
        (['--profile_steps=10,20'], '--profile_steps=10,20: it takes both to profile; add --profile_dir'),
        (['--profile_dir=p'], '--profile_dir=p: it takes both to profile; add --profile_steps'),
        *(
            (
                [f'--profile_steps={steps}', '--profile_dir=p'],
                f'--profile_steps={steps}: it must be the first and the last of the timed steps to profile, such as '
                '10,20',
            )
            for steps in ('5', '20,10', '0,3', '1,2,3', 'all', '1:2')
        ),
        *(
            (
                ['--export_saved_model=m', f'--{name}={path}'],
                f'--export_saved_model=m clashes with --{name}={path}: nothing else can be in the folder of an export; '
                'write another path in one of them',
            )
            for name, path in (('train_dir', 'm'), ('train_dir', './m/train'), ('eval_dir', 'm/'))
        ),
    ],
)
def test_wrong_use_is_told_in_one_line(argv: list[str], message: str) -> None:
    assert refusal(*argv) == message


def test_an_unknown_model_is_told_with_the_nearest_one() -> None:
    assert refusal('--model=renset50').startswith('--model=renset50: there is no such model; did you mean resnet50?')


def test_older_names_are_read() -> None:
    assert parse_argv(['--learning_rate=0.5']).params == Params(init_learning_rate=0.5)
    replicated = ['--variable_update=replicated', '--num_gpus=2']
    assert parse_argv(['--use_fp16']).params == parse_argv(['--use_fp16', '--precision=fp16']).params
    assert parse_argv(['--use_fp16']).params == Params(precision='fp16')
    assert parse_argv(['--nouse_fp16', '--precision=bf16']).params == Params(precision='bf16')
    params = parse_argv(['--use_nccl=True', *replicated]).params
    assert params == Params(all_reduce_spec='nccl', variable_update='replicated', num_gpus=2)
    assert parse_argv(['--use_nccl=False', *replicated]).params.all_reduce_spec is None
    assert parse_argv(['--nouse_nccl', '--all_reduce_spec=xring', *replicated]).params.all_reduce_spec == 'xring'
    assert parse_argv(['--use_nccl', '--all_reduce_spec=nccl/xring', *replicated]).params.all_reduce_spec == (
        'nccl/xring'
    )


@pytest.mark.parametrize(
    ('argv', 'lines'),
    [
        (
            ['--momentum=0.9'],
            ['--momentum=0.9 has no effect: it belongs to --optimizer=momentum and --optimizer=lars'],
        ),
        (['--momentum=0.8', '--optimizer=momentum'], []),
        (['--momentum=0.8', '--lars_eta=0.002', '--optimizer=lars'], []),
        (['--lars_eta=0.002'], ['--lars_eta=0.002 has no effect: it belongs to --optimizer=lars']),
        (
            ['--resnet_base_lr=0.1', '--init_learning_rate=0.2', '--model=lenet'],
            ['--resnet_base_lr=0.1 has no effect: it belongs to residual networks, and --model is none'],
        ),
        (
            ['--minimum_learning_rate=0.1'],
            [
                '--minimum_learning_rate=0.1 has no effect: nothing lowers the learning rate without '
                '--num_epochs_per_decay'
            ],
        ),
        (
            ['--single_l2_loss_op', '--weight_decay=0'],
            ['--single_l2_loss_op=True has no effect: --weight_decay=0 leaves no L2 loss'],
        ),
        (
            ['--num_learning_rate_warmup_epochs=1', '--label_smoothing=0.1', '--forward_only'],
            [
                '--num_learning_rate_warmup_epochs=1.0 has no effect: --forward_only updates no variables',
                '--label_smoothing=0.1 has no effect: --forward_only takes labels as they are',
            ],
        ),
        (['--compute_lr_on_cpu'], []),
        (
            ['--compute_lr_on_cpu=False'],
            ['--compute_lr_on_cpu=False has no effect: the learning rate is computed on the CPU in every run'],
        ),
        (['--adam_beta1=0.5'], ['--adam_beta1=0.5 has no effect: it belongs to --optimizer=adam']),
        (['--rmsprop_decay=0.5'], ['--rmsprop_decay=0.5 has no effect: it belongs to --optimizer=rmsprop']),
        (
            ['--distortions', '--resize_method=area'],
            [
                '--distortions=True has no effect: images are synthetic without --data_dir',
                '--resize_method=area has no effect: images are synthetic without --data_dir',
            ],
        ),
        (['--nodistortions', '--nohierarchical_copy', '--gradient_repacking=0'], []),
        (['--distortions', '--resize_method=area', '--data_dir=d'], []),
        (
            ['--distortions', '--data_dir=d', '--forward_only'],
            ['--distortions=True has no effect: --forward_only takes images as they are'],
        ),
        (
            ['--optimizer=adam', '--weight_decay=0', '--forward_only'],
            [
                '--optimizer=adam has no effect: --forward_only updates no variables',
                '--weight_decay=0.0 has no effect: --forward_only updates no variables',
            ],
        ),
        (
            ['--use_nccl=True'],
            ['--use_nccl=True has no effect: it belongs to --variable_update=replicated and distributed_all_reduce'],
        ),
        (
            ['--hierarchical_copy', '--variable_update=replicated'],
            ['--hierarchical_copy=True has no effect: with --num_gpus=1 there is one gradient, and nothing to sum'],
        ),
        (
            ['--network_topology=dgx1', '--variable_update=replicated', '--num_gpus=2'],
            ['--network_topology=dgx1 has no effect: it belongs to --hierarchical_copy'],
        ),
        (
            ['--peer_timeout_secs=9', '--nodistinct_worker_data', '--variable_update=horovod'],
            [
                '--peer_timeout_secs=9.0 has no effect: horovodrun starts the processes, and Horovod brings them '
                'together'
            ],
        ),
        (['--local_parameter_device=cpu', '--variable_update=replicated', '--num_gpus=2'], []),
        (
            ['--allow_growth', '--device=cpu'],
            ['--allow_growth=True has no effect: the run is on the CPU'],
        ),
        (['--allow_growth'], []),
        (
            ['--nouse_chrome_trace_format'],
            ['--use_chrome_trace_format=False has no effect: it belongs to --trace_file'],
        ),
        (
            ['--train_dir=t', '--forward_only'],
            [
                '--train_dir=t has no effect: --forward_only saves no checkpoints, and summaries need '
                '--save_summaries_steps and --summary_verbosity'
            ],
        ),
        (['--save_model_secs=5'], ['--save_model_secs=5.0 has no effect: checkpoints are saved with --train_dir only']),
        (
            ['--nocross_replica_sync', '--peer_timeout_secs=9'],
            [
                '--cross_replica_sync=False has no effect: it belongs to clusters, and this process is alone',
                '--peer_timeout_secs=9.0 has no effect: it belongs to clusters, and this process is alone',
            ],
        ),
        (['--nocross_replica_sync', '--ps_hosts=a:1', '--worker_hosts=b:1,c:1'], []),
        (
            ['--num_ps=2', '--ps_hosts=a:1', '--worker_hosts=b:1,c:1'],
            ['--num_ps=2 has no effect: the flags of the hosts say where the tasks are'],
        ),
        (['--train_dir=t', '--save_summaries_steps=1', '--summary_verbosity=1'], []),
        (['--display_every=1000'], []),
        (['--train_dir=t', '--export_saved_model=t/m', '--backbone_model_path=t'], []),
        (
            ['--backbone_model_path=b', '--profile_steps=1,2', '--profile_dir=p', '--train_dir=t', '--eval'],
            [
                '--backbone_model_path=b has no effect: --eval trains nothing',
                '--profile_steps=1,2 has no effect: --eval trains nothing',
                '--profile_dir=p has no effect: --eval trains nothing',
            ],
        ),
        (['--export_saved_model=m', '--train_dir=t', '--eval'], []),
        (
            ['--backbone_model_path=b', '--export_saved_model=m', '--forward_only'],
            [
                '--backbone_model_path=b has no effect: --forward_only trains nothing',
                '--export_saved_model=m has no effect: --forward_only trains nothing',
            ],
        ),
        (
            ['--compact_gradient_transfer'],
            [
                '--compact_gradient_transfer=True has no effect: it belongs to --variable_update=replicated, and to '
                'clusters'
            ],
        ),
        (['--compact_gradient_transfer', '--variable_update=replicated', '--num_gpus=2'], []),
        (['--nocompact_gradient_transfer'], []),
        (
            ['--precision=bf16', '--fp16_enable_auto_loss_scale'],
            ['--fp16_enable_auto_loss_scale=True has no effect: the loss is scaled with --precision=fp16 only'],
        ),
        (
            ['--use_fp16', '--fp16_inc_loss_scale_every_n=9'],
            ['--fp16_inc_loss_scale_every_n=9 has no effect: it belongs to --fp16_enable_auto_loss_scale'],
        ),
        (['--fp16_vars'], ['--fp16_vars=True has no effect: it belongs to --precision=fp16 and bf16']),
        (
            ['--eval', '--train_dir=t', '--graph_file=g', '--variable_update=replicated', '--batch_size=8'],
            [
                '--variable_update=replicated has no effect: --eval reads the checkpoints of all in the same way',
                '--graph_file=g has no effect: it is about training steps, and --eval takes none',
            ],
        ),
        (
            ['--eval', '--train_dir=t', '--data_dir=d', '--batch_size=8', '--eval_batch_size=4', '--tf_random_seed=5'],
            [
                '--batch_size=8 has no effect: --eval_batch_size says how many images are evaluated at a time',
                '--tf_random_seed=5 has no effect: --eval takes the weights of a checkpoint, and images as they are',
            ],
        ),
    ],
)
def test_a_flag_without_effect_is_named(argv: list[str], lines: list[str]) -> None:
    assert list(parse_argv(argv).warnings) == lines


@pytest.mark.parametrize(
    ('environ', 'is_alone'),
    [
        ({}, True),
        ({'SLURM_STEP_NUM_TASKS': '1', 'PMIX_RANK': '0'}, True),
        ({'SLURM_STEP_NUM_TASKS': '2', 'PMIX_RANK': '0'}, False),
        # mpirun's daemon is the one task of a step of Slurm.
        ({'OMPI_COMM_WORLD_SIZE': '2', 'SLURM_STEP_NUM_TASKS': '1'}, False),
        ({'PMIX_RANK': '0'}, False),
        ({'TF_CONFIG': '{}'}, False),
    ],
)
def test_the_flags_of_clusters_have_no_effect_on_what_a_launcher_starts_alone(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], is_alone: bool
) -> None:
    for name in ('TF_CONFIG', 'PMIX_RANK', 'OMPI_COMM_WORLD_SIZE', 'SLURM_STEP_NUM_TASKS'):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    of_clusters = ['--peer_timeout_secs=9.0 has no effect: it belongs to clusters, and this process is alone']
    assert list(parse_argv(['--peer_timeout_secs=9']).warnings) == (of_clusters if is_alone else [])
    of_one = parse_argv(['--local_parameter_device=cpu', '--variable_update=replicated', '--num_gpus=2']).warnings
    assert (not of_one) == is_alone


def test_flags_of_older_versions_are_accepted_with_one_line() -> None:
    argv = ['--flush_stdout=true', '--cache_data', '--result_storage=x', '--gpu_pending_cap=3', '--nouse_data_sets']
    parsed = parse_argv([*argv, '--log_dir', 'd'])
    assert parsed.params == Params()
    assert len(parsed.warnings) == 6
    assert '--flush_stdout=true has no effect: each line is flushed anyway' in parsed.warnings


@pytest.mark.parametrize(
    'argv',
    [
        '--use_fp16=False',
        '--nouse_fp16',
        '--job_name=',
        '--task_index=',
        '--eval=false',
        '--variable_consistency=strong',
        '--gpu_kt_max_bytes=0',
        '--trt_mode=',
        '--use_tf_layers',
    ],
)
def test_the_default_of_a_flag_that_is_not_here_is_accepted_in_silence(argv: str) -> None:
    assert parse_argv([argv]) == parse_argv([])


@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (
            '--variable_consistency=relaxed',
            '--variable_consistency=relaxed: not in this version; leave it out or write --variable_consistency=strong',
        ),
        (
            '--gpu_indices=0,1',
            '--gpu_indices=0,1: not in this version; leave it out; CUDA_VISIBLE_DEVICES=0,1 in the environment chooses '
            'GPUs',
        ),
        (
            '--ml_perf',
            '--ml_perf=true: this program does not have it: the MLPerf rules have their own programs, '
            'see github.com/mlcommons/training',
        ),
    ],
)
def test_a_flag_that_is_not_here_stops_the_run(argv: str, message: str) -> None:
    assert refusal(argv) == message


def test_each_flag_of_the_original_has_one_home() -> None:
    assert not set(SPECS) & set(legacy_flags.NAMES)
    # 137 flags; some are ours, the older names are of versions before.
    ours = {'verbose', 'num_ps', 'cluster_port', 'connect_timeout_secs', 'peer_timeout_secs', 'ps_linger_secs'}
    ours |= {'distinct_worker_data', 'label_smoothing', 'lars_eta', 'augmentation', 'model_file'}
    ours |= {'precision', 'continue_on_nan', 'export_saved_model', 'profile_steps', 'profile_dir'}
    # --use_fp16 is read as --precision.
    assert len(set(SPECS) - ours) + 1 + len(legacy_flags.NAMES) - 10 == 137


def test_python_and_the_command_line_say_the_same() -> None:
    with pytest.warns(UserWarning, match='--momentum=0.5 has no effect'):
        params = make_params(batch_size=4, momentum=0.5, device='CPU', use_fp16=False)
    assert params == parse_argv(['--batch_size=4', '--momentum=0.5', '--device=cpu']).params


@pytest.mark.parametrize(
    ('overrides', 'message'),
    [
        ({'batchsize': 1}, '--batchsize: there is no such flag; did you mean --batch_size?'),
        ({'batch_size': -1}, '--batch_size=-1: it must be an integer of at least 0'),
        ({'batch_size': True}, '--batch_size=True: it must be an integer of at least 0'),
        ({'batch_size': 1.0}, '--batch_size=1.0: it must be an integer of at least 0'),
        ({'batch_size': None}, '--batch_size=: it has no value; it must be an integer of at least 0'),
        ({'forward_only': 1}, '--forward_only=1: it must be true or false'),
        ({'momentum': []}, '--momentum=[]: it must be a number from 0 to 1'),
        ({'weight_decay': float('inf')}, '--weight_decay=inf: it must be a number of at least 0'),
        ({'data_dir': 3}, '--data_dir=3: it must be text'),
        (
            {'staged_vars': True, 'variable_update': 'replicated'},
            '--staged_vars clashes with --variable_update=replicated',
        ),
        (
            {'task_index': 0, 'variable_update': 'horovod'},
            '--task_index=0 clashes with --variable_update=horovod, whose processes horovodrun starts and numbers; ',
        ),
        (
            {'cross_replica_sync': False, 'variable_update': 'horovod'},
            '--cross_replica_sync=False clashes with --variable_update=horovod, whose processes take each step ',
        ),
        ({'gradient_clip': 0}, '--gradient_clip=0: it would make every gradient zero; '),
    ],
)
def test_python_gets_the_same_refusals(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_params(**overrides)
    assert str(caught.value).startswith(message)


def test_python_may_give_paths() -> None:
    assert make_params(graph_file=Path('a') / 'b').graph_file == 'a/b'


@given(
    st.fixed_dictionaries(
        {
            'batch_size': st.integers(0, (1 << 31) - 1),
            'tf_random_seed': st.integers(1 - (1 << 31), (1 << 31) - 1),
            'weight_decay': st.floats(0, 1e300),
            'forward_only': st.booleans(),
            'data_format': st.sampled_from([None, 'NHWC', 'NCHW']),
            'graph_file': st.none() | st.text(min_size=1),
        }
    )
)
def test_what_python_says_the_command_line_can_say(overrides: dict[str, Any]) -> None:
    argv = [f'--{name}={"" if value is None else value}' for name, value in overrides.items()]
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert make_params(**overrides) == parse_argv(argv).params


def test_params_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        # That mypy refuses it too is the point.
        make_params().batch_size = 3  # type: ignore[misc]


def test_help_names_each_flag_once_in_its_group() -> None:
    text = format_help()
    assert max(map(len, text.splitlines())) <= 100
    for name, spec in SPECS.items():
        lines = [line for line in text.splitlines() if line in (f'  --{name}=VALUE', f'  --[no]{name}')]
        assert len(lines) == 1, name
        assert text.index(f'{spec.group}:\n') < text.index(lines[0])
    assert '[an integer of at least 0, in images; default 0]' in ' '.join(text.split())
    assert '[one of NHWC, NCHW; the original: NCHW]' in ' '.join(text.split())


def outputs(folder: Path, **names: str) -> Params:
    paths: dict[str, Any] = {name: str(folder / path) for name, path in names.items()}
    return Params(**paths)


def test_outputs_that_can_be_written_leave_no_trace(tmp_path: Path) -> None:
    (tmp_path / 'old').write_text('kept')
    (tmp_path / 'link').symlink_to(tmp_path / 'not yet')
    check_outputs(outputs(tmp_path, trace_file='old', graph_file='new', tfprof_file='link'))
    check_outputs(outputs(tmp_path, partitioned_graph_file_prefix='part'))
    assert sorted(path.name for path in tmp_path.iterdir()) == ['link', 'old']
    assert (tmp_path / 'old').read_text() == 'kept'
    assert (tmp_path / 'link').is_symlink()


def test_the_train_dir_is_made(tmp_path: Path) -> None:
    check_outputs(outputs(tmp_path, train_dir='a/b'))
    assert list((tmp_path / 'a' / 'b').iterdir()) == []


def test_only_the_chief_prepares_what_it_alone_writes(tmp_path: Path) -> None:
    params = outputs(tmp_path, profile_dir='p', export_saved_model='models/1')
    check_outputs(params, is_chief=False)
    assert list(tmp_path.iterdir()) == []
    check_outputs(params)
    assert sorted(tmp_path.rglob('*')) == [tmp_path / 'models', tmp_path / 'p']
    (tmp_path / 'models' / '1').mkdir()
    check_outputs(params)
    (tmp_path / 'models' / '1' / 'saved_model.pb').touch()
    check_outputs(params, is_chief=False)


@pytest.mark.parametrize(
    ('name', 'path', 'reason'),
    [
        ('trace_file', 'none/t', 'there is no folder {}/none; make it first'),
        ('graph_file', '.', 'it cannot be written (is a directory); write another path'),
        ('tfprof_file', 'file/t', 'a file is where a folder must be; write another path'),
        ('partitioned_graph_file_prefix', 'none/t', 'there is no folder {}/none; make it first'),
        ('train_dir', 'file', 'a file is where a folder must be; write another path'),
        ('train_dir', 'x' * 300, 'it cannot be written (file name too long); write another path'),
        ('profile_dir', 'file/p', 'a file is where a folder must be; write another path'),
        ('export_saved_model', '', 'the folder is not empty; write the name of a new one'),
        ('export_saved_model', 'file', 'a file is where a folder must be; write another path'),
        ('export_saved_model', 'file/m', 'a file is where a folder must be; write another path'),
        ('export_saved_model', 'link', 'a link cannot be replaced; write the path of a new folder'),
    ],
)
def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, name: str, path: str, reason: str) -> None:
    (tmp_path / 'file').touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(UsageError) as caught:
        check_outputs(outputs(tmp_path, **{name: path}))
    assert str(caught.value) == f'--{name}={tmp_path / path}: {reason.format(tmp_path)}'


def test_an_export_does_not_replace_a_mounted_folder() -> None:
    with pytest.raises(
        UsageError, match=r'^--export_saved_model=/proc: a mounted folder cannot be replaced; name a new'
    ):
        check_outputs(Params(export_saved_model='/proc'))


def test_an_output_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match=r'^--train_dir=gs://b/t: only files of this machine can be written'):
        check_outputs(Params(train_dir='gs://b/t'))


def test_a_data_folder_without_shards_is_refused(tmp_path: Path) -> None:
    check_inputs(Params())
    with pytest.raises(UsageError, match='no file is named like train-00000-of-00001'):
        check_inputs(Params(data_dir=str(tmp_path)))
