"""Every algorithm, with every packing, computes the sums of NumPy on every tower, over the links
that it should use.
"""

import collections
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
HOST = '/device:CPU:0'

Make = Callable[[Sequence[str]], Algorithm]


def of_spec(spec: str, host: str = HOST) -> Make:
    return lambda towers: make_algorithm(parse_spec(spec), towers, host)


def in_halves(*leaders: tuple[int, int]) -> Make:
    return lambda towers: halves_algorithm(towers, leaders)


def on_each(
    towers: Sequence[str], function: Callable[[Any], Any], values: Iterable[Any]
) -> list[Any]:
    """Calls a function with the value of each tower, on that tower."""
    results = []
    for tower, value in zip(towers, values, strict=True):
        with tf.device(tower):
            results.append(function(value))
    return results


PACKINGS = {
    'as they are': VariableConfig(),
    'one chunk': VariableConfig(gradient_repacking=1),
    'two chunks': VariableConfig(gradient_repacking=2),
    'five chunks': VariableConfig(gradient_repacking=5),
    'small ones in twos': VariableConfig(
        agg_small_grads_max_bytes=140, agg_small_grads_max_group=2
    ),
    'small ones in tens': VariableConfig(
        agg_small_grads_max_bytes=100, agg_small_grads_max_group=10
    ),
}
SPECS = ('pscpu', 'psgpu', 'xring', 'pscpu:13:xring:140:psgpu#4')
CASES: dict[str, tuple[Make, int]] = {
    **{f'{spec}-{count}': (of_spec(spec), count) for spec in SPECS for count in (1, 2, 3, 4)},
    'xring#2': (of_spec('xring#2'), 3),
    'halves-2': (in_halves((0, 1)), 2),
    'halves-4': (in_halves((0, 2), (1, 3)), 4),
    'halves-8': (in_halves(*((leader, 4 + leader) for leader in range(4))), 8),
    'halves of a cloud': (in_halves((0, 5), (2, 7)), 8),
}


@pytest.mark.long
@pytest.mark.parametrize('case', CASES)
def test_every_tower_gets_the_sums(case: str) -> None:
    make, num_towers = CASES[case]
    random, towers = np.random.default_rng(num_towers), cpus(num_towers)
    values = [[random.normal(size=shape).astype(np.float32) for shape in SHAPES] for _ in towers]
    expected = [
        np.sum(of_towers, axis=0, dtype=np.float64) for of_towers in zip(*values, strict=True)
    ]
    with tf.Graph().as_default(), open_session(num_towers) as session:
        gradients = on_each(towers, lambda own: [tf.constant(value) for value in own], values)
        sums = session.run(
            {
                packed: all_reduce(gradients, towers, make(towers), packing)
                for packed, packing in PACKINGS.items()
            }
        )
    for packed, per_tower in sums.items():
        assert len(per_tower) == num_towers
        for own in per_tower:
            for total, right in zip(own, expected, strict=True):
                assert total.shape == right.shape
                np.testing.assert_allclose(total, right, rtol=1e-5, atol=1e-6, err_msg=packed)


@pytest.mark.parametrize('transfer', [tf.float16, tf.bfloat16])
def test_the_sums_of_16_bits_are_float32_again(transfer: tf.DType) -> None:
    towers = cpus(3)
    values = np.random.default_rng(0).normal(size=[3, 5, 4]).astype(np.float32)
    with tf.Graph().as_default() as graph, open_session(3) as session:
        sums = compact_algorithm(copy_algorithm(towers[:1]), towers, transfer)(
            [tf.constant(value) for value in values], 0
        )
        assert [total.device for total in sums] == towers
        totals = session.run(sums)
        sent = [value for op in graph.get_operations() if op.type == 'AddN' for value in op.inputs]
    assert [(value.dtype, value.device) for value in sent] == [
        (transfer, tower) for tower in towers
    ]
    rounded = np.float32(values.astype(transfer.as_numpy_dtype))
    for total in totals:
        assert total.dtype == np.float32
        np.testing.assert_allclose(total, rounded.sum(0), rtol=0, atol=0.02)
        assert not np.allclose(total, values.sum(0), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ('packing', 'sizes'),
    [
        (VariableConfig(), [5, 1, 35, 1, 64, 24, 3]),
        (VariableConfig(gradient_repacking=1), [133]),
        (VariableConfig(gradient_repacking=2), [67, 66]),
        (VariableConfig(gradient_repacking=5), [27, 27, 27, 26, 26]),
        (VariableConfig(gradient_repacking=1000), [1] * 133),
        (VariableConfig(agg_small_grads_max_bytes=139), [6, 35, 1, 64, 27]),
        (VariableConfig(agg_small_grads_max_bytes=140), [42, 64, 27]),
        (
            VariableConfig(agg_small_grads_max_bytes=140, agg_small_grads_max_group=2),
            [6, 36, 64, 27],
        ),
        (
            VariableConfig(agg_small_grads_max_bytes=140, agg_small_grads_max_group=1),
            [5, 1, 35, 1, 64, 24, 3],
        ),
    ],
)
def test_gradients_travel_in_the_expected_buckets(
    packing: VariableConfig, sizes: list[int]
) -> None:
    reduced: list[tuple[int, int]] = []

    def algorithm(tensors: Sequence[Any], index: int) -> list[Any]:
        reduced.append((index, int(np.prod(tensors[0].shape.as_list()))))
        return list(tensors)

    with tf.Graph().as_default():
        all_reduce([[tf.zeros(shape) for shape in SHAPES]] * 2, cpus(2), algorithm, packing)
    # The last gradients are ready first.
    assert reduced[::-1] == list(enumerate(sizes))


def values_sent(make: Make, num_towers: int, size: int, index: int = 0) -> dict[str, int]:
    """How many float32 go from one device to another, by the numbers of both: '01'. Each tensor
    counts once.
    """
    towers = cpus(num_towers)
    with tf.Graph().as_default() as graph:
        on_each(
            towers,
            tf.identity,
            make(towers)(on_each(towers, tf.zeros, [[size]] * num_towers), index),
        )
        links: dict[str, dict[str, int]] = collections.defaultdict(dict)
        for op in graph.get_operations():
            for value in op.inputs:
                if value.device != op.device and value.dtype == tf.float32:
                    links[value.device[-1] + op.device[-1]][value.name] = value.shape.num_elements()
    return {link: sum(values.values()) for link, values in links.items()}


def by_way_of(place: str, towers: str) -> set[str]:
    """The links from towers to a device and back."""
    return {link for tower in set(towers) - {place} for link in (tower + place, place + tower)}


def test_tensors_take_the_links_of_their_algorithm() -> None:
    # Each link of a ring carries its even share, also of two rings at a time, each with half of the
    # tensor.
    for spec in ('xring', 'xring#2'):
        assert values_sent(of_spec(spec), 4, 40) == dict.fromkeys(
            ['01', '12', '23', '30'], 2 * 3 * 10
        )
    # Halves meet over one pair of links, and reductions take pairs in turn.
    for index, leaders in enumerate(('02', '13', '02')):
        sent = values_sent(in_halves((0, 2), (1, 3)), 4, 6, index)
        assert {link for link in sent if (link[0] in '01') != (link[1] in '01')} == {
            leaders,
            leaders[::-1],
        }
        assert set(sent.values()) == {6}
    # The host is device 9.
    assert values_sent(of_spec('pscpu', '/device:CPU:9'), 3, 6, index=2) == dict.fromkeys(
        by_way_of('9', '012'), 6
    )
    for index, place in enumerate('0120'):
        assert values_sent(of_spec('psgpu'), 3, 6, index) == dict.fromkeys(
            by_way_of(place, '012'), 6
        )
    # Each range of sizes goes its own way.
    ranges = of_spec('pscpu:20:xring:40:psgpu', '/device:CPU:9')
    ways = [set(values_sent(ranges, 3, size, index=1)) for size in (4, 5, 9, 10)]
    assert ways == [by_way_of('9', '012'), *[{'01', '12', '20'}] * 2, by_way_of('1', '012')]
    # Three of the four parts of a tensor go to others, and three sums come back to each.
    links = {left + right for left in '0123' for right in '0123' if left != right}
    assert values_sent(of_spec('psgpu#4'), 4, 40, index=1) == dict.fromkeys(links, 20)


@pytest.mark.parametrize(
    'spec', ['psgpu/xring', 'xring/psgpu', 'pscpu/pscpu#2', 'xring#2/xring', 'nccl/xring']
)
def test_workers_sum_among_themselves_first(spec: str) -> None:
    hosts = [f'/job:worker/replica:0/task:{worker}/device:CPU:0' for worker in range(3)]
    kind = 'GPU' if 'nccl' in spec else 'CPU'
    towers = [host.replace('CPU:0', f'{kind}:{tower}') for host in hosts for tower in range(1, 3)]
    random = np.random.default_rng(0)
    values = random.normal(size=[6, 10]).astype(np.float32)
    across = set()
    with tf.Graph().as_default() as graph:
        algorithm = make_algorithm(parse_spec(spec), towers, '/job:controller/device:CPU:0', hosts)
        on_each(towers, tf.identity, algorithm(on_each(towers, tf.constant, values), 1))
        for op in graph.get_operations():
            for value in op.inputs:
                places = [tf.DeviceSpec.from_string(device) for device in (value.device, op.device)]
                assert all(place.job == 'worker' for place in places), (
                    'nothing goes by way of the controller'
                )
                if places[0].task != places[1].task and value.dtype == tf.float32:
                    across.add((value.name, places[1].task))
        reductions = [op for op in graph.get_operations() if op.type == 'NcclAllReduce']
        # A session runs the kernels of all GPUs, although one sum of each worker is used.
        used = {before.name for op in graph.get_operations() for before in op.control_inputs}
        used |= {value.op.name for op in graph.get_operations() for value in op.inputs}
        assert {op.name for op in reductions} <= used
        assert len(reductions) == (6 if 'nccl' in spec else 0)
        assert all(op.get_attr('num_devices') == 2 for op in reductions)
    # Of the two towers of each worker one exchanges its sum with the others.
    ring, star = 2 * 2 * 3, 4
    assert len(across) == {'psgpu/xring': ring, 'xring/psgpu': star, 'pscpu/pscpu#2': 2 * star}.get(
        spec, ring
    )
    if 'nccl' in spec:
        return
    with tf.Graph().as_default(), open_session(7) as session:
        local = [f'/device:CPU:{number}' for number in range(1, 7)]
        algorithm = make_algorithm(parse_spec(spec), local, HOST, [HOST] * 3)
        totals = session.run(algorithm([tf.constant(value) for value in values], 1))
    for total in totals:
        np.testing.assert_allclose(total, values.sum(0), rtol=1e-5, atol=1e-6)


def test_one_tower_keeps_its_tensors_as_they_are() -> None:
    with tf.Graph().as_default():
        gradients = [tf.zeros([2]), tf.zeros([3])]
        for spec in ('nccl', 'xring', 'pscpu:1k:psgpu'):
            sums = all_reduce(
                [gradients],
                cpus(1),
                make_algorithm(parse_spec(spec), cpus(1), HOST),
                VariableConfig(),
            )
            assert [id(total) for total in sums[0]] == [id(gradient) for gradient in gradients]


def test_a_spec_gives_each_range_of_sizes_its_algorithm() -> None:
    assert parse_spec('nccl') == (SizeRange('nccl', None),)
    ranges = (
        SizeRange('pscpu', 32 * 1024),
        SizeRange('xring', 4 * 1024 * 1024),
        SizeRange('psgpu', None),
    )
    assert parse_spec('pscpu:32k:xring:4M:psgpu') == ranges
    assert parse_spec('pscpu:100:xring')[0].limit_bytes == 100
    assert parse_spec('pscpu#2:2g:nccl/xring#3') == (
        SizeRange('pscpu', 2 << 30, 2),
        SizeRange('nccl', None, 1, 'xring', 3),
    )


@pytest.mark.parametrize(
    'spec',
    [
        *(
            '',
            'ring',
            'pscpu:32k',
            'pscpu:xring:psgpu',
            'pscpu:32x:xring',
            'pscpu:-1:xring',
            'pscpu:4k:xring:4k:psgpu',
        ),
        *(
            'pscpu:4m:xring:4k:psgpu',
            'nccl/xring/pscpu',
            'nccl/',
            'xring#',
            'xring#0',
            'pscpu:4k:collective#2',
        ),
    ],
)
def test_a_malformed_spec_is_refused_with_the_known_algorithms(spec: str) -> None:
    with refused(f'--all_reduce_spec={spec}', 'pscpu', 'psgpu', 'xring', 'nccl'):
        parse_spec(spec)
