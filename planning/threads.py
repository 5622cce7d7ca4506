"""How many threads TensorFlow computes with on the host, and why. Does not import TensorFlow."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from errors import counted, spelled
from hardware.cgroups import cpu_limit
from hardware.surroundings import ROOT
from params import Params
from planning.gpu_settings import host_threads


@dataclass(frozen=True)
class Threads:
    """The threads of sessions.

    Attributes:
      intra_op: threads within operations: a pool that all CPU devices of a process share. inter_op: operations at the
        same time. 0 is TensorFlow's default: as many as cores in the affinity.
      reason: why, in words, for those who read the result.
      warning: what is wrong with them; None if nothing is.
    """

    intra_op: int
    inter_op: int
    reason: str
    warning: str | None = None


def choose_threads(
    params: Params,
    kind: str,
    num_towers: int,
    intra_of_process: int | None = None,
    *,
    updates_on_host: bool = False,
    root: Path = ROOT,
) -> Threads:
    """Chooses the threads of a process, unless flags set them.

    On CPUs, the operations of several towers run at the same time. If there are as many towers as cores, each operation
    has one thread: sharing it would only move work between busy cores. (8 towers of ResNet-50 with a global batch of 32
    on 2 cores have 0.90 to 0.94 of the images/sec of one tower with two threads for each operation, 0.93 to 1.02 with
    one.) The images of a batch have one thread each whatever is chosen here (inputs/each_image.py).

    Args:
      kind: of the towers' devices. num_towers: those of this process.
      intra_of_process: threads within an operation if an earlier run of this process has set them: TensorFlow keeps
        them, so that a run to which no flag gives others has them too.
      updates_on_host: as for gpu_settings.host_threads.
      root: the folder that holds proc/ and sys/.
    """
    intra, inter = params.num_intra_threads, params.num_inter_threads
    given = [
        spelled(name, getattr(params, name))
        for name in ('num_intra_threads', 'num_inter_threads')
        if name in params.given
    ]
    if kind == 'gpu':
        intra, inter = host_threads(params, intra_of_process, updates_on_host=updates_on_host)
        return Threads(intra, inter, ' '.join(given) or 'GPUs start their own kernels')
    if intra is not None:
        return Threads(intra, inter, ' '.join(given))
    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    chosen = _for_cores(num_cores, cpu_limit(root), num_towers, inter)
    if intra_of_process is None or intra_of_process == chosen.intra_op:
        return chosen
    warning = None
    if (intra_of_process or num_cores) < (chosen.intra_op or num_cores):
        warning = (
            f'an operation has {counted(intra_of_process, "thread")}, as in an earlier run of this process, since '
            'TensorFlow keeps its threads until the process ends; start a new process for each run'
        )
    return Threads(intra_of_process, chosen.inter_op, 'an earlier run of this process had them', warning)


def _for_cores(num_cores: int, quota: float | None, num_towers: int, inter: int) -> Threads:
    if quota is not None and quota < num_cores:
        intra = 1 if num_towers >= quota else int(quota)
        reason = f'the CPU quota of the cgroup is {quota:.3g} cores, for {counted(num_towers, "tower")}'
        return Threads(intra, inter or max(2, math.ceil(quota)), reason)
    if num_towers == 1:
        return Threads(0, inter, 'one tower has all cores')
    shared = f'{num_towers} towers share {counted(num_cores, "core")}'
    return Threads(1 if num_towers >= num_cores else 0, inter, shared)
