"""16 bits: networks and steps compute nearly what they do in 32, and variables and checkpoints may be of 16."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.model_facts import Network
from models.networks import build_network
from models.registry import MODELS
from tests.support.graphs import DATA_FORMATS, open_session
from tests.support.networks import assert_close, one_tower, random_images
from tests.training.small_steps import (
    BF16,
    FP16,
    UNIT,
    Way,
    modern,
    residual,
    run_lenet,
    saved,
    state_of,
    train,
)
from training.precision import FP32, Precision

pytestmark = [pytest.mark.graph, pytest.mark.long]

NETWORKS = {
    'lenet': MODELS.find_model('lenet').network,
    'residual': Network(residual),
    'modern': Network(modern),
}


def computed(
    network: Network, precision: Precision, data_format: str
) -> tuple[dict[str, np.ndarray], set[tuple[str, str]]]:
    """The logits and the gradients of a network by name, and which ops ran in which types."""
    images = random_images((28, 28, 3))
    with tf.Graph().as_default() as graph, open_session(has_nchw=True) as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            logits = build_network(
                network, tf.constant(images), 7, variables, data_format, is_training=True, dtype=precision.compute
            ).logits
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=[2, 5]))
        trainable = manager.trainable_variables_on_device(0)
        values = {'logits': logits}
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        values |= {variable.name: gradient for variable, gradient in zip(trainable, gradients, strict=True)}
        assert {value.dtype for value in values.values()} == {tf.float32}
        session.run(manager.initializers)
        # What no gradient changes stays in float32 also if it is assigned.
        session.run(manager.assign_ops())
        types = {(op.type, op.get_attr('T').name) for op in graph.get_operations() if op.type in _HEAVY}
        return session.run(values), types


_HEAVY = {
    *('Conv2D', 'Conv2DBackpropInput', 'Conv2DBackpropFilter', 'MatMul', 'BiasAdd', 'BiasAddGrad', 'Relu', 'ReluGrad'),
    *('DepthwiseConv2dNative', 'DepthwiseConv2dNativeBackpropInput', 'DepthwiseConv2dNativeBackpropFilter'),
    *('MaxPool', 'MaxPoolGrad', 'AvgPool', 'AvgPoolGrad', 'FusedBatchNormV3', 'FusedBatchNormGradV3', 'ConcatV2'),
}


@pytest.mark.parametrize('data_format', DATA_FORMATS)
@pytest.mark.parametrize('precision', [FP16, BF16], ids=str)
@pytest.mark.parametrize('model', NETWORKS)
def test_networks_compute_nearly_what_they_do_in_32_bits(model: str, precision: Precision, data_format: str) -> None:
    expected, _ = computed(NETWORKS[model], FP32, 'NHWC')
    values, types = computed(NETWORKS[model], precision, data_format)
    assert {dtype for _, dtype in types} == {precision.compute.name}
    assert len(types) > 6
    for name, value in expected.items():
        # Errors of many roundings, some of which turn the choice of a maximum.
        error = np.linalg.norm(values[name] - value) / np.linalg.norm(value)
        assert error < (10 if name == 'logits' else 50) * UNIT[precision.name], name
    assert any(not np.array_equal(values[name], value) for name, value in expected.items())


@pytest.mark.parametrize('precision', [FP16, BF16, replace(FP16, loss_scale=128.0)], ids=str)
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_towers_take_the_steps_of_one(mode: str, precision: Precision) -> None:
    [start, *_, one] = train(precision, Way(optimizer='momentum'), 3)
    [*_, full] = train(FP32, Way(optimizer='momentum'), 3)
    many = train(precision, Way(mode, 4, optimizer='momentum', transfer=precision.compute), 3)[-1]
    assert_close({name: many[name] for name in one}, one, 20 * UNIT[precision.name])
    assert_close(one, full, 20 * UNIT[precision.name])
    assert np.abs(one['logits/kernel'] - start['logits/kernel']).max() > 0.1


@pytest.mark.parametrize('name', ['fp16', 'bf16'])
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'independent'])
def test_trained_variables_may_be_kept_in_16_bits(mode: str, name: str) -> None:
    precision = Precision(name, keeps_variables=True, loss_scale=128.0)
    [with_averages] = train(precision, Way(mode, 2, residual, 'momentum'), 0)
    way = Way(mode, 2, optimizer='momentum')
    start, *_, end = train(precision, way, 2)
    *_, full = train(FP32, way, 2)
    for key, value in with_averages.items():
        if key != 'global_step':
            assert value.dtype == (np.float32 if 'moving' in key else precision.compute.as_numpy_dtype), key
    weights = {key: value.astype(np.float32) for key, value in end.items() if key != 'global_step'}
    assert_close(weights, {key: full[key] for key in weights}, 30 * UNIT[name])
    assert any(np.abs(np.float32(start[key]) - value).max() > 0.05 for key, value in weights.items())


def test_a_checkpoint_of_one_precision_is_read_in_any_other(tmp_path: Path) -> None:
    """Each run goes on where the one before it has stopped, and saves what it had read before its first step."""
    auto = {'fp16_enable_auto_loss_scale': True, 'fp16_inc_loss_scale_every_n': 1, 'fp16_loss_scale': 2.0**7}
    runs: list[tuple[dict[str, Any], float]] = [
        ({'precision': 'fp16', **auto}, 0),
        ({'precision': 'fp16', 'variable_update': 'replicated', 'num_gpus': 2, **auto}, 0),
        ({'precision': 'bf16', 'fp16_vars': True}, UNIT['bf16']),
        ({'precision': 'fp16', 'fp16_vars': True, **auto}, UNIT['fp16']),
        ({'precision': 'fp32', 'variable_update': 'replicated', 'num_gpus': 2}, 0),
    ]
    states = []
    for number, (flags, rounding) in enumerate(runs):
        step, before = 2 * number, saved(tmp_path, 2 * number) if number else {}
        result = run_lenet(train_dir=str(tmp_path), optimizer='momentum', **flags)
        assert all(np.isfinite(step.values.loss) for step in result.steps)
        # Before its first step it has saved what it had read, with the rounding of the type of its variables.
        read, after = saved(tmp_path, step), saved(tmp_path, step + 2)
        for name in before.keys() - {'global_step'}:
            if not name.startswith('loss_scale/'):
                np.testing.assert_allclose(read[name], before[name], rtol=rounding, atol=1e-7, err_msg=name)
                assert after[name].dtype == np.float32
                assert name.endswith('momentum') or not np.array_equal(after[name], before[name])
        assert after['global_step'] == step + 2
        states.append(state_of(after)[0] if 'loss_scale/scale' in after else None)
    # A scale goes on from where it was; without one in the checkpoint it starts anew.
    assert states == [2.0**9, 2.0**11, None, 2.0**9, None]


@pytest.mark.parametrize('precision', ['bf16', 'fp16'])
def test_training_in_16_bits_lowers_the_loss(precision: str) -> None:
    result = run_lenet(precision=precision, num_batches=20, num_gpus=2, variable_update='replicated')
    assert result.steps[-1].values.loss < 0.9 * result.steps[0].values.loss
