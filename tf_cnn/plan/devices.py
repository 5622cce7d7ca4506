"""The devices of towers and variables, and the data format. Does not import TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.machine.config import ALL_GPUS
from tf_cnn.machine.gpus import has_nvidia_gpu
from tf_cnn.machine.missing_gpu import explain_missing_gpu
from tf_cnn.machine.processors import has_native_arithmetic
from tf_cnn.machine.this_process import ProcessEnvironment
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.plan.cluster_role import ClusterRole
from tf_cnn.plan.params import Params, RuleContext
from tf_cnn.system.errors import ErrorCollector, UsageError, plural

# A compute capability such as (8, 0).
Capability = tuple[int, int]

# NVIDIA, "Ampere GPU Architecture Tuning Guide", section 1.4.1.2: tensor cores for TF32.
_TF32_FROM: Capability = (8, 0)
_TF32 = 'TF32 without training'
# The lowest compute capability that is faster with NHWC.
_NHWC_FROM: Mapping[str, Capability] = {'fp16': (7, 0), 'bf16': (8, 0), _TF32: _TF32_FROM}


def choose_data_format(
    precision: str, capabilities: Sequence[Capability | None]
) -> tuple[str, str]:
    """Returns the faster data format on GPUs, and the reason in a few words, for the banner.

    The choice follows TensorFlow's layout pass
    (tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc, GetSrcAndDstDataFormats): NHWC
    if at least half of the GPUs have compute capability 7.0 (Volta) or above and half of the
    convolutions are in float16, or 8.0 (Ampere) and bfloat16, or TF32 without training; else NCHW.
    It was not measured on a GPU.

    The reason for NHWC: tensor cores multiply in it, and cuDNN transposes its inputs in NCHW
    (conv_ops_gpu.cc in tensorflow/core/kernels, ComputeInNhwcEnabled, which includes TF32). Float32
    stays in NCHW because in training batch norm has a kernel for NHWC only in 16 bits
    (fused_batch_norm_op.cc); else it would transpose each activation twice.

    A synchronous step lasts until the slowest GPU is done, so the lowest capability decides. If one
    is unknown, such as the capability of another process's GPU, all GPUs are assumed to have tensor
    cores for the precision.
    """
    lowest = _NHWC_FROM.get(precision)
    if lowest is None:
        return 'NCHW', f'{precision} on GPUs'
    known_capabilities = [capability for capability in capabilities if capability is not None]
    if len(known_capabilities) < len(capabilities) or not known_capabilities:
        return 'NHWC', f'{precision} on GPUs'
    least = min(known_capabilities)
    reason = f'{precision} on GPUs of compute capability {".".join(map(str, least))}'
    return 'NHWC' if least >= lowest else 'NCHW', reason


def uses_tf32(
    precision: str, capabilities: Sequence[Capability | None], environ: Mapping[str, str]
) -> bool | None:
    """Returns whether GPUs compute fp32 in TF32 where that is allowed; None if an unknown
    capability decides.

    With NVIDIA_TF32_OVERRIDE=0 in environ, NVIDIA's libraries (cuBLAS and cuDNN) compute in 32
    bits.
    """
    if precision != 'fp32' or environ.get('NVIDIA_TF32_OVERRIDE') == '0':
        return False
    if any(capability is not None and capability >= _TF32_FROM for capability in capabilities):
        return True
    return None if None in capabilities else False


@dataclass(frozen=True)
class Devices:
    """The devices of a run.

    Attributes:
      towers: the device of each tower.
      parameter_devices: the devices that hold shared variables; in a worker of parameter servers,
        the devices that receive variables and sum gradients.
      hosts: the CPU of each process that has towers, in order.
      data_format: NHWC or NCHW; data_format_reason is for the banner, and empty if the run had no
        choice.
      tf32: whether fp32 is computed in TF32; None if that is unknown.
    """

    towers: tuple[str, ...]
    parameter_devices: tuple[str, ...]
    hosts: tuple[str, ...] = (HOST_DEVICE,)
    data_format: str = 'NHWC'
    data_format_reason: str = ''
    tf32: bool | None = False

    @property
    def kind(self) -> str:
        """The kind of the towers' devices: cpu or gpu."""
        return 'gpu' if '/gpu:' in self.towers[0] else 'cpu'

    @property
    def parameter_kind(self) -> str:
        """cpu: the host holds the variables that towers share; gpu: the towers' devices."""
        return 'cpu' if self.parameter_devices == (HOST_DEVICE,) else 'gpu'

    @property
    def is_local(self) -> bool:
        """Whether the towers are in this process, rather than in workers that it controls."""
        return self.hosts == (HOST_DEVICE,)


def replace_no_gpus(params: Params) -> Params:
    """Returns the flags with --num_gpus=0 replaced by one CPU device."""
    if params.devices.num_gpus:
        return params
    return params.with_values(num_gpus=1, device=params.devices.device or 'cpu')


def choose_devices(
    params: Params,
    environment: ProcessEnvironment,
    cluster_role: ClusterRole,
    gpus_of_host: str | None,
    gpus: Sequence[Any],
) -> Devices:
    """Chooses the devices of a run or a server.

    Raises UsageError if this machine lacks the devices.

    params: without ignored flags. gpus: the GPUs that TensorFlow sees in this process.
    gpus_of_host: CUDA_VISIBLE_DEVICES for this process, maybe hidden from TensorFlow; None if the
    host has no GPU.
    """
    flags, elsewhere = params.devices, cluster_role.remote_tower_prefixes
    # A controller hides its GPUs from TensorFlow. Its workers are assumed to have GPUs if it does.
    has_gpus = bool(gpus) or (bool(elsewhere) and gpus_of_host is not None)
    if elsewhere and flags.device is None and not has_gpus:
        raise UsageError(
            '--device is missing: this process has no GPU, and does not know the devices of the '
            'workers; use --device=gpu or --device=cpu'
        )
    kind = flags.device or ('gpu' if has_gpus else 'cpu')
    # On a CPU 'gpu' means its virtual devices; a single virtual device is the host itself.
    has_choice = kind == 'gpu' or flags.num_gpus > 1
    parameter_kind = (flags.local_parameter_device if has_choice else None) or kind
    _check_devices(params, environment, kind, len(gpus), is_here=not elsewhere)
    towers = tuple(
        f'{worker}/{kind}:{i}' for worker in elsewhere or [''] for i in range(flags.num_gpus)
    )
    data_format, reason = 'NHWC', ''
    tf32: bool | None = False
    if kind == 'gpu':
        precision = params.numerics
        capabilities: list[Capability | None] = (
            [None] if elsewhere else gpu_capabilities(gpus[: flags.num_gpus])
        )
        tf32 = precision.tf32 and uses_tf32(
            precision.precision, capabilities, environment.variables
        )
        data_format, reason = choose_data_format(
            _TF32 if tf32 and not params.trains else precision.precision, capabilities
        )
    return Devices(
        towers=towers,
        parameter_devices=towers if parameter_kind == 'gpu' else (HOST_DEVICE,),
        hosts=tuple(f'{worker}{HOST_DEVICE}' for worker in elsewhere or ['']),
        data_format=flags.data_format or data_format,
        data_format_reason='' if flags.data_format else reason,
        tf32=tf32,
    )


def warn_of_devices(
    params: Params, kind: str, environment: ProcessEnvironment, context: RuleContext
) -> Iterator[str]:
    """Yields warnings about a slow precision on the CPU, and about the devices that a run without
    --device uses. params: as given; kind: the kind of the devices.
    """
    computes = not (params.inputs.input_only or params.run.exchange_only)
    variables, root = environment.variables, environment.root
    is_fp16_on_cpu = kind == 'cpu' and params.numerics.precision == 'fp16' and computes
    if is_fp16_on_cpu and not has_native_arithmetic('fp16', root):
        faster = 'bf16' if has_native_arithmetic('bf16', root) else 'fp32'
        yield (
            '--precision=fp16 is many times slower than fp32 here: this processor has no '
            f'arithmetic for fp16; use --precision={faster}'
        )
    if params.devices.device is not None:
        return
    if (
        kind == 'cpu'
        and has_nvidia_gpu(variables, root)
        and (reason := explain_missing_gpu(variables, root))
    ):
        yield (
            'this machine has a GPU of NVIDIA, but TensorFlow sees none and the run is on the '
            f'CPU: {reason}; or use --device=cpu'
        )
    # The flags that have no effect on this kind of device.
    earlier_lines = params.ignored_flag_warnings(context)
    for line in params.with_values(device=kind).ignored_flag_warnings(context):
        if line not in earlier_lines:
            yield line


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
    """Raises UsageError if the towers, here or in the workers, cannot use these devices."""
    refusals = ErrorCollector()
    num_gpus, is_all = params.devices.num_gpus, params.flag_text('num_gpus') == ALL_GPUS
    flag_text = ALL_GPUS if is_all else f'--num_gpus={num_gpus}'
    if is_here and kind == 'gpu' and params.devices.num_gpus > num_gpus_found:
        refusals.add(
            f'{flag_text}: TensorFlow sees {plural(num_gpus_found, "GPU")} here; use '
            f'--num_gpus={num_gpus_found}, or --device=cpu for as many virtual devices as you like'
            if num_gpus_found
            else '--device=gpu: TensorFlow sees no GPU here; use --device=cpu, or '
            f'{_how_to_see_gpus(environment)}'
        )
    elif is_here and params.devices.device is None and kind == 'cpu' and (num_gpus > 1 or is_all):
        on_cpu = f'--device=cpu to train on {num_gpus} virtual devices of the CPU'
        refusals.add(
            f'{flag_text}: TensorFlow sees no GPU here; use '
            f'{on_cpu if num_gpus > 1 else "--num_gpus=1 to train on the CPU"}, or '
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
