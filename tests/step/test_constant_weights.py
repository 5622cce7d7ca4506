"""--freeze_when_forward_only: constant weights compute the same as variables, and TensorFlow folds
batch norm.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn.step.constant_weights
from models.model_spec import Network
from models.networks import NetworkValues, build_network
from models.registry import MODELS, register_model
from tests.support.graphs import (
    DATA_FORMATS,
    normalised,
    open_session,
    random_images,
    random_weight,
)
from tests.support.outputs import refused
from tests.support.runs import losses, plan_of
from tf_cnn.step.build import build_step
from tf_cnn.step.constant_weights import FrozenNetwork

pytestmark = pytest.mark.graph

NUM_CLASSES = 7
WEIGHTS = ['conv/kernel', 'logits/bias', 'logits/kernel']
STATISTICS = ['norm/beta', 'norm/gamma', 'norm/moving_mean', 'norm/moving_variance']


class RandomWeights(NetworkValues):
    """Random values, unlike in a new network, where batch norm has only 1 and 0."""

    def __init__(self) -> None:
        self.values: dict[str, np.ndarray[Any, Any]] = {}

    def read(
        self, name: str, shape: Sequence[int], initializer: Any, *, trainable: bool = True
    ) -> Any:
        del initializer, trainable
        self.values[name] = random_weight(name, tuple(shape))
        return tf.constant(self.values[name])


def twice(cnn: Any, x: Any, num_classes: int) -> Any:
    """Has batch norms that do not fold into a convolution: after a sum, and after an output that is
    used twice.
    """
    first = cnn.conv(x, 4, 3, 'first')
    second = cnn.batch_norm(cnn.conv(first, 4, 3, 'second', use_bias=False), 'norm_of_second')
    third = cnn.batch_norm(cnn.conv(second, 4, 1, 'third'), 'norm_of_third')
    x = cnn.batch_norm(first, 'norm_of_first') + third
    x = cnn.relu(cnn.batch_norm(x, 'norm_of_sum'))
    x = cnn.batch_norm(cnn.conv(x, 4, 3, 'with_bias'), 'norm_with_bias')
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


def blocks(cnn: Any, x: Any, num_classes: int) -> Any:
    """Has the batch norms of MobileNet v2 and of both versions of ResNet."""
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 8, 3, 'conv', use_bias=False), 'norm'))
    y = cnn.batch_norm(cnn.depthwise_conv(x, 3, 'depthwise', use_bias=False), 'norm_of_depthwise')
    x += cnn.batch_norm(cnn.conv(cnn.relu6(y), 8, 1, 'narrow', use_bias=False), 'norm_of_narrow')
    x += cnn.conv(cnn.relu(cnn.batch_norm(x, 'norm_before')), 8, 3, 'after_norm', use_bias=False)
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


NETWORKS: Mapping[str, Network] = {
    'blocks': Network(blocks),
    'trivial': MODELS.find_model('trivial').network,
    'twice': Network(twice),
}


@pytest.mark.parametrize('name', NETWORKS)
def test_constants_give_the_logits_of_batch_norm(name):
    network, images, variables = NETWORKS[name], random_images((8, 8, 3)), RandomWeights()
    # Without graph passes.
    with tf.Graph().as_default(), open_session() as session:
        logits = build_network(
            network, tf.constant(images), NUM_CLASSES, variables, 'NHWC', is_training=False
        ).logits
        plain, weights = session.run(logits), variables.values
    for data_format, dtype in (*product(DATA_FORMATS, [tf.float32]), ('NHWC', tf.bfloat16)):
        if (name, data_format) == ('trivial', 'NCHW'):
            continue
        flags = f'--forward_only --freeze_when_forward_only --data_format={data_format}'
        # With a run's graph passes.
        config = plan_of(f'--model=resnet20 --device=cpu {flags}').session.config
        with tf.Graph().as_default() as graph, tf.device('/cpu:0'):
            logits = build_network(
                network,
                # With a constant, TensorFlow would fold the whole network.
                tf.placeholder_with_default(images, images.shape),
                NUM_CLASSES,
                FrozenNetwork(weights, dtype).constants_for('/cpu:0'),
                data_format,
                is_training=False,
                dtype=dtype,
            ).logits
        metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
        with tf.Session(graph=graph, config=config) as session:
            frozen = session.run(logits, options=options, run_metadata=metadata)
        if dtype == tf.bfloat16:
            # It has 8 bits, and layers add up their errors.
            assert np.abs(frozen - plain).mean() < 0.05 * np.abs(plain).max()
            continue
        np.testing.assert_allclose(frozen, plain, rtol=1e-3, atol=1e-3 * np.abs(plain).max())
        op_types = {node.op for part in metadata.partition_graphs for node in part.node}
        assert not {op_type for op_type in op_types if 'BatchNorm' in op_type}


@pytest.fixture
def small_model(forget_models: None) -> str:
    register_model('normalised', normalised, data_set='cifar10', image_size=8, batch_size=2)
    return 'normalised'


@pytest.mark.parametrize(
    'flags',
    [
        '--variable_update=parameter_server --num_gpus=4',
        '--variable_update=replicated --num_gpus=2 --data_format=NCHW',
        '--variable_update=independent --precision=bf16',
        '--variable_update=replicated --num_gpus=2 --precision=fp16 --fp16_vars',
    ],
)
def test_a_frozen_run_has_the_loss_of_the_same_run_with_variables(small_model, flags):
    flags = f'--model={small_model} --forward_only --num_batches=1 --batch_size=2 {flags}'
    expected = losses(flags)[-1]
    frozen_loss = losses(f'{flags} --freeze_when_forward_only')[-1]
    assert frozen_loss == pytest.approx(expected, rel=1e-2 if 'precision' in flags else 1e-5)


def test_the_step_of_a_frozen_run_reads_no_weights(small_model):
    plan = plan_of(f'--model={small_model} --num_gpus=2 --forward_only --freeze_when_forward_only')
    with tf.Graph().as_default() as graph:
        step_graph = build_step(plan, 0)
    assert step_graph.model_slices == {}
    names = [op.name.partition('/constants/')[::2] for op in graph.get_operations()]
    constants = [name for tower, name in names if tower.startswith('tower_') and name]
    # The virtual devices of a CPU share its memory.
    assert sorted(constants) == [*WEIGHTS, *STATISTICS]


def test_constants_too_large_for_a_graph_are_refused(monkeypatch):
    monkeypatch.setattr(tf_cnn.step.constant_weights, '_MAX_GRAPH_BYTES', 1000)
    frozen = FrozenNetwork({'kernel': np.zeros([100], np.float32)}, tf.float32)
    for number in range(2):
        frozen.constants_for(f'/gpu:{number}')
    with refused('--freeze_when_forward_only', '--num_gpus=2'):
        frozen.constants_for('/gpu:2')
