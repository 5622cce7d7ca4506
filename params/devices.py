"""The flags about devices: where a process computes, and with how many threads and how much memory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import spelled
from params.modes import MODES
from params.rules import Idle, Rule, idle_in_eval
from params.spec import flag

if TYPE_CHECKING:
    from params.table import Params

_KINDS = ('cpu', 'gpu')


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Devices:
    """The part of Params about devices."""

    GROUP: ClassVar[str] = 'Devices'

    num_gpus: int = flag(
        1,
        'Devices of each worker, of the kind of --device. Workers of one host share its GPUs, or those that '
        'CUDA_VISIBLE_DEVICES lists; a process opens no others.',
        lower_bound=1,
    )
    device: str | None = flag(
        None,
        'The kind of device to compute on; by default gpu if there is one, else cpu.',
        choices=_KINDS,
        original='gpu',
    )
    local_parameter_device: str | None = flag(
        None,
        'In one process, the kind of device that holds variables which towers share, or that sums the gradients of '
        'towers which each have all variables; in a worker of parameter servers, the kind that receives the variables '
        "and sums its towers' gradients. By default the kind of --device.",
        choices=_KINDS,
        original='gpu',
    )
    data_format: str | None = flag(
        None,
        'Order of the axes of a batch of images; by default NCHW on GPUs and NHWC on CPUs.',
        choices=('NHWC', 'NCHW'),
        original='NCHW',
    )
    num_intra_threads: int | None = flag(
        None,
        'Threads within one operation; by default, and with 0, TensorFlow decides.',
        lower_bound=0,
        unit='threads',
    )
    num_inter_threads: int = flag(
        0, 'Operations that run at the same time; with 0 TensorFlow decides.', lower_bound=0, unit='threads'
    )
    allow_growth: bool | None = flag(
        None, 'Take the memory of a GPU as it is needed instead of at the start; by default TensorFlow decides.'
    )
    gpu_memory_frac_for_testing: float = flag(
        0.0, 'Fraction of the memory of each GPU to take; 0 sets no limit.', lower_bound=0, upper_bound=1
    )
    xla: bool = flag(False, 'Let XLA compile as much of the graph as it can.')


def _a_launcher_starts_one_process_per_device(params: 'Params') -> str | None:
    mode = MODES[params.variable_update]
    if mode.launcher is not None and params.num_gpus > 1:
        return (
            f'{spelled("num_gpus", params.num_gpus)} clashes with {spelled("variable_update", mode.name)}, which has '
            f'one process per GPU; write --num_gpus=1, and start more processes with {mode.launcher}'
        )
    return None


def another_flag_places_the_sums(params: 'Params') -> bool:
    """Whether gradients are summed where --all_reduce_spec or --hierarchical_copy says."""
    mode = MODES[params.variable_update]
    by_spec = mode.takes_all_reduce_spec and params.all_reduce_spec is not None
    by_hierarchy = mode.takes_hierarchy and params.hierarchical_copy
    return mode.parameter_device == 'sums' and (by_spec or by_hierarchy)


RULES: tuple[Rule, ...] = (_a_launcher_starts_one_process_per_device,)
IDLE: tuple[Idle, ...] = (
    idle_in_eval('local_parameter_device'),
    Idle(
        ('local_parameter_device',),
        lambda p, run: not run.alone and not MODES[p.variable_update].needs_servers,
        'in a cluster without parameter servers variables are on the devices of the towers, which also sum gradients',
    ),
    Idle(
        ('local_parameter_device',),
        lambda p, run: run.alone and MODES[p.variable_update].parameter_device is None,
        'with this --variable_update each device keeps its own variables',
    ),
    Idle(
        ('local_parameter_device',),
        lambda p, run: another_flag_places_the_sums(p),
        'with this --variable_update it only sets where gradients are summed, and --all_reduce_spec or '
        '--hierarchical_copy sets that already',
    ),
    Idle(('allow_growth', 'gpu_memory_frac_for_testing'), lambda p, run: p.device == 'cpu', 'the run is on the CPU'),
)
