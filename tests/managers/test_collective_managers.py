"""Workers without parameter servers add up their gradients by collective operations."""

import functools
from collections import Counter

import pytest
import tensorflow.compat.v1 as tf

from tests.managers.worker_graphs import (
    COLLECTIVE,
    NUM_TOWERS,
    NUM_WORKERS,
    Replica,
    build,
)
from tests.support.graphs import cpus, needed_by, normalised
from tf_cnn.training.precision import Precision

pytestmark = pytest.mark.graph


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
