"""Each flag of the original that works here changes what it should: one row for each, compared without and with it.

To add a flag: a row with a value, and what to look at (tests/planning/flag_effects.py) under which other flags.
"""

import functools
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from params.original import TABLE, Fate
from tests.planning.flag_effects import (
    SERVERS,
    WORKERS,
    Flags,
    Look,
    averaged_rate,
    config,
    data_sets,
    devices,
    fact,
    files,
    images_of_step,
    is_json,
    is_refused,
    kind_of_process,
    layouts,
    lines,
    links,
    losses,
    ops,
    places_of_variables,
    rates,
    saved,
    seeds,
    summaries,
    types_of_variables,
    variable,
    words_in,
    work,
)

pytestmark = pytest.mark.graph


class Row(NamedTuple):
    """A value of the flag, what to look at, and the other flags of both runs; among these may be another value."""

    value: Any
    look: Look
    others: Flags = MappingProxyType({})


REPLICATED: Flags = {'variable_update': 'replicated', 'num_gpus': 2}
EVAL: Flags = {'eval': True, 'train_dir': 'SAVED', 'num_eval_batches': 2}
EVAL_OF_FILES: Flags = {'eval': True, 'train_dir': 'SAVED', 'data_dir': 'CIFAR', 'batch_size': 2}
IN_TRAINING: Flags = {'eval_during_training_every_n_steps': 1, 'num_eval_batches': 1}
TRAIN_DIR: Flags = {'train_dir': 'DIR/t'}
SUMMARIES: Flags = {**TRAIN_DIR, 'summary_verbosity': 1, 'save_summaries_steps': 2}
DECAY: Flags = {'init_learning_rate': 0.5, 'num_epochs_per_decay': 1, 'learning_rate_decay_factor': 0.5}
FP16: Flags = {'use_fp16': True, 'fp16_enable_auto_loss_scale': True, **TRAIN_DIR}
GPU: Flags = {'device': 'gpu'}
# The devices of a server are bound by TensorFlow alone.
CONTROLLED: Flags = {
    **WORKERS,
    'variable_update': 'distributed_all_reduce',
    'controller_host': '10.0.0.9:1',
    'device': 'cpu',
}
NARROW: Flags = {'agg_small_grads_max_bytes': 1 << 20}
RECORDS: Flags = {'data_dir': 'SHARDS', 'data_name': 'imagenet', 'model': 'trivial'}
TF_DATA: Flags = {**RECORDS, 'use_datasets': True}
_OPTIONS, _REWRITES = 'gpu_options', 'graph_options.rewrite_options'

WALK: dict[str, Row] = {
    'adam_beta1': Row(0.1, losses, {'optimizer': 'adam'}),
    'adam_beta2': Row(0.1, losses, {'optimizer': 'adam'}),
    'adam_epsilon': Row(0.1, losses, {'optimizer': 'adam'}),
    'agg_small_grads_max_bytes': Row(1 << 20, work, REPLICATED),
    'agg_small_grads_max_group': Row(2, work, {**REPLICATED, **NARROW}),
    'all_reduce_spec': Row('nccl', work, REPLICATED),
    'allow_growth': Row(True, config(f'{_OPTIONS}.allow_growth')),
    'autotune_threshold': Row(3, variable('TF_AUTOTUNE_THRESHOLD')),
    'backbone_model_path': Row('SAVED', losses),
    'batch_size': Row(7, images_of_step),
    'batchnorm_persistent': Row(False, variable('TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT')),
    'benchmark_log_dir': Row('DIR/b', files),
    'benchmark_test_id': Row('mine', words_in('b/benchmark_run.log'), {'benchmark_log_dir': 'DIR/b'}),
    'compact_gradient_transfer': Row(True, ops('Cast'), REPLICATED),
    'controller_host': Row(
        '10.0.0.3:1', is_refused, {**WORKERS, 'variable_update': 'distributed_all_reduce', 'device': 'cpu'}
    ),
    'cross_replica_sync': Row(False, work, SERVERS),
    'data_dir': Row('CIFAR', losses),
    'data_format': Row('NHWC', layouts, {'model': 'lenet'}),
    'data_name': Row('cifar10', work, {'model': 'alexnet'}),
    'datasets_num_private_threads': Row(3, data_sets, TF_DATA),
    'datasets_parallel_interleave_cycle_length': Row(1, data_sets, TF_DATA),
    'datasets_parallel_interleave_prefetch': Row(2, data_sets, TF_DATA),
    'datasets_prefetch_buffer_size': Row(3, data_sets, TF_DATA),
    'datasets_repeat_cached_sample': Row(True, data_sets, TF_DATA),
    'datasets_sloppy_parallel_interleave': Row(True, data_sets, TF_DATA),
    'datasets_use_caching': Row(True, data_sets, TF_DATA),
    'datasets_use_prefetch': Row(False, data_sets, TF_DATA),
    'device': Row('cpu', devices),
    'display_every': Row(3, lines),
    'display_perf_ewma': Row(0.9, averaged_rate),
    'distort_color_in_yiq': Row(False, losses, {'data_dir': 'CIFAR', 'distortions': True}),
    'distortions': Row(True, losses, {'data_dir': 'CIFAR'}),
    'enable_optimizations': Row(False, config(f'{_REWRITES}.remapping')),
    'eval': Row(True, lines, {'train_dir': 'SAVED'}),
    'eval_batch_size': Row(3, lines, EVAL),
    'eval_dir': Row('DIR/e', files, IN_TRAINING),
    'eval_during_training_at_specified_epochs': Row('0.0001', lines),
    'eval_during_training_at_specified_steps': Row('2', lines),
    'eval_during_training_every_n_epochs': Row(0.0001, lines),
    'eval_during_training_every_n_steps': Row(2, lines),
    'eval_interval_secs': Row(5, fact('evaluations.interval_secs'), EVAL),
    'force_gpu_compatible': Row(True, config(f'{_OPTIONS}.force_gpu_compatible')),
    'forward_only': Row(True, work),
    'fp16_enable_auto_loss_scale': Row(True, work, {'use_fp16': True}),
    'fp16_inc_loss_scale_every_n': Row(1, saved('loss_scale/scale'), FP16),
    'fp16_loss_scale': Row(4, saved('loss_scale/scale'), FP16),
    'fp16_vars': Row(True, types_of_variables, {'use_fp16': True}),
    'freeze_when_forward_only': Row(True, work, {'forward_only': True}),
    'gpu_indices': Row('5,3', variable('CUDA_VISIBLE_DEVICES')),
    'gpu_kt_max_bytes': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_bytes')),
    'gpu_kt_max_interval': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_interval')),
    'gpu_kt_max_pending': Row(3, config(f'{_OPTIONS}.experimental.kernel_tracker_max_pending')),
    'gpu_memory_frac_for_testing': Row(0.5, config(f'{_OPTIONS}.per_process_gpu_memory_fraction')),
    'gpu_thread_mode': Row('gpu_shared', variable('TF_GPU_THREAD_MODE')),
    'gradient_clip': Row(1e-3, losses),
    'gradient_repacking': Row(2, work, REPLICATED),
    'graph_file': Row('DIR/g', files),
    'hierarchical_copy': Row(True, links, {**REPLICATED, 'num_gpus': 4}),
    'horovod_device': Row('cpu', ops('Identity'), {'variable_update': 'horovod'}),
    'init_learning_rate': Row(0.5, losses),
    'input_preprocessor': Row('official_models_imagenet', losses, TF_DATA),
    'job_name': Row('ps', kind_of_process, {**SERVERS, 'device': 'cpu'}),
    'kmp_affinity': Row('compact', variable('KMP_AFFINITY')),
    'kmp_blocktime': Row(7, variable('KMP_BLOCKTIME')),
    'kmp_settings': Row(1, variable('KMP_SETTINGS')),
    'learning_rate': Row(0.5, losses),
    'learning_rate_decay_factor': Row(0.1, rates, DECAY),
    'local_parameter_device': Row('cpu', places_of_variables),
    'log_device_placement': Row(True, config('log_device_placement')),
    'loss_type_to_report': Row('base_loss', lines),
    'max_ckpts_to_keep': Row(1, files, TRAIN_DIR),
    'minimum_learning_rate': Row(0.2, rates, DECAY),
    'ml_perf': Row(True, losses, TF_DATA),
    'model': Row('alexnet', work),
    'momentum': Row(0.1, losses, {'optimizer': 'momentum'}),
    'multi_device_iterator_max_buffer_size': Row(3, data_sets, TF_DATA),
    'network_topology': Row('gcp_v100', links, {**REPLICATED, 'num_gpus': 8, 'hierarchical_copy': True}),
    'num_batches': Row(2, losses),
    'num_epochs': Row(0.0001, losses, {'num_batches': None}),
    'num_epochs_per_decay': Row(3, rates, DECAY),
    'num_eval_batches': Row(1, lines, EVAL),
    'num_eval_epochs': Row(2, lines, EVAL_OF_FILES),
    'num_gpus': Row(2, devices),
    'num_inter_threads': Row(3, fact('session.threads.inter_op'), {'device': 'cpu'}),
    'num_intra_threads': Row(3, fact('session.threads.intra_op'), {'device': 'cpu'}),
    'num_learning_rate_warmup_epochs': Row(2, rates),
    'num_warmup_batches': Row(2, losses),
    'optimizer': Row('adam', losses),
    'partitioned_graph_file_prefix': Row('DIR/p', files),
    'per_gpu_thread_count': Row(5, variable('TF_GPU_THREAD_COUNT')),
    'piecewise_learning_rate_schedule': Row('0.3;1;0.2;3;0.1', rates),
    'print_training_accuracy': Row(True, lines),
    'ps_hosts': Row('10.0.0.3:1,10.0.0.4:1', places_of_variables, SERVERS),
    'resize_method': Row('area', ops('ResizeArea'), {'data_dir': 'SHARDS', 'data_name': 'imagenet'}),
    'resnet_base_lr': Row(0.5, rates, {'model': 'resnet20'}),
    'rewriter_config': Row('remapping: OFF', config(f'{_REWRITES}.remapping')),
    'rmsprop_decay': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'rmsprop_epsilon': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'rmsprop_momentum': Row(0.1, losses, {'optimizer': 'rmsprop'}),
    'save_model_secs': Row(1e-6, files, TRAIN_DIR),
    'save_model_steps': Row(1, files, TRAIN_DIR),
    'save_summaries_steps': Row(1, summaries, SUMMARIES),
    'server_protocol': Row('grpc+verbs', is_refused, {**SERVERS, 'device': 'cpu'}),
    'single_l2_loss_op': Row(True, ops('L2Loss')),
    'staged_vars': Row(True, ops('Stage')),
    'stop_at_top_1_accuracy': Row(0.0, losses, IN_TRAINING),
    'summary_verbosity': Row(2, summaries, SUMMARIES),
    'sync_on_finish': Row(False, variable('TF_SYNC_ON_FINISH')),
    'task_index': Row(1, devices, SERVERS),
    'tf_random_seed': Row(5, seeds),
    'tfprof_file': Row('DIR/f', files),
    'timestamped_allocator': Row(True, config(f'{_OPTIONS}.experimental.timestamped_allocator')),
    'trace_file': Row('DIR/f', files),
    'train_dir': Row('DIR/t', files),
    'use_chrome_trace_format': Row(False, is_json('f'), {'trace_file': 'DIR/f'}),
    'use_datasets': Row(True, data_sets, RECORDS),
    'use_fp16': Row(True, ops('Cast')),
    'use_nccl': Row(True, work, REPLICATED),
    'use_numa_affinity': Row(True, fact('session.config.experimental.use_numa_affinity'), CONTROLLED),
    'use_unified_memory': Row(True, config(f'{_OPTIONS}.experimental.use_unified_memory')),
    'variable_consistency': Row('relaxed', work, REPLICATED),
    'variable_update': Row('replicated', places_of_variables, {'num_gpus': 2}),
    'weight_decay': Row(0.5, losses),
    'winograd_nonfused': Row(False, variable('TF_ENABLE_WINOGRAD_NONFUSED')),
    'worker_hosts': Row(
        '10.0.0.1:1,10.0.0.2:1,10.0.0.9:1', fact('processes.num_trainers'), {**SERVERS, 'device': 'cpu'}
    ),
    'xla': Row(True, config('graph_options.optimizer_options.global_jit_level')),
    'xla_compile': Row(True, config('graph_options.optimizer_options.global_jit_level')),
}


@functools.cache
def _without_it(name: str) -> Any:
    """What is seen without the flag; rows with the same look and flags share it."""
    row = WALK[name]
    first = next(other for other, its in WALK.items() if its[1:] == row[1:])
    return row.look(row.others) if first == name else _without_it(first)


def _is_same(first: Any, second: Any) -> bool:
    """Whether two runs show the same, but for how a sum of floats is rounded."""
    if isinstance(first, list) and first and isinstance(first[0], float):
        return len(first) == len(second) and bool(np.allclose(first, second, rtol=1e-5))
    return bool(first == second)


def test_no_flag_of_the_original_that_works_is_forgotten() -> None:
    assert {*WALK} == {name for name, row in TABLE.items() if row.fate in (Fate.WORKS, Fate.RENAMED)}


@pytest.mark.long
@pytest.mark.parametrize('name', WALK)
def test_the_flag_changes_what_it_should(name: str) -> None:
    row = WALK[name]
    assert not _is_same(_without_it(name), row.look({**row.others, name: row.value}))


# One row for each way to look.
_OF_LOOKS = {row.look: name for name, row in reversed(WALK.items())}


@pytest.mark.parametrize('name', _OF_LOOKS.values())
def test_two_runs_with_the_same_flags_show_the_same(name: str) -> None:
    row = WALK[name]
    assert _is_same(_without_it(name), row.look(row.others))
