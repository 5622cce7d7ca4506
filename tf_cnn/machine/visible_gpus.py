"""Chooses the GPUs of each process of a host: the value of CUDA_VISIBLE_DEVICES. Does not import
TensorFlow.

TensorFlow opens every GPU that CUDA shows to a process, used or not, and takes most of its memory.
So before TensorFlow lists the GPUs, a worker is shown only its share of them, and none is shown to
a parameter server, to a controller (which uses the GPUs of its workers) and to a run with
--device=cpu.

The order of the indices is CUDA's own. TensorFlow neither sets nor reads CUDA_DEVICE_ORDER (no
library of 2.21 contains the name), so by default the fastest GPU is the first, and with
CUDA_DEVICE_ORDER=PCI_BUS_ID it is the order of nvidia-smi. All processes of a host need the same
order to divide the GPUs; any order will do.
"""

from collections.abc import Mapping, Sequence

from tf_cnn.machine.gpus import (
    VISIBLE_VARIABLE,
    count_gpus,
    count_visible_gpus,
    has_nvidia_gpu,
    listed_gpus,
)
from tf_cnn.system.errors import UsageError

Environ = Mapping[str, str]
# (local rank, local size)
RankAndSize = tuple[int, int]
SINGLE_PROCESS: RankAndSize = (0, 1)


def has_visible_gpus(environ: Environ) -> bool:
    """Whether this host has GPUs, and CUDA_VISIBLE_DEVICES does not hide them all."""
    return listed_gpus(environ) != [] and (has_nvidia_gpu(environ) or bool(count_gpus()))


def gpus_of_process(
    needed: int, rank_and_size: RankAndSize, environ: Environ, count: int | None
) -> str:
    """Returns the CUDA_VISIBLE_DEVICES of this process on a host with `count` GPUs; None assumes
    enough.

    A list in environ (indices, UUIDs or MIG names) that is long enough for all workers of the host
    is divided among them. Without a list, all GPUs of the host are divided. A shorter list belongs
    to this process alone in these cases:

    - Slurm was asked for GPUs per task (SLURM_GPUS_PER_TASK, SLURM_TRES_PER_TASK).
    - The Slurm step has enough GPUs on this node (SLURM_GPUS_ON_NODE) for a different list in each
      worker.
    - There is no such number from Slurm, and the list has exactly as many GPUs as the process
      needs: a script or launcher has chosen them.

    Too few GPUs for several workers are a UsageError. A single worker gets all GPUs of the host.
    """
    if not needed:
        return ''
    rank, size = rank_and_size
    names = _gpu_names(environ, size * needed if count is None else count)
    if len(names) < size * needed:
        if VISIBLE_VARIABLE in environ and _is_for_this_process(len(names), needed, size, environ):
            rank = 0
        elif size > 1:
            raise _too_few(needed, size, len(names), environ)
    return _names_of_rank(names, rank, needed)


def divide_gpus(needed: int, num_workers: int, environ: Environ) -> list[str] | None:
    """Returns the CUDA_VISIBLE_DEVICES of each worker of a cluster on this host; None if the host
    has no GPUs.

    Like gpus_of_process, but the list in environ is always divided among the workers.
    """
    if not has_visible_gpus(environ):
        return None
    if not needed:
        return [''] * num_workers
    count = _count(needed, num_workers, environ)
    names = _gpu_names(environ, num_workers * needed if count is None else count)
    if len(names) < num_workers * needed and num_workers > 1:
        raise _too_few(needed, num_workers, len(names), environ)
    return [_names_of_rank(names, rank, needed) for rank in range(num_workers)]


def choose_visible_gpus(
    needed: int, rank_and_size: RankAndSize, environ: Environ, indices: Sequence[int] = ()
) -> str | None:
    """Returns the CUDA_VISIBLE_DEVICES that shows this process only the GPUs that it computes on;
    see gpus_of_process.

    indices are the GPUs that may be used, in this order: positions in the list of environ or,
    without a list, numbers of the host's GPUs; empty for all. The result is None if this host has
    no GPUs: the variable stays as it is.
    """
    if not has_visible_gpus(environ):
        return None
    environ = select_gpus(indices, environ)
    return gpus_of_process(
        needed, rank_and_size, environ, _count(needed, rank_and_size[1], environ)
    )


def select_gpus(indices: Sequence[int], environ: Environ) -> Environ:
    """Returns the environment with a CUDA_VISIBLE_DEVICES that lists the GPUs with these numbers
    (empty: all).
    """
    if not indices:
        return environ
    names, count = listed_gpus(environ), count_visible_gpus(environ)
    if count is not None and max(indices) >= count:
        text = environ.get(VISIBLE_VARIABLE)
        there = f'there are {count}' if text is None else f'{VISIBLE_VARIABLE}={text} lists {count}'
        raise UsageError(
            f'--gpu_indices={",".join(map(str, indices))}: {there}, with numbers from 0; use '
            f'numbers below {count}'
        )
    return {
        **environ,
        VISIBLE_VARIABLE: ','.join(
            str(index) if names is None else names[index] for index in indices
        ),
    }


def _count(needed: int, size: int, environ: Environ) -> int | None:
    """Returns the number of GPUs of the host, or None if it is not needed, since asking the driver
    may take seconds.
    """
    return count_gpus() if needed and size > 1 and listed_gpus(environ) is None else None


def _gpu_names(environ: Environ, count: int) -> list[str]:
    listed = listed_gpus(environ)
    return [str(index) for index in range(count)] if listed is None else listed


def _names_of_rank(names: list[str], rank: int, needed: int) -> str:
    return ','.join(names[rank * needed : (rank + 1) * needed])


def _is_for_this_process(num_listed: int, needed: int, size: int, environ: Environ) -> bool:
    if environ.get('SLURM_GPUS_PER_TASK') or 'gpu' in environ.get('SLURM_TRES_PER_TASK', ''):
        return True
    # This is the number of the whole step, not of a task: srun(1), OUTPUT ENVIRONMENT VARIABLES.
    on_node = environ.get('SLURM_GPUS_ON_NODE', '')
    return num_listed * size <= int(on_node) if on_node.isdigit() else num_listed == needed


def _too_few(needed: int, size: int, num_gpus: int, environ: Environ) -> UsageError:
    text = environ.get(VISIBLE_VARIABLE)
    there = f'it has {num_gpus}' if text is None else f'{VISIBLE_VARIABLE}={text} lists {num_gpus}'
    return UsageError(
        f'--num_gpus={needed}: {size} workers on this host need {size * needed} GPUs, and '
        f'{there}; use a smaller number or --device=cpu, start fewer workers here, or set a '
        f'different {VISIBLE_VARIABLE} for each process'
    )
