"""Whether the flags fit the devices that a run computes on. Does not import TensorFlow."""

import sys
from pathlib import Path

from errors import Refusals, UsageError, counted
from hardware.gpus import has_nvidia_gpu
from hardware.missing_gpu import explain_missing_gpu
from params import Params
from params.all_reduce_spec import parse_spec
from params.variable_flags import sums_by_spec

# What the drivers of AMD, and Windows for its Linux, make where there is a GPU.
_OTHER_GPUS = ('dev/kfd', 'dev/dxg')


def may_have_gpu(root: Path = Path('/')) -> bool:
    """Whether TensorFlow may see a GPU on this machine; it takes seconds to import and to ask.

    Args:
      root: the folder that holds proc/ and dev/.
    """
    is_known = sys.platform == 'linux'
    return not is_known or has_nvidia_gpu(root=root) or any((root / name).exists() for name in _OTHER_GPUS)


def needs_no_tensorflow(params: Params) -> bool:
    """Whether it is known without TensorFlow that the run will find no GPU.

    A process that has imported it already loses nothing by asking it.
    """
    return params.device == 'cpu' or not ('tensorflow' in sys.modules or may_have_gpu())


def find_kind(params: Params, num_gpus_found: int, *, is_here: bool, host_has_gpus: bool) -> str:
    """The kind of device of the towers, 'cpu' or 'gpu'.

    Args:
      is_here: whether the towers are in this process, rather than in workers that it controls.
      host_has_gpus: whether this host has GPUs, which may be hidden from this process.

    Raises:
      UsageError: the kind of the workers' devices cannot be known.
    """
    # A controller has hidden its own GPUs, and its workers are taken to have some if it has.
    has_gpus = bool(num_gpus_found) or (not is_here and host_has_gpus)
    if not is_here and params.device is None and not has_gpus:
        raise UsageError(
            '--device is missing: this process sees no GPU, and cannot see the devices of the workers; '
            'write --device=gpu or --device=cpu'
        )
    return params.device or ('gpu' if has_gpus else 'cpu')


def check_devices(params: Params, kind: str, num_gpus_found: int, *, is_here: bool) -> None:
    """Checks the flags that the devices decide on.

    Args:
      kind: of the devices of the towers.
      is_here: as for find_kind.

    Raises:
      UsageError: the settings ask for GPUs that this machine does not have, for sums by NCCL between processes, or for
        more devices than XLA compiles for.
    """
    refusals = Refusals()
    for check in (
        _find_missing_gpus(params, kind, num_gpus_found) if is_here else None,
        _find_devices_without_xla(params, kind),
        _find_nccl_between_processes(params) if not is_here else None,
    ):
        if check:
            refusals.add(check)
    refusals.raise_all()


def _find_missing_gpus(params: Params, kind: str, num_gpus_found: int) -> str | None:
    if kind == 'gpu' and params.num_gpus > num_gpus_found:
        return (
            f'--num_gpus={params.num_gpus}: TensorFlow sees {counted(num_gpus_found, "GPU")} here; '
            f'write --num_gpus={num_gpus_found}, or --device=cpu for as many virtual devices as you like'
            if num_gpus_found
            else f'--device=gpu: TensorFlow sees no GPU here; write --device=cpu, or {_how_to_see_gpus()}'
        )
    if params.device is None and kind == 'cpu' and params.num_gpus > 1:
        return (
            f'--num_gpus={params.num_gpus}: TensorFlow sees no GPU here; write --device=cpu to train on '
            f'{params.num_gpus} virtual devices of the CPU, or {_how_to_see_gpus()}'
        )
    return None


def _find_devices_without_xla(params: Params, kind: str) -> str | None:
    if params.xla and kind == 'cpu' and params.num_gpus > 1:
        return (
            f'{params.written("xla")}: on a CPU it compiles for one device, and --num_gpus={params.num_gpus}; '
            'write --num_gpus=1 or --noxla'
        )
    return None


def _find_nccl_between_processes(params: Params) -> str | None:
    spec = (params.all_reduce_spec or '') if sums_by_spec(params) else ''
    if spec and any((part.between or part.algorithm) == 'nccl' for part in parse_spec(spec)):
        return (
            f'{params.written("all_reduce_spec")}: NCCL works between the GPUs of one process here, and '
            f'--variable_update={params.variable_update} has several; write nccl/xring, xring, psgpu or pscpu'
        )
    return None


def _how_to_see_gpus() -> str:
    reason = explain_missing_gpu()
    return f'mend this: {reason}' if reason else 'install the [cuda] extra on a machine with a GPU of NVIDIA'
