"""The devices of this machine, the data format, and the session settings that fit them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from errors import UsageError, counted
from params import Params
from params.devices import another_flag_places_the_sums
from params.modes import MODES, Mode
from run.data_formats import Capability, choose_data_format, uses_tf32
from run.gpu_memory import memory_options, share_memory_options
from run.gpu_settings import has_persistent_batch_norm, host_threads, prepare_gpus
from run.missing_gpu import explain_missing_gpu
from run.visible_gpus import confirm_shown
from training.variables import HOST_DEVICE

_XLA_ON_CPU = '--tf_xla_cpu_global_jit'


@dataclass(frozen=True)
class Machine:
    """The settings that depend on the devices of the machine.

    towers: the device of each tower. hosts: the CPU of each process that has towers, in order. parameter_devices:
    where shared variables live; in a worker of parameter servers, the devices that receive variables and sum gradients.
    all_reduce_spec: how towers sum gradients; None: the default of one process. data_format_reason: why the run chose
    the data format, for the banner; empty if it had no choice. tf32: whether fp32 is computed in TF32; None if that is
    unknown.
    """

    kind: str
    towers: tuple[str, ...]
    parameter_device_kind: str
    parameter_devices: tuple[str, ...]
    data_format: str
    hosts: tuple[str, ...] = (HOST_DEVICE,)
    all_reduce_spec: str | None = None
    data_format_reason: str = ''
    tf32: bool | None = False

    @property
    def is_here(self) -> bool:
        """Whether the towers are in this process, rather than in workers that it controls."""
        return self.hosts == (HOST_DEVICE,)


def find_machine(
    params: Params, mode: Mode, workers: Sequence[str] = (), *, alone: bool = True, host_has_gpus: bool = False
) -> Machine:
    """Fits the settings to the available devices.

    Args:
      mode: the row of --variable_update.
      workers: the device prefix of each process that has towers, if the towers are in other processes.
      alone: whether this is the only process of the run.
      host_has_gpus: whether this host has GPUs, which may be hidden from this process.

    Raises:
      UsageError: the settings ask for GPUs, or sums on GPUs, that this machine does not have; or an earlier run in this
        process used other values of settings that TensorFlow keeps.
    """
    if params.xla:
        # XLA compiles for the CPU only with this flag, which TensorFlow reads when it first lists the devices.
        flags = os.environ.get('TF_XLA_FLAGS', '')
        os.environ['TF_XLA_FLAGS'] = f'{flags} {_XLA_ON_CPU}'.strip() if _XLA_ON_CPU not in flags else flags
    if host_has_gpus and not workers and params.device != 'cpu':
        _fix_gpu_memory(params)
    gpus = tf.config.list_physical_devices('GPU')
    num_gpus_found = len(gpus)
    confirm_shown(num_gpus_found)
    # A controller has hidden its own GPUs, and its workers are taken to have some if it has.
    gpus_by_default = num_gpus_found or (workers and host_has_gpus)
    kind = params.device or ('gpu' if gpus_by_default else 'cpu')
    spec = params.all_reduce_spec if mode.takes_all_reduce_spec else None
    places_parameters = (
        mode.parameter_device and not another_flag_places_the_sums(params) if alone else mode.needs_servers
    )
    parameter_kind = kind
    if places_parameters and not params.eval:
        parameter_kind = params.local_parameter_device or kind
    if not alone and kind == 'cpu':
        # The same flags may start workers with and without GPUs.
        parameter_kind = 'cpu'
    if workers and params.device is None and not gpus_by_default:
        raise UsageError(
            '--device is missing: this process sees no GPU, and cannot see the devices of the workers; '
            'write --device=gpu or --device=cpu'
        )
    if kind == 'gpu' and params.num_gpus > num_gpus_found and not workers:
        raise UsageError(
            f'--num_gpus={params.num_gpus}: TensorFlow sees {counted(num_gpus_found, "GPU")} here; '
            f'write --num_gpus={num_gpus_found}, or --device=cpu for as many virtual devices as you like'
            if num_gpus_found
            else f'--device=gpu: TensorFlow sees no GPU here; write --device=cpu, or {_how_to_see_gpus()}'
        )
    if params.device is None and kind == 'cpu' and params.num_gpus > 1:
        raise UsageError(
            f'--num_gpus={params.num_gpus}: TensorFlow sees no GPU here; write --device=cpu to train on '
            f'{params.num_gpus} virtual devices of the CPU, or {_how_to_see_gpus()}'
        )
    if params.xla and kind == 'cpu' and params.num_gpus > 1:
        raise UsageError(
            f'--xla: on a CPU it compiles for one device, and --num_gpus={params.num_gpus}; '
            'write --num_gpus=1 or --noxla'
        )
    if parameter_kind == 'gpu' and kind != 'gpu':
        raise UsageError('--local_parameter_device=gpu: the run is on the CPU; write --local_parameter_device=cpu')
    if params.horovod_device == 'gpu' and kind != 'gpu' and mode.launcher:
        raise UsageError('--horovod_device=gpu: the run is on the CPU; write --horovod_device=cpu, or leave it out')
    sums = params.trains and (params.num_gpus > 1 or not alone)
    if kind != 'gpu' and 'nccl' in (spec or '') and sums:
        raise UsageError(
            f'--all_reduce_spec={params.all_reduce_spec}: NCCL works between GPUs and the run is on the CPU; '
            'leave it (and --use_nccl) out, or write pscpu, psgpu or xring'
        )
    if workers and 'nccl' in (spec or ''):
        raise UsageError(
            f'--all_reduce_spec={params.all_reduce_spec}: NCCL works between the GPUs of one process here, and '
            f'--variable_update={params.variable_update} has several; write xring, psgpu or pscpu'
        )
    towers = tuple(f'{worker}/{kind}:{i}' for worker in workers or [''] for i in range(params.num_gpus))
    data_format, reason = 'NHWC', ''
    tf32: bool | None = False
    if kind == 'gpu':
        capabilities = [None] if workers else _capabilities(gpus[: params.num_gpus])
        data_format, reason = choose_data_format(params.precision, capabilities)
        tf32 = params.tf32 and uses_tf32(params.precision, capabilities, os.environ)
    return Machine(
        kind=kind,
        towers=towers,
        parameter_device_kind=parameter_kind,
        parameter_devices=towers if parameter_kind == 'gpu' else (HOST_DEVICE,),
        data_format=params.data_format or data_format,
        hosts=tuple(f'{worker}{HOST_DEVICE}' for worker in workers or ['']),
        # In a ring, each worker sends the fewest bytes.
        all_reduce_spec=spec or ('xring' if workers else None),
        data_format_reason='' if params.data_format else reason,
        tf32=tf32,
    )


def _how_to_see_gpus() -> str:
    reason = explain_missing_gpu()
    return f'mend this: {reason}' if reason else 'install the [cuda] extra on a machine with a GPU of NVIDIA'


def _capabilities(gpus: Sequence[Any]) -> list[Capability | None]:
    """The compute capability of each of TensorFlow's physical devices; None if it does not tell. Opens no GPU."""
    found: list[Capability | None] = []
    for device in gpus:
        try:
            details = tf.config.experimental.get_device_details(device)
        except ValueError:
            details = {}
        found.append(details.get('compute_capability'))
    return found


def session_config(params: Params, machine: Machine, *, in_cluster: bool = False) -> tf.ConfigProto:
    """The settings of the session.

    Args:
      in_cluster: whether the session is on a server, to which other processes send graphs.

    Raises:
      UsageError: an earlier run in this process used another value of a process-wide setting.
    """
    config = tf.ConfigProto(allow_soft_placement=True)
    if machine.kind == 'cpu' or not machine.is_here:
        config.device_count['CPU'] = len(machine.towers) if machine.is_here else 1
        config.device_count['GPU'] = 0
    _fix_for_process('xla', params.xla)
    intra_threads, inter_threads = params.num_intra_threads or 0, params.num_inter_threads
    if machine.kind == 'gpu' and machine.is_here:
        prepare_gpus(params)
        _fix_for_process('batchnorm_persistent', has_persistent_batch_norm())
        tf.config.experimental.enable_tensor_float_32_execution(params.tf32)
        updates_on_host = machine.parameter_device_kind == 'cpu'
        # Beside a GPU, these threads matter so little that a run goes on with those that an earlier one chose.
        intra_threads, inter_threads = host_threads(
            params, _fixed_for_process.get(_INTRA), updates_on_host=updates_on_host
        )
    if machine.kind == 'cpu' or params.num_intra_threads is not None:
        _fix_for_process(_INTRA, intra_threads)
    config.intra_op_parallelism_threads = intra_threads
    config.inter_op_parallelism_threads = inter_threads
    config.use_per_session_threads = True
    config.gpu_options.CopyFrom(memory_options(params.allow_growth, params.gpu_memory_frac_for_testing))
    if params.xla:
        config.graph_options.optimizer_options.global_jit_level = tf.OptimizerOptions.ON_1
    rewrite = config.graph_options.rewrite_options
    _choose_graph_passes(rewrite, machine)
    if in_cluster and params.precision == 'bf16':
        # Remapping fuses convolutions into ops that a server supports for float32 and float16 only.
        rewrite.remapping = rewrite.OFF
    return config


def server_config(params: Params, *, computes: bool, host_has_gpus: bool = False) -> tf.ConfigProto:
    """The session settings of a parameter server, or of a worker that a controller drives.

    Args:
      computes: whether its devices have towers; otherwise it only keeps variables, on the CPU.
      host_has_gpus: as for find_machine.
    """
    if computes:
        machine = find_machine(params, MODES[params.variable_update], alone=False, host_has_gpus=host_has_gpus)
        config = session_config(params, machine, in_cluster=True)
        config.use_per_session_threads = False
        return config
    return tf.ConfigProto(device_count={'GPU': 0})


def check_xla(config: tf.ConfigProto, device: str) -> None:
    """Runs a few operations to check that XLA compiles them.

    Raises:
      UsageError: XLA does not compile in this process.
    """
    with tf.Graph().as_default() as graph, tf.device(device):
        x = tf.random.uniform([8, 8])
        for _ in range(4):
            x = tf.tanh(tf.matmul(x, x))
    metadata = tf.RunMetadata()
    with tf.Session(graph=graph, config=config) as session:
        session.run(x, options=tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    if not any(node.op == '_XlaRun' for partition in metadata.partition_graphs for node in partition.node):
        raise UsageError(
            '--xla: TensorFlow does not compile in this process, which used it before; start a new process, '
            f'or set TF_XLA_FLAGS={_XLA_ON_CPU} before TensorFlow is used'
        )


def _choose_graph_passes(rewrite: Any, machine: Machine) -> None:
    """Switches off the graph passes that take long with many towers and do not speed up the step."""
    rewrite.meta_optimizer_iterations = rewrite.ONE
    for name in (
        'arithmetic_optimization',
        'auto_mixed_precision',
        'common_subgraph_elimination',
        'constant_folding',
        'debug_stripper',
        'dependency_optimization',
        'function_optimization',
        'implementation_selector',
        'loop_optimization',
        'pin_to_host_optimization',
        'scoped_allocator_optimization',
        'shape_optimization',
    ):
        setattr(rewrite, name, rewrite.OFF)
    rewrite.memory_optimization = rewrite.NO_MEM_OPT
    if machine.kind == 'cpu' and machine.data_format == 'NCHW':
        # The CPU's kernels are made for NHWC.
        rewrite.cpu_layout_conversion = rewrite.NCHW_TO_NHWC
    else:
        # On a GPU it would change the data format that the user chose.
        rewrite.layout_optimizer = rewrite.OFF


def _fix_gpu_memory(params: Params) -> None:
    """Gives all parts of TensorFlow in this process the memory options of the run; refuses to change them later."""
    is_first = 'allow_growth' not in _fixed_for_process
    if is_first and not share_memory_options(params.allow_growth, params.gpu_memory_frac_for_testing):
        given = 'gpu_memory_frac_for_testing' if params.allow_growth is None else 'allow_growth'
        raise UsageError(
            f'--{given}={getattr(params, given)}: TensorFlow was used in this process before, and keeps how it takes '
            'the memory of GPUs; start a new process'
        )
    _fix_for_process('allow_growth', params.allow_growth)
    _fix_for_process('gpu_memory_frac_for_testing', params.gpu_memory_frac_for_testing)


def keep_threads(config: tf.ConfigProto) -> None:
    """To be called before a session is opened: TensorFlow keeps its threads for all later ones of the process."""
    _fixed_for_process.setdefault(_INTRA, config.intra_op_parallelism_threads)


_INTRA = 'num_intra_threads'
_fixed_for_process: dict[str, Any] = {}


def _fix_for_process(name: str, value: object) -> None:
    """Refuses a change of a setting that TensorFlow takes from the first session and keeps for the whole process."""
    first = _fixed_for_process.setdefault(name, value)
    if first != value:
        raise UsageError(
            f'--{name}={value}: an earlier run in this process set {first}, which TensorFlow keeps until the process '
            'ends; start a new process'
        )
