"""The loss scale: fixed, automatic with skipped steps, and losses that are not finite."""

import io
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.model_facts import Network
from models.networks import build_network
from results.console import Console
from results.result import Result
from tests.support.graphs import open_session
from tests.support.images import write_digits
from tests.support.networks import assert_close
from tests.support.oracles import OPTIMIZERS, Fed, Weights
from tests.support.outputs import check_warning, failed
from tests.training.small_steps import (
    FP16,
    LEARNING_RATE,
    NUM_CLASSES,
    UNIT,
    FixedInput,
    State,
    Way,
    faint,
    infinite,
    residual,
    run_lenet,
    saved,
    state_of,
    train,
    zero,
)
from training.precision import FP32, Precision

pytestmark = pytest.mark.graph


@pytest.mark.parametrize('clip', [None, 0.05])
def test_a_loss_scale_that_is_a_power_of_two_changes_no_bit(clip: float | None) -> None:
    way = Way('replicated', 2, residual, 'momentum', clip)
    expected = train(FP32, way, 3)
    for seen, weights in zip(train(Precision(loss_scale=2.0**20), way, 3), expected, strict=True):
        np.testing.assert_equal(seen, weights)


def test_a_loss_scale_saves_gradients_for_which_float16_has_no_numbers() -> None:
    way = Way(network=faint, optimizer='momentum', weight_decay=0.0)
    expected, lost, saved = (
        train(precision, way, 1)[-1]['logits/kernel/momentum']
        for precision in (FP32, FP16, replace(FP16, loss_scale=2.0**15))
    )
    assert not lost.any()
    assert 0 < np.abs(expected).max() < 2.0**-24
    np.testing.assert_allclose(saved, expected, rtol=0, atol=20 * UNIT['fp16'] * np.abs(expected).max())


def train_plainly(precision: Precision, way: Way, start: Weights, num_updates: int) -> tuple[Weights, list[State]]:
    """The algorithm in a few lines: the weights after that many updates, and the state before and after each step."""
    states: list[State] = [(precision.loss_scale, 0, 0)]
    with tf.Graph().as_default(), open_session() as session:
        fed, scale = Fed(), tf.placeholder(tf.float32, [])
        pipeline, of_towers = FixedInput(way.num_towers), []
        for tower in range(way.num_towers):
            batch = pipeline.tower_batch(tower)
            logits = build_network(
                Network(way.network),
                batch.images,
                NUM_CLASSES,
                fed,
                'NHWC',
                is_training=True,
                dtype=precision.compute,
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
    assert_close({name: seen[-1][name] for name in expected}, expected, 20 * UNIT['fp16'])


@pytest.mark.parametrize(
    'way',
    [Way(), Way(staged=True), Way('replicated', 2), Way('independent', 2)],
    ids=lambda way: f'{way.mode}-{way.num_towers}-{way.optimizer}',
)
def test_a_skipped_step_changes_nothing_but_the_scale_and_the_counts(way: Way) -> None:
    seen = train(
        replace(FP16, loss_scale=2.0**17, doubled_every=2), replace(way, network=residual, optimizer='adam'), 8
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
    """All gradients of a network that multiplies by zero are zero; those of one that divides by it never are finite."""
    for network, start, end in ((zero, 2.0**23, 2.0**24), (zero, 2.0**30, 2.0**30), (infinite, 2.0, 1.0)):
        precision = Precision(loss_scale=start, doubled_every=1)
        seen = train(precision, Way(network=network, weight_decay=0.0), 3)
        assert state_of(seen[-1])[0] == end


def test_a_run_reports_its_precision_and_how_many_steps_it_skipped(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    flags: dict[str, Any] = {'precision': 'fp16', 'fp16_enable_auto_loss_scale': True, 'fp16_loss_scale': 2.0**30}
    result = run_lenet(Console(out, err), num_batches=4, num_warmup_batches=1, train_dir=str(tmp_path), **flags)
    assert 'Precision:   fp16, automatic loss scale from 1.07374e+09\n' in out.getvalue()
    assert result.precision == 'fp16'
    assert result.complete
    assert result.num_skipped_steps == 5
    check_warning(err.getvalue(), '5 steps')
    assert len({step.values.loss for step in result.steps}) == 1
    assert state_of(saved(tmp_path, 5)) == (2.0**25, 0, 5)
    # Only its own are counted by a run that goes on.
    assert run_lenet(num_batches=1, train_dir=str(tmp_path), **flags).num_skipped_steps == 1


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
    data_dir = write_digits(tmp_path / 'digits')
    with failed('--continue_on_nan', *hints) as caught:
        run_lenet(model='mnist', data_dir=data_dir, train_dir=str(tmp_path), **DIVERGING, **flags)
    assert re.search(r'\b(nan|inf)\b', str(caught.value))
    assert re.search(r'\b[23]\b', str(caught.value)), 'the step'
    result = caught.value.result
    assert isinstance(result, Result)
    assert not result.complete
    assert 1 <= len(result.steps) <= 2
    # What has diverged is not saved.
    assert [path.name for path in tmp_path.glob('*.index')] == ['model.ckpt-0.index']


def test_training_continues_with_a_loss_that_is_not_finite_if_a_flag_says_so(tmp_path: Path) -> None:
    result = run_lenet(model='mnist', data_dir=write_digits(tmp_path), continue_on_nan=True, **DIVERGING)
    assert result.complete
    assert not np.isfinite(result.steps[-1].values.loss)


def test_synthetic_images_never_end_a_run() -> None:
    out, err = io.StringIO(), io.StringIO()
    result = run_lenet(Console(out, err), **DIVERGING)
    assert result.complete
    assert not np.isfinite(result.steps[-1].values.loss)
    assert 'total images/sec' in out.getvalue()
    check_warning(err.getvalue(), 'loss', '--init_learning_rate')
