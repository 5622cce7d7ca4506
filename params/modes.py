"""The one table of modes: every fact about each value of --variable_update. Does not import TensorFlow.

A mode's name appears in this table only; all other code reads its row. A new mode is a class in managers/ and a row
here: see docs/extending.md.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from machine.tensorflow_import import LazyPackage

if TYPE_CHECKING:
    import managers.collective
    import managers.distributed
    import managers.horovod
    import managers.local
    from managers.base import VariableMgr
else:
    managers = LazyPackage('managers')

# Returns the class of a variable manager. Only the call imports its module, and so TensorFlow.
ManagerClass = Callable[[], type['VariableMgr']]


class Place(enum.Enum):
    """The processes among which a mode runs."""

    ALONE = 'one process'
    WITH_SERVERS = 'workers and parameter servers'
    AS_PEERS = 'workers alone'
    CONTROLLED = 'workers under a controller'


@dataclass(frozen=True)
class Manager:
    """The variable managers of a mode in one place: the usual one, for --staged_vars, and for relaxed consistency."""

    plain: ManagerClass
    staged: ManagerClass | None = None
    relaxed: ManagerClass | None = None


@dataclass(frozen=True)
class Refusal:
    """Why a mode does not run in one place.

    In its text {mode} stands for the flag with its value, {members} for the processes, and {ps} for the source that
    names the parameter servers.
    """

    sentence: str


@dataclass(frozen=True)
class Mode:
    """One value of --variable_update.

    Attributes:
      runs: for each place its variable manager, or why it cannot run there.
      always_synchronous: several workers always take each step together, also without --cross_replica_sync.
      forward_only_in_cluster: whether several processes have something to share in a --forward_only run.
      shares_model: whether all towers train one model; otherwise each tower has its own.
      sums_towers: whether one process sums the gradients of its towers, for which packing and transfer types matter.
      parameter_device: what --local_parameter_device places in one process: 'variables', 'sums' of gradients, or None.
      transfer_dtypes: the 16-bit types in which gradients can travel; where NCCL sums them, NCCL_TRANSFER_DTYPES of
        params.all_reduce_spec applies instead.
      sums_in_one_order: whether several processes sum gradients in the same order in each run.
      nccl_between_gpus: whether its workers sum by NCCL if their towers are GPUs.
      launcher: the only program that can start and number its processes; None if any can.
    """

    name: str
    summary: str
    runs: Mapping[Place, Manager | Refusal]
    always_synchronous: bool = False
    forward_only_in_cluster: bool = True
    shares_model: bool = True
    sums_towers: bool = False
    takes_all_reduce_spec: bool = False
    takes_hierarchy: bool = False
    parameter_device: str | None = None
    transfer_dtypes: tuple[str, ...] = ('float16', 'bfloat16')
    sums_in_one_order: bool = False
    nccl_between_gpus: bool = False
    launcher: str | None = None

    @property
    def can_stage(self) -> bool:
        return any(manager.staged for manager in self._managers)

    @property
    def can_relax(self) -> bool:
        return any(manager.relaxed for manager in self._managers)

    @property
    def needs_servers(self) -> bool:
        return self._has(Place.WITH_SERVERS) and not self._has(Place.AS_PEERS)

    @property
    def is_for_peers(self) -> bool:
        """Whether the program itself can start its workers, which need neither parameter servers nor a controller."""
        return self._has(Place.AS_PEERS) and self.launcher is None

    @property
    def has_controller(self) -> bool:
        """Whether one process, the controller, trains with the devices of all workers."""
        return self._has(Place.CONTROLLED)

    @property
    def has_cluster(self) -> bool:
        """Whether the program itself can start and number several of its processes."""
        places = (Place.WITH_SERVERS, Place.AS_PEERS, Place.CONTROLLED)
        return self.launcher is None and any(self._has(place) for place in places)

    def manager(self, place: Place, *, staged: bool = False, relaxed: bool = False) -> ManagerClass:
        """Returns the function that loads the class of the variable manager. The mode must run in that place."""
        manager = self.runs[place]
        assert isinstance(manager, Manager), (self.name, place)
        return (manager.staged if staged else None) or (manager.relaxed if relaxed else None) or manager.plain

    def _has(self, place: Place) -> bool:
        return isinstance(self.runs[place], Manager)

    @property
    def _managers(self) -> list[Manager]:
        return [manager for manager in self.runs.values() if isinstance(manager, Manager)]


_ONE_PROCESS_OF_SERVERS = Refusal(
    '{mode} works within one process, and here are {members}; with parameter servers write '
    '--variable_update=parameter_server or distributed_replicated'
)
_ONE_PROCESS_OF_PEERS = Refusal(
    '{mode} works within one process, and here are {members}; for workers alone write '
    '--variable_update=collective_all_reduce'
)
_NEEDS_SERVERS = Refusal(
    '{mode} needs parameter servers, and here are {members}; add {ps}, or write '
    '--variable_update=collective_all_reduce, which needs none'
)
_HAS_NO_SERVERS = Refusal(
    '{mode} has no parameter servers, and here are {members}; leave out {ps}, or write '
    '--variable_update=distributed_replicated'
)
_HAS_NO_CONTROLLER = Refusal(
    '{mode} has no controller, and here is one; leave out --controller_host, or write '
    '--variable_update=distributed_all_reduce'
)
_STARTED_BY_HOROVODRUN = Refusal(
    '{mode} gets its processes from horovodrun; start it with horovodrun, or write '
    '--variable_update=collective_all_reduce'
)


def _one_process(plain: ManagerClass, relaxed: ManagerClass | None = None) -> dict[Place, Manager | Refusal]:
    return {
        Place.ALONE: Manager(plain, relaxed=relaxed),
        Place.WITH_SERVERS: _ONE_PROCESS_OF_SERVERS,
        Place.AS_PEERS: _ONE_PROCESS_OF_PEERS,
        Place.CONTROLLED: _HAS_NO_CONTROLLER,
    }


_ROWS = (
    Mode(
        'parameter_server',
        'Variables live once; every tower reads them and sends its gradients to where they live.',
        {
            Place.ALONE: Manager(
                lambda: managers.local.VariableMgrLocalFetchFromPS,
                lambda: managers.local.VariableMgrLocalFetchFromStagedPS,
            ),
            Place.WITH_SERVERS: Manager(
                lambda: managers.distributed.VariableMgrDistributedFetchFromPS,
                lambda: managers.distributed.VariableMgrDistributedFetchFromStagedPS,
            ),
            Place.AS_PEERS: _NEEDS_SERVERS,
            Place.CONTROLLED: _HAS_NO_CONTROLLER,
        },
        parameter_device='variables',
    ),
    Mode(
        'replicated',
        'Every tower of one process has all variables; gradients are summed between the towers.',
        _one_process(
            lambda: managers.local.VariableMgrLocalReplicated, lambda: managers.local.VariableMgrLocalRelaxedReplicated
        ),
        sums_towers=True,
        takes_all_reduce_spec=True,
        takes_hierarchy=True,
        parameter_device='sums',
    ),
    Mode(
        'independent',
        'Every tower of one process trains a model of its own; nothing is exchanged.',
        _one_process(lambda: managers.local.VariableMgrIndependent),
        shares_model=False,
    ),
    Mode(
        'distributed_replicated',
        'Every tower computes with a copy of the variables, whose master copy is on parameter servers.',
        {
            Place.ALONE: Refusal(
                '{mode} needs a cluster, and this process is alone; write --job_name, --task_index, --ps_hosts and '
                '--worker_hosts, or --variable_update=replicated for one process'
            ),
            Place.WITH_SERVERS: Manager(lambda: managers.distributed.VariableMgrDistributedReplicated),
            Place.AS_PEERS: _NEEDS_SERVERS,
            Place.CONTROLLED: _HAS_NO_CONTROLLER,
        },
        always_synchronous=True,
    ),
    Mode(
        'collective_all_reduce',
        'Every tower of every worker has all variables; the workers sum their gradients among themselves.',
        {
            Place.ALONE: Manager(lambda: managers.local.VariableMgrLocalReplicated),
            Place.WITH_SERVERS: _HAS_NO_SERVERS,
            Place.AS_PEERS: Manager(lambda: managers.collective.VariableMgrCollectiveAllReduce),
            Place.CONTROLLED: _HAS_NO_CONTROLLER,
        },
        always_synchronous=True,
        forward_only_in_cluster=False,
        sums_towers=True,
        parameter_device='sums',
        sums_in_one_order=True,
        nccl_between_gpus=True,
    ),
    Mode(
        'distributed_all_reduce',
        'As replicated, where one process, the controller, drives the devices of all workers.',
        {
            Place.ALONE: Refusal(
                '{mode} needs a cluster, and this process is alone; write --job_name, --task_index, --controller_host '
                'and --worker_hosts, or --variable_update=replicated for one process'
            ),
            Place.WITH_SERVERS: _HAS_NO_SERVERS,
            Place.AS_PEERS: Refusal(
                '{mode} needs a controller, and here are {members}; name all processes by flags, with '
                '--controller_host=HOST:PORT and without TF_CONFIG, or write --variable_update=collective_all_reduce, '
                'which needs none'
            ),
            Place.CONTROLLED: Manager(lambda: managers.collective.VariableMgrDistributedAllReduce),
        },
        always_synchronous=True,
        sums_towers=True,
        takes_all_reduce_spec=True,
        sums_in_one_order=True,
    ),
    Mode(
        'horovod',
        'Every process has one device and all variables; Horovod sums the gradients.',
        {
            Place.ALONE: _STARTED_BY_HOROVODRUN,
            Place.WITH_SERVERS: _STARTED_BY_HOROVODRUN,
            Place.AS_PEERS: Manager(lambda: managers.horovod.VariableMgrHorovod),
            Place.CONTROLLED: _STARTED_BY_HOROVODRUN,
        },
        always_synchronous=True,
        forward_only_in_cluster=False,
        # Horovod cannot sum bfloat16.
        transfer_dtypes=('float16',),
        launcher='horovodrun',
    ),
)
MODES: Mapping[str, Mode] = {mode.name: mode for mode in _ROWS}
DEFAULT_MODE = _ROWS[0].name


def modes_that(fits: Callable[[Mode], bool]) -> str:
    """Returns the flag with the values of the modes that fit, as errors and warnings name them."""
    return ' or '.join(f'--variable_update={mode.name}' for mode in _ROWS if fits(mode))
