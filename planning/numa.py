"""--use_numa_affinity: which part of a run is bound to a NUMA node, and by whom."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from errors import UsageError
from hardware.numa import bind, choose_node, gpu_nodes, nodes_of
from planning.fixed import fix_for_process, fixed_for_process
from planning.machine import Machine

_FLAG = 'use_numa_affinity'


@dataclass(frozen=True)
class NumaBinding:
    """What was bound.

    Attributes:
      shown: for the banner; empty if nothing is bound.
      by_tensorflow: whether TensorFlow binds the threads of each device of the CPU itself.
      warning: why the flag has no effect; None if it has one.
    """

    shown: str = ''
    by_tensorflow: bool = False
    warning: str | None = None


def bind_process(
    wanted: bool, machine: Machine, place: tuple[int, int], environ: Mapping[str, str], root: Path = Path('/')
) -> NumaBinding:
    """Binds this process to the NUMA node that fits it, before TensorFlow starts its threads.

    The workers of a controller are servers, and only TensorFlow binds their devices.

    Args:
      wanted: the value of the flag.
      place: the number of the process among those of its host, and how many these are.
      environ: its CUDA_VISIBLE_DEVICES lists the GPUs of this process. root: the folder that holds sys/.

    Raises:
      UsageError: an earlier run bound this process, and this one asks for none.
    """
    bound = fixed_for_process(_FLAG)
    if not wanted:
        if bound:
            raise UsageError(
                f'--{_FLAG}=False: an earlier run in this process had {bound}, and it stays bound until it ends; '
                f'start a new process, or write --{_FLAG}=True for this run'
            )
        return NumaBinding()
    if bound:
        return NumaBinding(bound)
    if not machine.is_here:
        return NumaBinding()
    if not hasattr(os, 'sched_setaffinity'):
        return _idle('only Linux binds processes to cores')
    nodes = nodes_of(root, sorted(os.sched_getaffinity(0)))
    gpus = gpu_nodes(root, environ)[: len(machine.towers)] if machine.kind == 'gpu' else None
    choice = choose_node(nodes, place, gpus)
    if choice.node is not None:
        bind(choice.cores)
        shown = f'True (node {choice.node}, {len(choice.cores)} cores)'
        fix_for_process(_FLAG, shown)
        return NumaBinding(shown)
    if choice.reason:
        return _idle(choice.reason)
    # tensorflow/core/common_runtime/threadpool_device_factory.cc: device i is on node i modulo their number.
    numbers = [list(nodes)[index % len(nodes)] for index in range(len(machine.towers))]
    devices = ', '.join(f'cpu:{index} on node {node}' for index, node in enumerate(numbers))
    return NumaBinding(f'True ({devices})', by_tensorflow=True)


def _idle(reason: str) -> NumaBinding:
    return NumaBinding(warning=f'--{_FLAG}=True has no effect: {reason}')
