"""The fate of each flag of the original tf_cnn_benchmarks and its other versions: one table.

A flag of the original that changes no result never stops a run: it works, or a warning names it and
says what happens instead. A flag is refused only if the run would measure something other than
asked.
"""

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tf_cnn.flags.spec import NEW, OTHER, FlagSpec, Value
from tf_cnn.inputs.catalog import RECORD_INPUT, TF_DATA
from tf_cnn.params.table import SPECS
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag


class Status(enum.Enum):
    """What becomes of a flag."""

    WORKS = 'works'
    RENAMED = 'works as another name'
    NO_EFFECT = 'has no effect'
    REFUSED = 'is refused'


@dataclass(frozen=True)
class OriginalFlag:
    """One flag of the original; `spec` has its name, and reads its value.

    Attributes:
      says: the name here if RENAMED, what happens instead if NO_EFFECT, or the reason and the
        remedy if REFUSED.
      silent: the value that asks for what this program always does and brings no warning; None for
        an empty value.
    """

    status: Status
    spec: FlagSpec
    message: str = ''
    accepted_value: Value = None


# Flags of the original that are not among ours. Three lines each: its name, its type and the value
# that asks for what this program always does; the flag that it is here, what happens instead, or
# why it is refused; what it means there.
_RENAMED = """
use_datasets bool
    input_pipeline
    Read images by tf.data instead of RecordInput.
use_fp16 bool
    precision
    Compute in 16 bits: --use_fp16 is --precision=fp16.
mkl bool
    onednn
    Compute by oneDNN, whose older name is MKL: --mkl is --onednn.
xla_compile bool
    xla
    Compile the model by XLA: --xla_compile is --xla.
"""
_OLDER_NAMES = """
learning_rate float
    init_learning_rate
    The learning rate: --learning_rate is --init_learning_rate.
use_nccl bool
    all_reduce_spec
    Sum gradients by NCCL: --use_nccl is --all_reduce_spec=nccl.
"""
_REFUSED = """
trt_mode str
    TensorFlow contains no TensorRT any more; use trtexec of TensorRT
    Convert the frozen graph of --forward_only by TensorRT, for FP32, FP16 or INT8.
"""
_NO_EFFECT = """
allreduce_merge_scope int 1
    gradients are joined by --gradient_repacking only
    How many neighbouring gradients of a collective all-reduce may be merged into one.
batch_group_size int 1
    one batch is prepared while a step computes, more by --datasets_prefetch_buffer_size
    How many batches the threads of the input prepare together.
collect_eval_results_async bool False
    accuracies are collected between the steps of evaluations
    Collect the accuracies of evaluations while the next batches are computed.
compute_lr_on_cpu bool True
    the learning rate is computed on the CPU in every run
    Compute the learning rate on the CPU.
debugger str
    no debugger is attached; --trace_file and --graph_file show what a step does
    Run the steps in the debugger of TensorFlow: in a terminal, or in a TensorBoard at HOST:PORT.
fuse_decode_and_crop bool True
    an image is decoded and cropped by one operation in every run
    Decode only the part of a JPEG that a random crop keeps.
sparse_to_dense_grads bool False
    the gradients of these networks are dense
    Convert sparse gradients to dense ones.
trt_max_workspace_size_bytes float 4294967296
    TensorFlow contains no TensorRT any more; use trtexec of TensorRT
    Memory that TensorRT may use.
use_python32_barrier bool False
    no threads of Python wait for each other to prepare batches
    Let threads that prepare batches wait for each other in Python.
use_resource_vars bool True
    variables are resource variables
    Make resource variables instead of reference variables.
use_tf_layers bool True
    layers are made of operations of TensorFlow in every run
    Make layers by tf.layers instead of own code.
"""
_NO_EFFECT_IN_OTHER_VERSIONS = """
cache_data bool
    records are read from --data_dir as they are needed
    Read one record, and repeat it from memory.
datasets_prefetch_threadpool_size int
    --datasets_num_private_threads sets the threads
    Threads that prepare batches.
enable_layout_optimizer bool
    --data_format sets the layout
    Let TensorFlow choose the order of the axes of images.
flush_stdout bool
    each line is flushed in every run
    Write each line as soon as it is printed.
gpu_pending_cap int
    TensorFlow manages the memory of a GPU
    How many kernels may be queued on a GPU at a time.
iters_per_step int 1
    --steps_per_run sets how many steps one call of the session takes
    How many steps one call of the session takes.
log_dir str
    logs go to standard error
    Folder for logs.
ml_perf_compliance_logging bool False
    the log of MLPerf is not written; --result_file=FILE writes the numbers of a run
    Print the log lines that the rules of MLPerf ask for.
peer_timeout_secs float
    if a process is lost, all others end within seconds
    How long others wait for a lost process.
pretrain_dir str
    training starts from new weights, or from those of --backbone_model_path
    Folder with the checkpoint from which training starts.
result_storage str
    the result is printed and not stored
    Where to store the result of the run.
use_data_sets bool
    --input_pipeline says how records are read
    Read images by tf.data.
use_multi_device_iterator bool
    each device gets its own batches in every run
    Hand batches of tf.data to all devices by one iterator.
"""


_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (bool, int, float, str)}
_HEADINGS = {
    Status.RENAMED: 'Other names of flags',
    Status.NO_EFFECT: 'Flags of the original without an effect here',
    Status.REFUSED: 'Flags of the original that are refused',
}


def _rows(status: Status, table: str, original: str | None = None) -> Iterator[OriginalFlag]:
    lines = iter(table.strip().splitlines())
    for heading in lines:
        name, kind, *silent = heading.split()
        says, meaning = next(lines).strip(), next(lines).strip()
        # What has no effect may have any value.
        lowest = -math.inf if status is Status.NO_EFFECT else 0
        spec = FlagSpec(
            name,
            _TYPES[kind],
            True,
            None,
            _HEADINGS[status],
            meaning,
            original=original,
            lower_bound=lowest,
        )
        yield OriginalFlag(status, spec, says, spec.read(silent[0]) if silent else None)


TABLE: Mapping[str, OriginalFlag] = {
    row.spec.name: row
    for row in (
        *(OriginalFlag(Status.WORKS, spec) for spec in SPECS.values() if spec.original != NEW),
        *_rows(Status.RENAMED, _RENAMED),
        *_rows(Status.RENAMED, _OLDER_NAMES, OTHER),
        *_rows(Status.NO_EFFECT, _NO_EFFECT),
        *_rows(Status.NO_EFFECT, _NO_EFFECT_IN_OTHER_VERSIONS, OTHER),
        *_rows(Status.REFUSED, _REFUSED),
    )
}
# All flags that a command line may have: ours, and those of the original.
FLAGS: Mapping[str, FlagSpec] = {**SPECS, **{name: row.spec for name, row in TABLE.items()}}
# What other programs call these flags.
ELSEWHERE = {
    'lr': 'init_learning_rate',
    'gpus': 'num_gpus',
    'epochs': 'num_epochs',
    'steps': 'num_batches',
}
# The switches that ask for nothing if they are off, as they are by default in the original.
_OFF_BY_DEFAULT = ('mkl', 'xla_compile')
# What a switch that is RENAMED means if it is on, and if it is off: values of the flag that it is
# here.
_MEANT: Mapping[str, tuple[Value, Value]] = {
    'use_nccl': ('nccl', None),
    'use_fp16': ('fp16', None),
    'mkl': (True, None),
    'use_datasets': (TF_DATA, RECORD_INPUT),
    'xla_compile': (True, None),
}


def find_flag_with_choice(value: str) -> str | None:
    """Returns the name of the first flag that has this choice: 'variable_update' for 'horovod';
    None without one.
    """
    return next(
        (
            name
            for name, spec in SPECS.items()
            if value.lower() in map(str.lower, spec.choices or ())
        ),
        None,
    )


def replace_older_names(read: Mapping[str, Value], values: dict[str, Value]) -> dict[str, str]:
    """Adds what the flags of `read` mean that are RENAMED to `values`, which are those of our
    flags.

    Returns the text in which each added flag was written, by our name. Raises UsageError if flags
    contradict others.
    """
    as_written, refusals = {}, ErrorCollector()
    for older, value in read.items():
        # The original has both xla and xla_compile, as two ways to compile, so one of them may be
        # off.
        is_idle = value is None or (older in _OFF_BY_DEFAULT and value is False)
        if is_idle or older not in TABLE or TABLE[older].status is not Status.RENAMED:
            continue
        name, (on, off) = TABLE[older].message, _MEANT.get(older, (value, value))
        current_value, meant, written = (
            values.get(name),
            on if value else off,
            format_flag(older, value),
        )
        if current_value is None or (current_value is False and not SPECS[name].optional):
            if meant is not None:
                values[name], as_written[name] = meant, written
        elif (
            current_value != value
            if older not in _MEANT
            else (str(on) in str(current_value)) != value
        ):
            refusals.add(
                f'{written} contradicts {format_flag(name, current_value)}, whose other name '
                'it is; leave '
                'it out'
            )
    refusals.raise_all()
    return as_written


def original_flag_warnings(name: str, value: object) -> list[str]:
    """Returns a warning that says what happens instead of what a flag of the original asks for, if
    it asks for it.

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
