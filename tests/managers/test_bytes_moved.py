"""What a step moves between the tasks of a cluster, and that the banner counts these bytes."""

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus
from tests.support.networks import (
    COLLECTIVE,
    CONTROLLED,
    NUM_SERVERS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    Built,
    build,
    needed_by,
    normalised,
    task,
    wide,
)
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.managers.config import VariableConfig

pytestmark = pytest.mark.graph


def crossings(built: Built, way: str) -> list[tf.Tensor]:
    """The tensors that a step sends 'worker to ps' or 'ps to worker', once for each receiver.
    Scalars do not count.
    """
    found: dict[tuple[str, int], tf.Tensor] = {}
    for op in needed_by(built.step.fetches.ops):
        place = tf.DeviceSpec.from_string(op.device)
        for value in op.inputs:
            job = tf.DeviceSpec.from_string(value.op.device).job
            assert job
            assert place.job
            if f'{job} to {place.job}' == way and value.shape.rank:
                found[value.name, place.task] = value
    return list(found.values())


def total_bytes(tensors: Iterable[tf.Tensor]) -> int:
    return sum(value.shape.num_elements() * value.dtype.size for value in tensors)


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_one_value_and_one_gradient_of_each_variable_cross_and_their_bytes_are_told(
    mode: str, transfer: Any
) -> None:
    workers = [
        build(mode, worker, network=wide, transfer=transfer, devices=cpus(3))
        for worker in range(NUM_WORKERS)
    ]
    moved = 0
    for built in workers:
        parts = [
            list(part.variable.shape)
            for variable in built.manager.trainable_variables_on_device(0)
            for part in built.manager.slices()[variable.name]
        ]
        # The largest weight is cut in twelve where values return early, else in one part for each
        # server.
        assert len(parts) == (4 + NUM_SERVERS - 1 if mode == PS else 4 + 11)
        for way in ('ps to worker', 'worker to ps'):
            crossed = crossings(built, way)
            assert sorted(value.shape.as_list() for value in crossed) == sorted(parts)
            assert {value.dtype for value in crossed} == {transfer or tf.float32}
            moved += total_bytes(crossed)
    assert [built.step.transfer.bytes_per_step for built in workers] == [moved] * NUM_WORKERS


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_travel_in_32_bits_even_if_the_rest_is_rounded(mode: str) -> None:
    # They change by less than 16 bits hold, and would never move.
    chief, other = (
        build(mode, worker, network=normalised, transfer=tf.bfloat16)
        for worker in range(NUM_WORKERS)
    )
    for way in ('ps to worker', 'worker to ps'):
        dtypes = Counter(value.dtype for value in crossings(chief, way))
        assert dtypes == {tf.bfloat16: 5, tf.float32: 2}
        assert {value.dtype for value in crossings(other, way)} == {tf.bfloat16}


FORWARD_ONLY: dict[str, Any] = {'network': normalised, 'forward_only': True}
# The second variable is in parts.
EXCHANGED: dict[str, Any] = {'exchanged': [('small', (3,)), ('large', (1100, 1000))]}


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize(
    ('mode', 'options'),
    [
        *itertools.product([PS, REPLICATED], [FORWARD_ONLY]),
        *itertools.product([PS, STAGED, REPLICATED], [EXCHANGED]),
    ],
)
def test_the_bytes_of_a_forward_only_step_and_of_an_exchange_are_those_that_cross(
    mode: str, options: dict[str, Any], transfer: Any
) -> None:
    workers = [build(mode, worker, transfer=transfer, **options) for worker in range(NUM_WORKERS)]
    moved = sum(
        total_bytes(crossings(built, way))
        for built in workers
        for way in ('ps to worker', 'worker to ps')
    )
    assert moved > 0
    assert [built.step.transfer.bytes_per_step for built in workers] == [moved] * NUM_WORKERS


@pytest.mark.parametrize(
    ('packing', 'expected'),
    # The parts of the large gradient are larger than 256 KiB; one server has two of the small ones
    # in a row.
    [
        (VariableConfig(gradient_repacking=3), 3 * NUM_SERVERS),
        (VariableConfig(agg_small_grads_max_bytes=1 << 18), 14),
    ],
)
def test_gradients_cross_in_buckets(packing: VariableConfig, expected: int) -> None:
    crossed = crossings(build(REPLICATED, network=wide, flags=packing), 'worker to ps')
    unpacked = crossings(build(REPLICATED, network=wide), 'worker to ps')
    assert len(unpacked) == 15
    assert len(crossed) == expected
    assert total_bytes(crossed) == total_bytes(unpacked)


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
def test_the_bytes_of_a_ring_are_those_that_all_its_workers_send(transfer: Any) -> None:
    built = build(COLLECTIVE, server_devices=(), num_workers=3, transfer=transfer)
    total = sum(
        variable.value.shape.num_elements()
        for variable in built.manager.trainable_variables_on_device(0)
    )
    # Each of three workers sends two of the three chunks to be summed, then two sums.
    assert built.step.transfer.bytes_per_step == round(
        3 * 2 * 2 / 3 * total * (transfer or tf.float32).size
    )
    assert built.step.bytes_per_server == {}


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize(
    ('spec', 'sent_per_byte'),
    [
        # Of each tower's 2 (N - 1) / N what the last of each worker sends, N towers in all.
        ('xring', NUM_WORKERS * 2 * (NUM_WORKERS * NUM_TOWERS - 1) / (NUM_WORKERS * NUM_TOWERS)),
        ('psgpu', 2 * NUM_TOWERS * (NUM_WORKERS - 1)),
        ('pscpu', 2 * NUM_TOWERS * NUM_WORKERS),
    ],
)
def test_the_bytes_of_a_controllers_step_are_those_of_its_algorithm(
    spec: str, sent_per_byte: float, transfer: Any
) -> None:
    towers = [
        f'{task("worker", worker)}{tower}'
        for worker in range(NUM_WORKERS)
        for tower in cpus(NUM_TOWERS)
    ]
    algorithm = make_algorithm(parse_spec(spec), towers, f'{task("controller", 0)}/cpu:0')
    parts: dict[str, Any] = {
        'server_devices': (),
        'devices': towers,
        'algorithm': algorithm,
        'transfer': transfer,
    }
    built = build(CONTROLLED, network=wide, job='controller', **parts)
    variables = built.manager.trainable_variables_on_device(0)
    total = (
        sum(variable.value.shape.num_elements() for variable in variables)
        * (transfer or tf.float32).size
    )
    assert built.step.transfer.bytes_per_step == pytest.approx(sent_per_byte * total, rel=1e-4)
    assert built.step.bytes_per_server == {}
