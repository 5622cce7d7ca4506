"""Plans the devices of towers, variables and sums, and describes the machine for the result.

Does not import TensorFlow.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tf_cnn.cluster.topology import topology_of
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.machine.data_formats import Capability, choose_data_format, uses_tf32
from tf_cnn.machine.gpus import VISIBLE_VARIABLE, has_nvidia_gpu
from tf_cnn.machine.missing_gpu import explain_missing_gpu
from tf_cnn.machine.processors import has_native_arithmetic
from tf_cnn.machine.run_environment import describe_machine, git_commit, library_variables
from tf_cnn.managers.all_reduce_spec import NCCL_TRANSFER_DTYPES, parse_spec
from tf_cnn.managers.modes import Topology
from tf_cnn.planning.environment import ProcessEnvironment
from tf_cnn.planning.plan import (
    ClusterRole,
    Machine,
    OptimizerConfig,
    RunEnvironment,
    VariableConfig,
)
from tf_cnn.run.params import Context, Params
from tf_cnn.system.errors import ErrorCollector, UsageError, plural

if TYPE_CHECKING:
    from tf_cnn.planning.session import SessionConfig

# See _leaders_of_halves.
_LINKS_OF_GCP = ((0, 5), (2, 7))


def choose_device(params: Params) -> Params:
    """Returns the flags with --num_gpus=0 replaced by one CPU device."""
    return (
        params
        if params.devices.num_gpus
        else params.replace(num_gpus=1, device=params.devices.device or 'cpu')
    )


def find_machine(
    params: Params,
    environment: ProcessEnvironment,
    cluster_role: ClusterRole,
    gpus_of_host: str | None,
    gpus: Sequence[Any],
) -> Machine:
    """Plans the devices of the towers, and the settings that depend on them.

    Raises UsageError if this machine lacks the devices.

    gpus: the GPUs that TensorFlow sees in this process. gpus_of_host: CUDA_VISIBLE_DEVICES for this
    process, maybe hidden from TensorFlow; None if the host has no GPU.
    """
    mode, elsewhere = params.variables.mode, cluster_role.remote_tower_prefixes
    # A controller hides its GPUs from TensorFlow. Its workers are assumed to have GPUs if it does.
    has_gpus = bool(gpus) or (bool(elsewhere) and gpus_of_host is not None)
    if elsewhere and params.devices.device is None and not has_gpus:
        raise UsageError(
            '--device is missing: this process has no GPU, and does not know the devices of the '
            'workers; use --device=gpu or --device=cpu'
        )
    kind = params.devices.device or ('gpu' if has_gpus else 'cpu')
    spec = (
        params.variables.all_reduce_spec if params.variables.uses_all_reduce_spec(params) else None
    )
    if cluster_role.cluster is None:
        places_parameters = mode.parameter_device and not params.variables.has_other_reduce_flag(
            params
        )
    else:
        places_parameters = bool(cluster_role.cluster.ps_hosts)
    parameter_kind = kind
    # On a CPU 'gpu' means its virtual devices; a single virtual device is the host itself.
    if (
        places_parameters
        and not params.evaluation.eval
        and (kind == 'gpu' or params.devices.num_gpus > 1)
    ):
        parameter_kind = params.devices.local_parameter_device or kind
    _check_devices(params, environment, kind, len(gpus), is_here=not elsewhere)
    towers = tuple(
        f'{worker}/{kind}:{i}'
        for worker in elsewhere or ['']
        for i in range(params.devices.num_gpus)
    )
    data_format, reason = 'NHWC', ''
    tf32: bool | None = False
    if kind == 'gpu':
        capabilities: list[Capability | None] = (
            [None] if elsewhere else gpu_capabilities(gpus[: params.devices.num_gpus])
        )
        data_format, reason = choose_data_format(params.precision.precision, capabilities)
        tf32 = params.precision.tf32 and uses_tf32(
            params.precision.precision, capabilities, environment.variables
        )
    return Machine(
        kind=kind,
        towers=towers,
        parameter_device_kind=parameter_kind,
        parameter_devices=towers if parameter_kind == 'gpu' else (HOST_DEVICE,),
        data_format=params.devices.data_format or data_format,
        hosts=tuple(f'{worker}{HOST_DEVICE}' for worker in elsewhere or ['']),
        # A ring sends the fewest bytes per worker.
        all_reduce_spec=spec or ('xring' if elsewhere else None),
        data_format_reason='' if params.devices.data_format else reason,
        tf32=tf32,
    )


def warn_of_devices(
    params: Params,
    environment: ProcessEnvironment,
    machine: Machine,
    run: Context,
    warnings: list[str],
) -> None:
    """Warns about a slow precision on the CPU, and about the devices that a run without --device
    uses.
    """
    computes = not (params.inputs.input_only or params.run.exchange_only)
    if machine.kind == 'cpu' and params.precision.precision == 'fp16' and computes:
        warnings += _warn_of_fp16(environment)
    if params.devices.device is not None:
        return
    variables, root = environment.variables, environment.root
    if (
        machine.kind == 'cpu'
        and has_nvidia_gpu(variables, root)
        and (reason := explain_missing_gpu(variables, root))
    ):
        warnings.append(
            'this machine has a GPU of NVIDIA, but TensorFlow sees none and the run is on the '
            f'CPU: {reason}; or use --device=cpu'
        )
    # The flags that have no effect on this kind of device.
    earlier_lines = params.ignored_flag_warnings(run)
    warnings += (
        line
        for line in params.replace(device=machine.kind).ignored_flag_warnings(run)
        if line not in earlier_lines
    )


def _warn_of_fp16(environment: ProcessEnvironment) -> Iterator[str]:
    if not has_native_arithmetic('fp16', environment.root):
        faster = 'bf16' if has_native_arithmetic('bf16', environment.root) else 'fp32'
        yield (
            '--precision=fp16 is many times slower than fp32 here: this processor has no '
            f'arithmetic for fp16; use --precision={faster}'
        )


def gpu_capabilities(gpus: Sequence[Any]) -> list[Capability | None]:
    """Returns the compute capability of each GPU; None if unknown. Does not open the GPUs."""
    import tensorflow.compat.v1 as tf

    capabilities: list[Capability | None] = []
    for device in gpus:
        try:
            details = tf.config.experimental.get_device_details(device)
        except ValueError:
            details = {}
        capabilities.append(details.get('compute_capability'))
    return capabilities


def _check_devices(
    params: Params,
    environment: ProcessEnvironment,
    kind: str,
    num_gpus_found: int,
    *,
    is_here: bool,
) -> None:
    """Raises UsageError if the towers, in this process or in its workers, cannot use these "
    "devices."""
    refusals = ErrorCollector()
    flag_text = f'--num_gpus={params.devices.num_gpus}'
    if is_here and kind == 'gpu' and params.devices.num_gpus > num_gpus_found:
        refusals.add(
            f'{flag_text}: TensorFlow sees {plural(num_gpus_found, "GPU")} here; use '
            f'--num_gpus={num_gpus_found}, or --device=cpu for as many virtual devices as you like'
            if num_gpus_found
            else '--device=gpu: TensorFlow sees no GPU here; use --device=cpu, or '
            f'{_how_to_see_gpus(environment)}'
        )
    elif (
        is_here and params.devices.device is None and kind == 'cpu' and params.devices.num_gpus > 1
    ):
        refusals.add(
            f'{flag_text}: TensorFlow sees no GPU here; use --device=cpu to train on '
            f'{params.devices.num_gpus} virtual devices of the CPU, or '
            f'{_how_to_see_gpus(environment)}'
        )
    if params.devices.xla and kind == 'cpu' and params.devices.num_gpus > 1:
        refusals.add(
            f'{params.flag_text("xla")}: on a CPU it compiles for one device, and '
            f'{flag_text}; use '
            '--num_gpus=1 or --noxla'
        )
    spec = (
        (params.variables.all_reduce_spec or '')
        if params.variables.uses_all_reduce_spec(params)
        else ''
    )
    if (
        not is_here
        and spec
        and any((part.between or part.algorithm) == 'nccl' for part in parse_spec(spec))
    ):
        refusals.add(
            f'{params.flag_text("all_reduce_spec")}: NCCL works between the GPUs of one process '
            f'here, and --variable_update={params.variables.variable_update} has several; use '
            'nccl/xring, xring, psgpu or pscpu'
        )
    refusals.raise_all()


def _how_to_see_gpus(environment: ProcessEnvironment) -> str:
    reason = explain_missing_gpu(environment.variables, environment.root)
    return (
        f'fix this: {reason}'
        if reason
        else 'install the [cuda] extra on a machine with a GPU of NVIDIA'
    )


def describe_run_environment(
    environment: ProcessEnvironment, session: 'SessionConfig'
) -> RunEnvironment:
    """Describes this machine and environment with the settings of the process applied."""
    process, threads = session.process, session.threads
    set_here = {
        **process.variables,
        VISIBLE_VARIABLE: environment.process.setting(VISIBLE_VARIABLE),
    }
    variables = {
        **environment.variables,
        **{name: value for name, value in set_here.items() if value is not None},
    }
    facts = describe_machine(
        num_intra_threads=threads.intra_op,
        num_inter_threads=threads.inter_op,
        threads_reason=threads.reason,
        cores=process.cores or None,
    )
    return RunEnvironment(facts, library_variables(variables), git_commit())


def place_variables(
    params: Params, cluster_role: ClusterRole, machine: Machine, computed_in: str
) -> VariableConfig:
    """Plans the placement of variables, the sums of gradients, and the optimizer.

    computed_in: the dtype of activations.
    """
    mode, topology = params.variables.mode, topology_of(cluster_role.cluster)
    optimizer, num_towers = params.optimizer.row, len(machine.towers)
    sums_towers = num_towers > 1 and params.trains
    by_halves = params.variables.uses_hierarchical_copy(params)
    leaders = _leaders_of_halves(params, num_towers) if by_halves else ()
    sums = (
        None
        if by_halves
        else parse_spec(machine.all_reduce_spec or f'ps{machine.parameter_device_kind}')
    )
    by_nccl = sums_towers and any('nccl' in part.names for part in sums or ())
    if topology is Topology.PEERS:
        by_nccl = mode.nccl_between_gpus and machine.kind == 'gpu'
    return VariableConfig(
        mode=mode,
        is_staged=params.variables.staged_vars and params.trains,
        is_relaxed=params.variables.variable_consistency == 'relaxed' and params.trains,
        is_synchronous=params.variables.cross_replica_sync
        and cluster_role.is_synchronous
        and mode.shares_model,
        size_ranges=sums,
        leaders=leaders,
        banner_spec=machine.all_reduce_spec if mode.takes_all_reduce_spec and sums_towers else None,
        num_packets=params.variables.gradient_repacking,
        small_max_bytes=params.variables.agg_small_grads_max_bytes,
        small_max_group=params.variables.agg_small_grads_max_group,
        transfer=_find_transfer(
            params, NCCL_TRANSFER_DTYPES if by_nccl else mode.transfer_dtypes, computed_in
        ),
        slices_variables=params.variables.slice_variables,
        horovod_device=None if machine.kind == 'cpu' else params.variables.horovod_device,
        uses_nccl=by_nccl,
        optimizer=OptimizerConfig(
            optimizer.name, tuple(params.value(name) for name in optimizer.arguments)
        ),
    )


def _leaders_of_halves(params: Params, num_towers: int) -> tuple[tuple[int, int], ...]:
    """Returns the pairs of linked GPUs, one of each half, that exchange the sums of the halves.

    params.variable_flags checks that there are enough towers. In the hybrid cube mesh of the DGX-1,
    GPUs 0-3 and 4-7 are two cliques of NVLinks and GPU i is linked to GPU i + 4 (NVIDIA DGX-1
    System Architecture, WP-08437-002, figure 4). Of eight V100 of the Google Cloud, 0 is linked to
    5 and 2 to 7 (`nvidia-smi topo -m` there).
    """
    if params.variables.network_topology == 'dgx1':
        half = num_towers // 2
        return tuple((tower, half + tower) for tower in range(half))
    return _LINKS_OF_GCP


def _find_transfer(params: Params, dtypes: Sequence[str], computed_in: str) -> str | None:
    """Returns the dtype of gradients on the way, one of these; None: they are sent unchanged."""
    fits = computed_in in dtypes
    compacts = (
        fits
        if params.variables.compact_gradient_transfer is None
        else params.variables.compact_gradient_transfer
    )
    if not compacts:
        return None
    return computed_in if fits else dtypes[-1]
