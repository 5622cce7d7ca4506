"""Workers without parameter servers add up their gradients by collective operations."""

from collections import Counter
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus
from tests.support.networks import COLLECTIVE, NUM_TOWERS, NUM_WORKERS, build, needed_by

pytestmark = pytest.mark.graph


GPUS = [f'/gpu:{number}' for number in range(3)]


@pytest.mark.parametrize('transfer', [None, tf.float16])
def test_on_gpus_every_tower_takes_part_in_each_sum(transfer: Any) -> None:
    built = build(COLLECTIVE, 1, server_devices=(), devices=GPUS, transfer=transfer)
    sums = built.ops('CollectiveReduce')
    towers = Counter((op.get_attr('instance_key'), tf.DeviceSpec.from_string(op.device).to_string()) for op in sums)
    keys = {key for key, _ in towers}
    assert len(keys) == len(built.manager.trainable_variables_on_device(0)) == 4
    assert towers == dict.fromkeys(((key, f'/job:worker/task:1/device:GPU:{n}') for key in keys for n in range(3)), 1)
    assert {op.get_attr('group_size') for op in sums} == {NUM_WORKERS * len(GPUS)}
    assert {op.get_attr('communication_hint') for op in sums} == {b'nccl'}
    assert len({op.get_attr('group_key') for op in sums}) == 1
    assert {op.inputs[0].dtype for op in sums} == {transfer or tf.float32}


def test_on_cpus_each_worker_takes_part_once_in_each_sum_with_what_its_towers_have_summed() -> None:
    built = build(COLLECTIVE, 1, server_devices=())
    sums = built.ops('CollectiveReduce')
    assert len(sums) == len({op.get_attr('instance_key') for op in sums}) == 4
    for op in sums:
        assert op.get_attr('group_size') == NUM_WORKERS
        assert op.get_attr('communication_hint') == b'ring'
        added = op.inputs[0].op
        assert added.type == 'AddN'
        assert len(added.inputs) == NUM_TOWERS
    # Nothing changes before all sums are there.
    applied = built.ops('ResourceApplyGradientDescent')
    assert len(applied) == NUM_TOWERS * 4
    assert all({*sums} < needed_by([op]) for op in applied)


@pytest.mark.parametrize('devices', [cpus(NUM_TOWERS), GPUS])
def test_all_workers_give_each_collective_op_the_same_keys(devices: list[str]) -> None:
    def calls(worker: int) -> dict[tuple[int, int], tuple[str, int, list[int]]]:
        built = build(COLLECTIVE, worker, server_devices=(), devices=devices)
        kinds = {'CollectiveReduce': 'sum', 'CollectiveBcastSend': 'copy', 'CollectiveBcastRecv': 'copy'}
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
