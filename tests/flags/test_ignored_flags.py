"""Ignored flags: a warning names each, and the flag that makes it have no effect; the flags about
input, with their choices and conflicts.
"""

import pytest

from models.registry import MODELS
from tests.support.outputs import check_line, refused
from tf_cnn.inputs.catalog import DEFAULT, ML_PERF, PREPROCESSORS, preprocessor_for
from tf_cnn.inputs.config import PipelineConfig
from tf_cnn.plan.params import SPECS, RuleContext
from tf_cnn.plan.parsing import parse_argv

pytestmark = pytest.mark.unit


# Command lines, and after each | what a warning names: first the ignored flag with its value.
IGNORED = """
--momentum=0.8 | --momentum=0.8 --optimizer=momentum --optimizer=lars
--nonesterov | --nesterov=False --optimizer=momentum
--adam_beta1=0.5 | --adam_beta1=0.5 --optimizer=adam
--resnet_base_lr=0.1 --init_learning_rate=0.2 --model=lenet | --resnet_base_lr=0.1 --model
--minimum_learning_rate=0.1 | --minimum_learning_rate=0.1 --num_epochs_per_decay
--single_l2_loss_op --weight_decay=0 | --single_l2_loss_op=True --weight_decay=0
--compute_lr_on_cpu=False | --compute_lr_on_cpu=False CPU
--num_learning_rate_warmup_epochs=1 --label_smoothing=0.1 --forward_only |
    --num_learning_rate_warmup_epochs=1
    --forward_only | --label_smoothing=0.1 --forward_only
--distortions --resize_method=area | --distortions=True --data_dir | --resize_method=area --data_dir
--distortions --data_dir=d --forward_only | --distortions=True --forward_only
--optimizer=adam --weight_decay=0 --forward_only | --optimizer=adam --forward_only |
    --weight_decay=0.0 --forward_only
--use_nccl=True | --use_nccl=True --variable_update=replicated distributed_all_reduce
--network_topology=gcp_v100 --variable_update=replicated --num_gpus=2 | --network_topology=gcp_v100
    --hierarchical_copy
--connect_timeout_secs=9 --nodistinct_worker_data --variable_update=horovod |
    --connect_timeout_secs=9.0 horovod
--peer_timeout_secs=9 | --peer_timeout_secs=9.0 lost
--nouse_chrome_trace_format | --use_chrome_trace_format=False --trace_file
--train_dir=t --forward_only | --train_dir=t --forward_only --save_summaries_steps
    --summary_verbosity
--nocross_replica_sync --connect_timeout_secs=9 | --cross_replica_sync=False |
    --connect_timeout_secs=9.0
--num_ps=2 --ps_hosts=a:1 --worker_hosts=b:1,c:1 | --num_ps=2 hosts
--noslice_variables | --slice_variables=False parameter servers
--noslice_variables --eval --train_dir=t --ps_hosts=a:1,b:1 --worker_hosts=c:1,d:1 |
    --slice_variables=False --eval
--backbone_model_path=b --profile_steps=1,2 --profile_dir=p --train_dir=t --eval |
    --backbone_model_path=b --eval |
    --profile_steps=1,2 --eval | --profile_dir=p --eval
--backbone_model_path=b --forward_only | --backbone_model_path=b --forward_only
--compact_gradient_transfer --variable_update=replicated --num_gpus=2 --forward_only |
    --compact_gradient_transfer=True --forward_only
--precision=bf16 --fp16_enable_auto_loss_scale | --fp16_enable_auto_loss_scale=True --precision=fp16
--use_fp16 --fp16_inc_loss_scale_every_n=9 | --fp16_inc_loss_scale_every_n=9
    --fp16_enable_auto_loss_scale
--fp16_vars | --fp16_vars=True --precision=fp16 bf16
--eval --train_dir=t --graph_file=g --variable_update=replicated --batch_size=8 |
    --variable_update=replicated --eval
    | --graph_file=g --eval
--eval --train_dir=t --data_dir=d --batch_size=8 --eval_batch_size=4 --tf_random_seed=5 |
    --batch_size=8
    --eval_batch_size | --tf_random_seed=5 --eval
--num_eval_batches=5 | --num_eval_batches=5 --eval
--eval --train_dir=t --data_dir=d --num_batches=5 --num_eval_epochs=2 | --num_batches=5
    --num_eval_epochs
--eval --train_dir=t --data_dir=d --num_batches=5
--all_reduce_spec=x:y | --all_reduce_spec=x:y replicated
--all_reduce_spec=x:y --variable_update=replicated | --all_reduce_spec=x:y --num_gpus=1
--all_reduce_spec=x:y --variable_update=replicated --num_gpus=2 --forward_only |
    --all_reduce_spec=x:y --forward_only
--all_reduce_spec=collective#2 --variable_update=collective_all_reduce --num_gpus=2 |
    --all_reduce_spec=collective#2
    replicated
--agg_small_grads_max_bytes=9 --gradient_repacking=4 --variable_update=replicated --num_gpus=2 |
    --agg_small_grads_max_bytes=9 --gradient_repacking
--device=cpu --gpu_thread_mode=global --per_gpu_thread_count=4 --nobatchnorm_persistent --notf32 |
    --gpu_thread_mode=global CPU | --per_gpu_thread_count=4 CPU | --batchnorm_persistent=False CPU |
    --tf32=False CPU
--local_parameter_device=gpu --device=cpu | --local_parameter_device=gpu CPU
--local_parameter_device=cpu --variable_update=independent --num_gpus=2 |
    --local_parameter_device=cpu separate
--local_parameter_device=gpu --variable_update=replicated --num_gpus=2 --all_reduce_spec=xring |
    --local_parameter_device=gpu --all_reduce_spec
--use_nccl=True --local_parameter_device=gpu --variable_update=replicated --num_gpus=2 --device=cpu
    | --use_nccl=True
    NCCL CPU pscpu psgpu xring
--all_reduce_spec=pscpu:32k:nccl#2 --hierarchical_copy --variable_update=replicated --num_gpus=2
    --device=cpu |
    --all_reduce_spec=pscpu:32k:nccl#2 NCCL CPU
--all_reduce_spec=nccl/xring --variable_update=distributed_all_reduce --num_gpus=2 --device=cpu |
    --all_reduce_spec=nccl/xring NCCL CPU
--horovod_device=gpu --device=cpu --variable_update=horovod | --horovod_device=gpu CPU
--server_protocol=grpc+verbs | --server_protocol=grpc+verbs
--variable_consistency=relaxed | --variable_consistency=relaxed --variable_update=replicated
--noenable_optimizations --rewriter_config=remapping:OFF | --enable_optimizations=False
    --rewriter_config
--print_training_accuracy --loss_type_to_report=base_loss --forward_only |
    --print_training_accuracy=True --forward_only | --loss_type_to_report=base_loss --forward_only
--freeze_when_forward_only | --freeze_when_forward_only=True --forward_only
--eval_interval_secs=9 | --eval_interval_secs=9.0 --eval
--benchmark_test_id=x | --benchmark_test_id=x --benchmark_log_dir
--measure_peak --sync_on_finish --worker_hosts=a:1,b:1 --variable_update=collective_all_reduce |
    --measure_peak=True workers | --sync_on_finish=True one process
--nofused_batch_norm --nobatchnorm_persistent | --batchnorm_persistent=False --fused_batch_norm
--per_gpu_thread_count=3 --gpu_thread_mode=global | --per_gpu_thread_count=3 --gpu_thread_mode
--agg_small_grads_max_group=9 --variable_update=replicated --num_gpus=2 |
    --agg_small_grads_max_group=9 --agg_small_grads_max_bytes=0
--exchange_bytes=8 | --exchange_bytes=8 --exchange_only
--exchange_only --exchange_bytes=8 --model=lenet --batch_size=2 --single_l2_loss_op
    --weight_decay=0.1 --input_pipeline=feed_dict | --model=lenet --exchange_bytes |
    --batch_size=2 --exchange_only | --single_l2_loss_op=True --exchange_only |
    --weight_decay=0.1 --exchange_only | --input_pipeline=feed_dict --exchange_only
--use_datasets | --use_datasets=True --data_dir
--input_pipeline=tf_data --data_dir=d --train_dir=t --eval | --input_pipeline=tf_data --eval
--input_pipeline=device | --input_pipeline=device --data_dir
--use_datasets --data_dir=d --nodatasets_use_prefetch --datasets_prefetch_buffer_size=2 |
    --datasets_prefetch_buffer_size=2 --nodatasets_use_prefetch
--use_datasets --data_dir=d --datasets_use_caching --datasets_repeat_cached_sample |
    --datasets_use_caching=True --datasets_repeat_cached_sample
--ml_perf | --ml_perf=True --data_dir
--input_preprocessor=official_models_imagenet | --input_preprocessor=official_models_imagenet
--ml_perf --data_dir=d --input_preprocessor=official_models_imagenet | --ml_perf=True
--distortions --resize_method=area --data_dir=d --input_preprocessor=official_models_imagenet |
    --distortions=True | --resize_method=area
"""


def warnings(argv: str, *, is_single_process: bool | None = None) -> list[str]:
    """Returns the warnings about a command line, by default in a cluster if its flags name one."""
    parsed = parse_argv(argv.split())
    params = parsed.params
    if is_single_process is None:
        is_single_process = (
            params.cluster.worker_hosts is None and params.variables.mode.launcher is None
        )
    context = RuleContext(
        is_single_process=is_single_process,
        is_residual=MODELS.find_model(params.run.model).is_residual,
        num_ps=len((params.cluster.ps_hosts or '').split(',')) if params.cluster.ps_hosts else 0,
    )
    return [*parsed.warnings, *params.ignored_flag_warnings(context)]


@pytest.mark.parametrize(
    'argv',
    # Command lines without a warning.
    [
        '--input_pipeline=feed_dict',
        '--gpu_thread_mode=gpu_shared --notf32',
        '--allow_growth --compute_lr_on_cpu --display_every=1000 --slice_variables '
        '--server_protocol=grpc',
        '--momentum=0.8 --optimizer=momentum',
        '--nonesterov --optimizer=momentum',
        '--momentum=0.8 --lars_eta=0.002 --optimizer=lars',
        '--nodistortions --nohierarchical_copy --gradient_repacking=0',
        '--distortions --resize_method=area --data_dir=d',
        '--distortions --nodistort_color_in_yiq --scaled_decode --data_dir=d',
        '--scaled_decode --data_dir=d --forward_only --input_preprocessor=official_models_imagenet',
        '--local_parameter_device=cpu --variable_update=replicated --num_gpus=2',
        '--local_parameter_device=gpu --num_gpus=2 --device=cpu',
        '--nocross_replica_sync --ps_hosts=a:1 --worker_hosts=b:1,c:1',
        '--noslice_variables --ps_hosts=a:1,b:1 --worker_hosts=c:1,d:1',
        '--noslice_variables --staged_vars --ps_hosts=a:1 --worker_hosts=c:1,d:1',
        '--noslice_variables --variable_update=distributed_replicated --ps_hosts=a:1 '
        '--worker_hosts=c:1,d:1',
        '--noslice_variables --forward_only --ps_hosts=a:1,b:1 --worker_hosts=c:1,d:1',
        '--train_dir=t --save_summaries_steps=1 --summary_verbosity=1',
        # Explicit defaults.
        '--momentum=0.9 --adam_beta1=0.9 --network_topology=dgx1 --max_ckpts_to_keep=5 '
        '--use_chrome_trace_format',
        '--train_dir=t --backbone_model_path=t',
        '--compact_gradient_transfer --variable_update=replicated --num_gpus=2',
        '--compact_gradient_transfer --forward_only --ps_hosts=a:1 --worker_hosts=b:1,c:1',
        # The original demands it.
        '--variable_update=collective_all_reduce --all_reduce_spec=collective --num_gpus=2',
        '--variable_update=replicated --num_gpus=2 --all_reduce_spec=psgpu#4:32k:xring#2',
    ],
)
def test_flags_with_an_effect_and_default_values_give_no_warning(argv):
    assert warnings(argv) == []


@pytest.mark.parametrize('row', IGNORED.replace('\n    ', ' ').strip().splitlines())
def test_an_ignored_flag_is_named_with_the_flag_that_decides(row):
    argv, *expected = row.split(' | ')
    lines = warnings(argv)
    assert len(lines) == len(expected), lines
    # The warnings may come in any order.
    for facts in expected:
        flag, *words = facts.split()
        (line,) = (line for line in lines if line.startswith(flag))
        check_line(line.removeprefix(flag).lower(), *map(str.lower, words))


@pytest.mark.parametrize('is_single_process', [True, False])
def test_flags_of_clusters_and_of_towers_are_ignored_in_the_other_kind_of_run(is_single_process):
    of_cluster = warnings('--connect_timeout_secs=9', is_single_process=is_single_process)
    expected = ['--connect_timeout_secs'] if is_single_process else []
    assert [line.partition('=')[0] for line in of_cluster] == expected
    towers = '--local_parameter_device=cpu --variable_update=replicated --num_gpus=2'
    assert (warnings(towers, is_single_process=is_single_process) == []) == is_single_process


@pytest.mark.parametrize(
    'flags',
    ['', '--forward_only', '--eval --train_dir=t', '--variable_update=replicated --num_gpus=2'],
)
@pytest.mark.parametrize('is_single_process', [True, False])
def test_an_explicit_default_is_neither_refused_nor_warned_of(flags, is_single_process):
    for name, spec in SPECS.items():
        if spec.default is None or f'--{name}' in flags:
            continue
        lines = warnings(
            f'--device=cpu {flags} --{name}={spec.default}', is_single_process=is_single_process
        )
        assert not [line for line in lines if line.startswith(f'--{name}=')], name


# ---- input ---------------------------------------------------------------------------------------


RECORDS = RuleContext(is_single_process=True, is_residual=False)
ARRAYS = RuleContext(is_single_process=True, is_residual=False, has_records=False)


def ignored(argv: str, run: RuleContext = RECORDS) -> list[str]:
    """Returns the warnings about ignored flags."""
    return parse_argv(argv.split()).params.ignored_flag_warnings(run)


def test_flags_choose_the_pipeline():
    for argv, pipeline in (
        ('', 'record_input'),
        ('--deterministic', 'tf_data'),
        ('--input_pipeline=record_input', 'record_input'),
        ('--use_datasets', 'tf_data'),
        ('--nouse_datasets', 'record_input'),
        ('--use_datasets=', 'record_input'),
    ):
        params = parse_argv(argv.split()).params
        assert params.inputs.row(params).name == pipeline, argv


# Flags of tf_data: what they set.
OF_TF_DATA = {
    '--nodatasets_use_prefetch': ('prefetched_batches', 0),
    '--datasets_prefetch_buffer_size=3': ('prefetched_batches', 3),
    '--multi_device_iterator_max_buffer_size=4': ('multi_device_iterator_max_buffer_size', 4),
    '--datasets_parallel_interleave_cycle_length=5': ('cycle_length', 5),
    '--datasets_parallel_interleave_prefetch=6': ('datasets_parallel_interleave_prefetch', 6),
    '--datasets_sloppy_parallel_interleave': ('datasets_sloppy_parallel_interleave', True),
    '--datasets_use_caching': ('datasets_use_caching', True),
    '--datasets_repeat_cached_sample': ('datasets_repeat_cached_sample', True),
    '--datasets_num_private_threads=7': ('datasets_num_private_threads', 7),
}


@pytest.mark.parametrize('flag', OF_TF_DATA)
def test_each_flag_of_tf_data_changes_its_setting(flag):
    params = parse_argv(['--data_dir=d', '--use_datasets', flag]).params
    name, value = OF_TF_DATA[flag]
    assert getattr(params.inputs, name) == value != getattr(PipelineConfig(), name)
    assert params.ignored_flag_warnings(RECORDS) == []


@pytest.mark.parametrize('flag', OF_TF_DATA)
def test_without_tf_data_each_of_its_flags_is_named_in_a_warning(flag):
    name = flag.lstrip('-').removeprefix('no').partition('=')[0]
    for other_flags, run, reason in (
        ('--data_dir=d', RECORDS, '--input_pipeline=tf_data'),
        ('--data_dir=d --nouse_datasets', RECORDS, '--input_pipeline=tf_data'),
        ('', RECORDS, '--data_dir'),
        ('--data_dir=d --train_dir=t --eval', RECORDS, '--eval'),
        ('--data_dir=d', ARRAYS, 'records'),
    ):
        (line,) = ignored(f'{other_flags} {flag}', run)
        check_line(line, f'--{name}=', reason)


def test_flags_about_records_are_ignored_where_images_are_arrays():
    for argv, flag in (
        ('--use_datasets --data_dir=d', '--use_datasets=True'),
        # Arrays are in memory anyway, except in an evaluation.
        ('--input_pipeline=device --data_dir=d', ''),
        ('--input_pipeline=device --data_dir=d --train_dir=t --eval', '--input_pipeline=device'),
        ('--ml_perf --data_dir=d', '--ml_perf=True'),
        ('--input_preprocessor=official_models_imagenet --data_dir=d', '--input_preprocessor'),
        ('--scaled_decode --data_dir=d', '--scaled_decode=True'),
    ):
        lines = ignored(argv, ARRAYS)
        assert len(lines) == bool(flag), argv
        for line in lines:
            check_line(line, flag, 'has no effect')


@pytest.mark.parametrize(
    ('flag', 'fact'),
    [
        ('--input_pipeline=record_input', 'tf_data'),
        ('--use_datasets=False', 'tf_data'),
        ('--datasets_sloppy_parallel_interleave', ''),
    ],
)
def test_an_order_that_depends_on_timing_is_refused_with_deterministic(flag, fact):
    argv = [flag, '--deterministic', '--data_dir=d']
    with refused(flag, '--deterministic', fact):
        parse_argv(argv).params.check(RECORDS)
    parse_argv([flag, '--data_dir=d']).params.check(RECORDS)
    # Where no records are read.
    parse_argv([flag, '--deterministic']).params.check(RECORDS)
    parse_argv(argv).params.check(ARRAYS)
    parse_argv([*argv, '--train_dir=t', '--eval']).params.check(RECORDS)


def test_ml_perf_changes_the_default_preprocessor_only():
    with_ml_perf = {name: preprocessor_for(name, ml_perf=True) for name in PREPROCESSORS}
    assert with_ml_perf == {**PREPROCESSORS, DEFAULT: ML_PERF}
    assert preprocessor_for(DEFAULT, ml_perf=False) == PREPROCESSORS[DEFAULT]


def test_the_input_alone_is_measured_where_steps_read_something():
    for other_flags, conflicting in (
        ('', '--data_dir'),
        ('--data_dir=d --eval --train_dir=t', '--eval'),
        ('--data_dir=d --eval_during_training_every_n_steps=5', '--eval_during_training'),
    ):
        with refused('--input_only=read', conflicting):
            parse_argv(['--input_only=read', *other_flags.split()])


def test_without_a_model_its_flags_are_ignored_and_input_flags_work():
    of_model = '--optimizer=momentum --precision=bf16 --variable_update=replicated --trace_file=t'
    of_input = '--num_gpus=2 --forward_only --resize_method=area --num_warmup_batches=3'
    lines = ignored(f'--input_only=transfer --data_dir=d {of_model} {of_input} --batch_size=8')
    for line, flag in zip(sorted(lines), sorted(of_model.split()), strict=True):
        check_line(line, flag, '--input_only')
