"""The table of variable update modes, the values of --variable_update. Does not import TensorFlow.

A mode's name appears only here; all other code reads its row. To add a mode, see
docs/extending.md; tf_cnn/managers/user_modes.py adds modes that users define.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any

from tf_cnn.system.user_file import UserFile


class Topology(enum.Enum):
    """The kinds of processes that a run consists of."""

    LOCAL = 'one process'
    PARAMETER_SERVERS = 'workers and parameter servers'
    PEERS = 'workers alone'
    CONTROLLER = 'workers under a controller'


@dataclass(frozen=True)
class Mode:
    """One value of --variable_update.

    Attributes:
      managers: the class of its variable manager, as module:Class, for each topology that it runs
        in. For a user's mode it is the class itself.
      staged: the classes with --staged_vars.
      relaxed: the classes with --variable_consistency=relaxed.
      refusals: error messages for topologies that the mode does not run in, instead of the usual
        ones. {mode} stands for the flag with its value, {members} for the processes, and {ps} for
        the flag or variable that names the parameter servers.
      always_synchronous: whether workers take each step together even with
        --nocross_replica_sync.
      forward_only_in_cluster: whether processes exchange anything in a --forward_only run.
      shares_model: whether all towers train one model; otherwise each trains a separate model.
      sums_towers: whether one process sums the gradients of its towers, so that packing and
        transfer types matter.
      takes_all_reduce_spec: whether --all_reduce_spec chooses the all-reduce algorithm.
      takes_hierarchy: whether --hierarchical_copy chooses it.
      parameter_device: what --local_parameter_device places in one process: 'variables', 'sums' of
        gradients, or None.
      transfer_dtypes: the 16-bit types that gradients can be sent in; with NCCL,
        managers.all_reduce_spec.NCCL_TRANSFER_DTYPES applies instead.
      sums_in_fixed_order: whether several processes sum gradients in the same order in each run.
      nccl_between_gpus: whether workers sum by NCCL if their towers are GPUs.
      launcher: the program that must start and number the processes; None: any program can.
      file: the --variable_mgr_file that defines the mode, if one does.
    """

    name: str
    summary: str
    managers: Mapping[Topology, str | type]
    staged: Mapping[Topology, str] = field(default_factory=dict)
    relaxed: Mapping[Topology, str] = field(default_factory=dict)
    refusals: Mapping[Topology, str] = field(default_factory=dict)
    always_synchronous: bool = False
    forward_only_in_cluster: bool = True
    shares_model: bool = True
    sums_towers: bool = False
    takes_all_reduce_spec: bool = False
    takes_hierarchy: bool = False
    parameter_device: str | None = None
    transfer_dtypes: tuple[str, ...] = ('float16', 'bfloat16')
    sums_in_fixed_order: bool = False
    nccl_between_gpus: bool = False
    launcher: str | None = None
    file: UserFile | None = None

    @property
    def can_stage(self) -> bool:
        return bool(self.staged)

    @property
    def can_relax(self) -> bool:
        return bool(self.relaxed)

    @property
    def needs_servers(self) -> bool:
        return self.runs_in(Topology.PARAMETER_SERVERS) and not self.runs_in(Topology.PEERS)

    @property
    def is_for_peers(self) -> bool:
        """Whether this program can start its workers, without parameter servers or a controller."""
        return self.runs_in(Topology.PEERS) and self.launcher is None

    @property
    def has_controller(self) -> bool:
        """Whether one process, the controller, trains with the devices of all workers."""
        return self.runs_in(Topology.CONTROLLER)

    @property
    def has_cluster(self) -> bool:
        """Whether this program can start and number several processes of the mode."""
        cluster_topologies = (Topology.PARAMETER_SERVERS, Topology.PEERS, Topology.CONTROLLER)
        return self.launcher is None and any(
            self.runs_in(topology) for topology in cluster_topologies
        )

    def runs_in(self, topology: Topology) -> bool:
        return topology in self.managers

    def refusal(self, topology: Topology) -> str | None:
        """Returns the error message for a topology that the mode does not run in, else None."""
        if self.runs_in(topology):
            return None
        refusals = {**_REFUSALS}
        if {*self.managers} == {Topology.LOCAL}:
            refusals |= _REFUSALS_OF_LOCAL_MODES
        elif not self.runs_in(Topology.PARAMETER_SERVERS):
            refusals[Topology.LOCAL] = _NEEDS_WORKERS
        return {**refusals, **self.refusals}[topology]

    def load_manager(
        self, topology: Topology, *, staged: bool = False, relaxed: bool = False
    ) -> Any:
        """Returns the class of the variable manager, which imports TensorFlow."""
        manager = (
            (staged and self.staged.get(topology))
            or (relaxed and self.relaxed.get(topology))
            or self.managers[topology]
        )
        return resolve_name(manager) if isinstance(manager, str) else manager


_REFUSALS = {
    Topology.LOCAL: (
        '{mode} needs a cluster, and this is a single process; use --job_name, --task_index, '
        '--ps_hosts and --worker_hosts, or --variable_update=replicated for one process'
    ),
    Topology.PARAMETER_SERVERS: (
        '{mode} has no parameter servers, and this run has {members}; remove {ps}, or use '
        '--variable_update=distributed_replicated'
    ),
    Topology.PEERS: (
        '{mode} needs parameter servers, and this run has {members}; add {ps}, or use '
        '--variable_update=collective_all_reduce, which needs none'
    ),
    Topology.CONTROLLER: (
        '{mode} has no controller, and this run has one; remove --controller_host, or use '
        '--variable_update=distributed_all_reduce'
    ),
}
_REFUSALS_OF_LOCAL_MODES = {
    Topology.PARAMETER_SERVERS: (
        '{mode} works within one process, and this run has {members}; with parameter servers use '
        '--variable_update=parameter_server or distributed_replicated'
    ),
    Topology.PEERS: (
        '{mode} works within one process, and this run has {members}; for workers alone use '
        '--variable_update=collective_all_reduce'
    ),
}
_NEEDS_WORKERS = (
    '{mode} needs several workers, and this is a single process; use --job_name, --task_index and '
    '--worker_hosts, or --variable_update=replicated for one process'
)
_ROWS = (
    Mode(
        'parameter_server',
        'Every tower reads one copy of the variables; the devices that hold it receive the '
        'gradients.',
        {
            Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrLocalFetchFromPS',
            Topology.PARAMETER_SERVERS: (
                'tf_cnn.managers.distributed:VariableMgrDistributedFetchFromPS'
            ),
        },
        staged={
            Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrLocalFetchFromStagedPS',
            Topology.PARAMETER_SERVERS: (
                'tf_cnn.managers.distributed:VariableMgrDistributedFetchFromStagedPS'
            ),
        },
        parameter_device='variables',
    ),
    Mode(
        'replicated',
        'Every tower of one process has all variables; gradients are summed between the towers.',
        {Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrLocalReplicated'},
        relaxed={Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrLocalRelaxedReplicated'},
        sums_towers=True,
        takes_all_reduce_spec=True,
        takes_hierarchy=True,
        parameter_device='sums',
    ),
    Mode(
        'independent',
        'Every tower of one process trains a separate model; nothing is exchanged.',
        {Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrIndependent'},
        shares_model=False,
    ),
    Mode(
        'distributed_replicated',
        'Every tower computes with a copy of the variables; parameter servers hold the master '
        'copy.',
        {
            Topology.PARAMETER_SERVERS: (
                'tf_cnn.managers.distributed:VariableMgrDistributedReplicated'
            )
        },
        always_synchronous=True,
    ),
    Mode(
        'collective_all_reduce',
        'Every tower of every worker has all variables; the workers sum their gradients among '
        'themselves.',
        {
            Topology.LOCAL: 'tf_cnn.managers.local:VariableMgrLocalReplicated',
            Topology.PEERS: 'tf_cnn.managers.collective:VariableMgrCollectiveAllReduce',
        },
        always_synchronous=True,
        forward_only_in_cluster=False,
        sums_towers=True,
        parameter_device='sums',
        sums_in_fixed_order=True,
        nccl_between_gpus=True,
    ),
    Mode(
        'distributed_all_reduce',
        'As replicated, but one process, the controller, drives the devices of all workers.',
        {Topology.CONTROLLER: 'tf_cnn.managers.collective:VariableMgrDistributedAllReduce'},
        refusals={
            Topology.LOCAL: (
                '{mode} needs a cluster, and this is a single process; use --job_name, '
                '--task_index, --controller_host and --worker_hosts, or '
                '--variable_update=replicated for one process'
            ),
            Topology.PEERS: (
                '{mode} needs a controller, and this run has {members}; name all processes by '
                'flags, with --controller_host=HOST:PORT and without TF_CONFIG, or use '
                '--variable_update=collective_all_reduce, which needs none'
            ),
        },
        always_synchronous=True,
        sums_towers=True,
        takes_all_reduce_spec=True,
        sums_in_fixed_order=True,
    ),
    Mode(
        'horovod',
        'Every process has one device and all variables; Horovod sums the gradients.',
        {Topology.PEERS: 'tf_cnn.managers.horovod:VariableMgrHorovod'},
        refusals=dict.fromkeys(
            Topology,
            '{mode} gets its processes from horovodrun; start it with horovodrun, or use '
            '--variable_update=collective_all_reduce',
        ),
        always_synchronous=True,
        forward_only_in_cluster=False,
        # Horovod cannot sum bfloat16.
        transfer_dtypes=('float16',),
        launcher='horovodrun',
    ),
)
MODES: dict[str, Mode] = {mode.name: mode for mode in _ROWS}
DEFAULT_MODE = _ROWS[0].name
# The classes of these modes, as module:Class, by the name of the class.
MANAGERS: Mapping[str, str] = {
    path.partition(':')[2]: path
    for mode in _ROWS
    for path in (*mode.managers.values(), *mode.staged.values(), *mode.relaxed.values())
    if isinstance(path, str)
}


def format_modes(fits: Callable[[Mode], bool]) -> str:
    """Lists the modes that fit as flags, for messages: '--variable_update=A or ...'."""
    return ' or '.join(f'--variable_update={mode.name}' for mode in MODES.values() if fits(mode))
