"""The flags about variables and gradients: their placement, sums and transfers. Does not import
TensorFlow.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tf_cnn.flags.spec import (
    NEW,
    NO_MODEL,
    NO_STEPS,
    NO_TRAINING,
    ON_CPU,
    SINGLE_PROCESS,
    Note,
    flag,
)
from tf_cnn.managers.all_reduce_spec import (
    ALGORITHMS,
    COLLECTIVE,
    NCCL_TRANSFER_DTYPES,
    SizeRange,
    parse_spec,
)
from tf_cnn.managers.modes import DEFAULT_MODE, MODES, Mode, Topology, format_modes
from tf_cnn.system.errors import UsageError

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext
    from tf_cnn.plan.workload import Context

# Of eight V100 of the Google Cloud, 0 is linked to 5 and 2 to 7 (`nvidia-smi topo -m` there).
_GPUS_OF_GCP, _LINKS_OF_GCP = 8, ((0, 5), (2, 7))
# With 8 GPUs, a step of ResNet-50 has 2,254 copies between GPUs, or 112 if it repacks gradients.
_REPACKING_GPUS, _REPACKED_TENSORS = 8, 8
_OF_HALVES = ('hierarchical_copy', 'network_topology')
_OF_SUMS = ('gradient_repacking', 'agg_small_grads_max_bytes', 'agg_small_grads_max_group')


def _only_modes(fits: Callable[[Mode], bool]) -> str:
    return f'only {format_modes(fits)} uses it'


@dataclass(frozen=True)
class VariableConfig:
    """Where variables live, and how gradients are combined."""

    GROUP: ClassVar[str] = 'Variables and gradients'
    PROPERTIES: ClassVar[Mapping[str, object]] = {
        'shared_by_workers': True,
        'ignored': NO_TRAINING,
    }

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
        in_run_section=True,
        ignored=(NO_MODEL,),
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
        ignored=NO_STEPS,
    )
    cross_replica_sync: bool = flag(
        True,
        'All workers take each step together; without it, each worker updates the parameter '
        'servers independently.',
        shared_by_servers=True,
        ignored=(*NO_TRAINING, SINGLE_PROCESS),
    )
    staged_vars: bool = flag(
        False,
        'Apply the gradients of each step and read the new values while the next step computes, '
        f'so that no step waits for them; for {format_modes(lambda mode: mode.can_stage)}.',
    )
    variable_consistency: str = flag(
        'strong',
        'strong: each step applies the gradients that it computes. relaxed: each step applies the '
        'gradients of the step before, and sums them while its towers compute; for '
        f'{format_modes(lambda mode: mode.can_relax)}.',
        choices=('strong', 'relaxed'),
    )
    compact_gradient_transfer: bool | None = flag(
        None,
        'Send gradients between devices and processes, and variables between processes, in 16 '
        'bits: in the type of --precision (bfloat16 for fp32), or in float16 with NCCL and '
        'Horovod. On by default if the mode can send the type of --precision.',
        original='its default is true',
        chosen=True,
        ignored=NO_STEPS,
    )
    slice_variables: bool = flag(
        True,
        'Cut large variables into slices, so that parameter servers hold about the same number of '
        'bytes, and values return while gradients are sent. Without it, each variable is whole on '
        'one server, as in the original program.',
        original=NEW,
        ignored=NO_STEPS,
    )
    horovod_device: str | None = flag(
        None,
        'The kind of device that sums gradients for Horovod; by default the device of the towers.',
        choices=('cpu', 'gpu'),
        ignored=NO_STEPS,
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
        in_run_section=True,
    )
    hierarchical_copy: bool = flag(
        False,
        'Sum gradients within groups of directly connected devices first, then between the groups.',
    )
    network_topology: str = flag(
        'dgx1',
        'The links between groups of directly connected GPUs, for --hierarchical_copy. dgx1: each '
        'GPU is linked to one in the other group. gcp_v100: of eight GPUs, 0 is linked to 5, and 2 '
        'to 7.',
        choices=('dgx1', 'gcp_v100'),
    )
    gradient_repacking: int | None = flag(
        None,
        'Join all gradients, and cut them into this many tensors of about equal size before they '
        f'are summed; 0 leaves them unchanged. By default {_REPACKED_TENSORS} if '
        f'--variable_update=replicated sums over at least {_REPACKING_GPUS} GPUs without '
        '--all_reduce_spec, --agg_small_grads_max_bytes and --exchange_bytes, else 0.',
        unit='tensors',
        original='its default is 0',
        chosen=True,
    )
    agg_small_grads_max_bytes: int = flag(
        0,
        'Join neighbouring gradients up to this size before they are summed; 0 joins none.',
        unit='bytes',
    )
    agg_small_grads_max_group: int = flag(
        10,
        'The most gradients that --agg_small_grads_max_bytes joins into one tensor.',
        lower_bound=1,
        unit='gradients',
    )

    @property
    def mode(self) -> Mode:
        return MODES[self.variable_update]

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        """Needs resolved devices, which decide on two more flags without effect."""
        spec = self.all_reduce_spec if self.uses_all_reduce_spec(params) else None
        if context.topology is Topology.CONTROLLER:
            # A ring sends the fewest bytes per worker.
            spec = spec or 'xring'
        resolved = replace(
            self,
            all_reduce_spec=spec if self._sums_towers(params, context) else None,
            horovod_device=None if params.devices.device == 'cpu' else self.horovod_device,
        )
        if self.compact_gradient_transfer is None:
            fits = params.numerics.dtype in resolved.transfer_dtypes(params, context)
            resolved = replace(resolved, compact_gradient_transfer=fits)
        if self.gradient_repacking is None:
            copies_often = resolved._copies_each_gradient(params, context)
            number = _REPACKED_TENSORS if copies_often else 0
            resolved = replace(resolved, gradient_repacking=number)
        return resolved

    def _copies_each_gradient(self, params: 'Params', context: 'Context') -> bool:
        """Whether many GPUs of this process would copy each gradient to one device and back."""
        return (
            self.mode.sums_towers
            and self.mode.takes_all_reduce_spec
            and self.all_reduce_spec is None
            and not self.agg_small_grads_max_bytes
            and params.trains
            and not params.exchanges_one_tensor
            and params.devices.device == 'gpu'
            and context.num_towers(params) >= _REPACKING_GPUS
        )

    # ---- of resolved flags -----------------------------------------------------------------------

    def size_ranges(self, params: 'Params') -> tuple[SizeRange, ...] | None:
        """Returns the algorithm for each range of gradient sizes; None with --hierarchical_copy."""
        if self.hierarchical_copy:
            return None
        return parse_spec(self.all_reduce_spec or f'ps{params.devices.local_parameter_device}')

    def linked_towers(self, num_towers: int) -> tuple[tuple[int, int], ...]:
        """Returns the pairs of linked GPUs, one of each half, that exchange the sums of the halves.

        In the hybrid cube mesh of the DGX-1, GPUs 0-3 and 4-7 are two cliques of NVLinks and GPU i
        is linked to GPU i + 4 (NVIDIA DGX-1 System Architecture, WP-08437-002, figure 4).
        """
        if self.network_topology == 'gcp_v100':
            return _LINKS_OF_GCP
        half = num_towers // 2
        return tuple((tower, half + tower) for tower in range(half))

    def uses_nccl(self, params: 'Params', context: 'Context') -> bool:
        """Whether NCCL sums gradients of at least some sizes."""
        if context.topology is Topology.PEERS:
            return self.mode.nccl_between_gpus and params.devices.device == 'gpu'
        size_ranges = self.size_ranges(params) if self._sums_towers(params, context) else None
        return any(
            'nccl' in (size_range.algorithm, size_range.between) for size_range in size_ranges or ()
        )

    def _sums_towers(self, params: 'Params', context: 'Context') -> bool:
        return context.num_towers(params) > 1 and params.trains

    def transfer_dtypes(self, params: 'Params', context: 'Context') -> Sequence[str]:
        """Returns the 16-bit types that gradients can be sent in."""
        by_nccl = self.uses_nccl(params, context)
        return NCCL_TRANSFER_DTYPES if by_nccl else self.mode.transfer_dtypes

    def transfer_dtype(self, params: 'Params', context: 'Context') -> str | None:
        """Returns the dtype of gradients on the way; None: they are sent unchanged."""
        if not self.compact_gradient_transfer:
            return None
        dtype, dtypes = params.numerics.dtype, self.transfer_dtypes(params, context)
        return dtype if dtype in dtypes else dtypes[-1]

    def is_nccl_on_cpu(self, params: 'Params') -> bool:
        """Whether --all_reduce_spec names NCCL in a run on the CPU, which ignores the flag."""
        names_nccl = re.search(r'\bnccl\b', self.all_reduce_spec or '') is not None
        return params.devices.device == 'cpu' and names_nccl

    def uses_all_reduce_spec(self, params: 'Params') -> bool:
        """Whether --all_reduce_spec is given and decides how gradients are summed."""
        is_given = self.all_reduce_spec is not None and not self.is_nccl_on_cpu(params)
        has_sums = params.trains and (params.devices.num_gpus > 1 or self.mode.has_controller)
        return is_given and self.mode.takes_all_reduce_spec and has_sums

    def uses_hierarchical_copy(self, params: 'Params') -> bool:
        """Whether --hierarchical_copy is given and decides how gradients are summed."""
        has_sums = params.trains and params.devices.num_gpus > 1
        return self.hierarchical_copy and self.mode.takes_hierarchy and has_sums

    def has_other_reduce_flag(self, params: 'Params') -> bool:
        """Whether --all_reduce_spec or --hierarchical_copy decides where gradients are summed,
        instead of --local_parameter_device.
        """
        return self.mode.parameter_device == 'sums' and (
            self.uses_all_reduce_spec(params) or self.uses_hierarchical_copy(params)
        )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        mode, by_spec = self.mode, self.uses_all_reduce_spec(params)
        # Ignored flags need no validation.
        if self.all_reduce_spec is not None and by_spec:
            try:
                parse_spec(self.all_reduce_spec)
            except UsageError as error:
                yield str(error)
        if self.hierarchical_copy and by_spec:
            yield params.conflict(
                'hierarchical_copy',
                'all_reduce_spec',
                'both choose the all-reduce algorithm; remove one',
            )
        if self.uses_hierarchical_copy(params):
            if params.devices.num_gpus % 2:
                yield params.conflict(
                    'hierarchical_copy',
                    'num_gpus',
                    'it sums in two halves; use an even number or --nohierarchical_copy',
                )
            elif self.network_topology == 'gcp_v100' and params.devices.num_gpus != _GPUS_OF_GCP:
                yield params.conflict(
                    'network_topology',
                    'num_gpus',
                    f'it is for {_GPUS_OF_GCP} GPUs; use --network_topology=dgx1 or '
                    '--nohierarchical_copy',
                )
        if self.staged_vars and not mode.can_stage:
            yield params.conflict(
                'staged_vars',
                'variable_update',
                'its towers have their variables already; remove --staged_vars, or use '
                f'{format_modes(lambda other: other.can_stage)}',
            )
        if mode.launcher and params.evaluation.eval:
            yield params.conflict(
                'eval',
                'variable_update',
                'evaluate in one process, or as a cluster of another --variable_update',
            )
        elif mode.launcher or not rules.is_single_process:
            yield from self._cluster_problems(params)
        forward_only, is_alone = params.run.forward_only, rules.is_single_process
        if params.evaluation.eval and is_alone:
            reason = '--eval reads the checkpoints of every --variable_update in the same way'
            yield ('variable_update',), reason
        if mode.file is None:
            reason = 'it does not define the mode of --variable_update'
            yield ('variable_mgr_file',), reason
        # Workers read variables from parameter servers in forward steps, too.
        if forward_only and not rules.num_ps:
            reason = '--forward_only sends no gradients, and without parameter servers no variables'
            yield ('compact_gradient_transfer',), reason
        if not mode.can_relax:
            yield ('variable_consistency',), _only_modes(lambda mode: mode.can_relax)
        # With servers, the workers of an always synchronous mode read what a step updates.
        if rules.num_ps < (1 if self.staged_vars or mode.always_synchronous else 2):
            reason = (
                'variables are cut only for several parameter servers, or where values return '
                'while gradients are sent'
            )
            yield ('slice_variables',), reason
        if mode.launcher is None:
            yield ('horovod_device',), _only_modes(lambda mode: mode.launcher is not None)
        if params.devices.device == 'cpu' and self.horovod_device == 'gpu':
            yield ('horovod_device',), ON_CPU
        if is_alone and not mode.sums_towers:
            modes = format_modes(lambda mode: mode.sums_towers and mode.runs_in(Topology.LOCAL))
            reason = f'in one process only {modes} uses it'
            yield ('compact_gradient_transfer', *_OF_SUMS), reason
        if not mode.takes_hierarchy:
            yield _OF_HALVES, _only_modes(lambda mode: mode.takes_hierarchy)
        # The original requires that the flag names the only all-reduce of such a mode.
        names_usual_sum = mode.nccl_between_gpus and self.all_reduce_spec == COLLECTIVE
        if not mode.takes_all_reduce_spec and not names_usual_sum:
            yield ('all_reduce_spec',), _only_modes(lambda mode: mode.takes_all_reduce_spec)
        if is_alone and params.devices.num_gpus == 1:
            reason = 'with --num_gpus=1 there are no gradients to sum'
            yield ('compact_gradient_transfer', 'all_reduce_spec', *_OF_HALVES, *_OF_SUMS), reason
        if self.is_nccl_on_cpu(params):
            reason = (
                'NCCL sums between GPUs, and the run is on the CPU; pscpu, psgpu and xring work '
                'there'
            )
            yield ('all_reduce_spec',), reason
        if not self.hierarchical_copy:
            yield ('network_topology',), 'only --hierarchical_copy uses it'
        if self.gradient_repacking:
            yield ('agg_small_grads_max_bytes',), '--gradient_repacking joins all gradients'
        if not self.agg_small_grads_max_bytes:
            reason = '--agg_small_grads_max_bytes=0 joins no gradients'
            yield ('agg_small_grads_max_group',), reason

    def _cluster_problems(self, params: 'Params') -> Iterator[str]:
        mode = self.mode
        if mode.always_synchronous and not self.cross_replica_sync:
            asynchronous = format_modes(
                lambda other: other.has_cluster and not other.always_synchronous
            )
            yield params.conflict(
                'cross_replica_sync',
                'variable_update',
                f'its workers always take each step together; remove it, or use {asynchronous}',
            )
        if params.run.forward_only and not mode.forward_only_in_cluster:
            yield params.conflict(
                'forward_only',
                'variable_update',
                'its workers then exchange nothing; measure one process, or use '
                f'{format_modes(lambda other: other.needs_servers)} with --ps_hosts',
            )
        precision = params.numerics
        if precision.fp16_vars and precision.precision != 'fp32' and not params.evaluation.eval:
            yield params.conflict(
                'fp16_vars',
                'variable_update',
                'several processes store variables in 32 bits, and send them in 16 bits with '
                '--compact_gradient_transfer; remove --fp16_vars',
            )
