"""--use_numa_affinity: the node for a process, from files like Linux's, and real bindings of
threads.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.files import write_files
from tests.support.outputs import refused
from tf_cnn.machine.numa import NumaBinding, choose_node, cores_by_node, gpu_nodes
from tf_cnn.machine.this_process import NUMA, THIS_PROCESS, ProcessEnvironment, ProcessSettings
from tf_cnn.plan.cluster_role import find_cluster_role
from tf_cnn.plan.devices import Devices
from tf_cnn.plan.params import Params
from tf_cnn.plan.process_settings import choose_binding

pytestmark = pytest.mark.unit

NODES: dict[int, tuple[int, ...]] = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
MINE = sorted(os.sched_getaffinity(0))
needs_two_cores = pytest.mark.skipif(len(MINE) < 2, reason='it needs two cores')


def machine_with(root: Path, cores_of_nodes: list[str], gpus: dict[str, str] | None = None) -> Path:
    """Writes the files of nodes with these cores, and of GPUs on the nodes of their addresses."""
    nodes, buses = 'sys/devices/system/node', 'sys/bus/pci/devices'
    files = {f'{nodes}/node{i}/cpulist': f'{cores}\n' for i, cores in enumerate(cores_of_nodes)}
    files |= {f'{nodes}/possible': '0-1\n', f'{buses}/0000:00:02.0/vendor': '0x8086\n'}
    for address, node in {**(gpus or {}), '0000:09:00.1': 'the sound of a GPU'}.items():
        kind = '0x030200' if address.endswith('0') else '0x040300'
        for name, value in {'vendor': '0x10de', 'class': kind, 'numa_node': node}.items():
            files[f'{buses}/{address}/{name}'] = f'{value}\n'
    return write_files(root, files)


def test_nodes_have_only_the_cores_that_the_process_may_use(tmp_path):
    root = machine_with(tmp_path, ['0-3,8-11', '4-7,12-15', ''])
    both = {0: (0, 1, 2, 3, 8, 9, 10, 11), 1: (4, 5, 6, 7, 12, 13, 14, 15)}
    assert cores_by_node(root, range(16)) == both
    assert cores_by_node(root, [2, 3, 9]) == {0: (2, 3, 9)}
    assert cores_by_node(tmp_path / 'nowhere', range(16)) == {}


def test_gpus_are_on_the_nodes_of_their_bus_numbers(tmp_path):
    buses = {'0000:07:00.0': '0', '0000:0a:00.0': '1', '0000:87:00.0': '1', '0000:8b:00.0': '-1'}
    root = machine_with(tmp_path, ['0', '1'], buses)
    assert gpu_nodes(root, {}) == [0, 1, 1, None]
    for visible, nodes in {'2,0': [1, 0], 'GPU-1234,1': [None, 1], '': []}.items():
        assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': visible}) == nodes
    # A container may have two of the GPUs of its host.
    for address in ('0000:0a:00.0', '0000:8b:00.0'):
        (root / 'proc/driver/nvidia/gpus' / address).mkdir(parents=True)
    assert gpu_nodes(root, {}) == [1, None]
    assert gpu_nodes(root, {'CUDA_VISIBLE_DEVICES': '0'}) == [1]


def test_the_node_for_a_process():
    for place, gpus, node in (
        ((0, 1), [1, 1], 1),
        # The GPUs decide, not the number of the process.
        ((0, 4), [1], 1),
        ((0, 2), None, 0),
        ((1, 2), None, 1),
        ((1, 4), None, 0),
        ((2, 4), None, 1),
        ((2, 3), None, 1),
    ):
        binding = NumaBinding(f'True (node {node}, 4 cores)', NODES[node])
        assert choose_node(NODES, place, gpus, 1) == binding, (place, gpus)


def test_a_process_that_is_not_bound_has_a_reason():
    for nodes, gpus, fact in (
        ({0: (0, 1)}, None, 'one NUMA node'),
        (NODES, [0, 1], 'several'),
        (NODES, [None], 'not known'),
        (NODES, [7], 'known'),
    ):
        choice = choose_node(nodes, (0, 2), gpus, 1)
        assert not choice.cores
        assert fact in choice.reason


def bind(
    root: Path,
    place: tuple[int, int],
    kind: str = 'cpu',
    count: int = 1,
    use_numa_affinity: bool = True,
) -> tuple[NumaBinding, set[int], list[str]]:
    """Binds a thread as a run does; returns the choice, the cores of the thread, and warnings."""
    towers = tuple(f'/{kind}:{index}' for index in range(count))
    environment = ProcessEnvironment({}, root=root)
    params = Params().with_values(use_numa_affinity=use_numa_affinity, device=kind)
    role = replace(find_cluster_role(params, environment, []), place_on_host=place)
    warnings: list[str] = []

    def choose_and_apply() -> tuple[NumaBinding, set[int], list[str]]:
        choice = choose_binding(params, environment, role, Devices(towers, towers), None, warnings)
        banner_text = (not choice.by_tensorflow and choice.banner_text) or False
        THIS_PROCESS.apply(
            ProcessSettings(values={NUMA: banner_text}, numa=choice.banner_text, cores=choice.cores)
        )
        return choice, os.sched_getaffinity(0), warnings

    # Binding a thread leaves the others as they are.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(choose_and_apply).result(30)


@pytest.mark.usefixtures('fresh_process')
@needs_two_cores
def test_a_process_is_bound_once_and_stays_bound(tmp_path):
    root = machine_with(tmp_path, [str(core) for core in MINE[:2]])
    text = 'True (node 1, 1 cores)'
    assert bind(root, (1, 2)) == (NumaBinding(text, (MINE[1],)), {MINE[1]}, [])
    # TensorFlow's threads stay bound in a second run.
    assert bind(root, (0, 2)) == (NumaBinding(text), set(MINE), [])
    with refused('--use_numa_affinity=False', '--use_numa_affinity=True (node 1, '):
        bind(root, (0, 2), use_numa_affinity=False)


@pytest.mark.usefixtures('fresh_process')
@needs_two_cores
@pytest.mark.parametrize(
    ('kind', 'count', 'cores', 'text'),
    [
        # It is bound to the node of its GPU.
        ('gpu', 1, MINE[1:2], 'True (node 1, 1 cores)'),
        # TensorFlow binds the devices of the only process.
        ('cpu', 3, [], 'True (cpu:0 on node 0, cpu:1 on node 1, cpu:2 on node 0)'),
    ],
)
def test_the_only_process_of_a_host_is_bound(tmp_path, kind, count, cores, text):
    gpus = {'0000:07:00.0': '1', '0000:0a:00.0': '0'}
    root = machine_with(tmp_path, [str(core) for core in MINE[:2]], gpus)
    choice = NumaBinding(text, tuple(cores), by_tensorflow=kind == 'cpu')
    assert bind(root, (0, 1), kind, count) == (choice, set(cores or MINE), [])
