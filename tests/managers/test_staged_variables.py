"""With staged variables each step applies the gradients of the step before, which computed with
older variables.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import truncated_normal
from tests.support.graphs import cpus, open_session
from tests.support.networks import (
    LEARNING_RATE,
    NUM_TOWERS,
    SEED,
    assert_close,
    make_manager,
    needed_by,
)
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.training.optimizers import OptimizerStep

pytestmark = pytest.mark.graph


@pytest.mark.parametrize(
    ('optimizer', 'mode'),
    # What is staged does not depend on the rule.
    [*((name, 'parameter_server') for name in OPTIMIZERS), ('momentum', 'replicated')],
)
def test_staged_variables_give_gradients_of_one_step_before(optimizer: str, mode: str) -> None:
    """Gradient descent computes v_k+1 = v_k - r g(v_k-1), with v_-1 = v_0; other optimizers use the
    same gradient.
    """
    targets = np.random.default_rng(0).normal(size=(NUM_TOWERS, 3)).astype(np.float32)
    # Each step's gradient has a direction of its own, since lars takes nothing else of it.
    slopes = np.array([1, 1, 2], np.float32)
    with tf.Graph().as_default(), open_session(NUM_TOWERS) as session:
        manager = make_manager(mode, cpus(NUM_TOWERS), staged=True, relaxed=True, seed=SEED)
        gradients, users = [], set()
        for number, target in enumerate(targets):
            with manager.create_outer_variable_scope(number) as variables:
                value = variables.read('v', [1, 3], truncated_normal(1.0))
                gradients.append(
                    tf.gradients(tf.nn.l2_loss((value - target) * slopes) / NUM_TOWERS, [value])
                )
            users.update(value.consumers())
        global_step = manager.create_global_step()
        step = OptimizerStep(
            OPTIMIZERS[optimizer].ours, tf.constant(LEARNING_RATE), global_step.value, None
        )
        update, _ = manager.build_update(step, global_step, gradients)
        assert not users & needed_by([*step.updates.values()]), (
            'the update waits for the computation of its step'
        )
        session.run(
            [
                *manager.initializers,
                *step.initializers,
                global_step.assign(tf.constant(0, tf.int64)),
            ]
        )
        session.run(manager.get_post_init_ops(step.slots))
        session.run(manager.prologue)
        variable = manager.slices()['v'][0].variable
        now = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=tf.float32)
        seen = [session.run(now)]
        for _ in range(5):
            session.run(update)
            seen.append(session.run(now))

    history: list[np.ndarray] = []

    def gradients_at(weights: Weights, step: int) -> Weights:
        history.append(weights['v'])
        return {'v': (history[max(0, step - 1)] - targets.mean(0)) * slopes**2}

    for num_steps, value in enumerate(seen):
        history.clear()
        expected = OPTIMIZERS[optimizer].numpy.train(
            {'v': seen[0]}, gradients_at, LEARNING_RATE, num_steps
        )
        assert_close({'v': value}, expected)
    # Not with the gradient of this step.
    fresh = OPTIMIZERS[optimizer].numpy.train(
        {'v': seen[0]},
        lambda weights, _: {'v': (weights['v'] - targets.mean(0)) * slopes**2},
        LEARNING_RATE,
        5,
    )
    assert np.abs(fresh['v'] - seen[-1]).max() > 1e-3
