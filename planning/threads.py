"""Plans how many threads TensorFlow computes with on the host, and why. Does not import TensorFlow."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from errors import counted, spelled
from params import Params
from planning.environment import Environment
from planning.found import Found
from planning.gpu_settings import SHARED_POOL, THREAD_MODE, threads_per_gpu
from planning.plan import Machine
from planning.this_process import INTRA


@dataclass(frozen=True)
class Threads:
    """The threads of sessions.

    Attributes:
      intra_op: threads within operations, a pool that all CPU devices of a process share; 0 is TensorFlow's default: as
        many as cores in the affinity.
      inter_op: operations at the same time; 0 as for intra_op.
      reason: why, in words, for those who read the result.
    """

    intra_op: int
    inter_op: int
    reason: str


def choose_threads(
    params: Params, environment: Environment, machine: Machine, variables: Mapping[str, str], num_cores: int
) -> Found[Threads]:
    """The threads of a process: those of the flags, else what fits its towers.

    On CPUs, the operations of several towers run at the same time. If there are as many towers as cores, each operation
    has one thread: sharing it would only move work between busy cores. (8 towers of ResNet-50 with a global batch of 32
    on 2 cores have 0.90 to 0.94 of the images/sec of one tower with two threads for each operation, 0.93 to 1.02 with
    one.) The images of a batch have one thread each whatever is chosen here (inputs/each_image.py).

    Args:
      variables: the environment variables of GPU devices, as the run sets them.
      num_cores: those that this process may use.
    """
    # TensorFlow keeps its threads, so that a later run of a process to which no flag gives others has them too.
    earlier: int | None = environment.process.kept(INTRA)
    given = ' '.join(
        spelled(name, getattr(params, name))
        for name in ('num_intra_threads', 'num_inter_threads')
        if name in params.given
    )
    if machine.kind == 'gpu' and machine.is_here:
        mode = {**environment.variables, **variables}.get(THREAD_MODE, SHARED_POOL)
        intra, inter = _beside_gpus(params, machine, mode, num_cores, earlier)
        return Found(Threads(intra, inter, given or 'GPUs start their own kernels'))
    if params.num_intra_threads is not None:
        return Found(Threads(params.num_intra_threads, params.num_inter_threads, given))
    num_towers = len(machine.towers) if machine.is_here else 1
    chosen = _for_cores(num_cores, environment.cpu_quota(), num_towers, params.num_inter_threads)
    if earlier is None or earlier == chosen.intra_op:
        return Found(chosen)
    warnings: tuple[str, ...] = ()
    if (earlier or num_cores) < (chosen.intra_op or num_cores):
        warnings = (
            f'an operation has {counted(earlier, "thread")}, as in an earlier run of this process, since '
            'TensorFlow keeps its threads until the process ends; start a new process for each run',
        )
    return Found(Threads(earlier, chosen.inter_op, 'an earlier run of this process had them'), warnings)


def _beside_gpus(
    params: Params, machine: Machine, mode: str, num_cores: int, intra_of_process: int | None
) -> tuple[int, int]:
    """The threads within an operation, and the operations at the same time, of a process that computes on GPUs.

    0 is TensorFlow's default. As in the original, beside GPUs with threads of their own each operation has one thread,
    and all other operations together have the cores less those threads. In contrast to it:

    - TensorFlow decides on the former if variables are updated on the host: a momentum update of 100 million weights
      by one core takes longer than a step.
    - At least half of the cores are left to the latter, since many GPUs in a machine need many decoded images.
    """
    intra, inter = params.num_intra_threads, params.num_inter_threads
    if intra is None:
        intra = intra_of_process
    if mode.lower() == SHARED_POOL:
        return intra or 0, inter
    if intra is None:
        updates_on_host = machine.parameter_device_kind == 'cpu' or 'pscpu' in (machine.all_reduce_spec or '')
        intra = 0 if updates_on_host else 1
    others = max(num_cores - threads_per_gpu(params) * params.num_gpus, (num_cores + 1) // 2, 2)
    return intra, inter or others


def _for_cores(num_cores: int, quota: float | None, num_towers: int, inter: int) -> Threads:
    if quota is not None and quota < num_cores:
        intra = 1 if num_towers >= quota else int(quota)
        reason = f'the CPU quota of the cgroup is {quota:.3g} cores, for {counted(num_towers, "tower")}'
        return Threads(intra, inter or max(2, math.ceil(quota)), reason)
    if num_towers == 1:
        return Threads(0, inter, 'one tower has all cores')
    shared = f'{num_towers} towers share {counted(num_cores, "core")}'
    return Threads(1 if num_towers >= num_cores else 0, inter, shared)
