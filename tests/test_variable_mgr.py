"""A variable manager changes the speed, never the mathematics: many towers take the step of one
with all the images.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, VariableSource, truncated_normal, zeros
from models.networks import PlaceholderVariables
from tests.support.graphs import cpus, open_session
from tests.support.networks import make_manager
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.managers.all_reduce import Algorithm, halves_algorithm, make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.managers.config import VariableConfig
from tf_cnn.training.optimizers import OptimizerStep
from variable_mgr import VariableMgr

pytestmark = pytest.mark.graph

SEED, NUM_STEPS, LEARNING_RATE, WEIGHT_DECAY = 5, 3, 0.1, 0.01
GLOBAL_BATCH, NUM_CLASSES, IMAGE_SHAPE = 8, 5, (6, 6, 2)
NUM_CPUS = 4

# What each step feeds: other images for every step, and so for every tower.
IMAGES = (
    np.random.default_rng(2).normal(size=(NUM_STEPS, GLOBAL_BATCH, *IMAGE_SHAPE)).astype(np.float32)
)
LABELS = np.random.default_rng(3).integers(NUM_CLASSES, size=(NUM_STEPS, GLOBAL_BATCH))


def of_spec(spec: str) -> Callable[[Sequence[str]], Algorithm]:
    return lambda towers: make_algorithm(parse_spec(spec), towers, '/device:CPU:0')


BY_COPIES, UNPACKED = of_spec('pscpu'), VariableConfig()


@dataclass(frozen=True)
class Mode:
    """A row of the conformance table: a --variable_update with the settings that it depends on."""

    variable_update: str
    num_parameter_devices: int = 1
    algorithm: Callable[[Sequence[str]], Algorithm] = BY_COPIES
    packing: VariableConfig = UNPACKED

    def make(self, num_towers: int, seed: int = SEED) -> VariableMgr:
        towers = cpus(num_towers)
        return make_manager(
            self.variable_update,
            towers,
            algorithm=self.algorithm(towers),
            seed=seed,
            parameter_devices=cpus(self.num_parameter_devices),
            flags=self.packing,
        )


SYNCHRONOUS = {
    'ps': Mode('parameter_server'),
    'ps-spread': Mode('parameter_server', num_parameter_devices=3),
    'replicated-pscpu': Mode('replicated'),
    'replicated-psgpu': Mode('replicated', algorithm=of_spec('psgpu')),
    'replicated-xring': Mode('replicated', algorithm=of_spec('xring')),
    'replicated-ranges': Mode('replicated', algorithm=of_spec('psgpu:100:xring')),
    'replicated-halves': Mode(
        'replicated', algorithm=lambda towers: halves_algorithm(towers, [(0, len(towers) // 2)])
    ),
    'replicated-repacked': Mode(
        'replicated', algorithm=of_spec('xring'), packing=VariableConfig(gradient_repacking=3)
    ),
    'replicated-grouped': Mode(
        'replicated',
        packing=VariableConfig(agg_small_grads_max_bytes=200, agg_small_grads_max_group=2),
    ),
}
INDEPENDENT = Mode('independent')
ALL = SYNCHRONOUS | {'independent': INDEPENDENT}


def cross_entropy(variables: VariableSource, images: Any, labels: Any) -> Any:
    """The mean over the images, by a network without dropout and batch norm, which differ between
    towers.
    """
    cnn = LayerBuilder(variables, 'NHWC', is_training=True)
    x = cnn.max_pool(cnn.relu(cnn.conv(cnn.images(images), 4, 3, 'conv')), 2, 2)
    x = cnn.relu(cnn.dense(cnn.flatten(x), 6, 'hidden'))
    logits = cnn.dense(x, NUM_CLASSES, 'logits')
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
    )


def weight_decay(values: Sequence[Any]) -> Any:
    return WEIGHT_DECAY * tf.add_n([tf.nn.l2_loss(value) for value in values])


def batch_placeholders() -> tuple[Any, Any]:
    return tf.placeholder(tf.float32, [GLOBAL_BATCH, *IMAGE_SHAPE]), tf.placeholder(
        tf.int64, [GLOBAL_BATCH]
    )


@dataclass(frozen=True)
class Trained:
    """The weights of each tower, before and after the steps."""

    before: list[Weights]
    after: list[Weights]


@functools.cache
def trained(
    mode: str, num_towers: int, optimizer: str, rows: tuple[int, int] = (0, GLOBAL_BATCH)
) -> Trained:
    """Trains that many towers on equal parts of each step's batch, of which rows are the first and
    the end.
    """
    manager = ALL[mode].make(num_towers)
    own_rows = slice(*rows)
    with tf.Graph().as_default(), open_session(NUM_CPUS) as session:
        images, labels = batch_placeholders()
        gradients = []
        parts = zip(
            tf.split(images[own_rows], num_towers),
            tf.split(labels[own_rows], num_towers),
            strict=True,
        )
        for number, (own_images, own_labels) in enumerate(parts):
            with manager.create_outer_variable_scope(number) as variables:
                objective = (
                    cross_entropy(variables, own_images, own_labels) / manager.num_averaged_towers
                )
                values = [
                    variable.value for variable in manager.trainable_variables_on_device(number)
                ]
                if manager.leads(number):
                    objective += weight_decay(values)
                gradients.append(tf.gradients(objective, values))
        global_step = manager.create_global_step()
        step = OptimizerStep(
            OPTIMIZERS[optimizer].ours, tf.constant(LEARNING_RATE), global_step.value, None
        )
        update, _ = manager.build_update(step, global_step, gradients)
        weights = [
            {name: each.value for name, each in tower.items()} for tower in manager.variables
        ]
        post_init = manager.get_post_init_ops(step.slots)
        session.run(
            [manager.initializers, step.initializers, global_step.assign(tf.constant(0, tf.int64))]
        )
        session.run(post_init)
        before = session.run(weights)
        for number in range(NUM_STEPS):
            session.run(update, {images: IMAGES[number], labels: LABELS[number]})
        return Trained(before, session.run(weights))


@functools.cache
def trained_by_numpy(optimizer: str) -> Weights:
    """The weights that the NumPy optimizer makes of the gradients of one tower without a
    manager.
    """
    with tf.Graph().as_default(), open_session() as session:
        images, labels = batch_placeholders()
        fed = PlaceholderVariables()
        loss = cross_entropy(fed, images, labels) + weight_decay([*fed.values.values()])
        gradients = dict(zip(fed.values, tf.gradients(loss, [*fed.values.values()]), strict=True))

        def gradients_at(weights: Weights, step: int) -> Weights:
            batch = {images: IMAGES[step], labels: LABELS[step]}
            return session.run(
                gradients, batch | {fed.values[name]: value for name, value in weights.items()}
            )

        start = trained('independent', 1, optimizer).before[0]
        return OPTIMIZERS[optimizer].numpy.train(start, gradients_at, LEARNING_RATE, NUM_STEPS)


def difference(weights: Weights, expected: Weights) -> float:
    """The largest of any variable, relative to the variable's largest value."""
    assert weights.keys() == expected.keys()
    return max(
        np.abs(weights[name] - value).max() / np.abs(value).max()
        for name, value in expected.items()
    )


@pytest.mark.long
@pytest.mark.parametrize('optimizer', OPTIMIZERS)
@pytest.mark.parametrize('num_towers', [1, 2, 4])
@pytest.mark.parametrize('mode', SYNCHRONOUS)
def test_towers_take_the_steps_of_one_with_the_whole_batch(
    mode: str, num_towers: int, optimizer: str
) -> None:
    after = trained(mode, num_towers, optimizer).after
    one_tower = trained('independent', 1, optimizer)
    assert difference(one_tower.before[0], one_tower.after[0]) > 0.01
    assert len(after) == num_towers
    for own in after:
        assert difference(own, one_tower.after[0]) < 1e-5
        assert difference(own, trained_by_numpy(optimizer)) < 1e-5


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_independent_towers_each_learn_from_their_own_images_alone(optimizer: str) -> None:
    first, second = trained('independent', 2, optimizer).after
    half = GLOBAL_BATCH // 2
    assert difference(first, trained('independent', 1, optimizer, (0, half)).after[0]) < 1e-5
    assert (
        difference(second, trained('independent', 1, optimizer, (half, GLOBAL_BATCH)).after[0])
        < 1e-5
    )
    assert difference(first, second) > 1e-3
    assert difference(first, trained('independent', 1, optimizer).after[0]) > 1e-3


@pytest.mark.parametrize('mode', ALL)
def test_every_mode_and_tower_starts_with_the_same_values(mode: str) -> None:
    expected = trained('independent', 1, 'sgd').before[0]
    for own in trained(mode, 4, 'sgd').before:
        for name, value in expected.items():
            np.testing.assert_array_equal(own[name], value)


def test_an_initial_value_follows_from_the_seed_and_the_name() -> None:
    def initial_values(seed: int) -> Weights:
        with tf.Graph().as_default(), open_session() as session:
            manager = INDEPENDENT.make(1, seed)
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


def test_a_variable_goes_to_the_parameter_device_that_holds_the_fewest_bytes() -> None:
    manager = SYNCHRONOUS['ps-spread'].make(2)
    shapes = {'a': [5, 20], 'b': [10], 'c': [4, 15], 'd': [30], 'e': [25], 'f': [20]}
    with tf.Graph().as_default():
        for number in range(2):
            with manager.create_outer_variable_scope(number) as variables:
                for name, shape in shapes.items():
                    variables.read(name, shape, zeros)
        gradients = [[tf.ones(shape) for shape in shapes.values()] for _ in range(2)]
        [met] = manager.preprocess_device_grads(gradients)
    placed = {name: variable.device[-1] for name, variable in manager.variables[0].items()}
    # 100 | 10 | 60, then 30 and 25 to the second, and 20 to the third.
    assert placed == {'a': '0', 'b': '1', 'c': '2', 'd': '1', 'e': '1', 'f': '2'}
    assert manager.variables[1] == manager.variables[0]
    assert [total.device[-1] for total in met] == list(placed.values())


@pytest.mark.parametrize(
    ('mode', 'own_variables', 'num_averaged', 'leaders'),
    [
        ('ps', False, 3, [0]),
        ('replicated-pscpu', True, 3, [0]),
        ('independent', True, 1, [0, 1, 2]),
    ],
)
def test_a_mode_knows_how_its_towers_share_variables(
    mode: str, own_variables: bool, num_averaged: int, leaders: list[int]
) -> None:
    manager = ALL[mode].make(3)
    assert manager.get_devices() == cpus(3)
    assert manager.each_tower_has_variables() is own_variables
    assert manager.num_averaged_towers == num_averaged
    assert [number for number in range(3) if manager.leads(number)] == leaders


def normalising_towers(manager: VariableMgr) -> None:
    """Builds towers with batch norm, of which the leading ones keep the moving averages."""
    for number in range(len(manager.get_devices())):
        with manager.create_outer_variable_scope(number) as variables:
            cnn = LayerBuilder(
                variables, 'NHWC', is_training=True, keep_statistics=manager.leads(number)
            )
            with cnn.scope('block'):
                cnn.batch_norm(
                    cnn.conv(
                        tf.ones([2, *IMAGE_SHAPE]) * (number + 1), 3, 1, 'conv', use_bias=False
                    ),
                    'bn',
                )


TRAINED = ['block/conv/kernel', 'block/bn/gamma', 'block/bn/beta']
MODEL_NAMES = [*TRAINED, 'block/bn/moving_mean', 'block/bn/moving_variance']


@pytest.mark.parametrize('mode', ALL)
def test_each_variable_is_saved_once_under_its_model_name(mode: str) -> None:
    with tf.Graph().as_default() as graph:
        manager = ALL[mode].make(4)
        normalising_towers(manager)
        saved = manager.savable_variables()
        resources = [
            op.get_attr('shared_name').decode()
            for op in graph.get_operations()
            if op.type == 'VarHandleOp'
        ]
    assert list(saved) == MODEL_NAMES
    assert [variable.name for variable in saved.values()] == MODEL_NAMES
    assert len(set(resources)) == len(resources)
    trainable = [variable.name for variable in manager.trainable_variables_on_device(3)]
    assert trainable == TRAINED


@pytest.mark.parametrize(
    ('mode', 'num_updates'), [('ps', 2), ('replicated-pscpu', 2), ('independent', 2 * 4)]
)
def test_each_model_updates_its_moving_averages_once_a_step(mode: str, num_updates: int) -> None:
    with tf.Graph().as_default(), open_session(NUM_CPUS) as session:
        manager = ALL[mode].make(4)
        normalising_towers(manager)
        session.run([manager.initializers])
        session.run(manager.get_post_init_ops({}))
        saved = manager.savable_variables()
        kernel, before = session.run(
            [saved['block/conv/kernel'].value, saved['block/bn/moving_mean'].value]
        )
        assert len(manager.assignments) == num_updates
        session.run(manager.assign_ops())
        after = session.run(saved['block/bn/moving_mean'].value)
    # The first tower sees ones, whose mean after the convolution is the sum of the kernel over the
    # input channels.
    np.testing.assert_allclose(
        after, 0.9 * before + 0.1 * kernel.sum((0, 1, 2)), rtol=1e-5, atol=1e-6
    )


def test_replicas_live_on_their_towers_and_post_init_makes_them_alike_after_a_restore() -> None:
    with tf.Graph().as_default(), open_session(NUM_CPUS) as session:
        manager = SYNCHRONOUS['replicated-pscpu'].make(3)
        for number in range(3):
            with manager.create_outer_variable_scope(number) as variables:
                variables.read('kernel', [2, 3], truncated_normal(1.0))
        replicas = [own['kernel'] for own in manager.variables]
        assert [replica.device for replica in replicas] == cpus(3)
        post_init = manager.get_post_init_ops({})
        assert [op.device for op in post_init] == cpus(3)[1:]
        restored = np.arange(6, dtype=np.float32).reshape(2, 3)
        restore = manager.savable_variables()['kernel'].assign(tf.constant(restored))
        session.run(manager.initializers)
        session.run(restore)
        session.run(post_init)
        for value in session.run([replica.value for replica in replicas]):
            np.testing.assert_array_equal(value, restored)
