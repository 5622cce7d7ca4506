"""Networks start from fresh weights with finite numbers, drop units and paths while training, and
train.
"""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import build_network
from models.registry import MODELS
from tests.support.graphs import open_session
from tests.support.keras_networks import build
from tests.support.networks import BATCH, one_tower, random_images

pytestmark = [pytest.mark.graph, pytest.mark.long]


def variants(models: Any) -> list[Any]:
    return [
        pytest.param(each, marks=pytest.mark.all_modes if each in SLOW else ()) for each in models
    ]


SLOW = ('nasnet', 'nasnetlarge', 'resnet101')
# Dropout before the logits, and drop path in each block with a shortcut, where its rate is not
# zero.
NUM_DROPS = {
    'mobilenet': 1,
    'nasnet': 1,
    'nasnetlarge': 1,
    'densenet121': 0,
    'efficientnet_b0': 1 + 9,
    'convnext_tiny': 17,
}


@pytest.mark.parametrize('model', variants(NUM_DROPS))
def test_training_drops_and_gives_every_variable_a_finite_gradient(model: str) -> None:
    with tf.Graph().as_default() as graph, open_session() as session:
        manager = one_tower()
        images = tf.constant(random_images((64, 64, 3)))
        logits = build(model, manager, images, is_training=True).logits
        assert sum(op.type == 'RandomUniform' for op in graph.get_operations()) == NUM_DROPS[model]
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=tf.range(BATCH))
        )
        trainable = manager.trainable_variables_on_device(0)
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        assert None not in gradients
        largest = tf.stack([tf.reduce_max(tf.abs(gradient)) for gradient in gradients])
        session.run(manager.initializers)
        value, sizes = session.run([loss, largest])
    assert np.isfinite(value)
    assert np.isfinite(sizes).all()
    # Drop path may leave out a block for all images of a batch this small.
    assert (sizes > 0).mean() > 0.9
    # Weight decay applies to variables of more than one axis. These are the kernels, depthwise ones
    # included.
    for name, variable in manager.savable_variables().items():
        assert (len(variable.shape) > 1) == name.endswith('/kernel')


@pytest.mark.parametrize(
    'model', variants(['resnet50', 'official_resnet50_v2', 'resnet101', 'nasnet'])
)
def test_fresh_weights_give_logits_that_float16_can_hold(model: str) -> None:
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.constant(random_images((64, 64, 3)))
            network = MODELS.find_model(model).network
            logits = build_network(
                network, images, 1001, variables, 'NHWC', is_training=False, dtype=tf.float16
            ).logits
        session.run(manager.initializers)
        # Far from the largest number of float16, 65504.
        assert np.abs(session.run(logits)).max() < 100


def test_training_starts_with_the_factors_of_the_paper() -> None:
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.zeros([1, 32, 32, 3])
            build_network(
                MODELS.find_model('resnet20').network,
                images,
                10,
                variables,
                'NHWC',
                is_training=True,
            )
        session.run(manager.initializers)
        factors = [
            variable
            for name, variable in manager.savable_variables().items()
            if name.endswith('gamma')
        ]
        assert len(factors) == 19
        assert all((session.run(factor.value) == 1).all() for factor in factors)
