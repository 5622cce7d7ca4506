"""Networks that are measured without training compute finite numbers from fresh weights, also in 16 bits."""

import io
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from models.networks import build_network
from models.registry import MODELS, register_model
from params import make_params
from results.console import Console
from tests.support.graphs import open_session
from tests.support.networks import one_tower, random_images
from tests.support.outputs import check_warning

pytestmark = pytest.mark.graph


@pytest.mark.parametrize(
    'model',
    [
        *('resnet50', 'official_resnet50_v2'),
        *(pytest.param(model, marks=pytest.mark.all_modes) for model in ('resnet101', 'nasnet')),
    ],
)
def test_fresh_weights_give_logits_that_float16_can_hold(model: str) -> None:
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.constant(random_images((64, 64, 3)))
            network = MODELS.find_model(model).network
            logits = build_network(network, images, 1001, variables, 'NHWC', is_training=False, dtype=tf.float16).logits
        session.run(manager.initializers)
        # Far from the largest number of float16, 65504.
        assert np.abs(session.run(logits)).max() < 100


def test_training_starts_with_the_factors_of_the_paper() -> None:
    with tf.Graph().as_default(), open_session() as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.zeros([1, 32, 32, 3])
            build_network(MODELS.find_model('resnet20').network, images, 10, variables, 'NHWC', is_training=True)
        session.run(manager.initializers)
        factors = [variable for name, variable in manager.savable_variables().items() if name.endswith('gamma')]
        assert all((session.run(factor.value) == 1).all() for factor in factors)


@pytest.mark.usefixtures('forget_models')
def test_without_training_a_loss_that_is_not_finite_is_a_warning() -> None:
    def too_large(cnn: Any, images: Any, num_classes: int) -> Any:
        return cnn.dense(cnn.flatten(images), num_classes, 'logits') * 1e38 * 1e38

    register_model('too_large', too_large, data_set='cifar10', image_size=8, batch_size=2)
    out, err = io.StringIO(), io.StringIO()
    settings: dict[str, Any] = {'model': 'too_large', 'device': 'cpu', 'num_batches': 2, 'num_warmup_batches': 0}
    result = BenchmarkCNN(make_params(**settings, forward_only=True), Console(out, err)).run()
    assert result.complete
    assert not np.isfinite(result.steps[-1].values.loss)
    check_warning(err.getvalue(), 'loss', '2 of 2 steps')
