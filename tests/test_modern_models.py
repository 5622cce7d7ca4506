"""The networks since 2016: what they cost, and that all of each of them trains."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sessions import open_session
from single_tower import BATCH, one_tower, random_images
from test_models import build, count

from models.catalog import find_model
from models.counting import cost_of
from models.densenet import densenet
from models.layers import LayerBuilder

pytestmark = pytest.mark.graph

# Multiply-adds of one image, in billions.
PUBLISHED_GFLOPS = {
    # Sandler et al. 2018, table 4: 300M; torchvision's table of weights says 0.30.
    'mobilenet': 0.300,
    # Zoph et al. 2018, tables 3 (mobile) and 2 (large).
    'nasnet': 0.564,
    'nasnetlarge': 23.8,
    # torchvision's tables of weights (docs of torchvision.models).
    'densenet121': 2.83,
    'efficientnet_b0': 0.39,  # and Tan & Le 2019, table 2
    'convnext_tiny': 4.46,  # Liu et al. 2022, table 1: 4.5
}


@pytest.mark.parametrize('model', PUBLISHED_GFLOPS)
def test_a_forward_pass_takes_the_published_arithmetic(model: str) -> None:
    assert cost_of(find_model(model)).gflops == pytest.approx(PUBLISHED_GFLOPS[model], rel=0.02)


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
    'model', [name if name != 'nasnetlarge' else pytest.param(name, marks=pytest.mark.all_modes) for name in NUM_DROPS]
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
    # Weight decay is of what has more than one axis: of kernels, depthwise ones too, and of no factor or offset.
    for name, variable in manager.savable_variables().items():
        assert (len(variable.shape) > 1) == name.endswith('/kernel')


@pytest.mark.parametrize(
    ('layers', 'is_bc', 'millions'),
    [(12, False, 1.0), (16, True, 0.8)],
    ids=['DenseNet (k = 12) of depth 40', 'DenseNet-BC (k = 12) of depth 100'],
)
def test_a_densenet_for_small_images_has_the_published_size(layers: int, is_bc: bool, millions: float) -> None:
    """Huang et al. 2017, table 2."""
    with tf.Graph().as_default():
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            logits = densenet(
                LayerBuilder(variables, 'NHWC', is_training=True),
                tf.zeros([1, 32, 32, 3]),
                10,
                blocks=[layers] * 3,
                growth_rate=12,
                bottleneck=is_bc,
                compression=0.5 if is_bc else 1.0,
                stem_filters=24 if is_bc else 16,
                small_images=True,
            )
    assert logits.shape == [1, 10]
    assert count(manager, trainable=True) / 1e6 == pytest.approx(millions, abs=0.05)
