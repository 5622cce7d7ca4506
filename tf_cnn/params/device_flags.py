"""The flags about devices, threads and memory."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import IgnoredWhen, flag
from tf_cnn.managers.modes import MODES
from tf_cnn.params.rules import IN_EVAL, NO_COMPUTING, NO_MODEL, ON_CPU, RunContext, ignored_on_cpu
from tf_cnn.params.variable_flags import uses_all_reduce_spec, uses_hierarchical_copy

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

_KINDS = ('cpu', 'gpu')
gpu_flag = functools.partial(flag, ignored=(ON_CPU,))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class DeviceFlags:
    """The part of Params about devices."""

    GROUP: ClassVar[str] = 'Devices'

    num_gpus: int = flag(
        1,
        'Devices of each worker, of the kind of --device. Workers of one host share its GPUs, or '
        'the GPUs that CUDA_VISIBLE_DEVICES lists; a process opens no others. 0 means --device=cpu '
        'with one device.',
        common=True,
        shared_by_workers=True,
        in_sweep='the shape sets the devices of each worker',
    )
    device: str | None = flag(
        None,
        'The kind of device to compute on; by default gpu if there is one, else cpu.',
        choices=_KINDS,
        original='its default is gpu',
        common=True,
        resolved=True,
    )
    local_parameter_device: str | None = flag(
        None,
        'The kind of device that holds the variables that towers share, or receives them from '
        'parameter servers; if each tower has all variables, the kind of device that sums '
        'gradients. cpu: the host; gpu: the devices of the towers, including virtual devices of a '
        'CPU; variables are spread over them. By default the kind of --device.',
        choices=_KINDS,
        original='its default is gpu',
        ignored=(
            NO_MODEL,
            IN_EVAL,
            IgnoredWhen(
                lambda p, run: not run.is_single_process and not run.num_ps,
                'in a cluster without parameter servers, the devices of the towers hold the '
                'variables and sum gradients',
            ),
            IgnoredWhen(
                lambda p, run: (
                    run.is_single_process and MODES[p.variable_update].parameter_device is None
                ),
                'with this --variable_update each device holds separate variables',
            ),
            IgnoredWhen(
                lambda p, run: has_other_reduce_flag(p),
                'with this --variable_update it only sets where gradients are summed, and '
                '--all_reduce_spec or --hierarchical_copy sets that already',
            ),
            ignored_on_cpu(
                when=lambda p: p.local_parameter_device == 'gpu' and p.num_gpus < 2,
                reason='the run is on one device of the CPU',
            ),
        ),
    )
    data_format: str | None = flag(
        None,
        'Order of the axes of a batch of images; by default NHWC on CPUs, and NCHW on GPUs, '
        'except for fp16 from compute capability 7.0 on and bf16 from 8.0 on.',
        choices=('NHWC', 'NCHW'),
        original='its default is NCHW',
        common=True,
        resolved=True,
        ignored=(NO_COMPUTING, NO_MODEL),
    )
    num_intra_threads: int | None = flag(
        None,
        'Threads within one operation; with 0 TensorFlow decides: as many as cores. By default '
        'the run chooses by its devices, towers and the CPU quota; --verbose tells what was '
        'chosen, and why.',
        unit='threads',
    )
    num_inter_threads: int = flag(
        0,
        'Operations that run at the same time; 0 lets TensorFlow decide, or the run if GPUs have '
        'separate threads.',
        unit='threads',
    )
    gpu_thread_mode: str = gpu_flag(
        'gpu_private',
        'Threads of the host that start the kernels of GPUs. gpu_private: separate threads for '
        'each GPU; gpu_shared: threads shared by the GPUs; global: the threads of all other '
        'operations.',
        choices=('global', 'gpu_shared', 'gpu_private'),
        variable='TF_GPU_THREAD_MODE',
    )
    per_gpu_thread_count: int = flag(
        0,
        'Threads for each GPU, unless --gpu_thread_mode=global; 0 means two, one for kernels '
        'and one for copies.',
        unit='threads',
        ignored=(
            ON_CPU,
            IgnoredWhen(
                lambda p, run: p.gpu_thread_mode == 'global',
                'with --gpu_thread_mode=global GPUs use the threads of all other operations',
            ),
        ),
    )
    batchnorm_persistent: bool = gpu_flag(
        True,
        "On GPUs, use cuDNN's batch norm kernels that keep their input on the chip "
        '(CUDNN_BATCHNORM_SPATIAL_PERSISTENT), where available.',
        variable='TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT',
    )
    allow_growth: bool | None = gpu_flag(
        None,
        'Take the memory of a GPU as it is needed instead of at the start; by default TensorFlow '
        'decides.',
    )
    gpu_memory_frac_for_testing: float = gpu_flag(
        0.0,
        'Fraction of the memory of each GPU to take; above 1, memory is swapped to the host. 0 '
        'sets no limit.',
    )
    xla: bool = flag(False, 'Let XLA compile as much of the graph as it can.')


def has_other_reduce_flag(params: 'Params') -> bool:
    """Whether --all_reduce_spec or --hierarchical_copy decides where gradients are summed."""
    mode = MODES[params.variable_update]
    return mode.parameter_device == 'sums' and (
        uses_all_reduce_spec(params) or uses_hierarchical_copy(params)
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    mode = MODES[params.variable_update]
    if params.num_gpus == 0 and params.device == 'gpu':
        yield params.conflict('num_gpus', 'device', 'use --num_gpus=1 or more, or --device=cpu')
    if mode.launcher is not None and params.num_gpus > 1:
        yield params.conflict(
            'num_gpus',
            'variable_update',
            'it has one process per GPU; use --num_gpus=1, and start more processes with '
            f'{mode.launcher}',
        )
