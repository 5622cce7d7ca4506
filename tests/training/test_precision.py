"""Steps in 16 bits compute nearly the same as in 32; the loss scale and skipped steps; losses that
are not finite.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder
from models.model_spec import Build
from models.registry import register_model
from tests.support.graphs import (
    LEARNING_RATE,
    assert_close,
    batch_of,
    convolved,
    cpus,
    make_manager,
    open_session,
    plain_gradients,
    train_towers,
    training_step,
    transformer,
)
from tests.support.images import write_digits
from tests.support.oracles import OPTIMIZERS, Weights
from tests.support.outputs import check_warning
from tests.support.runs import losses, run_benchmark, values_in
from tf_cnn.managers.all_reduce import make_algorithm
from tf_cnn.managers.all_reduce_spec import parse_spec
from tf_cnn.training.precision import FP32, Precision

pytestmark = pytest.mark.graph

FP16, BF16 = Precision('fp16'), Precision('bf16')
# The largest relative rounding error.
UNIT = {'fp16': 2.0**-11, 'bf16': 2.0**-8}
# The state of a loss scale: the scale, good steps since its last change, skipped steps.
State = tuple[float, int, int]


def scaled(factor: float) -> Build:
    """Returns a network that multiplies its logits by this."""
    return lambda cnn, x, num_classes: cnn.dense(cnn.flatten(x), num_classes, 'logits') * factor


def normed(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', strides=2, use_bias=False), 'conv/bn')
    return cnn.dense(cnn.flatten(cnn.relu(x)), num_classes, 'logits')


@pytest.fixture
def small_model(forget_models: None) -> str:
    """Registers a model for MNIST: on CPUs, LeNet takes ten times as long in fp16."""
    register_model('small', normed, data_set='mnist', image_size=28)
    return 'small'


def train(
    precision: Precision,
    num_steps: int,
    mode: str = 'parameter_server',
    num_towers: int = 1,
    *,
    network: Build = convolved,
    optimizer: str = 'sgd',
    staged: bool = False,
    transfer: tf.DType | None = None,
    **flags: Any,
) -> list[Weights]:
    """Returns the checkpoint values and the other towers' variables, before the first step and
    after each step.
    """
    devices = cpus(num_towers)
    manager = make_manager(
        mode,
        devices,
        staged=staged,
        variable_dtype=precision.variable_dtype,
        algorithm=make_algorithm(parse_spec('xring'), devices, cpus(1)[0]),
        transfer=transfer,
    )
    config, rule = training_step(network, precision, **flags), OPTIMIZERS[optimizer].ours
    history = train_towers(config, rule, manager, batch_of(num_towers), num_steps)
    return [
        first
        | {
            f'tower {i}: {name}': weights[name]
            for i, weights in enumerate(towers, 1)
            for name in weights
        }
        for first, *towers in history
    ]


def state_of(weights: Weights) -> State:
    scale, *counts = (
        weights[f'loss_scale/{name}'] for name in ('scale', 'good_steps', 'skipped_steps')
    )
    return float(scale), int(counts[0]), int(counts[1])


@pytest.mark.long
@pytest.mark.parametrize(
    ('mode', 'name', 'has_16bit_variables', 'network'),
    [
        ('parameter_server', 'fp16', False, normed),
        ('parameter_server', 'bf16', True, normed),
        ('replicated', 'bf16', False, transformer),
        ('replicated', 'fp16', True, normed),
        ('independent', 'fp16', False, transformer),
    ],
)
def test_towers_take_nearly_the_steps_of_32_bits(mode, name, has_16bit_variables, network):
    precision = Precision(name, has_16bit_variables=has_16bit_variables, loss_scale=128.0)
    training: dict[str, Any] = {'network': network, 'optimizer': 'momentum'}
    end = train(precision, 2, mode, 2, transfer=precision.compute_dtype, **training)[-1]
    for key in end.keys() - {'global_step'}:
        is_16bit = has_16bit_variables and 'moving' not in key
        dtype = precision.compute_dtype if is_16bit else tf.float32
        assert end[key].dtype == dtype.as_numpy_dtype, key
    end = {key: value.astype(np.float32) for key, value in end.items()}
    expected = train(FP32, 2, mode, 2, **training)[-1]
    assert_close(end, expected, 30 * UNIT[name])
    assert any(not np.array_equal(end[key], value) for key, value in expected.items())


@pytest.mark.long
def test_a_checkpoint_of_one_precision_is_read_in_any_other(tmp_path, small_model):
    """Each run goes on where the previous one stopped, and saves the restored values before its
    first step.
    """
    auto: dict[str, Any] = {
        'precision': 'fp16',
        'fp16_enable_auto_loss_scale': True,
        'fp16_inc_loss_scale_every_n': 1,
        'fp16_loss_scale': 2.0**7,
    }
    replicated = {'variable_update': 'replicated', 'num_gpus': 2}
    # The flags of each run, the rounding of its variables, and its loss scale at the end.
    runs: list[tuple[dict[str, Any], float, float | None]] = [
        (auto, 0, 2.0**9),
        # The scale continues from the checkpoint.
        (auto | replicated, 0, 2.0**11),
        ({'precision': 'bf16', 'fp16_vars': True}, UNIT['bf16'], None),
        # Without a scale in the checkpoint it starts anew.
        (auto | {'fp16_vars': True}, UNIT['fp16'], 2.0**9),
        (replicated, 0, None),
    ]
    before: Weights = {}
    for number, (flags, rounding, scale) in enumerate(runs):
        steps = {'num_batches': 2, 'num_warmup_batches': 0}
        common = {'model': small_model, 'train_dir': str(tmp_path), 'optimizer': 'momentum'}
        assert np.isfinite(losses(**common, **steps, **flags)).all()
        read, after = (values_in(tmp_path / f'model.ckpt-{2 * number + i}') for i in (0, 2))
        assert after['global_step'] == 2 * number + 2
        assert after.get('loss_scale/scale') == scale
        for name in before.keys() - {'global_step'}:
            if not name.startswith('loss_scale/'):
                np.testing.assert_allclose(
                    read[name], before[name], rtol=rounding, atol=1e-7, err_msg=name
                )
                assert after[name].dtype == np.float32
                assert name.endswith('momentum') or not np.array_equal(after[name], before[name])
        before = after


def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit_also_if_gradients_are_clipped():
    expected, weights = (
        train(
            precision,
            3,
            'replicated',
            2,
            network=normed,
            optimizer='momentum',
            gradient_clip=0.05,
        )
        for precision in (FP32, Precision(loss_scale=2.0**20))
    )
    np.testing.assert_equal(weights, expected)


@pytest.mark.parametrize(
    ('mode', 'optimizer', 'num_towers', 'transfer'),
    [
        ('parameter_server', 'sgd', 1, tf.float32),
        ('parameter_server', 'adam', 2, tf.float32),
        # A sum in float16 may overflow although no summand does.
        ('replicated', 'momentum', 2, tf.float16),
    ],
)
def test_steps_are_skipped_and_the_scale_moves_as_the_plain_algorithm_says(
    mode, optimizer, num_towers, transfer
):
    def train_plainly(start):
        """Returns the weights after 16 updates of the plain algorithm, and the state before and
        after each step.
        """
        states = [state_of(start)]
        with tf.Graph().as_default(), open_session() as session:
            batches = [batch_of(num_towers).tower_batch(tower) for tower in range(num_towers)]
            scaled_gradients = plain_gradients(
                session, convolved, batches, dtype=tf.float16, transfer=transfer
            )

            def gradients_at(weights: Weights, _: int) -> Weights:
                while True:
                    scale, good_steps, skipped_steps = states[-1]
                    scaled = scaled_gradients(weights, scale)
                    if all(np.isfinite(gradient).all() for gradient in scaled.values()):
                        break
                    states.append((scale / 2, 0, skipped_steps + 1))
                is_due = good_steps == 1
                states.append(
                    (2 * scale, 0, skipped_steps) if is_due else (scale, 1, skipped_steps)
                )
                return {name: gradient / scale for name, gradient in scaled.items()}

            names = ('conv/kernel', 'conv/bias', 'logits/kernel', 'logits/bias')
            trained = {name: start[name] for name in names}
            return OPTIMIZERS[optimizer].train(
                trained, gradients_at, LEARNING_RATE, num_steps=16
            ), states

    precision = replace(FP16, loss_scale=2.0**20, steps_until_doubling=2)
    cast = None if transfer == tf.float32 else transfer
    history = train(precision, 32, mode, num_towers, optimizer=optimizer, transfer=cast)
    expected, states = train_plainly(history[0])
    # Too high at first, and again after it has grown.
    skipped = [after[2] - before[2] for before, after in itertools.pairwise(states)]
    assert skipped[0] == 1
    assert 1 in skipped[skipped.index(0) :]
    # With the skipped steps, 16 updates take at most as many steps as the history has.
    history = history[: len(states)]
    assert [state_of(weights) for weights in history] == states
    assert history[-1]['global_step'] == len(states) - 1
    assert_close({name: history[-1][name] for name in expected}, expected, 20 * UNIT['fp16'])


@pytest.mark.parametrize(
    ('mode', 'num_towers', 'staged'),
    [
        ('parameter_server', 1, True),
        ('replicated', 2, False),
        ('independent', 2, False),
    ],
)
def test_a_skipped_step_changes_nothing_but_the_scale_and_the_counts(mode, num_towers, staged):
    precision = replace(FP16, loss_scale=2.0**17, steps_until_doubling=2)
    history = train(precision, 8, mode, num_towers, network=normed, optimizer='adam', staged=staged)
    averages = {name for name in history[0] if '/moving_' in name}
    num_skipped, averages_unchanged = 0, None
    for number, (before, after) in enumerate(itertools.pairwise(history), start=1):
        assert after['global_step'] == number
        is_skipped = state_of(after)[2] > state_of(before)[2]
        num_skipped += is_skipped
        if is_skipped:
            assert state_of(after) == (state_of(before)[0] / 2, 0, num_skipped)
        unchanged = {name for name in after if np.array_equal(before[name], after[name])}
        changing = {name for name in after if 'loss_scale/' not in name} - {'global_step'}
        if staged:
            # Moving averages belong to the step before, which computed the gradients.
            assert averages_unchanged in (None, is_skipped)
            averages_unchanged = averages <= unchanged
            assert averages_unchanged or not averages & unchanged
            changing -= averages
        assert unchanged & changing == (changing if is_skipped else set())
    assert averages
    assert 0 < num_skipped < 7


def test_an_automatic_scale_stays_within_bounds():
    """Multiplied by zero, all gradients are zero; multiplied by infinity, none is finite."""
    for factor, start, end in (
        (0.0, 2.0**23, 2.0**24),
        (0.0, 2.0**30, 2.0**30),
        (np.inf, 2.0, 1.0),
    ):
        precision = Precision(loss_scale=start, steps_until_doubling=1)
        history = train(precision, 3, network=scaled(factor), weight_decay=0.0)
        assert state_of(history[-1])[0] == end


def test_a_run_reports_its_precision_and_how_many_steps_it_skipped(tmp_path, small_model):
    flags: dict[str, Any] = {
        'model': small_model,
        'train_dir': str(tmp_path),
        'precision': 'fp16',
        'fp16_enable_auto_loss_scale': True,
        'fp16_loss_scale': 2.0**30,
    }
    result, out, err = run_benchmark(num_batches=4, **flags)
    assert 'Precision:   fp16, automatic loss scale from 1.07374e+09\n' in out
    assert result.run.precision == 'fp16, automatic loss scale from 1.07374e+09'
    assert result.is_complete
    assert result.run.num_skipped_steps == 5
    check_warning(err, '5 steps')
    assert len({*result.steps.loss}) == 1
    assert state_of(values_in(tmp_path)) == (2.0**25, 0, 5)
    # A run that goes on counts only its own skipped steps.
    again = run_benchmark(num_batches=1, num_warmup_batches=0, **flags).result
    assert again.run.num_skipped_steps == 1


DIVERGING: dict[str, Any] = {'num_batches': 6, 'num_warmup_batches': 0, 'init_learning_rate': 1e30}


def test_a_flag_lets_training_go_on_with_a_loss_that_is_not_finite(tmp_path, small_model):
    flags: dict[str, Any] = {'model': small_model, 'data_dir': write_digits(tmp_path), **DIVERGING}
    result = run_benchmark(continue_on_nan=True, **flags).result
    assert result.is_complete
    assert result.steps.loss[-1] is None


def test_a_loss_that_is_not_finite_is_a_warning_on_synthetic_images():
    result, out, err = run_benchmark(**DIVERGING)
    assert result.is_complete
    assert result.steps.loss[-1] is None
    assert 'total images/sec' in out
    check_warning(err, 'loss', '--init_learning_rate')
