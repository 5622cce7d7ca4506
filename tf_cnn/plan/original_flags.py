"""The table of all flags of the original tf_cnn_benchmarks and its other versions.

A flag of the original that changes no result never stops a run: it works, or a warning says what
happens instead. A flag is refused only if the run would measure something else than requested.
"""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

from tf_cnn.flags.spec import NEW, OTHER, FlagSpec, Value
from tf_cnn.inputs.catalog import RECORD_INPUT, TF_DATA
from tf_cnn.plan.params import SPECS
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag


class Status(enum.Enum):
    """How this program treats a flag of the original."""

    WORKS = 'works'
    RENAMED = 'works as another name'
    NO_EFFECT = 'has no effect'
    REFUSED = 'is refused'


@dataclass(frozen=True)
class OriginalFlag:
    """One flag of the original; `spec` has its name, and reads its value.

    Attributes:
      message: the name here if RENAMED, what happens instead if NO_EFFECT, or the reason and the
        remedy if REFUSED.
      accepted_value: the value that requests what this program always does, and causes no warning.
        With None, only an empty value causes no warning.
      on: for a RENAMED switch, the value of the other flag that it stands for; `off` if the switch
        is off. None: the other flag has the same value.
    """

    status: Status
    spec: FlagSpec
    message: str = ''
    accepted_value: Value = None
    on: Value = None
    off: Value = None


def _spec(
    heading: str, name: str, kind: type, meaning: str, original: str | None, lower_bound: float = 0
) -> FlagSpec:
    return FlagSpec(
        name,
        kind,
        optional=True,
        group=heading,
        help=meaning,
        original=original,
        lower_bound=lower_bound,
    )


def _renamed(
    name: str,
    kind: type,
    new_name: str,
    meaning: str,
    *,
    on: Value = None,
    off: Value = None,
    original: str | None = None,
) -> OriginalFlag:
    spec = _spec('Other names of flags', name, kind, meaning, original)
    return OriginalFlag(Status.RENAMED, spec, new_name, on=on, off=off)


def _no_effect(
    name: str,
    kind: type,
    message: str,
    meaning: str,
    *,
    accepted_value: Value = None,
    original: str | None = None,
) -> OriginalFlag:
    heading = 'Flags of the original without an effect here'
    # Any value is allowed.
    spec = _spec(heading, name, kind, meaning, original, lower_bound=-math.inf)
    return OriginalFlag(Status.NO_EFFECT, spec, message, accepted_value)


def _refused(name: str, kind: type, message: str, meaning: str) -> OriginalFlag:
    spec = _spec('Flags of the original that are refused', name, kind, meaning, None)
    return OriginalFlag(Status.REFUSED, spec, message)


# What this program does instead of each flag, and the meaning of the flag in the original.
TABLE: Mapping[str, OriginalFlag] = {
    row.spec.name: row
    for row in (
        *(OriginalFlag(Status.WORKS, spec) for spec in SPECS.values() if spec.original != NEW),
        _renamed(
            'use_datasets',
            bool,
            'input_pipeline',
            'Read images by tf.data instead of RecordInput.',
            on=TF_DATA,
            off=RECORD_INPUT,
        ),
        _renamed(
            'use_fp16',
            bool,
            'precision',
            'Compute in 16 bits: --use_fp16 is --precision=fp16.',
            on='fp16',
        ),
        _renamed(
            'mkl', bool, 'onednn', 'Compute with oneDNN, formerly MKL: --mkl is --onednn.', on=True
        ),
        _renamed(
            'xla_compile', bool, 'xla', 'Compile the model by XLA: --xla_compile is --xla.', on=True
        ),
        _renamed(
            'learning_rate',
            float,
            'init_learning_rate',
            'The learning rate: --learning_rate is --init_learning_rate.',
            original=OTHER,
        ),
        _renamed(
            'use_nccl',
            bool,
            'all_reduce_spec',
            'Sum gradients by NCCL: --use_nccl is --all_reduce_spec=nccl.',
            on='nccl',
            original=OTHER,
        ),
        _no_effect(
            'allreduce_merge_scope',
            int,
            'only --gradient_repacking joins gradients',
            'The most neighbouring gradients that a collective all-reduce merges.',
            accepted_value=1,
        ),
        _no_effect(
            'batch_group_size',
            int,
            'one batch is prepared while a step computes; --datasets_prefetch_buffer_size prepares '
            'more',
            'The number of batches that input threads prepare at a time.',
            accepted_value=1,
        ),
        _no_effect(
            'collect_eval_results_async',
            bool,
            'accuracies are collected between the steps of evaluations',
            'Collect the accuracies of evaluations while the next batches are computed.',
            accepted_value=False,
        ),
        _no_effect(
            'compute_lr_on_cpu',
            bool,
            'the learning rate is computed on the CPU in every run',
            'Compute the learning rate on the CPU.',
            accepted_value=True,
        ),
        _no_effect(
            'debugger',
            str,
            'no debugger is attached; --trace_file and --graph_file show what a step does',
            'Run the steps in the debugger of TensorFlow: in a terminal, or in a TensorBoard at '
            'HOST:PORT.',
        ),
        _no_effect(
            'fuse_decode_and_crop',
            bool,
            'an image is decoded and cropped by one operation in every run',
            'Decode only the part of a JPEG that a random crop keeps.',
            accepted_value=True,
        ),
        _no_effect(
            'sparse_to_dense_grads',
            bool,
            'the gradients of these networks are dense',
            'Convert sparse gradients to dense ones.',
            accepted_value=False,
        ),
        _no_effect(
            'trt_max_workspace_size_bytes',
            float,
            'TensorFlow no longer contains TensorRT; use trtexec of TensorRT',
            'Memory that TensorRT may use.',
            accepted_value=4294967296.0,
        ),
        _no_effect(
            'use_python32_barrier',
            bool,
            'no threads of Python wait for each other to prepare batches',
            'Synchronize the threads that prepare batches in Python.',
            accepted_value=False,
        ),
        _no_effect(
            'use_resource_vars',
            bool,
            'variables are resource variables',
            'Make resource variables instead of reference variables.',
            accepted_value=True,
        ),
        _no_effect(
            'use_tf_layers',
            bool,
            'layers are made of operations of TensorFlow in every run',
            "Make layers with tf.layers instead of the program's code.",
            accepted_value=True,
        ),
        _no_effect(
            'cache_data',
            bool,
            'records are read from --data_dir as they are needed',
            'Read one record, and repeat it from memory.',
            original=OTHER,
        ),
        _no_effect(
            'datasets_prefetch_threadpool_size',
            int,
            '--datasets_num_private_threads sets the threads',
            'Threads that prepare batches.',
            original=OTHER,
        ),
        _no_effect(
            'enable_layout_optimizer',
            bool,
            '--data_format sets the layout',
            'Let TensorFlow choose the order of the axes of images.',
            original=OTHER,
        ),
        _no_effect(
            'flush_stdout',
            bool,
            'each line is flushed in every run',
            'Write each line as soon as it is printed.',
            original=OTHER,
        ),
        _no_effect(
            'gpu_pending_cap',
            int,
            'TensorFlow manages the memory of a GPU',
            'The most kernels queued on a GPU at a time.',
            original=OTHER,
        ),
        _no_effect(
            'iters_per_step',
            int,
            '--steps_per_run sets how many steps one call of the session takes',
            'How many steps one call of the session takes.',
            accepted_value=1,
            original=OTHER,
        ),
        _no_effect('log_dir', str, 'logs go to standard error', 'Folder for logs.', original=OTHER),
        _no_effect(
            'ml_perf_compliance_logging',
            bool,
            'the log of MLPerf is not written; --result_file=FILE writes the numbers of a run',
            'Print the log lines that the rules of MLPerf require.',
            accepted_value=False,
            original=OTHER,
        ),
        _no_effect(
            'peer_timeout_secs',
            float,
            'if a process is lost, all others end within seconds',
            'Time that other processes wait for a lost process.',
            original=OTHER,
        ),
        _no_effect(
            'pretrain_dir',
            str,
            'training starts from new weights, or from --backbone_model_path',
            'Folder with the checkpoint that training starts from.',
            original=OTHER,
        ),
        _no_effect(
            'result_storage',
            str,
            'the result is printed, not stored',
            'Where to store the result of the run.',
            original=OTHER,
        ),
        _no_effect(
            'use_data_sets',
            bool,
            '--input_pipeline decides how records are read',
            'Read images by tf.data.',
            original=OTHER,
        ),
        _no_effect(
            'use_multi_device_iterator',
            bool,
            'each device gets separate batches in every run',
            'Use one tf.data iterator for all devices.',
            original=OTHER,
        ),
        _refused(
            'trt_mode',
            str,
            'TensorFlow no longer contains TensorRT; use trtexec of TensorRT',
            'Convert the frozen graph of --forward_only with TensorRT, for FP32, FP16 or INT8.',
        ),
    )
}
# All flags that a command line may have, including the flags of the original.
FLAGS: Mapping[str, FlagSpec] = {**SPECS, **{name: row.spec for name, row in TABLE.items()}}
# The names of flags in other programs, and their names here.
ELSEWHERE = {
    'lr': 'init_learning_rate',
    'gpus': 'num_gpus',
    'epochs': 'num_epochs',
    'steps': 'num_batches',
}
# Switches that are ignored when they are off, their default in the original.
_OFF_BY_DEFAULT = ('mkl', 'xla_compile')


def find_flag_with_choice(value: str) -> str | None:
    """Returns the first flag that has this choice, or None: 'variable_update' for 'horovod'."""
    return next(
        (
            name
            for name, spec in SPECS.items()
            if value.lower() in map(str.lower, spec.choices or ())
        ),
        None,
    )


def replace_older_names(read: Mapping[str, Value], values: dict[str, Value]) -> dict[str, str]:
    """Adds the RENAMED flags in `read` to `values`, under our names.

    Returns the text of each added flag as the user wrote it, by our name. Raises UsageError if
    flags contradict each other.
    """
    as_written, refusals = {}, ErrorCollector()
    for older, value in read.items():
        # The original has xla and xla_compile for two ways to compile, so one of them may be off.
        is_idle = value is None or (older in _OFF_BY_DEFAULT and value is False)
        if is_idle or older not in TABLE or TABLE[older].status is not Status.RENAMED:
            continue
        row = TABLE[older]
        name, current_value, written = (
            row.message,
            values.get(row.message),
            format_flag(older, value),
        )
        is_same_value = row.on is None
        meant = value if is_same_value else row.on if value else row.off
        if current_value is None or (current_value is False and not SPECS[name].optional):
            if meant is not None:
                values[name], as_written[name] = meant, written
        elif (
            current_value != value
            if is_same_value
            else (str(row.on) in str(current_value)) != value
        ):
            refusals.add(
                f'{written} contradicts {format_flag(name, current_value)}, its other name; '
                'remove it'
            )
    refusals.raise_all()
    return as_written


def original_flag_warnings(name: str, value: object) -> list[str]:
    """Returns the warning about a flag of the original that has no effect here, if any.

    Raises UsageError if the flag is refused.
    """
    row = TABLE.get(name)
    if (
        row is None
        or row.status in (Status.WORKS, Status.RENAMED)
        or value in (None, row.accepted_value)
    ):
        return []
    if row.status is Status.REFUSED:
        raise UsageError(f'{format_flag(name, value)}: {row.message}')
    return [f'{format_flag(name, value)} has no effect: {row.message}']
