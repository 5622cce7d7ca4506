"""Learning rates and step counts that follow from the flags, held against NumPy, also in clusters and when resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from array_writers import write_mnist
from refusals import check_line
from sessions import open_session

from benchmark_cnn import BenchmarkCNN
from params import make_params
from run.build import make_banner
from run.plan import Plan
from run.resolve import resolve
from training.schedules import LearningRate, parse_piecewise, resnet_pieces, steps_of

pytestmark = pytest.mark.graph

NUM_STEPS = 500
Flags = dict[str, Any]
# From epochs, with fractions, or from steps to rates.
OfEpochs = Callable[[np.ndarray], np.ndarray]


def ramp(epochs: np.ndarray, length: float, first: float, then: np.ndarray) -> np.ndarray:
    return np.where(epochs < length, first * epochs / length, then)


PIECEWISE: Flags = {'piecewise_learning_rate_schedule': '0.3;1;0.2;2.5;0.02'}
DECAY: Flags = {'init_learning_rate': 0.4, 'num_epochs_per_decay': 0.7, 'learning_rate_decay_factor': 0.5}
WARMUP: Flags = {'num_learning_rate_warmup_epochs': 1.5}
SCHEDULES: dict[str, tuple[Flags, OfEpochs]] = {
    'constant': ({'init_learning_rate': 0.3}, lambda e: np.full_like(e, 0.3)),
    'default': ({}, lambda e: np.full_like(e, 0.001)),
    'piecewise': (PIECEWISE, lambda e: np.select([e < 1, e < 2.5], [0.3, 0.2], 0.02)),
    'piecewise after warm-up': (
        PIECEWISE | WARMUP,
        lambda e: ramp(e, 1.5, 0.3, np.select([e < 1, e < 2.5], [0.3, 0.2], 0.02)),
    ),
    'decay': (DECAY, lambda e: 0.4 * 0.5 ** np.floor(e / 0.7)),
    'decay to a minimum': (
        DECAY | {'minimum_learning_rate': 0.07},
        lambda e: np.maximum(0.4 * 0.5 ** np.floor(e / 0.7), 0.07),
    ),
    'decay of the default after warm-up': (
        {'num_epochs_per_decay': 2, 'learning_rate_decay_factor': 0.1} | WARMUP,
        lambda e: ramp(e, 1.5, 0.001, 0.001 * 0.1 ** np.floor(e / 2)),
    ),
}


def plan_of(**flags: Any) -> Plan:
    """The plan of a run on the CPU, of which there is nothing to warn about but few images."""
    plan = resolve(make_params(device='cpu', **flags), {})
    assert isinstance(plan, Plan)
    assert all(line.startswith('--data_dir=') for line in plan.warnings)
    return plan


def rate_of(**flags: Any) -> LearningRate:
    return plan_of(**flags).step.learning_rate


def first_worker(num_workers: int) -> Flags:
    """The flags of the first worker of a cluster with a parameter server."""
    hosts = ','.join(f'10.0.0.{number}:1' for number in range(num_workers))
    return {'ps_hosts': '10.0.1.1:1', 'worker_hosts': hosts, 'job_name': 'worker', 'task_index': 0}


def rates_of(rate: LearningRate, num_steps: int) -> np.ndarray:
    """The rate of each step as a graph computes it."""
    with tf.Graph().as_default(), open_session() as session:
        step = tf.placeholder(tf.int64, [])
        at = session.make_callable(rate.at(step), [step])
        return np.array([at(number) for number in range(num_steps)])


@pytest.mark.parametrize('name', SCHEDULES)
def test_every_step_has_the_rate_of_its_epoch(name: str) -> None:
    flags, of_epochs = SCHEDULES[name]
    # 100 steps are an epoch of the 60,000 images of MNIST.
    found = rates_of(rate_of(model='mnist', batch_size=600, **flags), NUM_STEPS)
    np.testing.assert_allclose(found, of_epochs(np.arange(NUM_STEPS) / 100 + 1e-9), rtol=1e-6, atol=1e-9)


def test_residual_networks_on_imagenet_start_with_their_batch_and_fall_after_30_60_80_and_90_epochs() -> None:
    batch_size = 2**17
    settings: Flags = {'model': 'resnet50', 'batch_size': batch_size, 'resnet_base_lr': 0.1}
    epochs = np.arange(1000) * batch_size / 1_281_167
    start = 0.1 * batch_size / 256
    falling = start * 0.1 ** np.sum([epochs >= end for end in (30, 60, 80, 90)], 0)
    np.testing.assert_allclose(rates_of(rate_of(**settings), 1000), falling, rtol=1e-6)
    warm = rate_of(**settings, num_learning_rate_warmup_epochs=5)
    np.testing.assert_allclose(rates_of(warm, 1000), ramp(epochs, 5, start, falling), rtol=1e-6)


def test_residual_networks_on_cifar_fall_after_the_steps_of_the_paper() -> None:
    rates, epochs = resnet_pieces(0.2, 128, 'cifar10')
    assert rates == pytest.approx((0.1, 0.01, 0.001))
    assert [steps_of(end, 50_000, 128) for end in epochs] == [32_000, 48_000]


@pytest.mark.parametrize(
    ('flags', 'num_workers', 'images_per_step', 'images_per_update'),
    [
        ({}, 1, 2 * 50, 2 * 50),
        ({'variable_update': 'independent'}, 1, 2 * 50, 50),
        ({}, 4, 4 * 2 * 50, 4 * 2 * 50),
        ({'cross_replica_sync': False}, 4, 2 * 50, 2 * 50),
    ],
)
def test_an_epoch_is_as_many_steps_as_the_global_step_counts_in_it(
    flags: Flags, num_workers: int, images_per_step: int, images_per_update: int
) -> None:
    if num_workers > 1:
        flags = flags | first_worker(num_workers)
    plan = plan_of(model='resnet50', batch_size=50, num_gpus=2, num_epochs=0.03, resnet_base_lr=0.1, **flags)
    rate, counts = plan.step.learning_rate, plan.counts
    assert rate.rates[0] == pytest.approx(0.1 * images_per_update / 256)
    assert rate.boundaries[0] == pytest.approx(30 * 1_281_167 / images_per_step)
    # The workers share the epochs, whether they wait for each other or not.
    assert counts.global_batch_size == num_workers * 2 * 50
    assert counts.num_timed == np.ceil(0.03 * 1_281_167 / counts.global_batch_size)


def test_each_worker_counts_its_own_images_where_nobody_trains() -> None:
    plan = plan_of(model='resnet50', batch_size=50, num_gpus=2, forward_only=True, **first_worker(2))
    assert (plan.counts.images_of_step, plan.counts.global_batch_size) == (2 * 50, 2 * 2 * 50)
    assert not make_banner(plan).sync


def test_a_run_has_100_steps_by_default() -> None:
    assert plan_of(model='mnist').counts.num_timed == 100
    assert plan_of(model='mnist', num_batches=7).counts.num_timed == 7


@pytest.mark.parametrize(
    ('flags', 'num_batches', 'num_epochs'),
    [
        ({'num_epochs': 2}, 20, 2.0),
        ({'num_epochs': 2, 'forward_only': True}, 12, 2.0),
        ({'num_batches': 3, 'forward_only': True}, 3, 0.5),
        ({'eval': True}, None, 1.0),
        ({'eval': True, 'num_eval_epochs': 2.5}, None, 2.5),
        ({'eval': True, 'num_eval_batches': 9}, 9, 1.5),
        ({'eval': True, 'num_eval_batches': 9, 'data_dir': None}, 9, 36 / 60_000),
        ({'eval': True, 'num_batches': 9, 'data_dir': None}, 9, 36 / 60_000),
    ],
    ids=str,
)
def test_the_banner_has_the_batches_and_epochs_of_the_images_that_are_read(
    flags: Flags, num_batches: int | None, num_epochs: float, tmp_path: Path
) -> None:
    for subset, count in (('train', 40), ('validation', 24)):
        write_mnist(tmp_path, np.zeros([count, 28, 28], np.uint8), np.zeros(count, np.uint8), subset)
    settings = {'model': 'mnist', 'batch_size': 4, 'data_dir': str(tmp_path), **flags}
    settings |= {'train_dir': str(tmp_path / 'checkpoints')} if 'eval' in flags else {}
    banner = make_banner(plan_of(**settings))
    assert (banner.num_batches, banner.num_epochs) == (num_batches, pytest.approx(num_epochs))


def test_epochs_that_end_with_a_step_add_no_further_step() -> None:
    # In floating point, 1.1 * 100 is more than 110.
    assert plan_of(model='mnist', batch_size=600, num_epochs=1.1).counts.num_timed == 110
    assert plan_of(model='mnist', batch_size=600, num_epochs=0.001).counts.num_timed == 1


@pytest.mark.parametrize(
    ('flags', 'of_steps'),
    [
        (
            {
                'piecewise_learning_rate_schedule': '3e-4;0.001;2e-4;0.0025;1e-5',
                'num_learning_rate_warmup_epochs': 0.0005,
            },
            lambda steps: ramp(steps, 30, 3e-4, np.select([steps < 60, steps < 150], [3e-4, 2e-4], 1e-5)),
        ),
        (
            {
                'init_learning_rate': 4e-4,
                'num_epochs_per_decay': 0.0007,
                'learning_rate_decay_factor': 0.5,
                'minimum_learning_rate': 2e-5,
            },
            lambda steps: np.maximum(4e-4 * 0.5 ** (steps // 42), 2e-5),
        ),
    ],
)
def test_training_that_resumes_from_a_checkpoint_resumes_its_schedule(
    flags: Flags, of_steps: OfEpochs, tmp_path: Path
) -> None:
    # One of 60,000 images a step.
    common: Flags = {'model': 'mnist', 'device': 'cpu', 'batch_size': 1, 'num_epochs': 0.002, **flags}
    common |= {'train_dir': str(tmp_path), 'save_summaries_steps': 1, 'summary_verbosity': 1}
    first, second = (BenchmarkCNN(make_params(num_warmup_batches=num_warmup, **common)).run() for num_warmup in (10, 0))
    assert [len(result.timed_steps) for result in (first, second)] == [120, 120]
    rates = [float(step.values.learning_rate or 0) for result in (first, second) for step in result.steps]
    np.testing.assert_allclose(rates, of_steps(np.arange(10 + 2 * 120)), rtol=1e-6)
    # Summaries contain the rates of timed steps.
    written = [
        (event.step, value.simple_value)
        for file in sorted(tmp_path.glob('events.*'), key=lambda file: file.stat().st_mtime)
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == 'learning_rate'
    ]
    assert written == list(enumerate(rates, 1))[10:]


def test_without_updates_there_is_no_rate() -> None:
    result = BenchmarkCNN(
        make_params(model='mnist', device='cpu', batch_size=1, num_batches=1, num_warmup_batches=0, forward_only=True)
    ).run()
    assert result.steps[0].values.learning_rate is None


@pytest.mark.parametrize(
    ('text', 'part'),
    [
        ('0.3', '.'),
        ('0.3;10', '.'),
        ('0.3;ten;0.2', "'ten'"),
        ('0.3;;0.2', "''"),
        ('0.3;10;-1', "'-1'"),
        ('0.3;10;inf', "'inf'"),
        ('0.3;10;0.2;10;0.1', '10'),
        ('0.3;0;0.2', '0'),
    ],
)
def test_a_piecewise_schedule_that_makes_no_sense_is_refused_with_its_wrong_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as caught:
        parse_piecewise(text)
    check_line(caught.value)
