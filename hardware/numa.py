"""NUMA nodes: which one a process should compute on, and binding it there. Does not import TensorFlow.

A core reaches the memory and the GPUs of its own node faster than those of others. Threads of a bound process run on
the cores of its node. So does the thread that first touches a page, and Linux takes the page from that thread's node
(set_mempolicy(2), the default policy): memory needs no setting of its own.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardware.gpus import listed_gpus
from hardware.kernel_files import numbers_in, read, read_number

_NODE = re.compile(r'node(\d+)')
# PCI's number of NVIDIA, and its classes of VGA and 3D controllers.
_NVIDIA, _DISPLAYS = '0x10de', ('0x0300', '0x0302')


@dataclass(frozen=True)
class Choice:
    """The node for a process: its number and its cores; or, if node is None, why the process stays where it is."""

    node: int | None
    cores: tuple[int, ...] = ()
    reason: str = ''


def nodes_of(root: Path, allowed: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The cores of each NUMA node that has some which this process may use.

    Args:
      root: the folder that holds sys/. allowed: the cores that the process may use.
    """
    found = {}
    for folder in (root / 'sys/devices/system/node').glob('node*'):
        if match := _NODE.fullmatch(folder.name):
            cores = tuple(sorted(set(numbers_in(read(folder / 'cpulist'))).intersection(allowed)))
            if cores:
                found[int(match[1])] = cores
    return dict(sorted(found.items()))


def gpu_nodes(root: Path, environ: Mapping[str, str]) -> list[int | None]:
    """The node of each GPU that CUDA shows to this process, in the order of their bus numbers; None if it is unknown.

    GPUs that CUDA_VISIBLE_DEVICES lists by other names than their numbers are unknown. Of the GPUs of the host, the
    driver's folders are those that a container has.
    """
    nodes: list[int | None] = []
    own = {folder.name for folder in (root / 'proc/driver/nvidia/gpus').glob('*')}
    for device in sorted((root / 'sys/bus/pci/devices').glob('*')):
        if own and device.name not in own:
            continue
        if read(device / 'vendor') == _NVIDIA and read(device / 'class').startswith(_DISPLAYS):
            node = read_number(device / 'numa_node')
            # The firmware of many machines with one node does not tell.
            nodes.append(node if node is not None and node >= 0 else None)
    listed = listed_gpus(environ)
    if listed is None:
        return nodes
    return [nodes[int(name)] if name.isdigit() and int(name) < len(nodes) else None for name in listed]


def choose_node(
    nodes: Mapping[int, tuple[int, ...]], place: tuple[int, int], gpus: Sequence[int | None] | None
) -> Choice:
    """The node for a process of a run: that of its GPUs; without GPUs, processes of one host are spread over the nodes.

    Args:
      place: the number of the process among those of its host, and how many these are.
      gpus: the node of each of its GPUs; None if it computes on the CPU.
    """
    if len(nodes) < 2:
        return Choice(None, reason='the cores that this process may use are on one NUMA node')
    if gpus is not None:
        node = gpus[0] if gpus else None
        if node is None or node not in nodes:
            return Choice(None, reason='the NUMA node of its GPUs is not known')
        if set(gpus) != {node}:
            return Choice(None, reason='its GPUs are on several NUMA nodes; start a process for the GPUs of each')
        return Choice(node, nodes[node])
    number, count = place
    if count == 1:
        return Choice(None)
    node = list(nodes)[number * len(nodes) // count]
    return Choice(node, nodes[node])


def bind(cores: Sequence[int]) -> None:
    """Binds the calling thread, and all threads that it and they start later, to these cores."""
    os.sched_setaffinity(0, cores)
