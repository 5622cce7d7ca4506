"""The graphs of the workers of a cluster: where variables are, what a step moves between the tasks,
and sums by collective operations.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import build_network
from models.registry import MODELS
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
    manager_of,
    servers,
    task,
    wide,
)
from tests.support.graphs import cpus, needed_by, normalised
from tf_cnn.graph.variables import num_bytes
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.managers.config import VariableConfig
from tf_cnn.managers.parameter_servers import ParameterServerVariables, TransferQueue
from tf_cnn.training.precision import Precision

pytestmark = pytest.mark.graph


# ---- the placement of variables ------------------------------------------------------------------


def variables_on_servers(
    model: str, num_ps: int, mode: str = PS, worker: int = 0
) -> ParameterServerVariables:
    """Returns the variables of a network on parameter servers, as a worker has them."""
    spec = MODELS.find_model(model)
    with tf.Graph().as_default():
        manager = manager_of(
            mode, cpus(1), server_devices=servers(num_ps), worker=worker, num_workers=NUM_WORKERS
        )
        with manager.create_outer_variable_scope(0) as variables:
            build_network(
                spec.network,
                tf.placeholder(tf.float32, [1, spec.image_size, spec.image_size, 3]),
                1000,
                variables,
                'NHWC',
                is_training=True,
                keep_statistics=manager.keeps_statistics(0),
            )
    # mypy does not know that these modes have parameter servers.
    return manager.server_variables  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('model', 'num_ps'), [('alexnet', 1), ('official_resnet18', 3), ('vgg16', 3)]
)
def test_parameter_servers_hold_about_the_same_bytes(model, num_ps):
    variables = variables_on_servers(model, num_ps)
    slices = variables.slices.values()
    held: Counter[str] = Counter()
    for part in itertools.chain(*slices):
        held[part.variable.device] += num_bytes(part.variable.shape)
    assert variables.server_bytes == held
    assert len(held) == num_ps
    assert max(held.values()) - min(held.values()) < 2 << 20
    assert sum(held.values()) == sum(num_bytes(parts[0].full_shape) for parts in slices)
    if model == 'vgg16':
        # Simonyan & Zisserman 2014 (arXiv:1409.1556), table 2: 138 million weights.
        assert sum(held.values()) == 4 * 138_357_544


def test_the_parts_of_a_large_variable_tile_it():
    variables = variables_on_servers('vgg16', 3, REPLICATED)
    assert num_bytes(variables.slices['fc1/kernel'][0].full_shape) > 400e6
    created_bytes = 0
    for parts in variables.slices.values():
        full = parts[0].full_shape
        created_bytes += num_bytes(full)
        assert (len(parts) > 1) is (num_bytes(full) > 256 << 10)
        if len(parts) > 1:
            # A part is about as large as one of 32 segments. The largest is one row above the mean.
            largest = max(256 << 10, created_bytes / 32)
            assert num_bytes(full) / len(parts) <= largest
            assert len(parts) == 3 or num_bytes(full) > (len(parts) - 3) * largest
            assert Counter(part.variable.device for part in parts) == dict.fromkeys(
                servers(3), len(parts) // 3
            )
        assert len({part.variable.name for part in parts}) == len(parts)
        times_held = np.zeros(full, np.int8)
        for part in parts:
            assert part.full_shape == full
            ends = np.add(part.offset, part.variable.shape)
            times_held[tuple(map(slice, part.offset, ends))] += 1
        assert times_held.min() == times_held.max() == 1


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_all_workers_look_for_a_variable_on_the_same_server(mode):
    """Only the chief keeps moving averages; the variables created after them must not move."""
    chief, other = (variables_on_servers('resnet20', 2, mode, worker) for worker in range(2))
    placed, placed_by_other = (
        {
            name: [(part.variable.device, part.offset) for part in parts]
            for name, parts in variables.slices.items()
        }
        for variables in (chief, other)
    )
    assert placed == placed_by_other
    assert sum(name.endswith('/moving_mean') for name in placed) == 19
    assert chief.server_bytes == other.server_bytes


def test_a_transfer_waits_for_all_transfers_of_the_segment_before_the_last():
    with tf.Graph().as_default():
        queue = TransferQueue(most_bytes=10)
        transfers: list[tf.Operation] = []
        waits: list[list[int]] = []
        # Segments: 6 + 4 bytes, 6, 11 (larger than a segment), 4 + 4 + 2, and 1.
        for size in (6, 4, 6, 11, 4, 4, 2, 1):
            ops = queue.ops_to_wait_for(size)
            waits.append([transfers.index(op) for group in ops for op in group.control_inputs])
            transfers.append(tf.constant(size).op)
            queue.add(transfers[-1:])
    assert [*map(sorted, waits)] == [[], [], [], [0, 1], [2], [2], [2], [3]]


# ---- bytes ---------------------------------------------------------------------------------------


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


def bytes_of(tensors: Iterable[tf.Tensor]) -> int:
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
    moved = sum(bytes_of(crossings(replica, *way)) for replica in workers for way in BOTH_WAYS)
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
        assert bytes_of(packed) == bytes_of(unpacked)


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


# ---- collective operations -----------------------------------------------------------------------


GPUS = [f'/gpu:{number}' for number in range(3)]
build_worker = functools.partial(build, COLLECTIVE, server_devices=())


def sums_before(replica: Replica, op: tf.Operation) -> set[tf.Operation]:
    return {*replica.ops('CollectiveReduce')} & needed_by([op])


def marks_before(replica: Replica, op: tf.Operation) -> set[tf.Operation]:
    """Returns the ops that note the number of the step before this op."""
    [begun] = replica.manager.begun
    marks = {user for user in begun.handle.consumers() if user.type == 'AssignVariableOp'}
    return marks & needed_by([op])


def test_on_cpus_each_worker_sums_its_towers_first_and_updates_after_one_sum():
    replica = build_worker(1)
    sums, updates = replica.ops('CollectiveReduce'), replica.ops('ResourceApplyGradientDescent')
    local_sums = [op.inputs[0].op for op in sums]
    assert [(op.type, len(op.inputs)) for op in local_sums] == [('AddN', NUM_TOWERS)] * 4
    needed = [sums_before(replica, op) for op in updates]
    assert Counter(map(frozenset, needed)) == {frozenset([op]): NUM_TOWERS for op in sums}


def test_on_gpus_an_update_waits_for_its_sum_and_for_the_one_that_starts_first():
    replica = build_worker(0, devices=GPUS)
    # Every other sum waits until the one before it has started.
    first = {op for op in replica.ops('CollectiveReduce') if not op.get_attr('wait_for')}
    updates = replica.ops('ResourceApplyGradientDescent')
    [mark] = {mark for op in updates for mark in marks_before(replica, op)}
    assert len(first) == len(GPUS)
    assert first <= needed_by([mark])


@pytest.mark.parametrize('devices', [cpus(NUM_TOWERS), GPUS])
def test_a_step_is_noted_before_its_first_change_of_variables_or_moving_averages(devices):
    replica = build_worker(0, network=normalised, devices=devices)
    counted = replica.graph.get_operation_by_name('train_step')
    averages = {v.handle.ref() for v in replica.manager.variables[0].values() if not v.trainable}
    changed = {
        op
        for op in needed_by([counted])
        if op.type == 'ResourceApplyGradientDescent'
        or (op.type == 'AssignVariableOp' and op.inputs[0].ref() in averages)
    }
    # A step of an earlier number would look complete.
    assert {*replica.ops('ResourceApplyGradientDescent')} < changed
    assert all(marks_before(replica, op) for op in changed)


def test_with_an_automatic_loss_scale_every_update_waits_for_all_sums():
    precision = Precision('fp16', loss_scale=1.0, steps_until_doubling=9)
    replica = build_worker(0, precision=precision)
    updates = replica.ops('ResourceApplyGradientDescent')
    assert len(updates) == NUM_TOWERS * 4
    for update in updates:
        assert sums_before(replica, update) == {*replica.ops('CollectiveReduce')}
        assert len(marks_before(replica, update)) == 1


@pytest.mark.parametrize(
    ('devices', 'hint', 'num_members'), [(cpus(NUM_TOWERS), b'ring', 1), (GPUS, b'nccl', 3)]
)
def test_each_member_of_each_worker_takes_part_once_in_each_sum_with_the_same_keys(
    devices, hint, num_members
):
    calls_of_workers = []
    for worker in range(NUM_WORKERS):
        replica = build_worker(worker, devices=devices)
        calls: dict[tuple[int, int], tuple[str, int, list[int]]] = {}
        sums = replica.ops('CollectiveReduce')
        assert len({(op.get_attr('instance_key'), op.device) for op in sums}) == 4 * num_members
        assert len(sums) == 4 * num_members
        assert {op.get_attr('communication_hint') for op in sums} == {hint}
        assert {op.get_attr('group_size') for op in sums} == {NUM_WORKERS * num_members}
        for op in [*sums, *replica.ops('CollectiveBcastSend', 'CollectiveBcastRecv')]:
            key = op.get_attr('group_key'), op.get_attr('instance_key')
            kind = 'sum' if op in sums else 'copy'
            call = kind, op.get_attr('group_size'), op.outputs[0].shape.as_list()
            assert calls.setdefault(key, call) == call
        calls_of_workers.append(calls)
    first, second = calls_of_workers
    assert first == second
    # A sum of each gradient and a copy of each variable.
    assert Counter(kind for kind, _, _ in first.values()) == {'sum': 4, 'copy': 4}


def test_all_workers_start_from_the_variables_of_worker_0():
    for worker in range(NUM_WORKERS):
        replica = build_worker(worker, optimizer='adam')
        sends, receives = replica.ops('CollectiveBcastSend'), replica.ops('CollectiveBcastRecv')
        # Each variable with its two slots.
        assert (len(sends), len(receives)) == ((3 * 4, 0) if worker == 0 else (0, 3 * 4))
        assert {*sends, *receives} < needed_by([replica.step.post_init])
