"""The flags passed on to TensorFlow in a session's ConfigProto and in environment variables."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import NEW, OTHER, IgnoredWhen, flag
from tf_cnn.graph.onednn import ONEDNN_VARIABLE
from tf_cnn.params.device_flags import gpu_flag
from tf_cnn.params.rules import ON_CPU, RunContext

if TYPE_CHECKING:
    from tf_cnn.params.table import Params


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TensorFlowFlags:
    """The part of Params about TensorFlow itself."""

    GROUP: ClassVar[str] = 'Settings of TensorFlow'

    gpu_indices: str | None = gpu_flag(
        None,
        'The GPUs to use, in the order of the towers: their numbers, from 0, in the machine or in '
        'CUDA_VISIBLE_DEVICES if it is set, separated by commas.',
        original='it only orders the ring of --all_reduce_spec',
    )
    force_gpu_compatible: bool = gpu_flag(
        False,
        'Put all tensors of the host in page-locked memory, for fast copies to GPUs.',
    )
    use_unified_memory: bool = gpu_flag(
        False,
        'Use more memory than GPUs have (--gpu_memory_frac_for_testing above 1), by swapping.',
    )
    timestamped_allocator: bool = gpu_flag(
        False, 'Reuse the memory of a GPU only after the kernels that used it have finished.'
    )
    gpu_kt_max_interval: int = gpu_flag(
        0,
        'Kernels queued on a GPU between two events that track finished kernels; 0 sets no limit.',
    )
    gpu_kt_max_bytes: int = gpu_flag(
        0,
        'Memory that kernels queued between two such events use; 0 sets no limit.',
        unit='bytes',
    )
    gpu_kt_max_pending: int = gpu_flag(
        0, 'Kernels queued on a GPU at a time; 0 sets no limit.', unit='kernels'
    )
    use_numa_affinity: bool = flag(
        False,
        'Bind the process to the NUMA node of its GPUs. On CPUs, spread the processes of a host '
        'over its nodes; with one process, bind each virtual device, see --device=cpu --num_gpus.',
    )
    enable_optimizations: bool = flag(
        True,
        'Let TensorFlow rewrite the graph before it runs it.',
        ignored=(
            IgnoredWhen(
                lambda p, run: p.rewriter_config is not None,
                '--rewriter_config decides what to rewrite',
            ),
        ),
    )
    rewriter_config: str | None = flag(
        None,
        "How TensorFlow rewrites the graph: a RewriterConfig as text, such as 'remapping: OFF'.",
    )
    log_device_placement: bool = flag(
        False, 'Print the device of each operation on standard error.', original=OTHER
    )
    winograd_nonfused: bool = gpu_flag(
        True,
        "On GPUs, let cuDNN also use Winograd's algorithm in several kernels "
        '(TF_ENABLE_WINOGRAD_NONFUSED).',
        variable='TF_ENABLE_WINOGRAD_NONFUSED',
    )
    autotune_threshold: int | None = gpu_flag(
        None,
        'On GPUs, the number of times that an algorithm of cuDNN must win to be chosen, when '
        'TensorFlow compares algorithms (TF_AUTOTUNE_THRESHOLD).',
        lower_bound=1,
        variable='TF_AUTOTUNE_THRESHOLD',
    )
    sync_on_finish: bool | None = flag(
        None,
        'End each step only when all its GPUs are idle, not as soon as its results are available '
        '(TF_SYNC_ON_FINISH). TensorFlow does this by default.',
        original='its default is false',
        variable='TF_SYNC_ON_FINISH',
        ignored=(
            ON_CPU,
            IgnoredWhen(
                lambda p, run: not run.is_single_process,
                'TensorFlow reads it in runs of one process only',
            ),
        ),
    )
    onednn: bool | None = flag(
        None,
        "Compute on CPUs with the kernels of oneDNN, or else with TensorFlow's kernels "
        '(TF_ENABLE_ONEDNN_OPTS). By default TensorFlow decides: it uses oneDNN on x86 processors '
        'with VNNI, BF16 or AMX.',
        original=NEW,
        variable=ONEDNN_VARIABLE,
        resolved=True,
    )
    keep_memory: bool | None = flag(
        None,
        'Keep the host memory that TensorFlow frees for the next step; by default the processes '
        'of a cluster do. Settings of malloc in the environment (MALLOC_..., GLIBC_TUNABLES, '
        'LD_PRELOAD) take precedence.',
        original=NEW,
    )
    kmp_affinity: str | None = flag(
        None,
        'For a TensorFlow built with OpenMP: the binding of threads to cores (KMP_AFFINITY).',
        original='its default is granularity=fine,verbose,compact,1,0',
        variable='KMP_AFFINITY',
    )
    kmp_blocktime: int | None = flag(
        None,
        'For a TensorFlow built with OpenMP: the time that a thread waits for work before it '
        'sleeps (KMP_BLOCKTIME).',
        unit='milliseconds',
        original='its default is 0',
        variable='KMP_BLOCKTIME',
    )
    kmp_settings: int | None = flag(
        None,
        'For a TensorFlow built with OpenMP: 1 prints its settings (KMP_SETTINGS).',
        upper_bound=1,
        original='its default is 1',
        variable='KMP_SETTINGS',
    )


def parse_gpu_indices(gpu_indices: str | None) -> list[int]:
    """Returns the numbers of the GPUs to use, [] for all.

    Raises ValueError if they are not integers, negative, or not distinct.
    """
    indices = [int(word) for word in gpu_indices.split(',')] if gpu_indices else []
    if any(index < 0 for index in indices) or len(set(indices)) < len(indices):
        raise ValueError(gpu_indices)
    return indices


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    if params.device == 'cpu':
        return
    try:
        indices = parse_gpu_indices(params.gpu_indices)
    except ValueError:
        yield (
            f'{params.flag_text("gpu_indices")}: it must be distinct numbers from 0, separated by '
            'commas, such as 0,1'
        )
        return
    if indices and len(indices) < params.num_gpus:
        yield params.conflict(
            'gpu_indices', 'num_gpus', f'list a number for each, or use --num_gpus={len(indices)}'
        )
