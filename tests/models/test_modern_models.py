"""The networks since 2016: every variable of each trains, and they drop units and paths while training."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.densenet import densenet
from models.layers import LayerBuilder
from tests.support.graphs import open_session
from tests.support.keras_networks import build, count
from tests.support.networks import BATCH, one_tower, random_images

pytestmark = [pytest.mark.graph, pytest.mark.long]


# Dropout before the logits, and drop path in each block with a shortcut, where its rate is not zero.
NUM_DROPS = {
    'mobilenet': 1,
    'nasnet': 1,
    'nasnetlarge': 1,
    'densenet121': 0,
    'efficientnet_b0': 1 + 9,
    'convnext_tiny': 17,
}


@pytest.mark.parametrize(
    'model',
    [pytest.param(name, marks=pytest.mark.all_modes if name.startswith('nasnet') else ()) for name in NUM_DROPS],
)
def test_training_drops_and_gives_every_variable_a_finite_gradient(model: str) -> None:
    with tf.Graph().as_default() as graph, open_session() as session:
        manager = one_tower()
        images = tf.constant(random_images((64, 64, 3)))
        logits = build(model, manager, images, is_training=True).logits
        assert sum(op.type == 'RandomUniform' for op in graph.get_operations()) == NUM_DROPS[model]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=tf.range(BATCH)))
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
    # Weight decay applies to variables of more than one axis. These are the kernels, depthwise ones included.
    for name, variable in manager.savable_variables().items():
        assert (len(variable.shape) > 1) == name.endswith('/kernel')


def test_densenet_bc_for_small_images_has_the_published_size() -> None:
    """Huang et al. 2017, table 2: DenseNet-BC (k = 12) of depth 100 has 0.8M parameters."""
    with tf.Graph().as_default():
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            logits = densenet(
                LayerBuilder(variables, 'NHWC', is_training=True),
                tf.zeros([1, 32, 32, 3]),
                10,
                blocks=[16] * 3,
                growth_rate=12,
                bottleneck=True,
                compression=0.5,
                stem_filters=24,
                small_images=True,
            )
    assert logits.shape == [1, 10]
    assert count(manager, trainable=True) / 1e6 == pytest.approx(0.8, abs=0.05)
