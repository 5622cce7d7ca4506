"""16 bits: networks compute nearly what they do in 32, and steps that overflow are skipped."""

import io
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracles import OPTIMIZERS, Fed, Weights
from refusals import failed, refused
from sessions import DATA_FORMATS, cpus, open_session
from single_tower import one_tower, random_images
from warned import check_warning

from all_reduce import make_algorithm
from benchmark_cnn import BenchmarkCNN
from input_pipeline import Batch, InputPipeline
from models.layers import LayerBuilder
from models.networks import NETWORKS, Network, build_network
from packing import Packing
from params import make_params
from reporting.console import Console
from reporting.result import Result
from step_graph import StepSettings, build_step_graph
from training.precision import FP32, Precision
from training.schedules import LearningRate
from variable_mgr import Placement, make_variable_mgr

pytestmark = pytest.mark.graph

FP16, BF16 = Precision('fp16'), Precision('bf16')
# What one rounding changes at most, in relation to the value.
UNIT = {'fp16': 2.0**-11, 'bf16': 2.0**-8}
NUM_CLASSES, BATCH, LEARNING_RATE, SEED = 5, 8, 0.1, 3
IMAGES = np.random.default_rng(2).normal(size=(BATCH, 6, 6, 2)).astype(np.float32)
LABELS = np.random.default_rng(3).integers(NUM_CLASSES, size=BATCH).astype(np.int32)


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 4, 3, 'conv')), 2, 2)
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def faint(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.flatten(x), num_classes, 'logits') * 2.0**-24


def zero(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.flatten(x), num_classes, 'logits') * 0.0


def infinite(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.flatten(x), num_classes, 'logits') * np.inf


def residual(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of residual networks and of those with many branches."""
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 8, 3, 'conv1', strides=2, padding=1, use_bias=False), 'conv1/bn'))
    x = cnn.max_pool(x, 3, 2, padding=1)
    y = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 1, 'conv2', use_bias=False), 'conv2/bn'))
    y = cnn.batch_norm(cnn.conv(y, 8, 3, 'conv3', use_bias=False), 'conv3/bn')
    x = cnn.concat([cnn.relu(x + y), cnn.avg_pool(x, 3, 1, 'SAME')])
    x = cnn.conv(x, 8, 2, 'conv4', padding='VALID')
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


def modern(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of mobile networks and of ConvNeXt."""
    x = cnn.swish(cnn.conv(x, 8, 4, 'stem', strides=4, padding='VALID'))
    y = cnn.gelu(cnn.layer_norm(cnn.depthwise_conv(x, 5, 'depthwise'), 'norm'))
    x = x + cnn.layer_scale(cnn.relu6(cnn.conv(y, 8, 1, 'conv')), 'scale', 0.5)
    x = cnn.gate(x, cnn.dense(cnn.global_avg_pool(x), 8, 'gate'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for network in (plain, faint, zero, infinite, residual, modern):
        monkeypatch.setitem(NETWORKS, network.__name__, Network(network))


# Networks.


def computed(model: str, precision: Precision, data_format: str) -> tuple[dict[str, np.ndarray], set[tuple[str, str]]]:
    """The logits and the gradients of a network by name, and which ops ran in which types."""
    images = random_images((28, 28, 3))
    with tf.Graph().as_default() as graph, open_session(has_nchw=True) as session:
        manager = one_tower()
        with manager.create_outer_variable_scope(0) as variables:
            logits = build_network(
                model, tf.constant(images), 7, variables, data_format, is_training=True, dtype=precision.compute
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
@pytest.mark.parametrize('model', ['lenet', 'residual', 'modern'])
def test_networks_compute_nearly_what_they_do_in_32_bits(model: str, precision: Precision, data_format: str) -> None:
    expected, _ = computed(model, FP32, 'NHWC')
    values, types = computed(model, precision, data_format)
    assert {dtype for _, dtype in types} == {precision.compute.name}
    assert len(types) > 6
    for name, value in expected.items():
        # Errors of many roundings, some of which turn the choice of a maximum.
        error = np.linalg.norm(values[name] - value) / np.linalg.norm(value)
        assert error < (10 if name == 'logits' else 50) * UNIT[precision.name], name
    assert any(not np.array_equal(values[name], value) for name, value in expected.items())


# Steps.


class FixedInput(InputPipeline):
    """The same images in every step, parted among the towers."""

    def __init__(self, num_towers: int) -> None:
        super().__init__()
        self._parts = list(zip(np.split(IMAGES, num_towers), np.split(LABELS, num_towers), strict=True))

    def tower_batch(self, tower: int) -> Batch:
        images, labels = self._parts[tower]
        return Batch(tf.constant(images), tf.constant(labels))


@dataclass(frozen=True)
class Way:
    """How steps are taken."""

    mode: str = 'parameter_server'
    num_towers: int = 1
    model: str = 'plain'
    optimizer: str = 'sgd'
    clip: float | None = None
    transfer: tf.DType | None = None
    weight_decay: float = 0.01
    staged: bool = False


def train(precision: Precision, way: Way, num_steps: int) -> list[Weights]:
    """What a checkpoint would hold before the first step and after each, and the variables of other towers."""
    towers = cpus(way.num_towers)
    placement = Placement(
        towers,
        SEED,
        cpus(1),
        make_algorithm('xring', towers, cpus(1)[0]),
        Packing(),
        transfer=way.transfer,
        variable_dtype=precision.variables,
    )
    settings = StepSettings(
        model=way.model,
        num_classes=NUM_CLASSES,
        data_format='NHWC',
        forward_only=False,
        with_accuracy=False,
        loss_type_to_report='total_loss',
        weight_decay=way.weight_decay,
        gradient_clip=way.clip,
        learning_rate=LearningRate((LEARNING_RATE,)),
        seed=SEED,
        precision=precision,
    )
    with tf.Graph().as_default(), open_session(way.num_towers) as session:
        manager = make_variable_mgr(way.mode, placement, staged=way.staged)
        graph = build_step_graph(settings, OPTIMIZERS[way.optimizer].ours, manager, FixedInput(way.num_towers))
        session.run(graph.initializers)
        if graph.post_init is not None:
            session.run(graph.post_init)
        values = {name: part.variable.value for name, (part,) in graph.slices.items()}
        if manager.each_tower_has_variables():
            for number, own in enumerate(manager.variables[1:], start=1):
                values |= {f'tower {number}: {name}': variable.value for name, variable in own.items()}
        seen = [session.run(values)]
        for _ in range(num_steps):
            session.run(graph.fetches)
            seen.append(session.run(values))
        return seen


def assert_near(weights: Weights, expected: Weights, tolerance: float) -> None:
    """In relation to the largest magnitude of each."""
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)


@pytest.mark.parametrize('precision', [FP16, BF16, replace(FP16, loss_scale=128.0)], ids=str)
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_towers_take_the_steps_of_one(mode: str, precision: Precision) -> None:
    [start, *_, one] = train(precision, Way(optimizer='momentum'), 3)
    [*_, full] = train(FP32, Way(optimizer='momentum'), 3)
    many = train(precision, Way(mode, 4, optimizer='momentum', transfer=precision.compute), 3)[-1]
    assert_near({name: many[name] for name in one}, one, 20 * UNIT[precision.name])
    assert_near(one, full, 20 * UNIT[precision.name])
    assert np.abs(one['logits/kernel'] - start['logits/kernel']).max() > 0.1


@pytest.mark.parametrize('clip', [None, 0.05])
def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit(clip: float | None) -> None:
    way = Way('replicated', 2, 'residual', 'momentum', clip)
    expected = train(FP32, way, 3)
    for seen, weights in zip(train(Precision(loss_scale=2.0**20), way, 3), expected, strict=True):
        np.testing.assert_equal(seen, weights)


def test_a_loss_scale_saves_gradients_for_which_float16_has_no_numbers() -> None:
    way = Way(model='faint', optimizer='momentum', weight_decay=0.0)
    expected, lost, saved = (
        train(precision, way, 1)[-1]['logits/kernel/momentum']
        for precision in (FP32, FP16, replace(FP16, loss_scale=2.0**15))
    )
    assert not lost.any()
    assert 0 < np.abs(expected).max() < 2.0**-24
    np.testing.assert_allclose(saved, expected, rtol=0, atol=20 * UNIT['fp16'] * np.abs(expected).max())


# The automatic loss scale.

State = tuple[float, int, int]


def state_of(weights: Weights) -> State:
    scale, good_steps, skipped_steps = (
        weights[f'loss_scale/{name}'] for name in ('scale', 'good_steps', 'skipped_steps')
    )
    return float(scale), int(good_steps), int(skipped_steps)


def train_plainly(precision: Precision, way: Way, start: Weights, num_updates: int) -> tuple[Weights, list[State]]:
    """The algorithm in a few lines: the weights after that many updates, and the state before and after each step."""
    states: list[State] = [(precision.loss_scale, 0, 0)]
    with tf.Graph().as_default(), open_session() as session:
        fed, scale = Fed(), tf.placeholder(tf.float32, [])
        pipeline, of_towers = FixedInput(way.num_towers), []
        for tower in range(way.num_towers):
            batch = pipeline.tower_batch(tower)
            logits = build_network(
                way.model, batch.images, NUM_CLASSES, fed, 'NHWC', is_training=True, dtype=precision.compute
            ).logits
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=batch.labels)
            objective = tf.reduce_mean(losses) / way.num_towers
            if tower == 0:
                kernels = [value for name, value in fed.values.items() if name.endswith('kernel')]
                objective += way.weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
            of_towers.append(tf.gradients(scale * objective, [*fed.values.values()]))
        # A sum of float16 may overflow where none of what is summed does.
        transfer = way.transfer or tf.float32
        sums = [tf.add_n([tf.cast(own, transfer) for own in each]) for each in zip(*of_towers, strict=True)]
        gradients = {name: tf.cast(total, tf.float32) for name, total in zip(fed.values, sums, strict=True)}

        def gradients_at(weights: Weights, _: int) -> Weights:
            factor, good_steps, skipped_steps = states[-1]
            while True:
                values = {fed.values[name]: value for name, value in weights.items()}
                scaled = session.run(gradients, {scale: factor, **values})
                if all(np.isfinite(gradient).all() for gradient in scaled.values()):
                    break
                factor, good_steps, skipped_steps = factor / 2, 0, skipped_steps + 1
                states.append((factor, good_steps, skipped_steps))
            is_due = good_steps + 1 == precision.doubled_every
            states.append((2 * factor, 0, skipped_steps) if is_due else (factor, good_steps + 1, skipped_steps))
            return {name: gradient / factor for name, gradient in scaled.items()}

        own = {name: start[name] for name in fed.values}
        return OPTIMIZERS[way.optimizer].numpy.train(own, gradients_at, LEARNING_RATE, num_updates), states


@pytest.mark.parametrize(
    'way',
    [
        Way(),
        Way(num_towers=2, optimizer='adam'),
        Way('replicated', 2, optimizer='momentum', transfer=tf.float16),
    ],
    ids=lambda way: f'{way.mode}-{way.num_towers}-{way.optimizer}',
)
def test_steps_are_skipped_and_the_scale_moves_as_the_plain_algorithm_says(way: Way) -> None:
    precision = replace(FP16, loss_scale=2.0**20, doubled_every=2)
    start = train(precision, way, 0)[0]
    expected, states = train_plainly(precision, way, start, num_updates=16)
    # Too high at first, and again after it has grown.
    skipped = [after[2] - before[2] for before, after in pairwise(states)]
    assert skipped[0] == 1
    assert 1 in skipped[skipped.index(0) :]
    seen = train(precision, way, len(states) - 1)
    assert [state_of(weights) for weights in seen] == states
    assert seen[-1]['global_step'] == len(states) - 1
    assert_near({name: seen[-1][name] for name in expected}, expected, 20 * UNIT['fp16'])


@pytest.mark.parametrize(
    'way',
    [Way(), Way(staged=True), Way('replicated', 2), Way('independent', 2)],
    ids=lambda way: f'{way.mode}-{way.num_towers}-{way.optimizer}',
)
def test_a_skipped_step_changes_nothing_but_the_scale_and_the_counts(way: Way) -> None:
    seen = train(
        replace(FP16, loss_scale=2.0**17, doubled_every=2), replace(way, model='residual', optimizer='adam'), 8
    )
    num_skipped = 0
    for number, (before, after) in enumerate(pairwise(seen), start=1):
        assert after['global_step'] == number
        is_skipped = state_of(after)[2] > state_of(before)[2]
        num_skipped += is_skipped
        if is_skipped:
            assert state_of(after) == (state_of(before)[0] / 2, 0, num_skipped)
        for name in after.keys() - {'global_step'}:
            if not name.startswith('loss_scale/'):
                assert np.array_equal(before[name], after[name]) is is_skipped, name
    assert 0 < num_skipped < len(seen) - 1


def test_an_automatic_scale_stays_within_bounds() -> None:
    """All gradients of a network that multiplies by zero are zero; those of one that divides by it never are finite."""
    for model, start, end in (('zero', 2.0**23, 2.0**24), ('zero', 2.0**30, 2.0**30), ('infinite', 2.0, 1.0)):
        precision = Precision(loss_scale=start, doubled_every=1)
        seen = train(precision, Way(model=model, weight_decay=0.0), 3)
        assert state_of(seen[-1])[0] == end


# Variables of 16 bits, and checkpoints.


@pytest.mark.parametrize('name', ['fp16', 'bf16'])
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'independent'])
def test_trained_variables_may_be_kept_in_16_bits(mode: str, name: str) -> None:
    precision = Precision(name, keeps_variables=True, loss_scale=128.0)
    [with_averages] = train(precision, Way(mode, 2, 'residual', 'momentum'), 0)
    way = Way(mode, 2, optimizer='momentum')
    start, *_, end = train(precision, way, 3)
    *_, full = train(FP32, way, 3)
    for key, value in with_averages.items():
        if key != 'global_step':
            assert value.dtype == (np.float32 if 'moving' in key else precision.compute.as_numpy_dtype), key
    weights = {key: value.astype(np.float32) for key, value in end.items() if key != 'global_step'}
    assert_near(weights, {key: full[key] for key in weights}, 30 * UNIT[name])
    assert any(np.abs(np.float32(start[key]) - value).max() > 0.05 for key, value in weights.items())


def run(console: Console | None = None, **overrides: Any) -> Result:
    settings = {'model': 'lenet', 'device': 'cpu', 'batch_size': 8, 'num_batches': 2, 'num_warmup_batches': 0}
    return BenchmarkCNN(make_params(**{**settings, **overrides}), console).run()


def saved(folder: Path, step: int) -> Weights:
    reader = tf.train.load_checkpoint(str(folder / f'model.ckpt-{step}'))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


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
        result = run(train_dir=str(tmp_path), optimizer='momentum', **flags)
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


# A whole run.


def test_a_run_reports_its_precision_and_how_many_steps_it_skipped(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    flags: dict[str, Any] = {'precision': 'fp16', 'fp16_enable_auto_loss_scale': True, 'fp16_loss_scale': 2.0**30}
    result = run(Console(out, err), num_batches=4, num_warmup_batches=1, train_dir=str(tmp_path), **flags)
    assert 'Precision:   fp16, automatic loss scale from 1.07374e+09\n' in out.getvalue()
    assert result.precision == 'fp16'
    assert result.complete
    assert result.num_skipped_steps == 5
    check_warning(err.getvalue(), '5')
    assert len({step.values.loss for step in result.steps}) == 1
    assert state_of(saved(tmp_path, 5)) == (2.0**25, 0, 5)
    # Only its own are counted by a run that goes on.
    assert run(num_batches=1, train_dir=str(tmp_path), **flags).num_skipped_steps == 1


@pytest.mark.parametrize('precision', ['bf16', 'fp16'])
def test_training_in_16_bits_lowers_the_loss(precision: str) -> None:
    result = run(precision=precision, num_batches=20, num_gpus=2, variable_update='replicated')
    assert result.steps[-1].values.loss < 0.9 * result.steps[0].values.loss


DIVERGING: dict[str, Any] = {'num_batches': 6, 'init_learning_rate': 1e30}


@pytest.mark.parametrize(
    ('flags', 'hints'),
    [
        ({}, ['1e+30', '--init_learning_rate']),
        ({'precision': 'fp16'}, ['--precision=bf16', '--fp16_enable_auto_loss_scale']),
    ],
)
def test_a_loss_that_is_not_finite_stops_the_run_and_names_its_step(
    flags: dict[str, Any], hints: list[str], tmp_path: Path
) -> None:
    with failed('--continue_on_nan', *hints) as caught:
        run(train_dir=str(tmp_path), **DIVERGING, **flags)
    assert re.search(r'\b(nan|inf)\b', str(caught.value))
    assert re.search(r'\b[23]\b', str(caught.value)), 'the step'
    result = caught.value.result
    assert isinstance(result, Result)
    assert not result.complete
    assert 1 <= len(result.steps) <= 2
    # What has diverged is not saved.
    assert [path.name for path in tmp_path.glob('*.index')] == ['model.ckpt-0.index']


def test_training_continues_with_a_loss_that_is_not_finite_if_a_flag_says_so() -> None:
    result = run(continue_on_nan=True, **DIVERGING)
    assert result.complete
    assert not np.isfinite(result.steps[-1].values.loss)


def test_variables_of_16_bits_are_refused_where_others_share_them() -> None:
    placement = Placement(cpus(1), SEED, cpus(1), make_algorithm('pscpu', cpus(1), cpus(1)[0]), Packing())
    with refused('--fp16_vars', '--variable_update=parameter_server'):
        make_variable_mgr('parameter_server', replace(placement, variable_dtype=tf.bfloat16), distributed=True)
