"""Chooses the NUMA node of a process, and binds the process to it. Does not import
TensorFlow.

A core reaches the memory and the GPUs of its node fastest. Memory
needs no setting: Linux takes a page from the node of the thread that first touches it
(set_mempolicy(2), the default policy).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.machine.gpus import gpus_on_bus, listed_gpus
from tf_cnn.system.kernel_files import parse_number_list, read_number, read_text

_NODE = re.compile(r'node(\d+)')


@dataclass(frozen=True)
class NumaBinding:
    """The NUMA binding of a process, or the reason why there is none."""

    banner_text: str = ''
    # The cores to bind this process to; empty if there is nothing to do.
    cores: tuple[int, ...] = ()
    # Whether TensorFlow itself binds the threads of each CPU device.
    by_tensorflow: bool = False
    reason: str = ''


def cores_by_node(root: Path, allowed: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Returns the allowed cores of each NUMA node that has some."""
    nodes = {}
    for folder in (root / 'sys/devices/system/node').glob('node*'):
        if match := _NODE.fullmatch(folder.name):
            cores = tuple(
                sorted(set(parse_number_list(read_text(folder / 'cpulist'))).intersection(allowed))
            )
            if cores:
                nodes[int(match[1])] = cores
    return dict(sorted(nodes.items()))


def gpu_nodes(root: Path, environ: Mapping[str, str]) -> list[int | None]:
    """Returns the node of each GPU that CUDA shows to this process, in the order of their bus
    numbers; None if unknown.

    The nodes of GPUs that CUDA_VISIBLE_DEVICES does not list by number are unknown. In a container,
    only the GPUs with a folder of the driver count.
    """
    driver_gpus = {folder.name for folder in (root / 'proc/driver/nvidia/gpus').glob('*')}
    numbers = [
        read_number(gpu / 'numa_node')
        for gpu in gpus_on_bus(root)
        if not driver_gpus or gpu.name in driver_gpus
    ]
    # The firmware of many machines with one node reports -1.
    nodes = [None if node is None or node < 0 else node for node in numbers]
    listed = listed_gpus(environ)
    if listed is None:
        return nodes
    return [
        nodes[int(name)] if name.isdigit() and int(name) < len(nodes) else None for name in listed
    ]


def choose_node(
    nodes: Mapping[int, tuple[int, ...]],
    rank_and_size: tuple[int, int],
    gpus: Sequence[int | None] | None,
    num_devices: int,
) -> NumaBinding:
    """Binds a process to the node of its GPUs; without GPUs, the processes of a host are spread
    over its nodes.

    place is (local rank, local size). gpus are the nodes of its GPUs; None if it computes on
    num_devices devices of the CPU. TensorFlow binds these if it is the only process of its host.
    """
    if len(nodes) < 2:
        return NumaBinding(reason='the cores that this process may use are on one NUMA node')
    if gpus is not None:
        node = gpus[0] if gpus else None
        if node is None or node not in nodes:
            return NumaBinding(reason='the NUMA node of its GPUs is not known')
        if set(gpus) != {node}:
            return NumaBinding(
                reason='its GPUs are on several NUMA nodes; start a process for the GPUs of each'
            )
    else:
        number, count = rank_and_size
        if count == 1:
            # tensorflow/core/common_runtime/threadpool_device_factory.cc: device i is on node i
            # modulo their number.
            devices = (
                f'cpu:{index} on node {[*nodes][index % len(nodes)]}'
                for index in range(num_devices)
            )
            return NumaBinding(f'True ({", ".join(devices)})', by_tensorflow=True)
        node = list(nodes)[number * len(nodes) // count]
    return NumaBinding(f'True (node {node}, {len(nodes[node])} cores)', nodes[node])
