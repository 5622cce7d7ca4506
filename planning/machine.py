"""The devices of this machine, and the data format that fits them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from hardware.data_formats import Capability, choose_data_format, uses_tf32
from hardware.gpu_memory import GpuMemory
from hardware.quiet import without_gpu_notices
from hardware.visible_gpus import confirm_shown
from params import Params
from params.device_flags import another_flag_places_the_sums
from params.modes import Mode
from params.variable_flags import sums_by_spec
from planning.devices import check_devices, find_kind
from planning.process_settings import fix_gpu_memory, let_xla_compile_for_cpus
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
    with without_gpu_notices(verbose=params.verbose):
        gpus = tf.config.list_physical_devices('GPU')
    num_gpus_found = len(gpus)
    confirm_shown(num_gpus_found)
    kind = find_kind(params, num_gpus_found, is_here=not workers, host_has_gpus=host_has_gpus)
    spec = params.all_reduce_spec if sums_by_spec(params) else None
    places_parameters = (
        mode.parameter_device and not another_flag_places_the_sums(params) if alone else mode.needs_servers
    )
    parameter_kind = kind
    if places_parameters and not params.eval and kind == 'gpu':
        parameter_kind = params.local_parameter_device or kind
    check_devices(params, kind, num_gpus_found, is_here=not workers)
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
