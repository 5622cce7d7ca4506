"""With staged variables each step applies the gradients of the step before, which computed with
older variables.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.support.graphs import (
    LEARNING_RATE,
    assert_close,
    batch_of,
    cpus,
    make_manager,
    needed_by,
    open_session,
    plain,
    plain_gradients,
    train_towers,
    training_step,
)
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.step.step_graph import build_step_graph

pytestmark = pytest.mark.graph

NUM_STEPS = 5


def test_no_update_waits_for_the_gradients_of_its_step():
    manager = make_manager('parameter_server', cpus(2), staged=True)
    with tf.Graph().as_default() as graph:
        build_step_graph(training_step(plain), OPTIMIZERS['sgd'].ours, manager, batch_of(2))
    updates = [op for op in graph.get_operations() if op.type.startswith('ResourceApply')]
    assert len(updates) == 4
    assert 'MatMul' not in {op.type for op in needed_by(updates)}


@pytest.mark.parametrize(
    ('optimizer', 'mode'),
    # What is staged does not depend on the rule.
    [*((name, 'parameter_server') for name in OPTIMIZERS), ('momentum', 'replicated')],
)
def test_staged_variables_give_gradients_of_one_step_before(optimizer, mode):
    """Gradient descent computes v_k+1 = v_k - r g(v_k-1), with v_-1 = v_0; other optimizers use the
    same gradient.
    """
    manager = make_manager(mode, cpus(2), staged=True, relaxed=True)
    (start, *_), *_, (end, *_) = train_towers(
        training_step(plain), OPTIMIZERS[optimizer].ours, manager, batch_of(2), NUM_STEPS
    )
    start = {name: start[name] for name in manager.variables[0]}
    history: list[Weights] = []
    with tf.Graph().as_default(), open_session() as session:
        # LARS decays the weights itself.
        decay = 0.0 if optimizer == 'lars' else 0.01
        batch = batch_of(1).tower_batch(0)
        gradients = plain_gradients(session, plain, [batch], weight_decay=decay)

        def gradients_of_step_before(weights: Weights, step: int) -> Weights:
            history.append(weights)
            return gradients(history[max(0, step - 1)], 1.0)

        train = OPTIMIZERS[optimizer].train
        expected = train(start, gradients_of_step_before, LEARNING_RATE, NUM_STEPS)
        fresh = train(start, lambda weights, _: gradients(weights, 1.0), LEARNING_RATE, NUM_STEPS)
    assert_close({name: end[name] for name in expected}, expected)
    assert np.abs(fresh['logits/kernel'] - end['logits/kernel']).max() > 1e-3
