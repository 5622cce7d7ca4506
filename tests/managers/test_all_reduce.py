"""Every algorithm with every packing gives each tower the sums of NumPy, over its own links."""

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus, open_session
from tests.support.outputs import refused
from tf_cnn.managers.all_reduce import (
    Algorithm,
    all_reduce,
    compact_algorithm,
    copy_algorithm,
    halves_algorithm,
    make_algorithm,
)
from tf_cnn.managers.all_reduce_spec import SizeRange, parse_spec
from tf_cnn.managers.config import VariableConfig

pytestmark = pytest.mark.graph

# Sizes below the number of towers, sizes that it does not divide, and a scalar. In bytes: 20, 4,
# 140, 4, 256, 96, 12.
SHAPES: tuple[list[int], ...] = ([5], [1], [5, 7], [], [2, 4, 8], [24], [1, 3])
# Flags, and the sizes of the buckets of these shapes.
PACKINGS: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [5, 1, 35, 1, 64, 24, 3]),
    ({'gradient_repacking': 1}, [133]),
    ({'gradient_repacking': 2}, [67, 66]),
    ({'gradient_repacking': 5}, [27, 27, 27, 26, 26]),
    ({'gradient_repacking': 1000}, [1] * 133),
    ({'agg_small_grads_max_bytes': 139}, [6, 35, 1, 64, 27]),
    ({'agg_small_grads_max_bytes': 140}, [42, 64, 27]),
    ({'agg_small_grads_max_bytes': 140, 'agg_small_grads_max_group': 2}, [6, 36, 64, 27]),
    ({'agg_small_grads_max_bytes': 140, 'agg_small_grads_max_group': 1}, [5, 1, 35, 1, 64, 24, 3]),
]
# By algorithms within and between three workers: how many tensors go from one worker to another.
HIERARCHIES = {
    'psgpu/xring': 2 * 2 * 3,
    'xring/psgpu': 4,
    'pscpu/pscpu#2': 2 * 4,
    'xring#2/xring': 2 * 2 * 3,
    'nccl/xring': 2 * 2 * 3,
}
# A value of --all_reduce_spec, or the leaders of two halves.
Way = str | list[tuple[int, int]]
SPECS = ('pscpu', 'psgpu', 'xring', 'pscpu:13:xring:140:psgpu#4')


def make(way: Way, towers: Sequence[str], host: str = '/device:CPU:0') -> Algorithm:
    if isinstance(way, str):
        return make_algorithm(parse_spec(way), towers, host, [host] * 3 if '/' in way else ())
    return halves_algorithm(towers, way)


def on_each(
    towers: Sequence[str], function: Callable[[Any], Any], values: Iterable[Any]
) -> list[Any]:
    """Calls a function on each tower, with the tower's value."""
    results = []
    for tower, value in zip(towers, values, strict=True):
        with tf.device(tower):
            results.append(function(value))
    return results


def check_sums(way: Way, num_towers: int, packings: Iterable[dict[str, Any]]) -> None:
    """Compares the sums of tensors of all shapes with NumPy's."""
    random, towers = np.random.default_rng(num_towers), cpus(num_towers)
    values = [[random.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in towers]
    expected = [np.sum(each, axis=0, dtype=np.float64) for each in zip(*values, strict=True)]
    with tf.Graph().as_default(), open_session(num_towers) as session:
        gradients = on_each(towers, lambda tensors: [*map(tf.constant, tensors)], values)
        sums = session.run(
            [
                all_reduce(gradients, towers, make(way, towers), VariableConfig(**flags))
                for flags in packings
            ]
        )
    for flags, of_towers in zip(packings, sums, strict=True):
        assert len(of_towers) == num_towers
        for tensors in of_towers:
            for total, right in zip(tensors, expected, strict=True):
                assert total.shape == right.shape
                np.testing.assert_allclose(total, right, rtol=1e-5, atol=1e-6, err_msg=str(flags))


@pytest.mark.parametrize(
    ('way', 'num_towers'),
    [
        *itertools.product(SPECS, (2, 3, 4)),
        ('xring#2', 3),
        # Three workers with two towers each.
        *((spec, 6) for spec in HIERARCHIES if 'nccl' not in spec),
        ([(0, 1)], 2),
        ([(0, 2), (1, 3)], 4),
        ([(0, 4), (1, 5), (2, 6), (3, 7)], 8),
        # The halves of a cloud's machine.
        ([(0, 5), (2, 7)], 8),
    ],
    ids=str,
)
def test_every_tower_gets_the_sums(way, num_towers):
    check_sums(way, num_towers, [{}])


@pytest.mark.long
@pytest.mark.parametrize('way', ['xring', SPECS[-1]])
def test_every_packing_has_the_same_sums(way):
    # Rings of many buckets would take seconds.
    check_sums(way, 3, [flags for flags, sizes in PACKINGS if len(sizes) < 100])


@pytest.mark.parametrize('transfer', [tf.float16, tf.bfloat16])
def test_the_sums_of_16_bits_are_float32_again(transfer):
    towers = cpus(3)
    values = np.random.default_rng(0).normal(size=[3, 5, 4]).astype(np.float32)
    with tf.Graph().as_default() as graph, open_session(3) as session:
        algorithm = compact_algorithm(copy_algorithm(towers[:1]), towers, transfer)
        sums = algorithm([*map(tf.constant, values)], 0)
        totals = session.run(sums)
    assert [total.device for total in sums] == towers
    summands = [value for op in graph.get_operations() if op.type == 'AddN' for value in op.inputs]
    assert [(value.dtype, value.device) for value in summands] == [
        (transfer, tower) for tower in towers
    ]
    rounded = values.astype(transfer.as_numpy_dtype).astype(np.float32)
    for total in totals:
        assert total.dtype == np.float32
        np.testing.assert_allclose(total, rounded.sum(0), rtol=0, atol=0.02)
        assert not np.allclose(total, values.sum(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(('flags', 'sizes'), PACKINGS, ids=str)
def test_gradients_travel_in_the_expected_buckets(flags, sizes):
    reduced: list[tuple[int, int]] = []

    def algorithm(tensors: Sequence[Any], index: int) -> list[Any]:
        reduced.append((index, tensors[0].shape.num_elements()))
        return list(tensors)

    with tf.Graph().as_default():
        gradients = [[tf.zeros(shape) for shape in SHAPES]] * 2
        all_reduce(gradients, cpus(2), algorithm, VariableConfig(**flags))
    # The last gradients are ready first.
    assert reduced[::-1] == list(enumerate(sizes))


def test_tensors_take_the_links_of_their_algorithm():
    """Links are named by both devices; the host is device 9. A tensor has 24 values."""
    halves = [(0, 2), (1, 3)]
    cases: list[tuple[Way, int, int, str, int]] = [
        # Each link of a ring carries its even share, also of two rings at a time.
        ('xring', 4, 0, '01 12 23 30', 2 * 3 * 6),
        ('xring#2', 4, 0, '01 12 23 30', 2 * 3 * 6),
        # The halves exchange sums over one pair of links; reductions take the pairs in turn.
        (halves, 4, 0, '01 10 23 32 02 20', 24),
        (halves, 4, 1, '01 10 23 32 13 31', 24),
        ('pscpu', 3, 2, '09 19 29 90 91 92', 24),
        ('psgpu', 3, 0, '10 20 01 02', 24),
        ('psgpu', 3, 1, '01 21 10 12', 24),
        ('psgpu', 3, 3, '10 20 01 02', 24),
        # Each tower sends three of the four parts of a tensor, and receives three sums.
        ('psgpu#4', 4, 1, '01 02 03 10 12 13 20 21 23 30 31 32', 12),
        # Each range of sizes has its own algorithm; the tensor has 96 bytes.
        ('pscpu:97:xring:98:psgpu', 3, 1, '09 19 29 90 91 92', 24),
        ('pscpu:96:xring:97:psgpu', 3, 1, '01 12 20', 2 * 2 * 8),
        ('pscpu:95:xring:96:psgpu', 3, 1, '01 21 10 12', 24),
    ]
    for way, num_towers, index, links, num_values in cases:
        towers = cpus(num_towers)
        values_by_link: dict[str, dict[str, int]] = collections.defaultdict(dict)
        with tf.Graph().as_default() as graph:
            zeros = on_each(towers, tf.zeros, [[24]] * num_towers)
            on_each(towers, tf.identity, make(way, towers, '/device:CPU:9')(zeros, index))
        for op in graph.get_operations():
            for value in op.inputs:
                if value.device != op.device and value.dtype == tf.float32:
                    link = value.device[-1] + op.device[-1]
                    values_by_link[link][value.name] = value.shape.num_elements()
        counts = {link: sum(values.values()) for link, values in values_by_link.items()}
        assert counts == dict.fromkeys(links.split(), num_values), (way, index)


def sum_of_workers(spec: str) -> tf.Graph:
    """Returns the graph of a sum over three workers with two towers each."""
    hosts = [f'/job:worker/replica:0/task:{worker}/device:CPU:0' for worker in range(3)]
    kind = 'GPU' if 'nccl' in spec else 'CPU'
    towers = [host.replace('CPU:0', f'{kind}:{tower}') for host in hosts for tower in range(1, 3)]
    with tf.Graph().as_default() as graph:
        algorithm = make_algorithm(parse_spec(spec), towers, '/job:controller/device:CPU:0', hosts)
        on_each(towers, tf.identity, algorithm(on_each(towers, tf.zeros, [[10]] * 6), 1))
    return graph


@pytest.mark.parametrize('spec', HIERARCHIES)
def test_one_tower_of_each_worker_exchanges_its_sum_with_the_others(spec):
    across = set()
    for op in sum_of_workers(spec).get_operations():
        for value in op.inputs:
            sender, receiver = map(tf.DeviceSpec.from_string, (value.device, op.device))
            assert (sender.job, receiver.job) == ('worker', 'worker'), 'not by the controller'
            if sender.task != receiver.task and value.dtype == tf.float32:
                across.add((value.name, receiver.task))
    assert len(across) == HIERARCHIES[spec]


def test_a_session_runs_the_nccl_kernels_of_all_gpus_of_a_worker():
    operations = sum_of_workers('nccl/xring').get_operations()
    reductions = [op for op in operations if op.type == 'NcclAllReduce']
    assert [op.get_attr('num_devices') for op in reductions] == [2] * 6
    # One sum of each worker is used.
    used = {before.name for op in operations for before in op.control_inputs}
    used |= {value.op.name for op in operations for value in op.inputs}
    assert {op.name for op in reductions} <= used


def test_a_spec_gives_each_range_of_sizes_its_algorithm():
    assert parse_spec('nccl') == (SizeRange('nccl', None),)
    assert parse_spec('pscpu:100:xring')[0].limit_bytes == 100
    assert parse_spec('pscpu:32k:xring:4M:psgpu') == (
        SizeRange('pscpu', 32 * 1024),
        SizeRange('xring', 4 * 1024 * 1024),
        SizeRange('psgpu', None),
    )
    assert parse_spec('pscpu#2:2g:nccl/xring#3') == (
        SizeRange('pscpu', 2 << 30, 2),
        SizeRange('nccl', None, 1, 'xring', 3),
    )


@pytest.mark.parametrize(
    'spec',
    [
        '',
        'ring',
        'pscpu:32k',
        'pscpu:xring:psgpu',
        'pscpu:32x:xring',
        'pscpu:-1:xring',
        'pscpu:4k:xring:4k:psgpu',
        'pscpu:4m:xring:4k:psgpu',
        'nccl/xring/pscpu',
        'nccl/',
        'xring#',
        'xring#0',
        'pscpu:4k:collective#2',
    ],
)
def test_a_malformed_spec_is_refused_with_the_known_algorithms(spec):
    with refused(f'--all_reduce_spec={spec}', 'pscpu', 'psgpu', 'xring', 'nccl'):
        parse_spec(spec)
