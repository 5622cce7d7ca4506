"""The flags about devices, threads, memory, and TensorFlow itself. Does not import TensorFlow."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tf_cnn.flags.spec import (
    NEW,
    NO_COMPUTING,
    NO_MODEL,
    NO_STEPS,
    ON_CPU,
    OTHER,
    Note,
    flag,
    specs_of,
)
from tf_cnn.graph.onednn import ONEDNN_VARIABLE

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext
    from tf_cnn.plan.workload import Context

_KINDS = ('cpu', 'gpu')
ALL_GPUS = '--num_gpus=all'


@dataclass(frozen=True)
class DeviceConfig:
    """The devices of a run, their threads and their memory."""

    GROUP: ClassVar[str] = 'Devices'

    num_gpus: int = flag(
        1,
        'Devices of each worker, of the kind of --device. Workers of one host share its GPUs, or '
        'the GPUs that CUDA_VISIBLE_DEVICES lists; a process opens no others. all means each GPU '
        'that this machine shows to the process; 0 means --device=cpu with one device.',
        common=True,
        shared_by_workers=True,
    )
    device: str | None = flag(
        None,
        'The kind of device to compute on; by default gpu if there is one, else cpu.',
        choices=_KINDS,
        original='its default is gpu',
        common=True,
        in_run_section=True,
        chosen=True,
    )
    local_parameter_device: str | None = flag(
        None,
        'The kind of device that holds the variables that towers share, or receives them from '
        'parameter servers; if each tower has all variables, the kind of device that sums '
        'gradients. cpu: the host; gpu: the devices of the towers, including virtual devices of a '
        'CPU; variables are spread over them. By default the kind of --device.',
        choices=_KINDS,
        original='its default is gpu',
        chosen=True,
        ignored=NO_STEPS,
    )
    data_format: str | None = flag(
        None,
        'Order of the axes of a batch of images; by default NHWC on CPUs, and NCHW on GPUs, '
        'except for fp16 from compute capability 7.0 on, bf16 from 8.0 on and, without training, '
        'TF32.',
        choices=('NHWC', 'NCHW'),
        original='its default is NCHW',
        common=True,
        in_run_section=True,
        chosen=True,
        ignored=(NO_MODEL, NO_COMPUTING),
    )
    num_intra_threads: int | None = flag(
        None,
        'Threads within one operation; with 0 TensorFlow decides: as many as cores. By default '
        'the run chooses by its devices, towers and the CPU quota; --verbose tells what was '
        'chosen, and why.',
        unit='threads',
        chosen=True,
    )
    num_inter_threads: int = flag(
        0,
        'Operations that run at the same time; 0 lets TensorFlow decide, or the run if GPUs have '
        'separate threads.',
        unit='threads',
    )
    gpu_thread_mode: str = flag(
        'gpu_private',
        'Threads of the host that start the kernels of GPUs. gpu_private: separate threads for '
        'each GPU; gpu_shared: threads shared by the GPUs; global: the threads of all other '
        'operations.',
        choices=('global', 'gpu_shared', 'gpu_private'),
        target='TF_GPU_THREAD_MODE',
        ignored=(ON_CPU,),
    )
    per_gpu_thread_count: int = flag(
        0,
        'Threads for each GPU, unless --gpu_thread_mode=global; 0 means two, one for kernels '
        'and one for copies.',
        unit='threads',
        ignored=(ON_CPU,),
    )
    batchnorm_persistent: bool = flag(
        True,
        "On GPUs, use cuDNN's batch norm kernels that keep their input on the chip "
        '(CUDNN_BATCHNORM_SPATIAL_PERSISTENT), where available.',
        target='TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT',
        ignored=(ON_CPU,),
    )
    fused_batch_norm: bool = flag(
        True,
        'Compute each batch norm with one kernel; if the switch is off, with several operations.',
        original=NEW,
        ignored=(NO_MODEL, NO_COMPUTING),
    )
    allow_growth: bool | None = flag(
        None,
        'Take the memory of a GPU as it is needed instead of at the start; by default TensorFlow '
        'decides.',
        target='gpu_options.allow_growth',
        ignored=(ON_CPU,),
    )
    gpu_memory_frac_for_testing: float = flag(
        0.0,
        'Fraction of the memory of each GPU to take; above 1, memory is swapped to the host. 0 '
        'sets no limit.',
        target='gpu_options.per_process_gpu_memory_fraction',
        ignored=(ON_CPU,),
    )
    xla: bool = flag(False, 'Let XLA compile as much of the graph as it can.')

    @property
    def layout(self) -> str:
        """The data format, of resolved flags."""
        assert self.data_format
        return self.data_format

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        devices, threads = context.devices, context.threads
        assert devices
        resolved = replace(
            self,
            device=devices.kind,
            local_parameter_device=devices.parameter_kind,
            data_format=devices.data_format,
        )
        if threads is None:
            return resolved
        intra, inter = threads.intra_op, threads.inter_op
        return replace(resolved, num_intra_threads=intra, num_inter_threads=inter)

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        mode = params.variables.mode
        if not self.fused_batch_norm:
            yield (
                ('batchnorm_persistent',),
                'without --fused_batch_norm, cuDNN computes no batch norm',
            )
        if self.num_gpus == 0 and self.device == 'gpu':
            yield params.conflict('num_gpus', 'device', 'use --num_gpus=1 or more, or --device=cpu')
        if self.device == 'cpu' and params.flag_text('num_gpus') == ALL_GPUS:
            yield params.conflict(
                'num_gpus', 'device', 'it counts GPUs; use --num_gpus=2 for two virtual devices'
            )
        if mode.launcher is not None and self.num_gpus > 1:
            yield params.conflict(
                'num_gpus',
                'variable_update',
                'it has one process per GPU; use --num_gpus=1, and start more processes with '
                f'{mode.launcher}',
            )
        if self.gpu_thread_mode == 'global':
            reason = 'with --gpu_thread_mode=global GPUs use the threads of all other operations'
            yield ('per_gpu_thread_count',), reason
        if no_parameter_device := self._why_no_parameter_device(params, rules):
            yield ('local_parameter_device',), no_parameter_device

    def _why_no_parameter_device(self, params: 'Params', rules: 'RuleContext') -> str | None:
        if not rules.is_single_process and not rules.num_ps:
            return (
                'in a cluster without parameter servers, the devices of the towers hold the '
                'variables and sum gradients'
            )
        if rules.is_single_process and params.variables.mode.parameter_device is None:
            return 'with this --variable_update each device holds separate variables'
        if params.variables.has_other_reduce_flag(params):
            return (
                'with this --variable_update it only sets where gradients are summed, and '
                '--all_reduce_spec or --hierarchical_copy sets that already'
            )
        if self.device == 'cpu' and self.local_parameter_device == 'gpu' and self.num_gpus < 2:
            return 'the run is on one device of the CPU'
        return None


@dataclass(frozen=True)
class TensorFlowConfig:
    """Settings of TensorFlow and of the process; `target` is where TensorFlow reads one."""

    GROUP: ClassVar[str] = 'Settings of TensorFlow'

    gpu_indices: str | None = flag(
        None,
        'The GPUs to use, in the order of the towers: their numbers, from 0, in the machine or in '
        'CUDA_VISIBLE_DEVICES if it is set, separated by commas.',
        original='it only orders the ring of --all_reduce_spec',
        ignored=(ON_CPU,),
    )
    force_gpu_compatible: bool = flag(
        False,
        'Put all tensors of the host in page-locked memory, for fast copies to GPUs.',
        target='gpu_options.force_gpu_compatible',
        ignored=(ON_CPU,),
    )
    use_unified_memory: bool = flag(
        False,
        'Use more memory than GPUs have (--gpu_memory_frac_for_testing above 1), by swapping.',
        target='gpu_options.experimental.use_unified_memory',
        ignored=(ON_CPU,),
    )
    timestamped_allocator: bool = flag(
        False,
        'Reuse the memory of a GPU only after the kernels that used it have finished.',
        target='gpu_options.experimental.timestamped_allocator',
        ignored=(ON_CPU,),
    )
    gpu_kt_max_interval: int = flag(
        0,
        'Kernels queued on a GPU between two events that track finished kernels; 0 sets no limit.',
        target='gpu_options.experimental.kernel_tracker_max_interval',
        ignored=(ON_CPU,),
    )
    gpu_kt_max_bytes: int = flag(
        0,
        'Memory that kernels queued between two such events use; 0 sets no limit.',
        unit='bytes',
        target='gpu_options.experimental.kernel_tracker_max_bytes',
        ignored=(ON_CPU,),
    )
    gpu_kt_max_pending: int = flag(
        0,
        'Kernels queued on a GPU at a time; 0 sets no limit.',
        unit='kernels',
        target='gpu_options.experimental.kernel_tracker_max_pending',
        ignored=(ON_CPU,),
    )
    use_numa_affinity: bool = flag(
        False,
        'Bind the process to the NUMA node of its GPUs. On CPUs, spread the processes of a host '
        'over its nodes; with one process, bind each virtual device, see --device=cpu --num_gpus.',
    )
    enable_optimizations: bool = flag(
        True,
        'Let TensorFlow rewrite the graph before it runs it.',
    )
    rewriter_config: str | None = flag(
        None,
        "How TensorFlow rewrites the graph: a RewriterConfig as text, such as 'remapping: OFF'.",
    )
    log_device_placement: bool = flag(
        False,
        'Print the device of each operation on standard error.',
        original=OTHER,
        target='log_device_placement',
    )
    winograd_nonfused: bool = flag(
        True,
        "On GPUs, let cuDNN also use Winograd's algorithm in several kernels "
        '(TF_ENABLE_WINOGRAD_NONFUSED).',
        target='TF_ENABLE_WINOGRAD_NONFUSED',
        ignored=(ON_CPU,),
    )
    autotune_threshold: int | None = flag(
        None,
        'On GPUs, the number of times that an algorithm of cuDNN must win to be chosen, when '
        'TensorFlow compares algorithms (TF_AUTOTUNE_THRESHOLD).',
        lower_bound=1,
        target='TF_AUTOTUNE_THRESHOLD',
        ignored=(ON_CPU,),
    )
    sync_on_finish: bool | None = flag(
        None,
        'End each step only when all its GPUs are idle, not as soon as its results are available '
        '(TF_SYNC_ON_FINISH). TensorFlow does this by default.',
        original='its default is false',
        target='TF_SYNC_ON_FINISH',
        ignored=(ON_CPU,),
    )
    onednn: bool | None = flag(
        None,
        "Compute on CPUs with the kernels of oneDNN, or else with TensorFlow's kernels "
        '(TF_ENABLE_ONEDNN_OPTS). By default TensorFlow decides: it uses oneDNN on x86 processors '
        'with VNNI, BF16 or AMX.',
        original=NEW,
        target=ONEDNN_VARIABLE,
        in_run_section=True,
    )
    kmp_affinity: str | None = flag(
        None,
        'For a TensorFlow built with OpenMP: the binding of threads to cores (KMP_AFFINITY).',
        original='its default is granularity=fine,verbose,compact,1,0',
        target='KMP_AFFINITY',
    )
    kmp_blocktime: int | None = flag(
        None,
        'For a TensorFlow built with OpenMP: the time that a thread waits for work before it '
        'sleeps (KMP_BLOCKTIME).',
        unit='milliseconds',
        original='its default is 0',
        target='KMP_BLOCKTIME',
    )
    kmp_settings: int | None = flag(
        None,
        'For a TensorFlow built with OpenMP: 1 prints its settings (KMP_SETTINGS).',
        upper_bound=1,
        original='its default is 1',
        target='KMP_SETTINGS',
    )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if self.rewriter_config is not None:
            yield ('enable_optimizations',), '--rewriter_config decides what to rewrite'
        if not rules.is_single_process:
            yield ('sync_on_finish',), 'TensorFlow reads it in runs of one process only'
        if params.devices.device == 'cpu':
            return
        try:
            indices = parse_gpu_indices(self.gpu_indices)
        except ValueError:
            yield (
                f'{params.flag_text("gpu_indices")}: it must be distinct numbers from 0, separated '
                'by commas, such as 0,1'
            )
            return
        if indices and len(indices) < params.devices.num_gpus:
            yield params.conflict(
                'gpu_indices',
                'num_gpus',
                f'list a number for each, or use --num_gpus={len(indices)}',
            )


# The flags that set an environment variable or a field of ConfigProto, and which one.
TARGETS: Mapping[str, str] = {
    name: spec.target
    for group in (DeviceConfig, TensorFlowConfig)
    for name, spec in specs_of(group).items()
    if spec.target
}


def parse_gpu_indices(gpu_indices: str | None) -> list[int]:
    """Returns the numbers of the GPUs to use, [] for all.

    Raises ValueError if they are not integers, negative, or not distinct.
    """
    indices = [int(word) for word in gpu_indices.split(',')] if gpu_indices else []
    if any(index < 0 for index in indices) or len(set(indices)) < len(indices):
        raise ValueError(gpu_indices)
    return indices
