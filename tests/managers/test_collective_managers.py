"""Workers without parameter servers add up their gradients by collective operations."""

from collections import Counter

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus
from tests.support.networks import (
    COLLECTIVE,
    NUM_TOWERS,
    NUM_WORKERS,
    Built,
    build,
    needed_by,
    normalised,
)
from tf_cnn.training.precision import Precision

pytestmark = pytest.mark.graph


GPUS = [f'/gpu:{number}' for number in range(3)]


def sums_before(built: Built, op: tf.Operation) -> set[tf.Operation]:
    return {*built.ops('CollectiveReduce')} & needed_by([op])


def marks_before(built: Built, op: tf.Operation) -> set[tf.Operation]:
    """Returns the ops that note the number of the step before this op."""
    [begun] = built.manager.begun
    marks = {user for user in begun.handle.consumers() if user.type == 'AssignVariableOp'}
    return marks & needed_by([op])


def test_on_cpus_each_worker_sums_its_towers_first_and_updates_a_variable_after_its_sum_alone() -> (
    None
):
    built = build(COLLECTIVE, 1, server_devices=())
    sums = built.ops('CollectiveReduce')
    assert [(op.inputs[0].op.type, len(op.inputs[0].op.inputs)) for op in sums] == [
        ('AddN', NUM_TOWERS)
    ] * 4
    applied = built.ops('ResourceApplyGradientDescent')
    assert len(applied) == NUM_TOWERS * 4
    assert [len(sums_before(built, op)) for op in applied] == [1] * len(applied)
    assert Counter(sums_before(built, op).pop() for op in applied) == dict.fromkeys(
        sums, NUM_TOWERS
    )


def test_on_gpus_an_update_waits_for_its_sum_and_for_the_one_that_starts_first() -> None:
    built = build(COLLECTIVE, 0, server_devices=(), devices=GPUS)
    # Every other sum waits until the one before it has started.
    first = {op for op in built.ops('CollectiveReduce') if not op.get_attr('wait_for')}
    marks = {
        mark for op in built.ops('ResourceApplyGradientDescent') for mark in marks_before(built, op)
    }
    assert len(first) == len(GPUS)
    assert len(marks) == 1
    assert first <= needed_by(list(marks))


@pytest.mark.parametrize('devices', [cpus(NUM_TOWERS), GPUS])
def test_a_step_is_noted_before_its_first_change_of_variables_or_moving_averages(
    devices: list[str],
) -> None:
    built = build(COLLECTIVE, 0, network=normalised, server_devices=(), devices=devices)
    changed = [*built.ops('ResourceApplyGradientDescent'), *updates_of_averages(built)]
    assert len(changed) > len(devices) * 4
    assert all(marks_before(built, op) for op in changed)
    # A step of an earlier number would look complete.
    counted = built.graph.get_operation_by_name('train_step')
    assert {*changed} < needed_by([counted])


def updates_of_averages(built: Built) -> list[tf.Operation]:
    averages = {v.handle.ref() for v in built.manager.variables[0].values() if not v.trainable}
    step = needed_by([built.graph.get_operation_by_name('train_step')])
    return [
        op for op in built.ops('AssignVariableOp') if op in step and op.inputs[0].ref() in averages
    ]


def test_with_an_automatic_loss_scale_every_update_waits_for_all_sums() -> None:
    built = build(
        COLLECTIVE,
        0,
        server_devices=(),
        precision=Precision('fp16', loss_scale=1.0, steps_until_doubling=9),
    )
    updates = built.ops('ResourceApplyGradientDescent')
    assert updates
    for update in updates:
        assert {*built.ops('CollectiveReduce')} == sums_before(built, update)
        assert len(marks_before(built, update)) == 1


@pytest.mark.parametrize(
    ('devices', 'hint', 'num_members'), [(cpus(NUM_TOWERS), b'ring', 1), (GPUS, b'nccl', 3)]
)
def test_each_member_of_each_worker_takes_part_once_in_each_sum_with_the_same_keys(
    devices: list[str], hint: bytes, num_members: int
) -> None:
    def calls(worker: int) -> dict[tuple[int, int], tuple[str, int, list[int]]]:
        built = build(COLLECTIVE, worker, server_devices=(), devices=devices)
        sums = built.ops('CollectiveReduce')
        assert (
            len({(op.get_attr('instance_key'), op.device) for op in sums})
            == len(sums)
            == 4 * num_members
        )
        assert {op.get_attr('communication_hint') for op in sums} == {hint}
        assert {op.get_attr('group_size') for op in sums} == {NUM_WORKERS * num_members}
        kinds = {
            'CollectiveReduce': 'sum',
            'CollectiveBcastSend': 'copy',
            'CollectiveBcastRecv': 'copy',
        }
        found: dict[tuple[int, int], tuple[str, int, list[int]]] = {}
        for op in built.ops(*kinds):
            key = op.get_attr('group_key'), op.get_attr('instance_key')
            call = kinds[op.type], op.get_attr('group_size'), op.outputs[0].shape.as_list()
            assert found.setdefault(key, call) == call
        return found

    first, second = calls(0), calls(1)
    assert first == second
    # A sum of each gradient and a copy of each variable.
    assert Counter(kind for kind, _, _ in first.values()) == {'sum': 4, 'copy': 4}


def test_the_others_start_from_the_variables_of_worker_0() -> None:
    for worker in range(NUM_WORKERS):
        built = build(COLLECTIVE, worker, optimizer='adam', server_devices=())
        sent, received = built.ops('CollectiveBcastSend'), built.ops('CollectiveBcastRecv')
        # Each variable with its two slots.
        assert (len(sent), len(received)) == ((3 * 4, 0) if worker == 0 else (0, 3 * 4))
        assert {*sent, *received} < needed_by([built.step.post_init])
