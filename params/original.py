"""Flags of the original tf_cnn_benchmarks and of older versions that are missing or renamed here: what they do."""

from collections.abc import Mapping

from errors import UsageError, spelled
from params.spec import FlagSpec, Value

# By name: the value that asks for what this program always does, or the flag's type if there is no such value.
_NOT_IN_THIS_VERSION: Mapping[str, Value | type] = {
    'allreduce_merge_scope': 1,
    'autotune_threshold': int,
    'batch_group_size': 1,
    'benchmark_log_dir': str,
    'benchmark_test_id': str,
    'collect_eval_results_async': False,
    'compute_lr_on_cpu': True,
    'datasets_num_private_threads': int,
    'datasets_parallel_interleave_cycle_length': int,
    'datasets_parallel_interleave_prefetch': int,
    'datasets_prefetch_buffer_size': 1,
    'datasets_repeat_cached_sample': False,
    'datasets_sloppy_parallel_interleave': False,
    'datasets_use_caching': False,
    'datasets_use_prefetch': True,
    'debugger': str,
    'display_perf_ewma': float,
    'distort_color_in_yiq': False,
    'enable_optimizations': True,
    'force_gpu_compatible': False,
    'freeze_when_forward_only': False,
    'fuse_decode_and_crop': True,
    'gpu_indices': str,
    'gpu_kt_max_bytes': 0,
    'gpu_kt_max_interval': 0,
    'gpu_kt_max_pending': 0,
    'input_preprocessor': 'default',
    'kmp_affinity': 'granularity=fine,verbose,compact,1,0',
    'kmp_blocktime': 0,
    'kmp_settings': 1,
    'mkl': False,
    'multi_device_iterator_max_buffer_size': 1,
    'rewriter_config': str,
    'sparse_to_dense_grads': False,
    'sync_on_finish': False,
    'timestamped_allocator': False,
    'use_datasets': False,
    'use_numa_affinity': False,
    'use_python32_barrier': False,
    'use_resource_vars': True,
    'use_unified_memory': bool,
    'variable_consistency': 'strong',
    'winograd_nonfused': True,
    'xla_compile': False,
}

# What to use instead of some of them.
_INSTEAD: Mapping[str, str] = {
    'benchmark_log_dir': 'from Python, BenchmarkCNN(...).run() returns all numbers',
    'gpu_indices': 'CUDA_VISIBLE_DEVICES=0,1 in the environment chooses GPUs',
    'xla_compile': '--xla compiles what it can',
}

# As above, with the reason why this program will never have the flag, and what to use instead.
_NEVER: Mapping[str, tuple[Value | type, str]] = {
    'ml_perf': (False, 'the MLPerf benchmarks are separate programs, see github.com/mlcommons/training'),
    'trt_max_workspace_size_bytes': (4294967296, 'TensorFlow contains no TensorRT any more; use trtexec of TensorRT'),
    'trt_mode': (str, 'TensorFlow contains no TensorRT any more; use trtexec of TensorRT'),
    'use_tf_layers': (True, 'TensorFlow contains no tf.layers any more; leave the flag out'),
}

# The original's defaults that ask for what this program does not do: accepted, with what it does instead.
_ORIGINAL_DEFAULTS: Mapping[str, tuple[Value, str]] = {
    'compute_lr_on_cpu': (False, 'the learning rate is computed on the CPU in every run'),
    'distort_color_in_yiq': (True, '--distortions changes colours in HSV'),
    'use_datasets': (True, 'records are read by RecordInput, not by tf.data'),
    'use_resource_vars': (False, 'variables are resource variables'),
}

# Flags of older versions, accepted without effect. By name: the type, and the reason.
_WITHOUT_EFFECT: Mapping[str, tuple[type, str]] = {
    'cache_data': (bool, 'records are read from --data_dir as they are needed'),
    'datasets_prefetch_threadpool_size': (int, 'TensorFlow sets the number of threads'),
    'enable_layout_optimizer': (bool, '--data_format sets the layout'),
    'flush_stdout': (bool, 'each line is flushed in every run'),
    'gpu_pending_cap': (int, 'TensorFlow manages the memory of a GPU'),
    'log_dir': (str, 'logs go to standard error'),
    'pretrain_dir': (str, 'training starts from new weights, or from those of --backbone_model_path'),
    'result_storage': (str, 'the result is printed and not stored'),
    'use_data_sets': (bool, 'there is one way to read records'),
    'use_multi_device_iterator': (bool, 'each device gets its own batches in every run'),
}


# Older flags that replace_older_names translates to ours.
OLDER_NAMES: Mapping[str, FlagSpec] = {
    spec.name: spec
    for spec in (
        FlagSpec('learning_rate', float, optional=True, lower_bound=0),
        FlagSpec('use_nccl', bool, optional=True),
        FlagSpec('use_fp16', bool, optional=True),
    )
}


def _type_of(fact: Value | type) -> type:
    return fact if isinstance(fact, type) else type(fact)


_REFUSED: Mapping[str, Value | type] = {**_NOT_IN_THIS_VERSION, **{name: fact for name, (fact, _) in _NEVER.items()}}
_TYPES = {name: _type_of(fact) for name, fact in _REFUSED.items()} | {n: t for n, (t, _) in _WITHOUT_EFFECT.items()}

NAMES: tuple[str, ...] = tuple(_TYPES)
SWITCHES = frozenset(name for name, kind in _TYPES.items() if kind is bool)


def read(name: str, value: object) -> list[str]:
    """Returns the warnings for a flag of NAMES that was given with this value.

    There are none if the value asks for what this program always does, or is empty.

    Raises:
      UsageError: the value asks for something that this program does not have, or has the wrong type.
    """
    given = FlagSpec(name, _TYPES[name], optional=True).read(value)
    written = spelled(name, value)
    if name in _WITHOUT_EFFECT:
        return [f'{written} has no effect: {_WITHOUT_EFFECT[name][1]}']
    default = None if isinstance(_REFUSED[name], type) else _REFUSED[name]
    if given is None or given == default:
        return []
    if name in _ORIGINAL_DEFAULTS and given == _ORIGINAL_DEFAULTS[name][0]:
        return [f'{written} has no effect: {_ORIGINAL_DEFAULTS[name][1]}']
    if name in _NEVER:
        raise UsageError(f'{written}: this program has no such flag: {_NEVER[name][1]}')
    hint = 'leave it out' if default is None else f'leave it out or write {spelled(name, default)}'
    instead = f'; {_INSTEAD[name]}' if name in _INSTEAD else ''
    raise UsageError(f'{written}: not in this version; {hint}{instead}')


def replace_older_names(older: Mapping[str, Value], values: dict[str, Value]) -> dict[str, str]:
    """Translates older flags into ours.

    Args:
      older: the values of the flags of OLDER_NAMES that were given.
      values: the values of our flags by name; those that the older flags set are added.

    Returns:
      How each flag that was added had been written, by our name.

    Raises:
      UsageError: two flags contradict each other.
    """
    as_written = {}
    rate = older.get('learning_rate')
    if rate is not None:
        if values.get('init_learning_rate') not in (None, rate):
            raise _clash('learning_rate', rate, 'init_learning_rate', values)
        values['init_learning_rate'] = rate
        as_written['init_learning_rate'] = spelled('learning_rate', rate)
    use_nccl = older.get('use_nccl')
    if use_nccl is not None:
        spec = values.get('all_reduce_spec')
        if spec is not None and ('nccl' in str(spec)) != use_nccl:
            raise _clash('use_nccl', use_nccl, 'all_reduce_spec', values)
        if use_nccl and spec is None:
            values['all_reduce_spec'] = 'nccl'
            as_written['all_reduce_spec'] = spelled('use_nccl', use_nccl)
    use_fp16 = older.get('use_fp16')
    if use_fp16 is not None:
        precision = values.get('precision')
        if precision is not None and (precision == 'fp16') != use_fp16:
            raise _clash('use_fp16', use_fp16, 'precision', values)
        if use_fp16:
            values['precision'] = 'fp16'
            as_written['precision'] = spelled('use_fp16', use_fp16)
    return as_written


def _clash(older: str, value: Value, name: str, values: Mapping[str, Value]) -> UsageError:
    written = spelled(name, values[name])
    return UsageError(f'{spelled(older, value)} contradicts {written}; it is the older name of --{name}: leave it out')
