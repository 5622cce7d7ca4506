"""Steps that workers take alone: what they compute, and how their seconds are measured."""

import re

import pytest
import tensorflow.compat.v1 as tf

from tests.managers.worker_graphs import (
    COLLECTIVE,
    CONTROLLED,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    build,
    task,
)
from tf_cnn.run.steps_alone import StepsAlone, time_parts


def computed_by(alone: StepsAlone, name: str) -> set[tf.Operation]:
    """Returns the ops that a step alone of a worker runs."""
    fed = {value.op for value in alone.values}
    reached, ahead = set[tf.Operation](), [*alone.ops[name]]
    while ahead:
        if (op := ahead.pop()) not in reached | fed:
            reached.add(op)
            ahead += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    return reached


@pytest.mark.graph
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED, COLLECTIVE, CONTROLLED])
def test_a_step_alone_has_all_gradients_and_no_exchange_and_no_update(mode):
    names = [task('worker', index) for index in range(NUM_WORKERS)]
    own = task('worker', 1)
    if mode == CONTROLLED:
        own, devices = task('controller', 0), [f'{name}/cpu:0' for name in names]
        replica = build(mode, job='controller', devices=devices)
        hosts = dict(zip(names, devices, strict=True))
    else:
        replica, hosts = build(mode, 1), {own: '/cpu:0'}
    with replica.graph.as_default(), tf.device(own):
        alone = StepsAlone(replica.step, hosts)
    gradients = replica.step.tower_gradients
    num_towers = len(gradients) // len(hosts)
    for number, name in enumerate(hosts):
        ops = computed_by(alone, name)
        towers = gradients[number * num_towers :][:num_towers]
        assert {gradient.op for tower in towers for gradient in tower} <= ops
        # The images of this test are constants of the controller.
        assert {op.device.partition('/device')[0] for op in ops} <= {name, own, ''}
        assert not re.findall('Assign|Stage|Collective', ' '.join(op.type for op in ops))


# Seconds of a step, seconds of all of them, and of each part, with its number of steps.
@pytest.mark.unit
@pytest.mark.parametrize(
    ('step', 'seconds', 'parts', 'steps'),
    [
        (0.0625, 1.25, [0.25] * 5, [4] * 5),
        (0.5, 1.25, [0.5] * 5, [1] * 5),
        (4.0, 1.0, [4.0] * 3, [1] * 3),
        # Stopped for 0.375 s of each half of a second.
        ('stopped', 1.25, [0.4375, *[0.5] * 4], [1, *[2] * 4]),
    ],
)
def test_steps_alone_are_taken_in_five_parts_or_three_if_they_are_long(step, seconds, parts, steps):
    now = 0.0

    def take_step() -> None:
        nonlocal now
        now += 0.0625 if step == 'stopped' else step
        if step == 'stopped' and now % 0.5 >= 0.125:
            now += 0.5 - now % 0.5

    alone = time_parts(take_step, seconds, lambda: now)
    assert (alone.seconds, alone.steps) == (parts, steps)
