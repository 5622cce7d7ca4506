"""Workers without parameter servers add up their gradients by collective operations."""

from collections import Counter

import pytest

from tests.support.graphs import cpus
from tests.support.networks import COLLECTIVE, NUM_TOWERS, NUM_WORKERS, build, needed_by

pytestmark = pytest.mark.graph


GPUS = [f'/gpu:{number}' for number in range(3)]


def test_on_cpus_each_worker_sums_its_towers_first_and_nothing_changes_before_all_sums_are_there() -> None:
    built = build(COLLECTIVE, 1, server_devices=())
    sums = built.ops('CollectiveReduce')
    assert [(op.inputs[0].op.type, len(op.inputs[0].op.inputs)) for op in sums] == [('AddN', NUM_TOWERS)] * 4
    applied = built.ops('ResourceApplyGradientDescent')
    assert len(applied) == NUM_TOWERS * 4
    assert all({*sums} < needed_by([op]) for op in applied)


@pytest.mark.parametrize(('devices', 'hint', 'num_members'), [(cpus(NUM_TOWERS), b'ring', 1), (GPUS, b'nccl', 3)])
def test_each_member_of_each_worker_takes_part_once_in_each_sum_with_the_same_keys(
    devices: list[str], hint: bytes, num_members: int
) -> None:
    def calls(worker: int) -> dict[tuple[int, int], tuple[str, int, list[int]]]:
        built = build(COLLECTIVE, worker, server_devices=(), devices=devices)
        sums = built.ops('CollectiveReduce')
        assert len({(op.get_attr('instance_key'), op.device) for op in sums}) == len(sums) == 4 * num_members
        assert {op.get_attr('communication_hint') for op in sums} == {hint}
        assert {op.get_attr('group_size') for op in sums} == {NUM_WORKERS * num_members}
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
