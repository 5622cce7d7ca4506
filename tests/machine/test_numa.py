"""--use_numa_affinity: the node for a process, from files as Linux has them, and real bindings of
threads.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.machines import write_files
from tests.support.outputs import check_line, refused
from tf_cnn.cluster.cluster_role import find_cluster_role
from tf_cnn.machine.numa import NumaBinding, choose_node, cores_by_node, gpu_nodes
from tf_cnn.machine.process_environment import ProcessEnvironment
from tf_cnn.machine.process_settings import choose_binding
from tf_cnn.machine.this_process import NUMA, THIS_PROCESS, ProcessSettings
from tf_cnn.run.devices import Devices
from tf_cnn.run.params import Params

pytestmark = pytest.mark.unit

NODES = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
MINE = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(MINE) < 2, reason='it needs two cores')


def machine_with(root: Path, cores_of_nodes: list[str], gpus: dict[str, str] | None = None) -> Path:
    files = {
        f'sys/devices/system/node/node{number}/cpulist': f'{cores}\n'
        for number, cores in enumerate(cores_of_nodes)
    }
    files |= {
        'sys/devices/system/node/possible': '0-1\n',
        'sys/bus/pci/devices/0000:00:02.0/vendor': '0x8086\n',
    }
    for address, node in {**(gpus or {}), '0000:09:00.1': 'the sound of a GPU'}.items():
        folder, kind = (
            f'sys/bus/pci/devices/{address}',
            '0x030200' if address.endswith('0') else '0x040300',
        )
        files |= {
            f'{folder}/vendor': '0x10de\n',
            f'{folder}/class': f'{kind}\n',
            f'{folder}/numa_node': f'{node}\n',
        }
    return write_files(root, files)


def test_the_cores_of_nodes_are_those_that_the_process_may_use(tmp_path: Path) -> None:
    root = machine_with(tmp_path, ['0-3,8-11', '4-7,12-15', ''])
    assert cores_by_node(root, range(16)) == {
        0: (0, 1, 2, 3, 8, 9, 10, 11),
        1: (4, 5, 6, 7, 12, 13, 14, 15),
    }
    assert cores_by_node(root, [2, 3, 9]) == {0: (2, 3, 9)}
    assert cores_by_node(tmp_path / 'nowhere', range(16)) == {}


def test_gpus_are_on_the_nodes_of_their_bus_numbers(tmp_path: Path) -> None:
    buses = {'0000:07:00.0': '0', '0000:0a:00.0': '1', '0000:87:00.0': '1', '0000:8b:00.0': '-1'}
    root = machine_with(tmp_path, ['0', '1'], buses)
    assert gpu_nodes(root, {}) == [0, 1, 1, None]
    assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': '2,0'}) == [1, 0]
    assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': 'GPU-1234,1'}) == [None, 1]
    assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': ''}) == []
    # Of a container with two of the GPUs of its host.
    for address in ('0000:0a:00.0', '0000:8b:00.0'):
        (root / 'proc/driver/nvidia/gpus' / address).mkdir(parents=True)
    assert gpu_nodes(root, {}) == [1, None]
    assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': '0'}) == [1]


@pytest.mark.parametrize(
    ('place', 'gpus', 'node'),
    [
        ((0, 1), [1, 1], 1),
        # The GPUs decide, not the number of the process.
        ((0, 4), [1], 1),
        ((0, 2), None, 0),
        ((1, 2), None, 1),
        ((1, 4), None, 0),
        ((2, 4), None, 1),
        ((2, 3), None, 1),
    ],
)
def test_the_node_for_a_process(
    place: tuple[int, int], gpus: list[int | None] | None, node: int
) -> None:
    assert choose_node(NODES, place, gpus, 1) == NumaBinding(
        f'True (node {node}, 4 cores)', NODES[node]
    )


@pytest.mark.parametrize(
    ('nodes', 'gpus', 'fact'),
    [
        ({0: (0, 1)}, None, 'one NUMA node'),
        (NODES, [0, 1], 'several'),
        (NODES, [None], 'not known'),
        (NODES, [7], 'known'),
    ],
)
def test_why_a_process_stays_where_it_is(
    nodes: dict[int, tuple[int, ...]], gpus: Any, fact: str
) -> None:
    choice = choose_node(nodes, (0, 2), gpus, 1)
    assert not choice.cores
    assert fact in choice.reason


def in_a_thread(work: Callable[[], Any]) -> tuple[Any, set[int]]:
    """What it returns, and the cores of its thread afterwards; binding a thread leaves the others
    as they are.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (work(), os.sched_getaffinity(0))).result(30)


def binding(
    root: Path, place: tuple[int, int], kind: str = 'cpu', count: int = 1, wanted: bool = True
) -> tuple[NumaBinding, list[str]]:
    """What is bound, after it has been done to the thread that asks; and the warnings."""
    towers = tuple(f'/{kind}:{index}' for index in range(count))
    environment = ProcessEnvironment({}, root=root)
    params = Params().replace(use_numa_affinity=wanted, device=kind)
    processes = replace(find_cluster_role(params, environment, []), place_on_host=place)
    warnings: list[str] = []
    found = choose_binding(params, environment, processes, Devices(towers, towers), None, warnings)
    shown = (not found.by_tensorflow and found.banner_text) or False
    THIS_PROCESS.apply(
        ProcessSettings(flags={NUMA: shown}, numa=found.banner_text, cores=found.cores)
    )
    return found, warnings


@pytest.mark.usefixtures('fresh_process')
@needs_two_cores
def test_a_process_is_bound_once_and_stays_bound(tmp_path: Path) -> None:
    root = machine_with(tmp_path, [str(MINE[0]), str(MINE[1])])
    found, cores = in_a_thread(lambda: binding(root, (1, 2)))
    assert cores == {MINE[1]}
    assert found == (NumaBinding('True (node 1, 1 cores)', (MINE[1],)), [])
    # TensorFlow's threads are bound; so is a second run.
    again, cores = in_a_thread(lambda: binding(root, (0, 2)))
    assert again == (NumaBinding('True (node 1, 1 cores)'), [])
    assert cores == set(MINE)
    with refused('--use_numa_affinity=False', '--use_numa_affinity=True (node 1, '):
        binding(root, (0, 2), wanted=False)


@pytest.mark.usefixtures('fresh_process')
@needs_two_cores
@pytest.mark.parametrize(
    ('kind', 'count', 'bound', 'expected'),
    [
        # To the node of its GPU.
        ('gpu', 1, MINE[1:2], NumaBinding('True (node 1, 1 cores)', tuple(MINE[1:2]))),
        # TensorFlow binds the devices of the only process.
        (
            'cpu',
            3,
            MINE,
            NumaBinding(
                'True (cpu:0 on node 0, cpu:1 on node 1, cpu:2 on node 0)', by_tensorflow=True
            ),
        ),
    ],
)
def test_the_only_process_of_a_host_is_bound(
    tmp_path: Path, kind: str, count: int, bound: list[int], expected: NumaBinding
) -> None:
    root = machine_with(
        tmp_path, [str(MINE[0]), str(MINE[1])], {'0000:07:00.0': '1', '0000:0a:00.0': '0'}
    )
    found, cores = in_a_thread(lambda: binding(root, (0, 1), kind, count))
    assert (found, cores) == ((expected, []), set(bound))


@pytest.mark.usefixtures('fresh_process')
def test_on_one_node_there_is_nothing_to_bind(tmp_path: Path) -> None:
    found, (line,) = binding(machine_with(tmp_path, [f'0-{MINE[-1]}']), (1, 2))
    assert not found.banner_text
    check_line(line, '--use_numa_affinity=True', 'one NUMA node')
    assert binding(tmp_path, (0, 1), wanted=False) == (NumaBinding(), [])
