"""The bytes that a step moves between the tasks of a cluster, and that it reports."""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.managers.worker_graphs import (
    COLLECTIVE,
    CONTROLLED,
    NUM_SERVERS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    Replica,
    build,
    task,
    wide,
)
from tests.support.graphs import cpus, needed_by, normalised
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.managers.config import VariableConfig

pytestmark = pytest.mark.graph


# Tests only read these graphs.
cached_build = functools.cache(build)
TRANSFERS = pytest.mark.parametrize('transfer', [None, tf.bfloat16])
BOTH_WAYS = (('ps', 'worker'), ('worker', 'ps'))


def crossings(replica: Replica, sender: str, receiver: str) -> list[tf.Tensor]:
    """Returns the tensors that a step sends from one job to another, once for each receiving task.
    Scalars do not count.
    """
    crossed: dict[tuple[str, int], tf.Tensor] = {}
    for op in needed_by(replica.step.fetches.ops):
        place = tf.DeviceSpec.from_string(op.device)
        for value in op.inputs:
            job = tf.DeviceSpec.from_string(value.op.device).job
            if (job, place.job) == (sender, receiver) and value.shape.rank:
                crossed[value.name, place.task] = value
    return list(crossed.values())


def num_bytes(tensors: Iterable[tf.Tensor]) -> int:
    return sum(value.shape.num_elements() * value.dtype.size for value in tensors)


def trained_bytes(replica: Replica, transfer: tf.DType | None) -> int:
    variables = replica.manager.trainable_variables_on_device(0)
    sizes = [variable.value.shape.num_elements() for variable in variables]
    return sum(sizes) * (transfer or tf.float32).size


@TRANSFERS
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_one_value_and_one_gradient_of_each_variable_cross(mode, transfer):
    for worker in range(NUM_WORKERS):
        replica = cached_build(mode, worker, network=wide, transfer=transfer)
        slices = replica.manager.slices()
        shapes = [
            list(part.variable.shape)
            for variable in replica.manager.trainable_variables_on_device(0)
            for part in slices[variable.name]
        ]
        # The largest weight is cut in six where values return early, else in one part for each
        # server.
        assert len(shapes) == (4 + NUM_SERVERS - 1 if mode == PS else 6 + 3)
        for way in BOTH_WAYS:
            crossed = crossings(replica, *way)
            assert sorted(value.shape.as_list() for value in crossed) == sorted(shapes)
            assert {value.dtype for value in crossed} == {transfer or tf.float32}


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_travel_in_32_bits_even_if_the_rest_is_rounded(mode):
    # Their changes are too small for 16 bits.
    chief, other = (
        build(mode, worker, network=normalised, transfer=tf.bfloat16)
        for worker in range(NUM_WORKERS)
    )
    for way in BOTH_WAYS:
        dtypes = Counter(value.dtype for value in crossings(chief, *way))
        assert dtypes == {tf.bfloat16: 5, tf.float32: 2}
        assert {value.dtype for value in crossings(other, *way)} == {tf.bfloat16}


@TRANSFERS
@pytest.mark.parametrize(
    ('mode', 'step'),
    [
        *itertools.product([PS, STAGED, REPLICATED], ['train', 'exchange']),
        (PS, 'forward_only'),
        (REPLICATED, 'forward_only'),
    ],
)
def test_the_reported_bytes_of_a_step_cross_between_the_tasks(mode, step, transfer):
    # The arguments of build for each kind of step.
    steps: dict[str, dict[str, Any]] = {
        'train': {'network': wide},
        # The second variable is in parts.
        'exchange': {'exchanged': (('small', (3,)), ('large', (550, 500)))},
        'forward_only': {'network': normalised, 'forward_only': True},
    }
    workers = [
        cached_build(mode, worker, **steps[step], transfer=transfer)
        for worker in range(NUM_WORKERS)
    ]
    moved = sum(num_bytes(crossings(replica, *way)) for replica in workers for way in BOTH_WAYS)
    assert moved > 0
    assert [replica.step.transfer.bytes_per_step for replica in workers] == [moved] * NUM_WORKERS


def test_gradients_cross_in_buckets():
    unpacked = crossings(cached_build(REPLICATED, 0, network=wide, transfer=None), 'worker', 'ps')
    assert len(unpacked) == 9
    # The parts of the large gradient are larger than 128 KiB; one server has two of the small ones
    # in a row.
    for packing, expected in (
        (VariableConfig(gradient_repacking=3), 3 * NUM_SERVERS),
        (VariableConfig(agg_small_grads_max_bytes=1 << 17), 8),
    ):
        packed = crossings(build(REPLICATED, network=wide, flags=packing), 'worker', 'ps')
        assert len(packed) == expected
        assert num_bytes(packed) == num_bytes(unpacked)


@TRANSFERS
def test_the_reported_bytes_of_a_ring_are_sent_by_all_its_workers(transfer):
    replica = build(COLLECTIVE, server_devices=(), num_workers=3, transfer=transfer)
    # Each of three workers sends two of the three chunks to be summed, then two sums.
    expected = 3 * 2 * 2 / 3 * trained_bytes(replica, transfer)
    assert replica.step.transfer.bytes_per_step == round(expected)
    assert replica.step.transfer.bytes_per_ps == ()


@TRANSFERS
def test_the_reported_bytes_of_a_controllers_step_follow_from_its_algorithm(transfer):
    workers = [task('worker', worker) for worker in range(NUM_WORKERS)]
    towers = [f'{worker}{tower}' for worker in workers for tower in cpus(NUM_TOWERS)]
    for spec, sent_per_byte in (
        # Each of the N towers sends 2 (N - 1) / N. Only the last tower of a worker sends to another
        # worker.
        ('xring', NUM_WORKERS * 2 * (len(towers) - 1) / len(towers)),
        ('psgpu', 2 * NUM_TOWERS * (NUM_WORKERS - 1)),
        ('pscpu', 2 * NUM_TOWERS * NUM_WORKERS),
    ):
        replica = build(
            CONTROLLED,
            network=wide,
            job='controller',
            server_devices=(),
            devices=towers,
            algorithm=make_algorithm(parse_spec(spec), towers, f'{task("controller", 0)}/cpu:0'),
            transfer=transfer,
        )
        expected = sent_per_byte * trained_bytes(replica, transfer)
        assert replica.step.transfer.bytes_per_step == pytest.approx(expected, rel=1e-4), spec
        assert replica.step.transfer.bytes_per_ps == ()
