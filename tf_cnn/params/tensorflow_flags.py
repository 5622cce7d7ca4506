"""The flags passed on to TensorFlow: settings that it reads from a session's ConfigProto and from
the environment.
"""

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
        'Which GPUs to use, in the order of the towers: their numbers from 0 among those of the '
        'machine, or of CUDA_VISIBLE_DEVICES if it is set, separated by commas.',
        original='there it only orders the ring of --all_reduce_spec',
    )
    force_gpu_compatible: bool = gpu_flag(
        False,
        'Make all tensors of the host fit to be copied to a GPU: they are in page-locked memory.',
    )
    use_unified_memory: bool = gpu_flag(
        False,
        'Let the memory of GPUs be more than they have (--gpu_memory_frac_for_testing above 1), '
        'by swapping.',
    )
    timestamped_allocator: bool = gpu_flag(
        False, 'Reuse the memory of a GPU only where the kernels that used it have surely ended.'
    )
    gpu_kt_max_interval: int = gpu_flag(
        0,
        'Kernels queued on a GPU between two events that tell which have ended; 0 sets no limit.',
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
        'over its nodes; of one process, bind each device of the CPU, see --device=cpu --num_gpus.',
    )
    enable_optimizations: bool = flag(
        True,
        'Let TensorFlow rewrite the graph before it runs it.',
        ignored=(
            IgnoredWhen(
                lambda p, run: p.rewriter_config is not None,
                '--rewriter_config says what to rewrite',
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
        "On GPUs, let cuDNN convolve by Winograd's algorithm in several kernels too "
        '(TF_ENABLE_WINOGRAD_NONFUSED).',
        variable='TF_ENABLE_WINOGRAD_NONFUSED',
    )
    autotune_threshold: int | None = gpu_flag(
        None,
        'On GPUs, how often an algorithm of cuDNN must win to be chosen, if TensorFlow tries them '
        '(TF_AUTOTUNE_THRESHOLD).',
        lower_bound=1,
        variable='TF_AUTOTUNE_THRESHOLD',
    )
    sync_on_finish: bool | None = flag(
        None,
        'Let each step wait until all its GPUs are idle, not only until its results are there '
        '(TF_SYNC_ON_FINISH). By default TensorFlow does.',
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
        "Compute on CPUs by the kernels of oneDNN, or by TensorFlow's own "
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
        'LD_PRELOAD) come first.',
        original=NEW,
    )
    kmp_affinity: str | None = flag(
        None,
        'For a TensorFlow that was built with OpenMP: to which cores threads are bound '
        '(KMP_AFFINITY).',
        original='its default is granularity=fine,verbose,compact,1,0',
        variable='KMP_AFFINITY',
    )
    kmp_blocktime: int | None = flag(
        None,
        'For a TensorFlow that was built with OpenMP: how long a thread waits for work before it '
        'sleeps (KMP_BLOCKTIME).',
        unit='milliseconds',
        original='its default is 0',
        variable='KMP_BLOCKTIME',
    )
    kmp_settings: int | None = flag(
        None,
        'For a TensorFlow that was built with OpenMP: with 1 it prints its settings '
        '(KMP_SETTINGS).',
        upper_bound=1,
        original='its default is 1',
        variable='KMP_SETTINGS',
    )


def parse_gpu_indices(gpu_indices: str | None) -> list[int]:
    """Returns the numbers of the GPUs to use, [] for all; raises ValueError unless they are
    different and from 0.
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
            f'{params.flag_text("gpu_indices")}: it must be different numbers from 0, separated by '
            'commas, such as 0,1'
        )
        return
    if indices and len(indices) < params.num_gpus:
        yield params.conflict(
            'gpu_indices', 'num_gpus', f'write as many numbers, or --num_gpus={len(indices)}'
        )
