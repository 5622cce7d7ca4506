"""16 bits: steps compute nearly what they do in 32; the loss scale, with skipped steps; losses that
are not finite.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder
from models.model_spec import Build, Network
from models.networks import PlaceholderVariables, build_network
from models.registry import MODELS
from tests.support.graphs import DATA_FORMATS, cpus, open_session
from tests.support.images import write_digits
from tests.support.networks import (
    LEARNING_RATE,
    NUM_CLASSES,
    SEED,
    assert_close,
    batch_of,
    convolved,
    make_manager,
    one_tower,
    random_images,
    settings,
)
from tests.support.oracles import OPTIMIZERS, Weights
from tests.support.outputs import check_warning, failed
from tests.support.runs import losses, ran, values_in
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.run.step_graph import build_step_graph
from tf_cnn.training.precision import FP32, Precision

pytestmark = pytest.mark.graph

FP16, BF16 = Precision('fp16'), Precision('bf16')
# The largest relative rounding error.
UNIT = {'fp16': 2.0**-11, 'bf16': 2.0**-8}
# The state of a loss scale: the scale, good steps since its last change, skipped steps.
State = tuple[float, int, int]


def scaled(factor: float) -> Build:
    """Returns a network whose logits are multiplied by this."""
    return lambda cnn, x, num_classes: cnn.dense(cnn.flatten(x), num_classes, 'logits') * factor


def residual(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of residual networks and of those with many branches."""
    x = cnn.relu(
        cnn.batch_norm(cnn.conv(x, 8, 3, 'conv1', strides=2, padding=1, use_bias=False), 'conv1/bn')
    )
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


@dataclass(frozen=True)
class Way:
    """The settings of the steps to take."""

    mode: str = 'parameter_server'
    num_towers: int = 1
    network: Build = convolved
    optimizer: str = 'sgd'
    clip: float | None = None
    transfer: tf.DType | None = None
    weight_decay: float = 0.01
    staged: bool = False


def train(precision: Precision, way: Way, num_steps: int) -> list[Weights]:
    """Returns the checkpoint values and the other towers' variables, before the first step and
    after each step.
    """
    towers = cpus(way.num_towers)
    of_step = settings(
        way.network, precision, weight_decay=way.weight_decay, gradient_clip=way.clip
    )
    with tf.Graph().as_default(), open_session(way.num_towers) as session:
        manager = make_manager(
            way.mode,
            towers,
            staged=way.staged,
            seed=SEED,
            variable_dtype=precision.variable_dtype,
            algorithm=make_algorithm(parse_spec('xring'), towers, cpus(1)[0]),
            transfer=way.transfer,
        )
        graph = build_step_graph(
            of_step, OPTIMIZERS[way.optimizer].ours, manager, batch_of(way.num_towers)
        )
        session.run(graph.initializers)
        graph.prepare_first_step(session)
        values = {name: part.variable.value for name, (part,) in graph.slices.items()}
        if manager.each_tower_has_variables():
            for number, own in enumerate(manager.variables[1:], start=1):
                values |= {
                    f'tower {number}: {name}': variable.value for name, variable in own.items()
                }
        seen = [session.run(values)]
        for _ in range(num_steps):
            session.run(graph.fetches.as_dict())
            seen.append(session.run(values))
        return seen


def state_of(weights: Weights) -> State:
    scale, good_steps, skipped_steps = (
        weights[f'loss_scale/{name}'] for name in ('scale', 'good_steps', 'skipped_steps')
    )
    return float(scale), int(good_steps), int(skipped_steps)


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
                network,
                tf.constant(images),
                7,
                variables,
                data_format,
                is_training=True,
                dtype=precision.compute_dtype,
            ).logits
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=[2, 5])
        )
        trainable = manager.trainable_variables_on_device(0)
        values = {'logits': logits}
        gradients = tf.gradients(loss, [variable.value for variable in trainable])
        values |= {
            variable.name: gradient for variable, gradient in zip(trainable, gradients, strict=True)
        }
        assert {value.dtype for value in values.values()} == {tf.float32}
        session.run(manager.initializers)
        # What no gradient changes stays in float32 also if it is assigned.
        session.run(manager.assign_ops())
        types = {
            (op.type, op.get_attr('T').name) for op in graph.get_operations() if op.type in _HEAVY
        }
        return session.run(values), types


_HEAVY = {
    *(
        'Conv2D',
        'Conv2DBackpropInput',
        'Conv2DBackpropFilter',
        'MatMul',
        'BiasAdd',
        'BiasAddGrad',
        'Relu',
        'ReluGrad',
    ),
    *(
        'DepthwiseConv2dNative',
        'DepthwiseConv2dNativeBackpropInput',
        'DepthwiseConv2dNativeBackpropFilter',
    ),
    *(
        'MaxPool',
        'MaxPoolGrad',
        'AvgPool',
        'AvgPoolGrad',
        'FusedBatchNormV3',
        'FusedBatchNormGradV3',
        'ConcatV2',
    ),
}


@pytest.mark.long
@pytest.mark.parametrize('data_format', DATA_FORMATS)
@pytest.mark.parametrize('precision', [FP16, BF16], ids=str)
@pytest.mark.parametrize('model', NETWORKS)
def test_networks_compute_nearly_what_they_do_in_32_bits(
    model: str, precision: Precision, data_format: str
) -> None:
    expected, _ = computed(NETWORKS[model], FP32, 'NHWC')
    values, types = computed(NETWORKS[model], precision, data_format)
    assert {dtype for _, dtype in types} == {precision.compute_dtype.name}
    assert len(types) > 6
    for name, value in expected.items():
        # Errors of many roundings, some of which turn the choice of a maximum.
        error = np.linalg.norm(values[name] - value) / np.linalg.norm(value)
        assert error < (10 if name == 'logits' else 50) * UNIT[precision.name], name
    assert any(not np.array_equal(values[name], value) for name, value in expected.items())


@pytest.mark.long
@pytest.mark.parametrize('precision', [FP16, BF16, replace(FP16, loss_scale=128.0)], ids=str)
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_towers_take_the_steps_of_one(mode: str, precision: Precision) -> None:
    [start, *_, one] = train(precision, Way(optimizer='momentum'), 3)
    [*_, full] = train(FP32, Way(optimizer='momentum'), 3)
    many = train(
        precision, Way(mode, 4, optimizer='momentum', transfer=precision.compute_dtype), 3
    )[-1]
    assert_close({name: many[name] for name in one}, one, 20 * UNIT[precision.name])
    assert_close(one, full, 20 * UNIT[precision.name])
    assert np.abs(one['logits/kernel'] - start['logits/kernel']).max() > 0.1


@pytest.mark.long
@pytest.mark.parametrize('name', ['fp16', 'bf16'])
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated', 'independent'])
def test_trained_variables_may_be_kept_in_16_bits(mode: str, name: str) -> None:
    precision = Precision(name, has_16bit_variables=True, loss_scale=128.0)
    [with_averages] = train(precision, Way(mode, 2, residual, 'momentum'), 0)
    way = Way(mode, 2, optimizer='momentum')
    start, *_, end = train(precision, way, 2)
    *_, full = train(FP32, way, 2)
    for key, value in with_averages.items():
        if key != 'global_step':
            assert value.dtype == (
                np.float32 if 'moving' in key else precision.compute_dtype.as_numpy_dtype
            ), key
    weights = {key: value.astype(np.float32) for key, value in end.items() if key != 'global_step'}
    assert_close(weights, {key: full[key] for key in weights}, 30 * UNIT[name])
    assert any(
        np.abs(np.float32(start[key]) - value).max() > 0.05 for key, value in weights.items()
    )


@pytest.mark.long
def test_a_checkpoint_of_one_precision_is_read_in_any_other(tmp_path: Path) -> None:
    """Each run goes on where the one before it has stopped, and saves what it had read before its
    first step.
    """
    auto = {
        'fp16_enable_auto_loss_scale': True,
        'fp16_inc_loss_scale_every_n': 1,
        'fp16_loss_scale': 2.0**7,
    }
    runs: list[tuple[dict[str, Any], float]] = [
        ({'precision': 'fp16', **auto}, 0),
        ({'precision': 'fp16', 'variable_update': 'replicated', 'num_gpus': 2, **auto}, 0),
        ({'precision': 'bf16', 'fp16_vars': True}, UNIT['bf16']),
        ({'precision': 'fp16', 'fp16_vars': True, **auto}, UNIT['fp16']),
        ({'precision': 'fp32', 'variable_update': 'replicated', 'num_gpus': 2}, 0),
    ]
    states = []
    for number, (flags, rounding) in enumerate(runs):
        step, before = 2 * number, values_in(tmp_path) if number else {}
        steps = {'num_batches': 2, 'num_warmup_batches': 0}
        assert np.isfinite(
            losses(train_dir=str(tmp_path), optimizer='momentum', **steps, **flags)
        ).all()
        # Before its first step it has saved what it had read, with the rounding of the type of its
        # variables.
        read, after = (values_in(tmp_path / f'model.ckpt-{number}') for number in (step, step + 2))
        for name in before.keys() - {'global_step'}:
            if not name.startswith('loss_scale/'):
                np.testing.assert_allclose(
                    read[name], before[name], rtol=rounding, atol=1e-7, err_msg=name
                )
                assert after[name].dtype == np.float32
                assert name.endswith('momentum') or not np.array_equal(after[name], before[name])
        assert after['global_step'] == step + 2
        states.append(state_of(after)[0] if 'loss_scale/scale' in after else None)
    # A scale goes on from where it was; without one in the checkpoint it starts anew.
    assert states == [2.0**9, 2.0**11, None, 2.0**9, None]


@pytest.mark.parametrize('clip', [None, 0.05])
def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit(clip: float | None) -> None:
    way = Way('replicated', 2, residual, 'momentum', clip)
    expected = train(FP32, way, 3)
    for seen, weights in zip(train(Precision(loss_scale=2.0**20), way, 3), expected, strict=True):
        np.testing.assert_equal(seen, weights)


def test_a_loss_scale_saves_gradients_for_which_float16_has_no_numbers() -> None:
    way = Way(network=scaled(2.0**-24), optimizer='momentum', weight_decay=0.0)
    expected, lost, saved = (
        train(precision, way, 1)[-1]['logits/kernel/momentum']
        for precision in (FP32, FP16, replace(FP16, loss_scale=2.0**15))
    )
    assert not lost.any()
    assert 0 < np.abs(expected).max() < 2.0**-24
    np.testing.assert_allclose(
        saved, expected, rtol=0, atol=20 * UNIT['fp16'] * np.abs(expected).max()
    )


def train_plainly(
    precision: Precision, way: Way, start: Weights, num_updates: int
) -> tuple[Weights, list[State]]:
    """The algorithm in a few lines: the weights after that many updates, and the state before and
    after each step.
    """
    states: list[State] = [(precision.loss_scale, 0, 0)]
    with tf.Graph().as_default(), open_session() as session:
        fed, scale = PlaceholderVariables(), tf.placeholder(tf.float32, [])
        pipeline, of_towers = batch_of(way.num_towers), []
        for tower in range(way.num_towers):
            batch = pipeline.tower_batch(tower)
            logits = build_network(
                Network(way.network),
                batch.images,
                NUM_CLASSES,
                fed,
                'NHWC',
                is_training=True,
                dtype=precision.compute_dtype,
            ).logits
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                logits=logits, labels=batch.labels
            )
            objective = tf.reduce_mean(losses) / way.num_towers
            if tower == 0:
                kernels = [value for name, value in fed.values.items() if name.endswith('kernel')]
                objective += way.weight_decay * tf.add_n(
                    [tf.nn.l2_loss(kernel) for kernel in kernels]
                )
            of_towers.append(tf.gradients(scale * objective, [*fed.values.values()]))
        # A sum of float16 may overflow where none of what is summed does.
        transfer = way.transfer or tf.float32
        sums = [
            tf.add_n([tf.cast(own, transfer) for own in each])
            for each in zip(*of_towers, strict=True)
        ]
        gradients = {
            name: tf.cast(total, tf.float32) for name, total in zip(fed.values, sums, strict=True)
        }

        def gradients_at(weights: Weights, _: int) -> Weights:
            factor, good_steps, skipped_steps = states[-1]
            while True:
                values = {fed.values[name]: value for name, value in weights.items()}
                scaled = session.run(gradients, {scale: factor, **values})
                if all(np.isfinite(gradient).all() for gradient in scaled.values()):
                    break
                factor, good_steps, skipped_steps = factor / 2, 0, skipped_steps + 1
                states.append((factor, good_steps, skipped_steps))
            is_due = good_steps + 1 == precision.steps_until_doubling
            states.append(
                (2 * factor, 0, skipped_steps)
                if is_due
                else (factor, good_steps + 1, skipped_steps)
            )
            return {name: gradient / factor for name, gradient in scaled.items()}

        own = {name: start[name] for name in fed.values}
        return OPTIMIZERS[way.optimizer].numpy.train(
            own, gradients_at, LEARNING_RATE, num_updates
        ), states


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
    precision = replace(FP16, loss_scale=2.0**20, steps_until_doubling=2)
    start = train(precision, way, 0)[0]
    expected, states = train_plainly(precision, way, start, num_updates=16)
    # Too high at first, and again after it has grown.
    skipped = [after[2] - before[2] for before, after in pairwise(states)]
    assert skipped[0] == 1
    assert 1 in skipped[skipped.index(0) :]
    seen = train(precision, way, len(states) - 1)
    assert [state_of(weights) for weights in seen] == states
    assert seen[-1]['global_step'] == len(states) - 1
    assert_close({name: seen[-1][name] for name in expected}, expected, 20 * UNIT['fp16'])


@pytest.mark.parametrize(
    'way',
    [Way(), Way(staged=True), Way('replicated', 2), Way('independent', 2)],
    ids=lambda way: f'{way.mode}-{way.num_towers}-{way.optimizer}',
)
def test_a_skipped_step_changes_nothing_but_the_scale_and_the_counts(way: Way) -> None:
    seen = train(
        replace(FP16, loss_scale=2.0**17, steps_until_doubling=2),
        replace(way, network=residual, optimizer='adam'),
        8,
    )
    num_skipped = 0
    was_kept: list[bool] = []
    for number, (before, after) in enumerate(pairwise(seen), start=1):
        assert after['global_step'] == number
        is_skipped = state_of(after)[2] > state_of(before)[2]
        num_skipped += is_skipped
        if is_skipped:
            assert state_of(after) == (state_of(before)[0] / 2, 0, num_skipped)
        averages = {name for name in after if '/moving_' in name}
        assert averages
        for name in after.keys() - {'global_step'} - (averages if way.staged else set()):
            if not name.startswith('loss_scale/'):
                assert np.array_equal(before[name], after[name]) is is_skipped, name
        if way.staged:
            # Moving averages are of the step that computed the gradients, the one before.
            assert not was_kept or was_kept[-1] is is_skipped
            (is_kept,) = {np.array_equal(before[name], after[name]) for name in averages}
            was_kept.append(is_kept)
    assert 0 < num_skipped < len(seen) - 1


def test_an_automatic_scale_stays_within_bounds() -> None:
    """All gradients of a network that multiplies by zero are zero; those of one that divides by it
    never are finite.
    """
    for factor, start, end in (
        (0.0, 2.0**23, 2.0**24),
        (0.0, 2.0**30, 2.0**30),
        (np.inf, 2.0, 1.0),
    ):
        precision = Precision(loss_scale=start, steps_until_doubling=1)
        seen = train(precision, Way(network=scaled(factor), weight_decay=0.0), 3)
        assert state_of(seen[-1])[0] == end


def test_a_run_reports_its_precision_and_how_many_steps_it_skipped(tmp_path: Path) -> None:
    flags: dict[str, Any] = {
        'precision': 'fp16',
        'fp16_enable_auto_loss_scale': True,
        'fp16_loss_scale': 2.0**30,
    }
    result, out, err = ran(num_batches=4, train_dir=str(tmp_path), **flags)
    assert 'Precision:   fp16, automatic loss scale from 1.07374e+09\n' in out
    assert result.run.precision == 'fp16, automatic loss scale from 1.07374e+09'
    assert result.is_complete
    assert result.run.num_skipped_steps == 5
    check_warning(err, '5 steps')
    assert len({*result.steps.loss}) == 1
    assert state_of(values_in(tmp_path)) == (2.0**25, 0, 5)
    # Only its own are counted by a run that goes on.
    again = ran(num_batches=1, num_warmup_batches=0, train_dir=str(tmp_path), **flags).result
    assert again.run.num_skipped_steps == 1


DIVERGING: dict[str, Any] = {'num_batches': 6, 'num_warmup_batches': 0, 'init_learning_rate': 1e30}


def test_a_loss_of_float16_that_is_not_finite_stops_the_run_and_names_its_step(
    tmp_path: Path,
) -> None:
    with failed('--precision=bf16', '--fp16_enable_auto_loss_scale', '--continue_on_nan') as caught:
        ran(model='mnist', data_dir=write_digits(tmp_path), **DIVERGING, precision='fp16')
    assert re.search(r'\b(nan|inf)\b.*\b[23]\b', str(caught.value)), 'the loss and the step'


def test_a_loss_that_is_not_finite_ends_training_except_by_a_flag_or_on_synthetic_images(
    tmp_path: Path,
) -> None:
    told = ran(model='mnist', data_dir=write_digits(tmp_path), continue_on_nan=True, **DIVERGING)
    synthetic = ran(**DIVERGING)
    for result in (told.result, synthetic.result):
        assert result.is_complete
        assert result.steps.loss[-1] is None
    assert 'total images/sec' in synthetic.out
    check_warning(synthetic.err, 'loss', '--init_learning_rate')
