"""Networks give finite numbers with fresh weights, drop units and paths in training, and get
gradients.
"""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import NetworkValues, build_network
from models.registry import MODELS
from tests.support.graphs import BATCH, one_tower, open_session, random_images

pytestmark = [pytest.mark.graph, pytest.mark.long]

NUM_CLASSES = 20


def build(network, manager, images, **options):
    with manager.create_outer_variable_scope(0) as variables:
        return build_network(network, images, NUM_CLASSES, variables, 'NHWC', **options).logits


# Dropout before the logits, and drop path in each block with a shortcut, where its rate is not
# zero.
@pytest.mark.parametrize(
    ('model', 'num_drops'),
    [
        ('alexnet', 2),
        ('overfeat', 2),
        ('vgg16', 2),
        ('lenet', 0),
        ('googlenet', 1),
        ('inception4', 1),
        ('mobilenet', 1),
        ('nasnet', 1),
        ('densenet40_k12', 0),
        ('efficientnet_b0', 1 + 9),
        ('convnext_tiny', 17),
        ('vit_s16', 2 * 11),
    ],
)
def test_networks_drop_units_and_paths_while_training(model, num_drops):
    spec = MODELS.find_model(model)
    with tf.Graph().as_default() as graph:
        images = tf.zeros([1, spec.image_size, spec.image_size, 3])
        variables = NetworkValues()
        build_network(spec.network, images, 1001, variables, 'NHWC', is_training=True)
    assert [op.type for op in graph.get_operations()].count('RandomUniform') == num_drops


def network_of(model, **smaller_options):
    network = MODELS.find_model(model).network
    return replace(network, options={**network.options, **smaller_options})


# EfficientNet has the blocks of MobileNet, with more in them.
@pytest.mark.parametrize(
    'network',
    [
        pytest.param(network_of('densenet121', blocks=(2, 2, 2, 2)), id='densenet'),
        pytest.param(network_of('efficientnet_b0'), id='efficientnet_b0'),
        pytest.param(network_of('convnext_tiny'), id='convnext_tiny'),
        pytest.param(network_of('vit_s16', width=96, num_heads=3), id='vit'),
    ],
)
def test_training_gives_every_variable_a_finite_gradient(network):
    with tf.Graph().as_default(), open_session() as session:
        manager, images = one_tower(), tf.constant(random_images((64, 64, 3)))
        logits = build(network, manager, images, is_training=True)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=[*range(BATCH)])
        trainable = manager.trainable_variables_on_device(0)
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        assert None not in gradients
        session.run(manager.initializers)
        sizes = np.array([np.abs(gradient).max() for gradient in session.run(gradients)])
    assert np.isfinite(sizes).all()
    # Drop path may leave out a block for all images of a batch this small.
    assert (sizes > 0).mean() > 0.9
    # Weight decay applies to variables with more than one axis, the kernels.
    for name, variable in manager.savable_variables().items():
        assert (len(variable.shape) > 1) == name.endswith('/kernel')


@pytest.mark.parametrize(
    'network',
    [
        pytest.param(network_of('resnet50'), id='resnet50'),
        pytest.param(network_of('official_resnet50_v2'), id='official_resnet50_v2'),
    ],
)
def test_fresh_weights_give_logits_that_float16_can_hold(network):
    with tf.Graph().as_default(), open_session() as session:
        manager, images = one_tower(), tf.constant(random_images((64, 64, 3)))
        logits = build(network, manager, images, is_training=False, dtype=tf.float16)
        session.run(manager.initializers)
        # Far from the largest number of float16, 65504.
        assert np.abs(session.run(logits)).max() < 100
