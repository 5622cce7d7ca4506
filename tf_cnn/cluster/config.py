"""The flags about a cluster: its processes, the role of this process, and timeouts. Does not import
TensorFlow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import IN_EVAL, NEW, NO_COMPUTING, SINGLE_PROCESS, Note, flag
from tf_cnn.managers.modes import format_modes

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext

PROTOCOL = 'grpc'
# The flags that say which process of a cluster this is.
ROLE_FLAGS = ('ps_hosts', 'worker_hosts', 'job_name', 'task_index', 'controller_host')


@dataclass(frozen=True)
class ClusterConfig:
    """The processes of a cluster."""

    GROUP: ClassVar[str] = 'Cluster'

    job_name: str | None = flag(
        None,
        'The role of this process in a cluster.',
        choices=('ps', 'worker', 'controller'),
        common=True,
        setting=False,
    )
    task_index: int | None = flag(
        None,
        'The position of this process in the list of hosts of its role, from 0.',
        original='its default is 0',
        common=True,
        setting=False,
    )
    ps_hosts: str | None = flag(
        None, 'HOST:PORT of each parameter server, separated by commas.', common=True, setting=False
    )
    worker_hosts: str | None = flag(
        None, 'HOST:PORT of each worker, separated by commas.', common=True, setting=False
    )
    controller_host: str | None = flag(
        None,
        f'HOST:PORT of the controller, for {format_modes(lambda mode: mode.has_controller)}.',
        setting=False,
    )
    num_ps: int = flag(
        1,
        'The number of tasks of a Slurm or MPI job that become parameter servers, if '
        '--variable_update needs them.',
        lower_bound=1,
        unit='tasks',
        original=NEW,
        ignored=(SINGLE_PROCESS,),
    )
    cluster_port: int = flag(
        0,
        'The lowest port that the tasks of a Slurm or MPI job use on a node; 0 derives it from '
        'the job number.',
        upper_bound=65000,
        original=NEW,
        setting=False,
        ignored=(SINGLE_PROCESS,),
    )
    server_protocol: str = flag(
        PROTOCOL,
        f'The protocol between processes; TensorFlow supports {PROTOCOL} only.',
        original='TensorFlow then had grpc+verbs and other protocols',
        ignored=(SINGLE_PROCESS,),
    )
    connect_timeout_secs: float = flag(
        300.0,
        'Time limit for connecting to the other processes at the start.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(SINGLE_PROCESS,),
    )
    step_timeout_secs: float = flag(
        600.0,
        'Time limit for a step that waits for other processes; at the limit the run stops and '
        'names them. 0 sets no limit. The limit is at least twice the longest step so far; it does '
        'not apply to the first step, evaluations and checkpoints.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(NO_COMPUTING, SINGLE_PROCESS),
    )
    ps_linger_secs: float = flag(
        0.0,
        'Time that a parameter server stays after all workers have finished.',
        unit='seconds',
        original=NEW,
        setting=False,
        ignored=(SINGLE_PROCESS,),
    )
    distinct_worker_data: bool = flag(
        True,
        'Workers use different synthetic images, or start reading at different shards.',
        original=NEW,
        ignored=(IN_EVAL, NO_COMPUTING, SINGLE_PROCESS),
    )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        mode = params.variables.mode
        role_flags = [name for name in ROLE_FLAGS if getattr(self, name) is not None]
        if mode.launcher and role_flags:
            yield params.conflict(
                role_flags[0],
                'variable_update',
                f'{mode.launcher} starts and numbers its processes; remove it, or use '
                f'{format_modes(lambda other: other.has_cluster)}',
            )
        if mode.launcher:
            names = (
                'num_ps',
                'cluster_port',
                'connect_timeout_secs',
                'ps_linger_secs',
                'step_timeout_secs',
            )
            modes = format_modes(lambda mode: mode.launcher is not None)
            yield names, f'another program starts and connects the processes of {modes}'
        if self.ps_hosts or self.worker_hosts:
            reason = '--ps_hosts and --worker_hosts name the processes and their ports'
            yield ('num_ps', 'cluster_port'), reason
        if rules.is_single_process:
            return
        if params.run.deterministic and params.trains and not mode.sums_in_fixed_order:
            yield params.conflict(
                'deterministic',
                'variable_update',
                'its processes sum gradients as they arrive; use '
                f'{format_modes(lambda other: other.sums_in_fixed_order)}, or remove it',
            )
        if self.server_protocol != PROTOCOL:
            flag_text = params.flag_text('server_protocol')
            yield f'{flag_text}: TensorFlow now supports {PROTOCOL} only; remove it'
