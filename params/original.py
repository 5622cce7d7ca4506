"""The fate of each flag of the original tf_cnn_benchmarks and its other versions: one table.

A flag of the original that changes no result never stops a run: it works, or a warning names it and says what happens
instead. A flag is refused only if the run would measure something other than asked.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from errors import Refusals, format_flag
from params.older_names import OLDER_NAMES
from params.spec import NEW, OTHER, FlagSpec, Value
from params.table import SPECS


class Fate(enum.Enum):
    """What becomes of a flag."""

    WORKS = 'works'
    RENAMED = 'works under another name'
    NO_EFFECT = 'has no effect here'
    REFUSED = 'is refused'


@dataclass(frozen=True)
class OriginalFlag:
    """One flag of the original; `spec` has its name, and reads its value.

    Attributes:
      says: the name here if RENAMED, what happens instead if NO_EFFECT, or the reason and the remedy if REFUSED.
      silent: the value that asks for what this program always does and brings no warning; None for an empty value.
    """

    fate: Fate
    spec: FlagSpec
    says: str = ''
    silent: Value = None


_NO_TENSORRT = 'TensorFlow contains no TensorRT any more; use trtexec of TensorRT'

# Flags of the original that are not among ours and have no effect here. Three lines each: its name, its type and the
# value that asks for what this program always does; what happens instead; what it means there.
_LAST_VERSION = """
allreduce_merge_scope int 1
    gradients are joined by --gradient_repacking only
    How many neighbouring gradients of a collective all-reduce may be merged into one.
batch_group_size int 1
    batches are prepared one at a time, while a step computes; --datasets_prefetch_buffer_size prepares more
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
mkl bool False
    oneDNN is built into TensorFlow; TF_ENABLE_ONEDNN_OPTS=0 turns it off
    Say that TensorFlow was built with MKL, so that the settings of OpenMP are passed on.
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
_OTHER_VERSIONS = """
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


def _without_effect(table: str, original: str | None) -> Iterator[OriginalFlag]:
    lines = iter(table.strip().splitlines())
    for heading in lines:
        name, kind, *silent = heading.split()
        says, meaning = next(lines).strip(), next(lines).strip()
        spec = FlagSpec(name, _TYPES[kind], optional=True, help=meaning, original=original)
        yield OriginalFlag(Fate.NO_EFFECT, spec, says, spec.read(silent[0]) if silent else None)


_TYPES: Mapping[str, type] = {kind.__name__: kind for kind in (bool, int, float, str)}
_TENSORRT = FlagSpec(
    'trt_mode',
    str,
    optional=True,
    choices=('FP32', 'FP16', 'INT8'),
    help='Convert the frozen graph of --forward_only by TensorRT, to compute in this precision.',
)
_OTHERS = (
    *_without_effect(_LAST_VERSION, None),
    OriginalFlag(Fate.REFUSED, _TENSORRT, _NO_TENSORRT),
    *_without_effect(_OTHER_VERSIONS, OTHER),
)
_RENAMED = {
    'learning_rate': 'init_learning_rate',
    'use_datasets': 'input_pipeline',
    'use_fp16': 'precision',
    'use_nccl': 'all_reduce_spec',
    'xla_compile': 'xla',
}

TABLE: Mapping[str, OriginalFlag] = {
    row.spec.name: row
    for row in (
        *(OriginalFlag(Fate.WORKS, spec) for spec in SPECS.values() if spec.original != NEW),
        *(OriginalFlag(Fate.RENAMED, OLDER_NAMES[name], says) for name, says in _RENAMED.items()),
        *_OTHERS,
    )
}
NAMES: tuple[str, ...] = tuple(row.spec.name for row in _OTHERS)


@dataclass(frozen=True)
class Asked:
    """A flag of NAMES that asks for something that this program does not do, with its value as written."""

    row: OriginalFlag
    value: object

    def __str__(self) -> str:
        return format_flag(self.row.spec.name, self.value)


def read_original(name: str, value: object) -> Asked | None:
    """Reads a flag of NAMES. Returns None if the value asks for what this program always does, or is empty."""
    row = TABLE[name]
    given = row.spec.read(value)
    return None if given is None or given == row.silent else Asked(row, value)


def warnings_about(asked: Iterable[Asked]) -> list[str]:
    """Returns one line for each flag, which says what happens instead; raises UsageError for refused flags."""
    lines, refusals = [], Refusals()
    for flag in asked:
        if flag.row.fate is Fate.REFUSED:
            refusals.add(f'{flag}: {flag.row.says}')
        else:
            lines.append(f'{flag} has no effect: {flag.row.says}')
    refusals.raise_all()
    return lines
