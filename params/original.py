"""The fate of each flag of the original tf_cnn_benchmarks and its other versions: one table.

A flag of the original that changes no result never stops a run: it works, or a warning names it and says what happens
instead. A flag is refused only if the run would measure something other than asked.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import Refusals, spelled
from params.older_names import OLDER_NAMES
from params.spec import FlagSpec, Value
from params.table import SPECS


class Fate(enum.Enum):
    """What becomes of a flag."""

    WORKS = 'works'
    RENAMED = 'works under another name'
    NO_EFFECT = 'has no effect here'
    REFUSED = 'is refused'


@dataclass(frozen=True)
class OriginalFlag:
    """One flag of the original.

    Attributes:
      fate: what becomes of it.
      spec: its name, and how its value is read.
      says: the name here if RENAMED, what happens instead if NO_EFFECT, or the reason and the remedy if REFUSED.
      silent: the value that asks for what this program always does and brings no warning; None for an empty value.
    """

    fate: Fate
    spec: FlagSpec
    says: str = ''
    silent: Value = None


def _no_effect(name: str, kind: type, silent: Value, says: str) -> OriginalFlag:
    return OriginalFlag(Fate.NO_EFFECT, FlagSpec(name, kind, optional=True), says, silent)


_NO_TENSORRT = 'TensorFlow contains no TensorRT any more; use trtexec of TensorRT'
_RESULT = '--result_file=FILE writes the numbers of a run'

# Flags of the original that are not among ours.
_OTHERS = (
    _no_effect('allreduce_merge_scope', int, 1, 'gradients are joined by --gradient_repacking only'),
    _no_effect(
        'batch_group_size',
        int,
        1,
        'batches are prepared one at a time, while a step computes; --datasets_prefetch_buffer_size prepares more',
    ),
    _no_effect('collect_eval_results_async', bool, False, 'accuracies are collected between the steps of evaluations'),
    _no_effect('compute_lr_on_cpu', bool, True, 'the learning rate is computed on the CPU in every run'),
    _no_effect('debugger', str, None, 'no debugger is attached; --trace_file and --graph_file show what a step does'),
    _no_effect('fuse_decode_and_crop', bool, True, 'an image is decoded and cropped by one operation in every run'),
    _no_effect('mkl', bool, False, 'oneDNN is built into TensorFlow; TF_ENABLE_ONEDNN_OPTS=0 turns it off'),
    _no_effect('sparse_to_dense_grads', bool, False, 'the gradients of these networks are dense'),
    # A float, because the original's default has more than 31 bits.
    _no_effect('trt_max_workspace_size_bytes', float, 4294967296.0, _NO_TENSORRT),
    _no_effect('use_python32_barrier', bool, False, 'no threads of Python wait for each other to prepare batches'),
    _no_effect('use_resource_vars', bool, True, 'variables are resource variables'),
    _no_effect('use_tf_layers', bool, True, 'layers are made of operations of TensorFlow in every run'),
    OriginalFlag(
        Fate.REFUSED,
        FlagSpec('trt_mode', str, optional=True, choices=('FP32', 'FP16', 'INT8')),
        _NO_TENSORRT,
    ),
)
# Flags of other versions of the original.
_OF_OTHER_VERSIONS = (
    _no_effect('cache_data', bool, None, 'records are read from --data_dir as they are needed'),
    _no_effect('datasets_prefetch_threadpool_size', int, None, '--datasets_num_private_threads sets the threads'),
    _no_effect('enable_layout_optimizer', bool, None, '--data_format sets the layout'),
    _no_effect('flush_stdout', bool, None, 'each line is flushed in every run'),
    _no_effect('gpu_pending_cap', int, None, 'TensorFlow manages the memory of a GPU'),
    _no_effect('iters_per_step', int, 1, '--steps_per_run sets how many steps one call of the session takes'),
    _no_effect('log_dir', str, None, 'logs go to standard error'),
    _no_effect('ml_perf_compliance_logging', bool, False, f'the log of MLPerf is not written; {_RESULT}'),
    _no_effect('pretrain_dir', str, None, 'training starts from new weights, or from those of --backbone_model_path'),
    _no_effect('result_storage', str, None, 'the result is printed and not stored'),
    _no_effect('use_data_sets', bool, None, '--input_pipeline says how records are read'),
    _no_effect('use_multi_device_iterator', bool, None, 'each device gets its own batches in every run'),
)
_RENAMED = {
    'learning_rate': 'init_learning_rate',
    'use_datasets': 'input_pipeline',
    'use_fp16': 'precision',
    'use_nccl': 'all_reduce_spec',
    'xla_compile': 'xla',
}
# Flags that are ours by the same name.
_WORKS = """
    adam_beta1 adam_beta2 adam_epsilon agg_small_grads_max_bytes agg_small_grads_max_group all_reduce_spec allow_growth
    autotune_threshold backbone_model_path batch_size batchnorm_persistent benchmark_log_dir benchmark_test_id
    compact_gradient_transfer controller_host cross_replica_sync data_dir data_format data_name
    datasets_num_private_threads datasets_parallel_interleave_cycle_length datasets_parallel_interleave_prefetch
    datasets_prefetch_buffer_size datasets_repeat_cached_sample datasets_sloppy_parallel_interleave datasets_use_caching
    datasets_use_prefetch device display_every display_perf_ewma distort_color_in_yiq distortions enable_optimizations
    eval eval_batch_size eval_dir eval_during_training_at_specified_epochs eval_during_training_at_specified_steps
    eval_during_training_every_n_epochs eval_during_training_every_n_steps eval_interval_secs force_gpu_compatible
    forward_only fp16_enable_auto_loss_scale fp16_inc_loss_scale_every_n fp16_loss_scale fp16_vars
    freeze_when_forward_only gpu_indices gpu_kt_max_bytes gpu_kt_max_interval gpu_kt_max_pending
    gpu_memory_frac_for_testing gpu_thread_mode gradient_clip gradient_repacking graph_file hierarchical_copy
    horovod_device init_learning_rate input_preprocessor job_name kmp_affinity kmp_blocktime kmp_settings
    learning_rate_decay_factor local_parameter_device log_device_placement loss_type_to_report max_ckpts_to_keep
    minimum_learning_rate ml_perf model momentum multi_device_iterator_max_buffer_size network_topology num_batches
    num_epochs num_epochs_per_decay num_eval_batches num_eval_epochs num_gpus num_inter_threads num_intra_threads
    num_learning_rate_warmup_epochs num_warmup_batches optimizer partitioned_graph_file_prefix per_gpu_thread_count
    piecewise_learning_rate_schedule print_training_accuracy ps_hosts resize_method resnet_base_lr rewriter_config
    rmsprop_decay rmsprop_epsilon rmsprop_momentum save_model_secs save_model_steps save_summaries_steps server_protocol
    single_l2_loss_op staged_vars stop_at_top_1_accuracy summary_verbosity sync_on_finish task_index tf_random_seed
    tfprof_file timestamped_allocator trace_file train_dir use_chrome_trace_format use_numa_affinity use_unified_memory
    variable_consistency variable_update weight_decay winograd_nonfused worker_hosts xla
"""

TABLE: Mapping[str, OriginalFlag] = {
    row.spec.name: row
    for row in (
        *(OriginalFlag(Fate.WORKS, SPECS[name]) for name in _WORKS.split()),
        *(OriginalFlag(Fate.RENAMED, OLDER_NAMES[name], says) for name, says in _RENAMED.items()),
        *_OTHERS,
        *_OF_OTHER_VERSIONS,
    )
}
NAMES: tuple[str, ...] = tuple(row.spec.name for row in (*_OTHERS, *_OF_OTHER_VERSIONS))


@dataclass(frozen=True)
class Asked:
    """A flag of NAMES that asks for something that this program does not do, with its value as written."""

    row: OriginalFlag
    value: object

    def __str__(self) -> str:
        return spelled(self.row.spec.name, self.value)


def read(name: str, value: object) -> Asked | None:
    """Reads a flag of NAMES. Returns None if the value asks for what this program always does, or is empty.

    Raises:
      UsageError: the value has the wrong type.
    """
    row = TABLE[name]
    given = row.spec.read(value)
    return None if given is None or given == row.silent else Asked(row, value)


def warnings_about(asked: Iterable[Asked]) -> list[str]:
    """Returns one line for each of these flags, which says what happens instead.

    Raises:
      UsageError: the run would not measure what these flags ask for.
    """
    lines, refusals = [], Refusals()
    for flag in asked:
        if flag.row.fate is Fate.REFUSED:
            refusals.add(f'{flag}: {flag.row.says}')
        else:
            lines.append(f'{flag} has no effect: {flag.row.says}')
    refusals.raise_all()
    return lines
