"""The fate of each flag of the original tf_cnn_benchmarks and its other versions: one table.

A flag of the original that changes no result never stops a run: it works, or a warning names it and says what happens
instead. A flag is refused only if the run would measure something other than asked.
"""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from errors import Refusals, spelled
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


def _no_effect(name: str, kind: type, silent: Value, says: str, help: str, original: str | None = None) -> OriginalFlag:
    return OriginalFlag(Fate.NO_EFFECT, FlagSpec(name, kind, optional=True, help=help, original=original), says, silent)


_NO_TENSORRT = 'TensorFlow contains no TensorRT any more; use trtexec of TensorRT'

# Flags of the original that are not among ours: of its last version ...
_OTHERS = (
    _no_effect(
        'allreduce_merge_scope',
        int,
        1,
        'gradients are joined by --gradient_repacking only',
        'How many neighbouring gradients of a collective all-reduce may be merged into one.',
    ),
    _no_effect(
        'batch_group_size',
        int,
        1,
        'batches are prepared one at a time, while a step computes; --datasets_prefetch_buffer_size prepares more',
        'How many batches the threads of the input prepare together.',
    ),
    _no_effect(
        'collect_eval_results_async',
        bool,
        False,
        'accuracies are collected between the steps of evaluations',
        'Collect the accuracies of evaluations while the next batches are computed.',
    ),
    _no_effect(
        'compute_lr_on_cpu',
        bool,
        True,
        'the learning rate is computed on the CPU in every run',
        'Compute the learning rate on the CPU.',
    ),
    _no_effect(
        'debugger',
        str,
        None,
        'no debugger is attached; --trace_file and --graph_file show what a step does',
        'Run the steps in the debugger of TensorFlow: in a terminal, or in a TensorBoard at HOST:PORT.',
    ),
    _no_effect(
        'fuse_decode_and_crop',
        bool,
        True,
        'an image is decoded and cropped by one operation in every run',
        'Decode only the part of a JPEG that a random crop keeps.',
    ),
    _no_effect(
        'mkl',
        bool,
        False,
        'oneDNN is built into TensorFlow; TF_ENABLE_ONEDNN_OPTS=0 turns it off',
        'Say that TensorFlow was built with MKL, so that the settings of OpenMP are passed on.',
    ),
    _no_effect(
        'sparse_to_dense_grads',
        bool,
        False,
        'the gradients of these networks are dense',
        'Convert sparse gradients to dense ones.',
    ),
    # A float, because the original's default has more than 31 bits.
    _no_effect('trt_max_workspace_size_bytes', float, 2.0**32, _NO_TENSORRT, 'Memory that TensorRT may use.'),
    _no_effect(
        'use_python32_barrier',
        bool,
        False,
        'no threads of Python wait for each other to prepare batches',
        'Let threads that prepare batches wait for each other in Python.',
    ),
    _no_effect(
        'use_resource_vars',
        bool,
        True,
        'variables are resource variables',
        'Make resource variables instead of reference variables.',
    ),
    _no_effect(
        'use_tf_layers',
        bool,
        True,
        'layers are made of operations of TensorFlow in every run',
        'Make layers by tf.layers instead of own code.',
    ),
    OriginalFlag(
        Fate.REFUSED,
        FlagSpec(
            'trt_mode',
            str,
            optional=True,
            choices=('FP32', 'FP16', 'INT8'),
            help='Convert the frozen graph of --forward_only by TensorRT, to compute in this precision.',
        ),
        _NO_TENSORRT,
    ),
    # ... and of other versions.
    _no_effect(
        'cache_data',
        bool,
        None,
        'records are read from --data_dir as they are needed',
        'Read one record, and repeat it from memory.',
        OTHER,
    ),
    _no_effect(
        'datasets_prefetch_threadpool_size',
        int,
        None,
        '--datasets_num_private_threads sets the threads',
        'Threads that prepare batches.',
        OTHER,
    ),
    _no_effect(
        'enable_layout_optimizer',
        bool,
        None,
        '--data_format sets the layout',
        'Let TensorFlow choose the order of the axes of images.',
        OTHER,
    ),
    _no_effect(
        'flush_stdout',
        bool,
        None,
        'each line is flushed in every run',
        'Write each line as soon as it is printed.',
        OTHER,
    ),
    _no_effect(
        'gpu_pending_cap',
        int,
        None,
        'TensorFlow manages the memory of a GPU',
        'How many kernels may be queued on a GPU at a time.',
        OTHER,
    ),
    _no_effect(
        'iters_per_step',
        int,
        1,
        '--steps_per_run sets how many steps one call of the session takes',
        'How many steps one call of the session takes.',
        OTHER,
    ),
    _no_effect('log_dir', str, None, 'logs go to standard error', 'Folder for logs.', OTHER),
    _no_effect(
        'ml_perf_compliance_logging',
        bool,
        False,
        'the log of MLPerf is not written; --result_file=FILE writes the numbers of a run',
        'Print the log lines that the rules of MLPerf ask for.',
        OTHER,
    ),
    _no_effect(
        'pretrain_dir',
        str,
        None,
        'training starts from new weights, or from those of --backbone_model_path',
        'Folder with the checkpoint from which training starts.',
        OTHER,
    ),
    _no_effect(
        'result_storage',
        str,
        None,
        'the result is printed and not stored',
        'Where to store the result of the run.',
        OTHER,
    ),
    _no_effect(
        'use_data_sets', bool, None, '--input_pipeline says how records are read', 'Read images by tf.data.', OTHER
    ),
    _no_effect(
        'use_multi_device_iterator',
        bool,
        None,
        'each device gets its own batches in every run',
        'Hand batches of tf.data to all devices by one iterator.',
        OTHER,
    ),
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
        return spelled(self.row.spec.name, self.value)


def read(name: str, value: object) -> Asked | None:
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
