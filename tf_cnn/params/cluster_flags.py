"""The flags about a cluster: its processes, which of them this is, and how long they wait for each
other.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import NEW, Idle, flag
from tf_cnn.managers.modes import MODES, modes_that
from tf_cnn.params.rules import ALONE, IN_EVAL, NO_COMPUTING, RunFacts

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

PROTOCOL = 'grpc'
_SHAPE_SAYS = 'the shape says which processes there are, as in shape = "2*1+1"'
_LAUNCHED = Idle(
    lambda p, run: MODES[p.variable_update].launcher is not None,
    'another program starts and connects the processes of '
    f'{modes_that(lambda mode: mode.launcher is not None)}',
)
_NAMED = Idle(
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
        f'HOST:PORT of the controller, for {modes_that(lambda mode: mode.has_controller)}.'
    )
    num_ps: int = flag(
        1,
        'How many tasks of a Slurm or MPI job become parameter servers, if --variable_update has '
        'parameter servers.',
        lower_bound=1,
        unit='tasks',
        original=NEW,
        in_sweep=_SHAPE_SAYS,
        idle=(_LAUNCHED, ALONE, _NAMED),
    )
    cluster_port: int = flag(
        0,
        'The lowest port that the tasks of a Slurm or MPI job use on a node; 0 derives it from '
        'the number of the job.',
        upper_bound=65000,
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, ALONE, _NAMED),
    )
    server_protocol: str = flag(
        PROTOCOL,
        f'The protocol between processes; TensorFlow has {PROTOCOL} only.',
        original='TensorFlow had grpc+verbs and others then',
        only_alone=f'TensorFlow has no other protocol than {PROTOCOL} any more',
        idle=(ALONE,),
    )
    connect_timeout_secs: float = flag(
        300.0,
        'How long to wait for the other processes at the start.',
        unit='seconds',
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, ALONE),
    )
    step_timeout_secs: float = flag(
        600.0,
        'How long a step may wait for other processes; then the run ends and names them. 0 is no '
        'limit. The limit is at least twice the time of the longest step so far; the first step '
        'and waits for evaluations and checkpoints have none.',
        unit='seconds',
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, NO_COMPUTING, ALONE),
    )
    ps_linger_secs: float = flag(
        0.0,
        'How long a parameter server stays after all workers have ended.',
        unit='seconds',
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, ALONE),
    )
    distinct_worker_data: bool = flag(
        True,
        'Each worker has synthetic images of its own, or starts to read at a shard of its own.',
        original=NEW,
        idle=(NO_COMPUTING, IN_EVAL, ALONE),
    )


def find_clashes(params: 'Params', run: RunFacts | None) -> Iterator[str]:
    mode = MODES[params.variable_update]
    named = [
        name
        for name in ('ps_hosts', 'worker_hosts', 'job_name', 'task_index', 'controller_host')
        if getattr(params, name) is not None
    ]
    if mode.launcher and named:
        yield params.clash(
            named[0],
            'variable_update',
            f'{mode.launcher} starts and numbers its processes; leave it out, or write '
            f'{modes_that(lambda other: other.has_cluster)}',
        )
    if (
        run
        and not run.alone
        and params.deterministic
        and params.trains
        and not mode.sums_in_one_order
    ):
        yield params.clash(
            'deterministic',
            'variable_update',
            'its processes sum gradients as they arrive; write '
            f'{modes_that(lambda other: other.sums_in_one_order)}, or leave it out',
        )
