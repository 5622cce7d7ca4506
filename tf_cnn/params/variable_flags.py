"""The flags about variables and gradients: their placement, sums and transfers."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, flag
from tf_cnn.managers.all_reduce_spec import ALGORITHMS, COLLECTIVE, parse_spec
from tf_cnn.managers.modes import DEFAULT_MODE, MODES, Mode, format_modes
from tf_cnn.params.rules import (
    IN_EVAL,
    NO_MODEL,
    SINGLE_PROCESS,
    RunContext,
    ignored_in_forward_only,
    ignored_on_cpu,
)
from tf_cnn.system.errors import UsageError

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

# The only number of GPUs that --network_topology=gcp_v100 describes.
_GPUS_OF_GCP = 8

_NO_UPDATES = ignored_in_forward_only('--forward_only updates no variables')
_NO_SUMS = IgnoredWhen(
    lambda p, run: run.is_single_process and not MODES[p.variable_update].sums_towers,
    f'in one process only {format_modes(lambda mode: mode.sums_towers)} uses it',
)
_ONE_TOWER = IgnoredWhen(
    lambda p, run: run.is_single_process and p.num_gpus == 1,
    'with --num_gpus=1 there are no gradients to sum',
)
_OF_SUMS = (IN_EVAL, _NO_UPDATES, _NO_SUMS, _ONE_TOWER)


def _only_where(fits: Callable[[Mode], bool]) -> IgnoredWhen:
    return IgnoredWhen(
        lambda p, run: not fits(MODES[p.variable_update]), f'only {format_modes(fits)} uses it'
    )


_OF_HALVES = (IN_EVAL, _NO_UPDATES, _only_where(lambda mode: mode.takes_hierarchy), _ONE_TOWER)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class VariableFlags:
    """The part of Params about variables and gradients."""

    GROUP: ClassVar[str] = 'Variables and gradients'
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'shared_by_workers': True}
    IGNORED: ClassVar[tuple[IgnoredWhen, ...]] = (NO_MODEL,)

    variable_update: str = flag(
        DEFAULT_MODE,
        'The devices that hold the variables, and the way that gradients are combined; '
        'docs/distributed.md explains clusters, and --variable_mgr_file adds modes.',
        choices=MODES,
        choices_from='variable_mgr_file',
        common=True,
        original='in replicated, it applies the sum of the gradients of the towers; this program '
        'applies their mean in every mode. docs/training.md has the learning rate that gives the '
        'same steps',
        resolved=True,
        ignored=(
            IgnoredWhen(
                lambda p, run: p.eval and run.is_single_process,
                '--eval reads the checkpoints of every --variable_update in the same way',
            ),
        ),
    )
    variable_mgr_file: str | None = flag(
        None,
        'Python file that defines more values of --variable_update with register_variable_mgr, '
        'see docs/extending.md.',
        is_path=True,
        original=NEW,
        # Workers compare the content of the file, not its path.
        shared_by_workers=False,
        setting=False,
        ignored=(
            IN_EVAL,
            IgnoredWhen(
                lambda p, run: MODES[p.variable_update].file is None,
                'it does not define the mode of --variable_update',
            ),
        ),
    )
    cross_replica_sync: bool = flag(
        True,
        'All workers take each step together; without it, each worker updates the parameter '
        'servers independently.',
        shared_by_servers=True,
        ignored=(IN_EVAL, SINGLE_PROCESS, _NO_UPDATES),
    )
    staged_vars: bool = flag(
        False,
        'Apply the gradients of each step and read the new values while the next step computes, '
        f'so that no step waits for them; for {format_modes(lambda mode: mode.can_stage)}.',
        ignored=(IN_EVAL, _NO_UPDATES),
    )
    variable_consistency: str = flag(
        'strong',
        'strong: each step applies the gradients that it computes. relaxed: each step applies the '
        'gradients of the step before, and sums them while its towers compute; for '
        f'{format_modes(lambda mode: mode.can_relax)}.',
        choices=('strong', 'relaxed'),
        ignored=(IN_EVAL, _NO_UPDATES, _only_where(lambda mode: mode.can_relax)),
    )
    compact_gradient_transfer: bool | None = flag(
        None,
        'Send gradients between devices and processes, and variables between processes, in 16 '
        'bits: in the type of --precision, or in float16 with NCCL and Horovod. On by default if '
        'the mode can send the type of --precision.',
        original='its default is true',
        ignored=(
            IN_EVAL,
            # Workers read variables from parameter servers in forward steps, too.
            IgnoredWhen(
                lambda p, run: p.forward_only and not run.num_ps,
                '--forward_only sends no gradients, and without parameter servers no variables',
            ),
            _NO_SUMS,
            _ONE_TOWER,
        ),
    )
    slice_variables: bool = flag(
        True,
        'Cut variables above 512 KiB into slices, so that parameter servers hold about the same '
        'number of bytes, and values return while gradients are sent. Without it, each variable is '
        'whole on one server, as in the original program.',
        original=NEW,
        ignored=(
            IN_EVAL,
            # With servers, the workers of an always synchronous mode read what a step updates.
            IgnoredWhen(
                lambda p, run: (
                    run.num_ps
                    < (1 if p.staged_vars or MODES[p.variable_update].always_synchronous else 2)
                ),
                'variables are cut only for several parameter servers, or where values return '
                'while gradients are sent',
            ),
        ),
    )
    horovod_device: str | None = flag(
        None,
        'The kind of device that sums gradients for Horovod; by default the device of the towers.',
        choices=('cpu', 'gpu'),
        ignored=(
            _only_where(lambda mode: mode.launcher is not None),
            ignored_on_cpu(lambda p: p.horovod_device == 'gpu'),
        ),
    )
    all_reduce_spec: str | None = flag(
        None,
        'The all-reduce algorithm that sums gradients: ALG, or ALG:LIMIT:ALG... to sum tensors '
        'smaller than LIMIT bytes with the algorithm before it, as in pscpu:32k:xring. '
        f'{"; ".join(map(": ".join, ALGORITHMS.items()))}. ALG#N cuts each tensor into N shards; '
        'ALG/ALG sums within each worker, then between them. By default psgpu or pscpu, by '
        f'--local_parameter_device; xring with {format_modes(lambda mode: mode.has_controller)}.',
        common=True,
        original='workers without parameter servers need --all_reduce_spec=collective; here they '
        'need no value',
        resolved=True,
        ignored=(
            IN_EVAL,
            _NO_UPDATES,
            IgnoredWhen(
                lambda p, run: (
                    not MODES[p.variable_update].takes_all_reduce_spec
                    and not _names_the_usual_sum(p)
                ),
                f'only {format_modes(lambda mode: mode.takes_all_reduce_spec)} uses it',
            ),
            _ONE_TOWER,
            ignored_on_cpu(
                when=lambda p: is_nccl_on_cpu(p),
                reason='NCCL sums between GPUs, and the run is on the CPU; pscpu, psgpu and xring '
                'work there',
            ),
        ),
    )
    hierarchical_copy: bool = flag(
        False,
        'Sum gradients within groups of directly connected devices first, then between the groups.',
        ignored=_OF_HALVES,
    )
    network_topology: str = flag(
        'dgx1',
        'The links between groups of directly connected GPUs, for --hierarchical_copy. dgx1: each '
        'GPU is linked to one in the other group. gcp_v100: of eight GPUs, 0 is linked to 5, and 2 '
        'to 7.',
        choices=('dgx1', 'gcp_v100'),
        ignored=(
            *_OF_HALVES,
            IgnoredWhen(lambda p, run: not p.hierarchical_copy, 'only --hierarchical_copy uses it'),
        ),
    )
    gradient_repacking: int = flag(
        0,
        'Join all gradients, and cut them into this many tensors of about equal size before they '
        'are summed; 0 leaves them unchanged.',
        unit='tensors',
        ignored=_OF_SUMS,
    )
    agg_small_grads_max_bytes: int = flag(
        0,
        'Join neighbouring gradients up to this size before they are summed; 0 joins none.',
        unit='bytes',
        ignored=(
            *_OF_SUMS,
            IgnoredWhen(
                lambda p, run: p.gradient_repacking > 0, '--gradient_repacking joins all gradients'
            ),
        ),
    )
    agg_small_grads_max_group: int = flag(
        10,
        'The most gradients that --agg_small_grads_max_bytes joins into one tensor.',
        lower_bound=1,
        unit='gradients',
        ignored=(
            *_OF_SUMS,
            IgnoredWhen(
                lambda p, run: not p.agg_small_grads_max_bytes,
                '--agg_small_grads_max_bytes=0 joins no gradients',
            ),
        ),
    )


def is_nccl_on_cpu(params: 'Params') -> bool:
    """Whether --all_reduce_spec names NCCL in a run on the CPU; the run then ignores the flag."""
    return (
        params.device == 'cpu' and re.search(r'\bnccl\b', params.all_reduce_spec or '') is not None
    )


def uses_all_reduce_spec(params: 'Params') -> bool:
    """Whether --all_reduce_spec is given and decides how gradients are summed."""
    mode = MODES[params.variable_update]
    has_sums = params.trains and (params.num_gpus > 1 or mode.has_controller)
    is_given = params.all_reduce_spec is not None and not is_nccl_on_cpu(params)
    return is_given and mode.takes_all_reduce_spec and has_sums


def uses_hierarchical_copy(params: 'Params') -> bool:
    """Whether --hierarchical_copy is given and decides how gradients are summed."""
    mode = MODES[params.variable_update]
    return (
        params.hierarchical_copy and mode.takes_hierarchy and params.trains and params.num_gpus > 1
    )


def _names_the_usual_sum(params: 'Params') -> bool:
    """Whether --all_reduce_spec names the mode's only all-reduce, as the original requires."""
    return MODES[params.variable_update].nccl_between_gpus and params.all_reduce_spec == COLLECTIVE


def find_cluster_conflict(params: 'Params') -> str | None:
    """Returns the error message if a setting is impossible in a cluster, else None."""
    mode = MODES[params.variable_update]
    if mode.always_synchronous and not params.cross_replica_sync:
        asynchronous = format_modes(
            lambda other: other.has_cluster and not other.always_synchronous
        )
        return params.conflict(
            'cross_replica_sync',
            'variable_update',
            f'its workers always take each step together; remove it, or use {asynchronous}',
        )
    if params.forward_only and not mode.forward_only_in_cluster:
        return params.conflict(
            'forward_only',
            'variable_update',
            'its workers then exchange nothing; measure one process, or use '
            f'{format_modes(lambda other: other.needs_servers)} with --ps_hosts',
        )
    if params.fp16_vars and params.precision != 'fp32' and not params.eval:
        return params.conflict(
            'fp16_vars',
            'variable_update',
            'several processes store variables in 32 bits, and send them in 16 bits with '
            '--compact_gradient_transfer; remove --fp16_vars',
        )
    return None


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    mode, by_spec = MODES[params.variable_update], uses_all_reduce_spec(params)
    # Ignored flags need no validation.
    if params.all_reduce_spec is not None and by_spec:
        try:
            parse_spec(params.all_reduce_spec)
        except UsageError as error:
            yield str(error)
    if params.hierarchical_copy and by_spec:
        yield params.conflict(
            'hierarchical_copy',
            'all_reduce_spec',
            'both choose the all-reduce algorithm; remove one',
        )
    if uses_hierarchical_copy(params):
        if params.num_gpus % 2:
            yield params.conflict(
                'hierarchical_copy',
                'num_gpus',
                'it sums in two halves; use an even number or --nohierarchical_copy',
            )
        elif params.network_topology == 'gcp_v100' and params.num_gpus != _GPUS_OF_GCP:
            yield params.conflict(
                'network_topology',
                'num_gpus',
                f'it is for {_GPUS_OF_GCP} GPUs; use --network_topology=dgx1 or '
                '--nohierarchical_copy',
            )
    if params.staged_vars and not mode.can_stage:
        yield params.conflict(
            'staged_vars',
            'variable_update',
            'its towers have their variables already; remove --staged_vars, or use '
            f'{format_modes(lambda other: other.can_stage)}',
        )
    if mode.launcher and params.eval:
        yield params.conflict(
            'eval',
            'variable_update',
            'evaluate in one process, or as a cluster of another --variable_update',
        )
    elif mode.launcher and (conflict := find_cluster_conflict(params)):
        yield conflict
