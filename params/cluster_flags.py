"""The flags about a cluster: its processes, which of them this is, and how long they wait for each other."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import format_flag
from params.modes import MODES, modes_that
from params.rules import ALONE, IN_EVAL, NO_COMPUTING, Idle, Rule, RunFacts, RunRule
from params.spec import NEW, SHAPE_SAYS, flag

if TYPE_CHECKING:
    from params.table import Params

_PROTOCOL = 'grpc'


_LAUNCHED = Idle(
    lambda p, run: MODES[p.variable_update].launcher is not None,
    f'another program starts and connects the processes of {modes_that(lambda mode: mode.launcher is not None)}',
)
_NAMED = Idle(
    lambda p, run: bool(p.ps_hosts or p.worker_hosts),
    '--ps_hosts and --worker_hosts name the processes and their ports',
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ClusterFlags:
    """The part of Params about a cluster."""

    GROUP: ClassVar[str] = 'Cluster'

    job_name: str | None = flag(
        None,
        'The role of this process in a cluster.',
        choices=('ps', 'worker', 'controller'),
        common=True,
        names_process=True,
    )
    task_index: int | None = flag(
        None,
        'The position of this process in the list of hosts of its role, from 0.',
        lower_bound=0,
        original='its default is 0',
        common=True,
        names_process=True,
    )
    ps_hosts: str | None = flag(
        None, 'HOST:PORT of each parameter server, separated by commas.', common=True, names_process=True
    )
    worker_hosts: str | None = flag(
        None, 'HOST:PORT of each worker, separated by commas.', common=True, names_process=True
    )
    controller_host: str | None = flag(
        None, f'HOST:PORT of the controller, for {modes_that(lambda mode: mode.has_controller)}.', names_process=True
    )
    num_ps: int = flag(
        1,
        'How many tasks of a Slurm or MPI job become parameter servers, if --variable_update has parameter servers.',
        lower_bound=1,
        unit='tasks',
        original=NEW,
        in_sweep=SHAPE_SAYS,
        idle=(_LAUNCHED, ALONE, _NAMED),
    )
    cluster_port: int = flag(
        0,
        'The lowest port that the tasks of a Slurm or MPI job use on a node; 0 derives it from the number of the job.',
        lower_bound=0,
        upper_bound=65000,
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, ALONE, _NAMED),
    )
    server_protocol: str = flag(
        _PROTOCOL,
        f'The protocol between processes; TensorFlow has {_PROTOCOL} only.',
        original='TensorFlow had grpc+verbs and others then',
        idle=(
            Idle(
                lambda p, run: (
                    p.server_protocol != _PROTOCOL and (run.alone or MODES[p.variable_update].launcher is not None)
                ),
                'no processes are connected by it',
            ),
        ),
    )
    connect_timeout_secs: float = flag(
        300.0,
        'How long to wait for the other processes at the start.',
        lower_bound=0,
        unit='seconds',
        original=NEW,
        setting=False,
        idle=(_LAUNCHED, ALONE),
    )
    peer_timeout_secs: float = flag(
        120.0,
        'Has no effect: no process waits for a lost one.',
        lower_bound=0,
        unit='seconds',
        original=NEW,
        setting=False,
        idle=(Idle(lambda p, run: True, 'if a process is lost, all others end within seconds'),),
    )
    ps_linger_secs: float = flag(
        0.0,
        'How long a parameter server stays after all workers have ended.',
        lower_bound=0,
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


def _a_launcher_names_the_processes(params: 'Params') -> str | None:
    launcher = MODES[params.variable_update].launcher
    if launcher is None:
        return None
    for name in ('ps_hosts', 'worker_hosts', 'job_name', 'task_index', 'controller_host'):
        if (value := getattr(params, name)) is not None:
            return (
                f'{format_flag(name, value)} clashes with {format_flag("variable_update", params.variable_update)}, '
                f'whose processes {launcher} starts and numbers; leave it out, or write '
                f'{modes_that(lambda mode: mode.has_cluster)}'
            )
    return None


def _tensorflow_has_the_protocol(params: 'Params', facts: RunFacts) -> str | None:
    if facts.alone or params.server_protocol == _PROTOCOL or MODES[params.variable_update].launcher is not None:
        return None
    return (
        f'{format_flag("server_protocol", params.server_protocol)}: TensorFlow has no other protocol than '
        f'{_PROTOCOL} any '
        f'more; leave it out, or for faster networks write {modes_that(lambda mode: mode.launcher is not None)}'
    )


def _sums_have_one_order(params: 'Params', facts: RunFacts) -> str | None:
    mode = MODES[params.variable_update]
    if facts.alone or not params.deterministic or not params.trains or mode.sums_in_one_order:
        return None
    return (
        f'--deterministic clashes with {format_flag("variable_update", mode.name)} in several processes, whose '
        'gradients '
        f'are summed as they arrive; write {modes_that(lambda other: other.sums_in_one_order)}, or leave it out'
    )


RULES: tuple[Rule, ...] = (_a_launcher_names_the_processes,)
RUN_RULES: tuple[RunRule, ...] = (_tensorflow_has_the_protocol, _sums_have_one_order)
