"""The flags about a cluster: its processes, the role of this process, and timeouts."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, flag
from tf_cnn.managers.modes import MODES, format_modes
from tf_cnn.params.rules import IN_EVAL, NO_COMPUTING, SINGLE_PROCESS, RunContext

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

PROTOCOL = 'grpc'
_SHAPE_SAYS = 'the shape sets the processes, as in shape = "2*1+1"'
_LAUNCHED = IgnoredWhen(
    lambda p, run: MODES[p.variable_update].launcher is not None,
    'another program starts and connects the processes of '
    f'{format_modes(lambda mode: mode.launcher is not None)}',
)
_NAMED = IgnoredWhen(
    lambda p, run: bool(p.ps_hosts or p.worker_hosts),
    '--ps_hosts and --worker_hosts name the processes and their ports',
)
_role_flag = functools.partial(flag, None, names_process=True, setting=False, in_sweep=_SHAPE_SAYS)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterFlags:
    """The part of Params about a cluster."""

    GROUP: ClassVar[str] = 'Cluster'

    job_name: str | None = _role_flag(
        'The role of this process in a cluster.',
        choices=('ps', 'worker', 'controller'),
        common=True,
    )
    task_index: int | None = _role_flag(
        'The position of this process in the list of hosts of its role, from 0.',
        original='its default is 0',
        common=True,
    )
    ps_hosts: str | None = _role_flag(
        'HOST:PORT of each parameter server, separated by commas.', common=True
    )
    worker_hosts: str | None = _role_flag(
        'HOST:PORT of each worker, separated by commas.', common=True
    )
    controller_host: str | None = _role_flag(
        f'HOST:PORT of the controller, for {format_modes(lambda mode: mode.has_controller)}.'
    )
    num_ps: int = flag(
        1,
        'The number of tasks of a Slurm or MPI job that become parameter servers, if '
        '--variable_update needs them.',
        lower_bound=1,
        unit='tasks',
        original=NEW,
        in_sweep=_SHAPE_SAYS,
        ignored=(_LAUNCHED, SINGLE_PROCESS, _NAMED),
    )
    cluster_port: int = flag(
        0,
        'The lowest port that the tasks of a Slurm or MPI job use on a node; 0 derives it from '
        'the job number.',
        upper_bound=65000,
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS, _NAMED),
    )
    server_protocol: str = flag(
        PROTOCOL,
        f'The protocol between processes; TensorFlow supports {PROTOCOL} only.',
        original='TensorFlow then had grpc+verbs and other protocols',
        not_in_cluster=f'TensorFlow now supports {PROTOCOL} only',
        ignored=(SINGLE_PROCESS,),
    )
    connect_timeout_secs: float = flag(
        300.0,
        'Time limit for connecting to the other processes at the start.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS),
    )
    step_timeout_secs: float = flag(
        600.0,
        'Time limit for a step that waits for other processes; at the limit the run stops and '
        'names them. 0 sets no limit. The limit is at least twice the longest step so far; it does '
        'not apply to the first step, evaluations and checkpoints.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, NO_COMPUTING, SINGLE_PROCESS),
    )
    ps_linger_secs: float = flag(
        0.0,
        'Time that a parameter server stays after all workers have finished.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS),
    )
    distinct_worker_data: bool = flag(
        True,
        'Workers use different synthetic images, or start reading at different shards.',
        original=NEW,
        ignored=(NO_COMPUTING, IN_EVAL, SINGLE_PROCESS),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    mode = MODES[params.variable_update]
    role_flags = [
        name
        for name in ('ps_hosts', 'worker_hosts', 'job_name', 'task_index', 'controller_host')
        if getattr(params, name) is not None
    ]
    if mode.launcher and role_flags:
        yield params.conflict(
            role_flags[0],
            'variable_update',
            f'{mode.launcher} starts and numbers its processes; remove it, or use '
            f'{format_modes(lambda other: other.has_cluster)}',
        )
    if (
        run
        and not run.is_single_process
        and params.deterministic
        and params.trains
        and not mode.sums_in_fixed_order
    ):
        yield params.conflict(
            'deterministic',
            'variable_update',
            'its processes sum gradients as they arrive; use '
            f'{format_modes(lambda other: other.sums_in_fixed_order)}, or remove it',
        )
