"""The devices of this machine, and the data format that fits them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from errors import UsageError, counted
from hardware.data_formats import Capability, choose_data_format, uses_tf32
from hardware.gpu_memory import GpuMemory
from hardware.missing_gpu import explain_missing_gpu
from hardware.visible_gpus import confirm_shown
from params import Params
from params.all_reduce_spec import parse_spec
from params.devices import another_flag_places_the_sums
from params.modes import Mode
from params.variables import sums_by_spec
from run.process_settings import fix_gpu_memory, let_xla_compile_for_cpus
from training.variables import HOST_DEVICE


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
      UsageError: the settings ask for GPUs, or for sums by NCCL, that this machine does not have; or an earlier run in
        this process used other values of settings that TensorFlow keeps.
    """
    if params.xla:
        let_xla_compile_for_cpus()
    if host_has_gpus and not workers and params.device != 'cpu':
        fix_gpu_memory(GpuMemory.of(params))
    gpus = tf.config.list_physical_devices('GPU')
    num_gpus_found = len(gpus)
    confirm_shown(num_gpus_found)
    # A controller has hidden its own GPUs, and its workers are taken to have some if it has.
    gpus_by_default = num_gpus_found or (workers and host_has_gpus)
    kind = params.device or ('gpu' if gpus_by_default else 'cpu')
    spec = params.all_reduce_spec if sums_by_spec(params) else None
    places_parameters = (
        mode.parameter_device and not another_flag_places_the_sums(params) if alone else mode.needs_servers
    )
    parameter_kind = kind
    if places_parameters and not params.eval and kind == 'gpu':
        parameter_kind = params.local_parameter_device or kind
    if workers and params.device is None and not gpus_by_default:
        raise UsageError(
            '--device is missing: this process sees no GPU, and cannot see the devices of the workers; '
            'write --device=gpu or --device=cpu'
        )
    if not workers:
        _check_number(params, kind, num_gpus_found)
    _check_xla(params, kind)
    _check_nccl(params, kind, spec or '', alone=alone, is_here=not workers)
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


def _check_number(params: Params, kind: str, num_gpus_found: int) -> None:
    if kind == 'gpu' and params.num_gpus > num_gpus_found:
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


def _check_xla(params: Params, kind: str) -> None:
    if params.xla and kind == 'cpu' and params.num_gpus > 1:
        raise UsageError(
            f'--xla: on a CPU it compiles for one device, and --num_gpus={params.num_gpus}; '
            'write --num_gpus=1 or --noxla'
        )


def _check_nccl(params: Params, kind: str, spec: str, *, alone: bool, is_here: bool) -> None:
    sums = params.trains and (params.num_gpus > 1 or not alone)
    if kind != 'gpu' and 'nccl' in spec and sums:
        raise UsageError(
            f'--all_reduce_spec={params.all_reduce_spec}: NCCL works between GPUs and the run is on the CPU; '
            'leave it (and --use_nccl) out, or write pscpu, psgpu or xring'
        )
    if not is_here and spec and any((part.between or part.algorithm) == 'nccl' for part in parse_spec(spec)):
        raise UsageError(
            f'--all_reduce_spec={params.all_reduce_spec}: NCCL works between the GPUs of one process here, and '
            f'--variable_update={params.variable_update} has several; write nccl/xring, xring, psgpu or pscpu'
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
