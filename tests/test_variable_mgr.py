"""A variable manager changes the speed, never the mathematics: many towers take the same step as
one tower with all images.
"""

import functools
import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, truncated_normal, zeros
from models.model_spec import Build
from tests.support.graphs import (
    IMAGE_SHAPE,
    LEARNING_RATE,
    FixedInput,
    assert_close,
    convolved,
    cpus,
    make_manager,
    open_session,
    plain_gradients,
    relative_error,
    train_towers,
    training_step,
    transformer,
)
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.managers.config import VariableConfig
from variable_mgr import VariableMgr

pytestmark = pytest.mark.graph
NUM_STEPS = 3

# --variable_update and further arguments of make_manager, by name. test_all_reduce.py tests all
# algorithms and packings.
SYNCHRONOUS: dict[str, tuple[str, dict[str, Any]]] = {
    'ps': ('parameter_server', {}),
    'ps-spread': ('parameter_server', {'parameter_devices': cpus(3)}),
    'replicated': ('replicated', {}),
    'replicated-repacked': ('replicated', {'flags': VariableConfig(gradient_repacking=3)}),
}
ALL = SYNCHRONOUS | {'independent': ('independent', {})}
# Each step applies the gradients of the step before.
STAGED = {
    'staged': ('parameter_server', {'staged': True, 'relaxed': True}),
    'staged-replicated': ('replicated', {'staged': True, 'relaxed': True}),
}
# The numbers of the images of each tower.
BY_TOWERS = {1: ((0, 1, 2, 3),), 2: ((0, 1), (2, 3)), 4: ((0,), (1,), (2,), (3,))}


def make(mode: str, num_towers: int, seed: int = 5) -> VariableMgr:
    (variable_update, parts), towers = (ALL | STAGED)[mode], cpus(num_towers)
    ring = make_algorithm(parse_spec('xring'), towers, cpus(1)[0])
    return make_manager(variable_update, towers, algorithm=ring, seed=seed, **parts)


@functools.cache
def trained(
    mode: str,
    optimizer: str,
    images: tuple[tuple[int, ...], ...] = BY_TOWERS[1],
    network: Build = convolved,
) -> tuple[list[Weights], list[Weights]]:
    """Returns the weights before and after the steps, once for each copy."""
    forms, manager = OPTIMIZERS[optimizer], make(mode, len(images))
    before, *_, after = train_towers(
        training_step(network), forms.ours, manager, FixedInput(images), NUM_STEPS
    )
    names = manager.variables[0]
    return before, [{name: weights[name] for name in names} for weights in after]


@functools.cache
def trained_by_numpy(optimizer: str, delay: int = 0) -> Weights:
    """Returns the weights after steps with the whole batch.

    delay: each step applies gradients that are so many steps old.
    """
    (start,), (end,) = trained('independent', optimizer)
    history: list[Weights] = []
    with tf.Graph().as_default(), open_session() as session:
        batch = FixedInput(BY_TOWERS[1]).tower_batch(0)
        # LARS decays the weights itself.
        decay = 0.0 if optimizer == 'lars' else 0.01
        gradients = plain_gradients(session, convolved, [batch], weight_decay=decay)

        def gradients_at(weights: Weights, step: int) -> Weights:
            history.append(weights)
            return gradients(history[max(0, step - delay)], 1.0)

        return OPTIMIZERS[optimizer].train(
            {name: start[name] for name in end}, gradients_at, LEARNING_RATE, NUM_STEPS
        )


@pytest.mark.long
@pytest.mark.parametrize(
    ('mode', 'network', 'optimizer', 'num_towers'),
    [
        *((mode, convolved, 'momentum', 4) for mode in SYNCHRONOUS),
        # Where variables are and how gradients travel does not depend on the optimizer.
        *itertools.product(['ps', 'replicated'], [convolved], ['adam', 'lars'], [2]),
        *itertools.product(['ps', 'replicated'], [convolved], ['momentum'], [1]),
        ('ps', transformer, 'sgd', 2),
    ],
)
def test_towers_take_the_steps_of_one_tower_with_the_whole_batch(
    mode, network, optimizer, num_towers
):
    _, after = trained(mode, optimizer, BY_TOWERS[num_towers], network)
    assert len(after) == (1 if 'ps' in mode else num_towers)
    for weights in after:
        assert_close(weights, trained('independent', optimizer, network=network)[1][0])
        if network is convolved:
            assert_close(weights, trained_by_numpy(optimizer))


@pytest.mark.parametrize(
    ('mode', 'optimizer'),
    # LARS reads the variables, too.
    [('staged', 'momentum'), ('staged', 'lars'), ('staged-replicated', 'momentum')],
)
def test_staged_variables_give_gradients_that_are_one_step_old(mode, optimizer):
    _, [weights, *_] = trained(mode, optimizer, BY_TOWERS[2])
    assert_close(weights, trained_by_numpy(optimizer, delay=1))
    fresh = trained_by_numpy(optimizer)
    assert np.abs(fresh['logits/kernel'] - weights['logits/kernel']).max() > 1e-3


@pytest.mark.parametrize('optimizer', ['momentum', 'lars'])
def test_an_independent_tower_learns_from_its_images_alone(optimizer):
    _, towers = trained('independent', optimizer, BY_TOWERS[2])
    for weights, images in zip(towers, BY_TOWERS[2], strict=True):
        assert_close(weights, trained('independent', optimizer, (images,))[1][0])
    first, second = (weights['logits/kernel'] for weights in towers)
    assert relative_error(first, second) > 1e-3


@pytest.mark.parametrize('mode', ALL)
def test_every_mode_and_tower_starts_with_the_same_values(mode):
    [expected], _ = trained('independent', 'momentum')
    for weights in trained(mode, 'momentum', BY_TOWERS[4])[0]:
        np.testing.assert_equal(weights, {name: expected[name] for name in weights})


def test_an_initial_value_follows_from_the_seed_and_the_name():
    def initial_values(seed: int) -> Weights:
        with tf.Graph().as_default(), open_session() as session:
            manager = make('independent', 1, seed)
            with manager.create_outer_variable_scope(0) as variables:
                values = {
                    name: variables.read(name, [20], truncated_normal(1.0)) for name in ('a', 'b')
                }
            session.run(manager.initializers)
            return session.run(values)

    once = initial_values(7)
    np.testing.assert_equal(initial_values(7), once)
    assert np.abs(once['a'] - once['b']).max() > 0.1
    assert np.abs(initial_values(8)['a'] - once['a']).max() > 0.1


def test_a_variable_goes_to_the_parameter_device_that_holds_the_fewest_bytes():
    manager = make('ps-spread', 2)
    shapes = {'a': [5, 20], 'b': [10], 'c': [4, 15], 'd': [30], 'e': [25], 'f': [20]}
    with tf.Graph().as_default():
        for number in range(2):
            with manager.create_outer_variable_scope(number) as variables:
                for name, shape in shapes.items():
                    variables.read(name, shape, zeros)
        gradients = [[tf.ones(shape) for shape in shapes.values()]] * 2
        [sums] = manager.preprocess_device_grads(gradients)
    placed = {name: variable.device[-1] for name, variable in manager.variables[0].items()}
    # 100 | 10 | 60, then 30 and 25 to the second, and 20 to the third.
    assert placed == {'a': '0', 'b': '1', 'c': '2', 'd': '1', 'e': '1', 'f': '2'}
    assert manager.variables[1] == manager.variables[0]
    assert [total.device[-1] for total in sums] == list(placed.values())


def normalising_towers(mode: str) -> VariableMgr:
    """Builds four towers with batch norm; leading towers keep the moving averages."""
    manager = make(mode, 4)
    for number in range(4):
        with manager.create_outer_variable_scope(number) as variables:
            leads = manager.leads(number)
            cnn = LayerBuilder(variables, 'NHWC', is_training=True, keep_statistics=leads)
            images = tf.ones([2, *IMAGE_SHAPE]) * (number + 1)
            cnn.batch_norm(cnn.conv(images, 3, 1, 'conv', use_bias=False), 'bn')
    return manager


@pytest.mark.parametrize('mode', ALL)
def test_each_variable_is_saved_once_under_its_model_name(mode):
    with tf.Graph().as_default() as graph:
        manager = normalising_towers(mode)
        saved = manager.savable_variables()
    trained = ['conv/kernel', 'bn/gamma', 'bn/beta']
    assert [variable.name for variable in manager.trainable_variables_on_device(3)] == trained
    assert list(saved) == [*trained, 'bn/moving_mean', 'bn/moving_variance']
    assert [variable.name for variable in saved.values()] == list(saved)
    handles = [op for op in graph.get_operations() if op.type == 'VarHandleOp']
    assert len({op.get_attr('shared_name') for op in handles}) == len(handles)


@pytest.mark.parametrize(
    ('mode', 'num_updates'), [('ps', 2), ('replicated', 2), ('independent', 2 * 4)]
)
def test_each_model_updates_its_moving_averages_once_a_step(mode, num_updates):
    with tf.Graph().as_default(), open_session(4) as session:
        manager = normalising_towers(mode)
        session.run(manager.initializers)
        session.run(manager.get_post_init_ops({}))
        saved = manager.savable_variables()
        kernel, before = session.run([saved['conv/kernel'].value, saved['bn/moving_mean'].value])
        assert len(manager.assignments) == num_updates
        session.run(manager.assign_ops())
        after = session.run(saved['bn/moving_mean'].value)
    # The first tower sees ones. After the convolution their mean is the sum of the kernel over the
    # input channels.
    expected = 0.9 * before + 0.1 * kernel.sum((0, 1, 2))
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-6)


def test_post_init_makes_the_replicas_of_all_towers_alike_after_a_restore():
    with tf.Graph().as_default(), open_session(3) as session:
        manager = make('replicated', 3)
        for number in range(3):
            with manager.create_outer_variable_scope(number) as variables:
                variables.read('kernel', [2, 3], truncated_normal(1.0))
        replicas = [tower['kernel'] for tower in manager.variables]
        assert [replica.device for replica in replicas] == cpus(3)
        post_init = manager.get_post_init_ops({})
        assert [op.device for op in post_init] == cpus(3)[1:]
        restored = np.arange(6, dtype=np.float32).reshape(2, 3)
        session.run(manager.initializers)
        session.run(manager.savable_variables()['kernel'].assign(tf.constant(restored)))
        session.run(post_init)
        for value in session.run([replica.value for replica in replicas]):
            np.testing.assert_array_equal(value, restored)
