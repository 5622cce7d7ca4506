"""The flags about a cluster: its processes, which of them this is, and how long they wait for each
other.
"""

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
_SHAPE_SAYS = 'the shape says which processes there are, as in shape = "2*1+1"'
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
        'How many tasks of a Slurm or MPI job become parameter servers, if --variable_update has '
        'parameter servers.',
        lower_bound=1,
        unit='tasks',
        original=NEW,
        in_sweep=_SHAPE_SAYS,
        ignored=(_LAUNCHED, SINGLE_PROCESS, _NAMED),
    )
    cluster_port: int = flag(
        0,
        'The lowest port that the tasks of a Slurm or MPI job use on a node; 0 derives it from '
        'the number of the job.',
        upper_bound=65000,
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS, _NAMED),
    )
    server_protocol: str = flag(
        PROTOCOL,
        f'The protocol between processes; TensorFlow has {PROTOCOL} only.',
        original='TensorFlow had grpc+verbs and others then',
        not_in_cluster=f'TensorFlow has no other protocol than {PROTOCOL} any more',
        ignored=(SINGLE_PROCESS,),
    )
    connect_timeout_secs: float = flag(
        300.0,
        'How long to wait for the other processes at the start.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS),
    )
    step_timeout_secs: float = flag(
        600.0,
        'How long a step may wait for other processes; then the run ends and names them. 0 is no '
        'limit. The limit is at least twice the time of the longest step so far; the first step '
        'and waits for evaluations and checkpoints have none.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, NO_COMPUTING, SINGLE_PROCESS),
    )
    ps_linger_secs: float = flag(
        0.0,
        'How long a parameter server stays after all workers have ended.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(_LAUNCHED, SINGLE_PROCESS),
    )
    distinct_worker_data: bool = flag(
        True,
        'Each worker has synthetic images of its own, or starts to read at a shard of its own.',
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
            f'{mode.launcher} starts and numbers its processes; leave it out, or write '
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
            'its processes sum gradients as they arrive; write '
            f'{format_modes(lambda other: other.sums_in_fixed_order)}, or leave it out',
        )
