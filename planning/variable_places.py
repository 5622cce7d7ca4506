"""Plans where variables live, and how gradients are summed and applied. Does not import TensorFlow."""

from collections.abc import Sequence

from cluster.topology import place_of
from params import Params
from params.all_reduce_spec import NCCL_TRANSFER_DTYPES, parse_spec
from params.modes import MODES, Mode, Place
from params.optimizer_table import OPTIMIZERS
from params.variable_flags import sums_by_halves
from planning.found import Found
from planning.plan import Machine, OptimizerFacts, Processes, VariableFacts

# See _leaders_of_halves.
_LINKS_OF_GCP = ((0, 5), (2, 7))


def place_variables(params: Params, processes: Processes, machine: Machine, computed_in: str) -> Found[VariableFacts]:
    """Where variables live, and how gradients are summed and applied.

    Args:
      computed_in: the name of the dtype of activations, such as 'bfloat16'.
    """
    mode, place = MODES[params.variable_update], place_of(processes.cluster)
    num_towers = len(machine.towers)
    sums_towers = num_towers > 1 and params.trains
    by_halves = sums_by_halves(params)
    leaders = _leaders_of_halves(params, num_towers) if by_halves else ()
    sums = None if by_halves else parse_spec(machine.all_reduce_spec or f'ps{machine.parameter_device_kind}')
    by_nccl = sums_towers and any('nccl' in part.names for part in sums or ())
    if place is Place.AS_PEERS:
        by_nccl = mode.nccl_between_gpus and machine.kind == 'gpu'
    places = VariableFacts(
        variable_update=mode.name,
        manager=None
        if params.eval
        else mode.manager(
            place,
            staged=params.staged_vars and params.trains,
            relaxed=params.variable_consistency == 'relaxed' and params.trains,
        ),
        sync=params.cross_replica_sync and processes.together,
        sums=sums,
        leaders=leaders,
        shown_spec=machine.all_reduce_spec if mode.takes_all_reduce_spec and sums_towers else None,
        num_packets=params.gradient_repacking,
        small_max_bytes=params.agg_small_grads_max_bytes,
        small_max_group=params.agg_small_grads_max_group,
        transfer=_find_transfer(params, NCCL_TRANSFER_DTYPES if by_nccl else mode.transfer_dtypes, computed_in),
        shares_memory=_shares_memory(params, mode, place),
        horovod_device=None if machine.kind == 'cpu' else params.horovod_device,
        by_nccl=by_nccl,
        optimizer=_find_optimizer(params),
    )
    return Found(places)


def _shares_memory(params: Params, mode: Mode, place: Place) -> bool:
    """Whether workers sum gradients in shared memory if they are on one host. Those that are to be packed are sent."""
    packs = params.gradient_repacking or params.agg_small_grads_max_bytes
    may = params.shared_memory == 'auto' and params.trains and not packs and place is not Place.ALONE
    return may and mode.can_share_memory


def _leaders_of_halves(params: Params, num_towers: int) -> tuple[tuple[int, int], ...]:
    """The pairs of linked GPUs, one of each half, through which the halves exchange their sums;
    params.variable_flags checks that there are as many towers as they need.

    In the hybrid cube mesh of the DGX-1, GPUs 0-3 and 4-7 are two cliques of NVLinks and GPU i is linked to GPU i + 4
    (NVIDIA DGX-1 System Architecture, WP-08437-002, figure 4). Of eight V100 of the Google Cloud, 0 is linked to 5 and
    2 to 7 (`nvidia-smi topo -m` there).
    """
    if params.network_topology == 'dgx1':
        half = num_towers // 2
        return tuple((tower, half + tower) for tower in range(half))
    return _LINKS_OF_GCP


def _find_transfer(params: Params, dtypes: Sequence[str], computed_in: str) -> str | None:
    """The one of these dtypes in which gradients are sent; None: their own dtype."""
    fits = computed_in in dtypes
    compacts = fits if params.compact_gradient_transfer is None else params.compact_gradient_transfer
    if not compacts:
        return None
    return computed_in if fits else dtypes[-1]


def _find_optimizer(params: Params) -> OptimizerFacts:
    """The update rule that --optimizer names."""
    row = OPTIMIZERS[params.optimizer]
    return OptimizerFacts(row.name, row.rule, tuple(getattr(params, name) for name in row.arguments))
