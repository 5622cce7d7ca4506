"""Learning rates and step counts that follow from the flags, compared with NumPy, also in clusters
and after a restart.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.registry import MODELS, register_model
from tests.support.graphs import open_session, plain
from tests.support.images import write_mnist
from tests.support.outputs import refused
from tests.support.runs import plan_of, run_benchmark
from tf_cnn.run.banner import make_banner
from tf_cnn.training.schedules import LearningRate

pytestmark = pytest.mark.graph

Flags = dict[str, Any]


def after_warmup(epochs: np.ndarray, length: float, rates: np.ndarray) -> np.ndarray:
    return np.where(epochs < length, rates[0] * epochs / length, rates)


def piecewise(epochs: np.ndarray) -> np.ndarray:
    """The last step of a period still has the earlier rate."""
    return np.select([epochs <= 1 + 1e-6, epochs <= 2.5 + 1e-6], [0.3, 0.2], 0.02)


PIECEWISE: Flags = {'piecewise_learning_rate_schedule': '0.3;1;0.2;2.5;0.02'}
DECAY: Flags = {
    'init_learning_rate': 0.4,
    'num_epochs_per_decay': 0.7,
    'learning_rate_decay_factor': 0.5,
}
DEFAULT_DECAY: Flags = {'num_epochs_per_decay': 2, 'learning_rate_decay_factor': 0.1}
WARMUP: Flags = {'num_learning_rate_warmup_epochs': 1.5}


def rate_of(**flags: Any) -> LearningRate:
    return plan_of(**flags).learning_rate


@pytest.mark.parametrize(
    ('flags', 'of_epochs'),
    [
        pytest.param({'init_learning_rate': 0.3}, lambda e: np.full_like(e, 0.3), id='constant'),
        pytest.param(PIECEWISE, piecewise, id='piecewise'),
        pytest.param(
            PIECEWISE | WARMUP,
            lambda e: after_warmup(e, 1.5, piecewise(e)),
            id='piecewise after warm-up',
        ),
        pytest.param(DECAY, lambda e: 0.4 * 0.5 ** np.floor(e / 0.7), id='decay'),
        pytest.param(
            DECAY | {'minimum_learning_rate': 0.07},
            lambda e: np.maximum(0.4 * 0.5 ** np.floor(e / 0.7), 0.07),
            id='decay to a minimum',
        ),
        pytest.param(
            DEFAULT_DECAY | WARMUP,
            lambda e: after_warmup(e, 1.5, 0.001 * 0.1 ** np.floor(e / 2)),
            id='decay of the default after warm-up',
        ),
    ],
)
def test_every_step_has_the_rate_of_its_epoch(flags, of_epochs):
    # 100 steps are an epoch of the 60,000 images of MNIST.
    rate = rate_of(model='mnist', batch_size=600, **flags)
    with tf.Graph().as_default(), open_session() as session:
        step = tf.placeholder(tf.int64, [])
        rate_at = session.make_callable(rate.rate_at(step), [step])
        rates = [rate_at(number) for number in range(500)]
    expected = of_epochs(np.arange(500) / 100 + 1e-9)
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-9)


def of_imagenet_resnets(batch: int, base: float = 0.128, warmup: int = 5) -> LearningRate:
    """0.128 for 256 images after a warm-up of 5 epochs, a tenth after 30, 60, 80 and 90."""
    rates = tuple(base * batch / 256 * factor for factor in (1, 0.1, 0.01, 0.001, 0.0001))
    boundaries = tuple(1_281_167 * epoch // batch for epoch in (30, 60, 80, 90))
    return LearningRate(rates, boundaries, warmup_steps=1_281_167 * warmup // batch)


def check_rate(rate: LearningRate, expected: LearningRate) -> None:
    assert rate.rates == pytest.approx(expected.rates)
    factor = 0.1 if expected.decay_steps else rate.decay_factor
    assert replace(rate, rates=()) == replace(expected, rates=(), decay_factor=factor)


@pytest.mark.long
@pytest.mark.parametrize(
    'spec', MODELS.list_specs(), ids=lambda spec: f'{spec.name}-{spec.data_set}'
)
def test_without_a_flag_every_model_has_the_rate_of_its_published_formula(spec):
    def published_rate(batch):
        steps_per_epoch = 50_000 // batch
        match spec.data_set, spec.name.partition('net')[0]:
            case 'cifar10', 'alex':
                return LearningRate((0.1,), decay_steps=100 * 50_000 // batch)
            case 'cifar10', 'res':
                epochs = (82, 123, 300)
                return LearningRate(
                    (0.1, 0.01, 0.001, 0.0002), tuple(steps_per_epoch * epoch for epoch in epochs)
                )
            case 'cifar10', 'dense':
                epochs = (150, 225, 300)
                return LearningRate(
                    (0.1, 0.01, 0.001, 0.0001), tuple(steps_per_epoch * epoch for epoch in epochs)
                )
            case _, 'official_res':
                return of_imagenet_resnets(batch, base=0.1, warmup=0)
            case _, 'res':
                return of_imagenet_resnets(batch)
        return LearningRate((spec.learning_rate,))

    for batch in (0, 96):
        rate = rate_of(model=spec.name, data_name=spec.data_set, batch_size=batch)
        check_rate(rate, published_rate(batch or spec.batch_size))


def test_a_flag_for_the_rate_replaces_the_schedule_of_the_model():
    replacements: list[tuple[Flags, LearningRate]] = [
        ({'init_learning_rate': 0.0}, LearningRate((0.0,))),
        (
            {'piecewise_learning_rate_schedule': '0.3;1;0.2'},
            LearningRate((0.3, 0.2), (1_281_167 // 64,)),
        ),
        (DEFAULT_DECAY, LearningRate((0.032,), decay_steps=2 * 1_281_167 // 64)),
    ]
    for flags, expected in replacements:
        check_rate(rate_of(model='resnet50', **flags), expected)


def test_a_base_rate_always_warms_up_for_as_long_as_a_flag_says_or_5_epochs():
    flags: Flags = {'resnet_base_lr': 0.2, 'batch_size': 96}
    for model in ('resnet50', 'official_resnet50'):
        check_rate(rate_of(model=model, **flags), of_imagenet_resnets(96, base=0.2))
    longer = rate_of(model='resnet50', num_learning_rate_warmup_epochs=7, **flags)
    check_rate(longer, of_imagenet_resnets(96, base=0.2, warmup=7))
    small = rate_of(model='resnet20', resnet_base_lr=0.2, batch_size=128)
    assert small.rates == pytest.approx((0.1, 0.01, 0.001, 0.0002))
    assert small.boundaries == (390 * 82, 390 * 123, 390 * 300)
    assert small.warmup_steps == 5 * 50_000 // 128


def test_an_epoch_is_as_many_steps_as_the_global_step_counts_in_it():
    hosts = ','.join(f'10.0.0.{number}:1' for number in range(4))
    # The first of four workers, with a parameter server.
    worker: Flags = {'ps_hosts': '10.0.1.1:1', 'worker_hosts': hosts, 'job_name': 'worker'}
    cases: list[tuple[Flags, int, int, int]] = [
        ({}, 1, 2 * 50, 2 * 50),
        ({'variable_update': 'independent'}, 1, 2 * 50, 50),
        (worker, 4, 4 * 2 * 50, 4 * 2 * 50),
        (worker | {'cross_replica_sync': False}, 4, 2 * 50, 2 * 50),
    ]
    common: Flags = {'model': 'resnet50', 'batch_size': 50, 'num_gpus': 2, 'resnet_base_lr': 0.1}
    for flags, num_workers, images_per_step, images_per_update in cases:
        plan = plan_of(num_epochs=0.03, **common, **flags)
        rate = plan.learning_rate
        assert rate.rates[0] == pytest.approx(0.1 * images_per_update / 256), flags
        assert rate.boundaries[0] == 30 * 1_281_167 // images_per_step, flags
        # The workers share the epochs, whether they wait for each other or not.
        assert plan.global_batch_size == num_workers * 2 * 50
        assert plan.params.run.num_timed == np.ceil(0.03 * 1_281_167 / plan.global_batch_size)


def test_the_banner_has_the_batches_and_epochs_of_the_images_that_are_read(tmp_path):
    for subset, count in (('train', 40), ('validation', 24)):
        zeros = np.zeros([count, 28, 28], np.uint8)
        write_mnist(tmp_path, zeros, zeros[:, 0, 0], subset)
    train_dir = str(tmp_path / 'checkpoints')
    evaluation: Flags = {'eval': True, 'train_dir': train_dir, 'eval_interval_secs': 10.0}
    synthetic: Flags = {'data_dir': None}
    cases: list[tuple[Flags, int | str, float]] = [
        ({}, 100, 10.0),
        ({'num_epochs': 2}, 20, 2.0),
        # In floating point, 1.1 * 100 is more than 110: epochs that end with a step add no further
        # step.
        ({'num_epochs': 1.1, 'batch_size': 600} | synthetic, 110, 1.1),
        ({'num_epochs': 0.001}, 1, 0.1),
        ({'num_epochs': 2, 'forward_only': True}, 12, 2.0),
        (evaluation, 'all', 1.0),
        # Flags of evaluations precede flags of steps.
        (evaluation | {'num_eval_epochs': 2.5, 'num_batches': 1}, 'all', 2.5),
        (evaluation | {'num_eval_batches': 9, 'num_epochs': 3}, 9, 1.5),
        (evaluation | {'num_eval_batches': 9} | synthetic, 9, 36 / 10_000),
        (evaluation | {'num_epochs': 0.01} | synthetic, 25, 0.01),
    ]
    for flags, num_batches, num_epochs in cases:
        settings = {'model': 'mnist', 'batch_size': 4, 'data_dir': str(tmp_path), **flags}
        lines = f'Num batches: {num_batches}\nNum epochs:  {num_epochs:.2f}\n'
        assert lines in make_banner(plan_of(**settings)), flags


@pytest.mark.long
@pytest.mark.usefixtures('forget_models')
def test_training_that_resumes_from_a_checkpoint_resumes_its_schedule(tmp_path):
    register_model('small', plain, data_set='mnist', image_size=28)
    common: Flags = {
        'model': 'small',
        # A step takes one of 60,000 images.
        'batch_size': 1,
        'num_batches': None,
        'num_epochs': 0.002,
        'piecewise_learning_rate_schedule': '3e-4;0.001;2e-4;0.0025;1e-5',
        'num_learning_rate_warmup_epochs': 0.0005,
        'train_dir': str(tmp_path),
        'save_summaries_steps': 1,
        'summary_verbosity': 1,
    }
    rates: list[float] = []
    for num_warmup in (10, 0):
        result = run_benchmark(num_warmup_batches=num_warmup, **common).result
        assert result.statistics.num_steps == 120
        rates += [rate or 0.0 for rate in result.steps.learning_rate or ()]
    steps = np.arange(10 + 2 * 120)
    expected = np.select([steps <= 60, steps <= 150], [3e-4, 2e-4], 1e-5)
    np.testing.assert_allclose(rates, after_warmup(steps, 30, expected), rtol=1e-6)
    # Summaries contain the rates of timed steps.
    written = [
        (event.step, value.simple_value)
        for file in sorted(tmp_path.glob('events.*'), key=lambda file: file.stat().st_mtime)
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
        if value.tag == 'learning_rate'
    ]
    assert written == list(enumerate(rates, 1))[10:]


@pytest.mark.parametrize(
    ('schedule', 'wrong_part'),
    [
        ('0.3;10', '0.3;10'),
        ('0.3;ten;0.2', "'ten'"),
        ('0.3;;0.2', "''"),
        ('0.3;10;inf', "'inf'"),
        ('0.3;9;0.2;9;0.1', 'epoch 9'),
    ],
)
def test_a_piecewise_schedule_that_makes_no_sense_is_refused(schedule, wrong_part):
    with refused(f'--piecewise_learning_rate_schedule={schedule}', wrong_part):
        rate_of(piecewise_learning_rate_schedule=schedule)
