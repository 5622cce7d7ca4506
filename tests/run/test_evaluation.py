"""An evaluation, during training or apart, counts each validation image once on any number of
towers.
"""

import functools
import itertools
import json
import re
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import label_ranks
from models.registry import MODELS, register_model
from preprocessing import ImageOptions
from tests.support.files import quoted
from tests.support.graphs import cpus, linear, normalised, open_session, training_step
from tests.support.images import encoded, example, write_mnist, write_shard
from tests.support.outputs import check_line, check_warning, failed, refused
from tests.support.programs import launched
from tests.support.runs import (
    BenchmarkRun,
    document_in,
    make_benchmark,
    plan_of,
    run_benchmark,
    values_in,
)
from tf_cnn.inputs.data_sets import Arrays, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.validation import (
    NO_IMAGE,
    Share,
    ValidationInput,
    array_examples,
    record_examples,
)
from tf_cnn.results.sections import EvaluationRow
from tf_cnn.step.evaluation import Evaluation, RestoredVariables
from tf_cnn.system.signals import Stopped
from tf_cnn.training.checkpoint_files import (
    has_training_ended,
)

pytestmark = [pytest.mark.graph, pytest.mark.long]

# Batches of one or two towers do not divide the number of images.
NUM_VALIDATION, BATCH, SIZE = 23, 4, 28


@pytest.fixture
def with_head(forget_models: None) -> None:
    """Registers a network with an auxiliary head in training."""

    def build(cnn: Any, images: Any, num_classes: int) -> Any:
        auxiliary = None
        if cnn.is_training:
            with cnn.scope('auxiliary'):
                auxiliary = normalised(cnn, images, num_classes)
        return linear(cnn, images, num_classes), auxiliary

    register_model('with_head', build, data_set='mnist', image_size=SIZE)


@pytest.fixture(scope='module')
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with as many images as `noise` has, which take less time to read."""
    folder, random = tmp_path_factory.mktemp('digits'), np.random.default_rng(7)
    for subset, count in (('train', 16), ('validation', NUM_VALIDATION)):
        images = random.integers(0, 256, [count, SIZE, SIZE], np.uint8)
        write_mnist(folder, images, random.integers(0, 10, count), subset)
    return folder


@pytest.fixture(scope='module')
def trained(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with checkpoints of steps 0 and 4."""
    folder = tmp_path_factory.mktemp('train')
    train(digits, train_dir=folder)
    return folder


@pytest.fixture(scope='module')
def trained_on_records(noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with checkpoints of steps 0 and 4."""
    folder = tmp_path_factory.mktemp('train')
    train(noise, ON_RECORDS, train_dir=folder)
    return folder


# Graph passes take longer than the steps.
COMMON = '--model=linear --noenable_optimizations'
ON_RECORDS = '--model=linear_on_records'


def train(data_dir: Path, flags: str = '', **values: Any) -> BenchmarkRun:
    flags = f'{COMMON} --init_learning_rate=0.05 {flags}'
    return run_benchmark(flags, data_dir=data_dir, **values)


def evaluate(
    train_dir: Path, data_dir: Path, flags: str = '', **values: Any
) -> Sequence[EvaluationRow]:
    flags = f'{COMMON} --eval --eval_batch_size={BATCH} {flags}'
    return run_benchmark(flags, train_dir=train_dir, data_dir=data_dir, **values).result.evaluations


def counts(row: EvaluationRow) -> tuple[int, ...]:
    """Returns the step, the number of images, and how many are right in top 1 and in top 5."""
    num_top = (round(row.num_images * (accuracy or 0)) for accuracy in (row.top_1, row.top_5))
    return row.step, row.num_images, *num_top


def infer(
    train_dir: Path, data_dir: Path, flags: str = '', **values: Any
) -> tuple[EvaluationRow, BenchmarkRun]:
    """Takes one forward-only step with all validation images; returns its accuracy and the run."""
    steps = f'--num_warmup_batches=0 --num_batches=1 --batch_size={NUM_VALIDATION}'
    flags = f'{COMMON} --forward_only {steps} {flags}'
    run = run_benchmark(flags, train_dir=train_dir, data_dir=data_dir, **values)
    (row,) = run.result.evaluations
    return row, run


def test_every_image_counts_once_as_numpy_counts_and_summaries_have_the_accuracies(
    trained_on_records, noise, tmp_path
):
    [one_tower] = evaluate(trained_on_records, noise, ON_RECORDS, eval_dir=tmp_path)
    shards, weights = find_shards(str(noise), 'validation'), values_in(trained_on_records)
    with tf.Graph().as_default(), open_session() as session:
        options = ImageOptions(SIZE, SIZE, 3, training=False)
        examples = record_examples(shards, 1001, options, Share()).batch(NUM_VALIDATION)
        images, labels = session.run(tf.data.make_one_shot_iterator(examples).get_next())
    x = images.reshape(NUM_VALIDATION, -1) / 127.5 - 1.0
    ranking = np.argsort(-x @ weights['logits/kernel'] - weights['logits/bias'], axis=1)
    num_right = [(ranking[:, :k] == labels[:, None]).any(axis=1).sum() for k in (1, 5)]
    assert counts(one_tower) == (4, NUM_VALIDATION, *num_right)
    assert 0 < counts(one_tower)[-1] < NUM_VALIDATION
    [three] = evaluate(
        trained_on_records,
        noise,
        f'{ON_RECORDS} --num_gpus=3 --eval_batch_size=5 --data_format=NCHW',
    )
    assert counts(three) == counts(one_tower)
    [events] = tmp_path.glob('events.out.tfevents.*')
    written = {
        value.tag: (event.step, value.simple_value)
        for event in tf.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert written['eval_top_5_accuracy'] == (4, pytest.approx(one_tower.top_5))


@pytest.mark.parametrize(
    'mode',
    [
        '--variable_update=replicated --optimizer=momentum',
        '--variable_update=parameter_server --staged_vars',
        '--variable_update=independent',
    ],
)
def test_every_mode_evaluates_during_training_as_from_its_checkpoint(mode, digits, tmp_path):
    model = '--model=normalised'
    steps = '--batch_size=2 --num_batches=1 --eval_during_training_at_specified_steps=2'
    flags = f'{model} {steps} {mode} --num_gpus=2 --eval_batch_size=8'
    [during] = train(digits, flags, train_dir=tmp_path).result.evaluations
    [after] = evaluate(tmp_path, digits, model)
    assert counts(during) == counts(after)
    assert during.num_images == NUM_VALIDATION
    assert counts(during)[-1] > 0


@pytest.mark.parametrize(
    ('flags', 'num_images'),
    [
        ('--num_epochs=0.5', 12),
        ('--num_eval_batches=2 --num_gpus=2 --eval_batch_size=3', 12),
        ('--num_eval_epochs=2', 2 * NUM_VALIDATION),
    ],
)
def test_flags_limit_the_number_of_images(flags, num_images, trained, digits):
    [accuracy] = evaluate(trained, digits, flags)
    assert accuracy.num_images == num_images


def test_training_stops_at_the_requested_accuracy(digits, tmp_path):
    path = tmp_path / 'result.json'
    flags = '--eval_during_training_every_n_steps=3 --num_batches=50 --stop_at_top_1_accuracy=0'
    result, _, err = train(digits, flags, train_dir=tmp_path, result_file=path)
    assert [accuracy.step for accuracy in result.evaluations] == [3]
    assert (result.statistics.num_steps, result.is_complete) == (2, True)
    assert has_training_ended(str(tmp_path))
    document = document_in(path)
    steps, [evaluation] = document['workers'][0]['steps'], document['evaluations']
    seconds = evaluation['end'] - steps['start'][0]
    # The time from the first step, a warm-up, to the end of the evaluation includes both.
    assert seconds >= sum(steps['seconds']) + evaluation['seconds']
    line = f'accuracy: top-1 0 reached at step 3, {seconds:.3g} s after the first step began'
    assert [text for text in err.splitlines() if text.startswith('accuracy: ')] == [line]


def test_the_seconds_of_steps_evaluations_and_other_causes_add_up_to_the_wall_time(
    digits, tmp_path
):
    path = tmp_path / 'result.json'
    train(digits, '--eval_during_training_every_n_steps=2 --num_batches=5', result_file=path)
    document = document_in(path)
    steps, evaluations = document['workers'][0]['steps'], document['evaluations']
    spent = dict(zip(steps['global_step'], steps['between']['evaluation'], strict=True))
    assert [row['step'] for row in evaluations] == [2, 4, 6]
    for row in evaluations:
        # Printing its result takes milliseconds.
        assert spent[row['step']] == pytest.approx(row['seconds'] + row['prepare_seconds'], abs=0.3)
        assert row['prepare_seconds'] > 0
    wall = steps['start'][-1] - steps['start'][0]
    causes = [sum(column[:-1]) for column in steps['between'].values()]
    assert wall == pytest.approx(sum(steps['seconds'][:-1]) + sum(causes), abs=1e-3)


def test_an_evaluator_follows_a_training_run_to_its_last_checkpoint(digits, tmp_path):
    """The evaluator starts before there is a checkpoint."""
    train_dir = tmp_path / 'train'
    task = {'cluster': {'worker': ['localhost:1']}, 'task': {'type': 'evaluator', 'index': 0}}
    flags = f'--model=lenet --device=cpu --batch_size={BATCH} --eval_interval_secs=0.2'
    flags += f' --data_dir={quoted(digits)} --train_dir={quoted(train_dir)}'
    env = {'PATH': '', 'TF_CONFIG': json.dumps(task)}
    with launched(flags, tmp_path, env) as follower:
        train(digits, '--model=lenet --num_batches=5 --save_model_steps=3', train_dir=train_dir)
        assert follower.has_ended()
        assert follower.exit_code == 0
    # A line that ends with the checkpoint's name announces each evaluation.
    evaluated = follower.lines(r'/train/model\.ckpt-(\d+)$')
    assert evaluated[-1] == '6'
    assert (
        follower.out.count(f'[{NUM_VALIDATION} examples]') == len(evaluated) == len(set(evaluated))
    )


def test_a_signal_ends_an_evaluator_that_waits(trained, digits):
    def stop(folder: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    with mock.patch('tf_cnn.run.evaluator.has_training_ended', stop), pytest.raises(Stopped):
        evaluate(trained, digits, '--eval_interval_secs=600')


def test_python_gets_the_rate_and_the_accuracy_of_an_evaluation(trained, digits):
    benchmark = make_benchmark('--model=linear --eval', train_dir=trained, data_dir=digits)
    statistics = benchmark.run()
    [row] = benchmark.result.evaluations
    assert statistics == {
        'num_workers': 1,
        'num_steps': 0,
        'images_per_sec': row.images_per_second,
        'top_1_accuracy': row.top_1,
        'top_5_accuracy': row.top_5,
    }


def test_a_file_in_the_place_of_checkpoints_is_refused(digits):
    with refused(f'--train_dir={digits / "train-images-idx3-ubyte"}'):
        evaluate(digits / 'train-images-idx3-ubyte', digits, '--eval_interval_secs=1')


@pytest.mark.usefixtures('with_head')
@pytest.mark.parametrize('model', ['normalised', 'with_head'])
def test_a_forward_only_run_prints_the_rate_and_the_accuracy_of_a_checkpoint(
    model, digits, tmp_path
):
    train(digits, f'--model={model}', train_dir=tmp_path)
    (expected,) = map(counts, evaluate(tmp_path, digits, f'--model={model}'))
    for flags in ('--data_format=NCHW', '--freeze_when_forward_only --data_format=NCHW'):
        row, run = infer(tmp_path, digits, f'--model={model} {flags}')
        assert counts(row) == expected
        check_line(re.findall('.*with the weights.*', run.err)[0], f'{tmp_path}/model.ckpt-4')
        accuracy = f'Accuracy @ 1 = {row.top_1:.4f} Accuracy @ 5 = {row.top_5:.4f} [23 examples]'
        assert f'\n{accuracy}\n{"-" * 64}\ntotal images/sec: ' in run.out


def test_forward_only_refuses_a_checkpoint_of_another_model_and_constants_in_a_cluster(
    trained, digits
):
    for flags in ('', '--freeze_when_forward_only'):
        with failed(trained, 'another model', 'norm/beta'):
            infer(trained, digits, f'--model=normalised {flags}')
    hosts = '--ps_hosts=127.0.0.1:1 --worker_hosts=127.0.0.1:2 --job_name=worker --task_index=0'
    with refused('--freeze_when_forward_only', f'--train_dir={trained}'):
        plan_of(f'--forward_only --freeze_when_forward_only {hosts}', train_dir=trained)


def test_reading_takes_the_name_of_a_checkpoint_and_training_refuses_it(
    trained_on_records, noise, tmp_path
):
    folder = shutil.copytree(trained_on_records, tmp_path / 'train')
    [first] = evaluate(folder / 'model.ckpt-0', noise, ON_RECORDS)
    assert counts(first)[:2] == (0, NUM_VALIDATION)
    row, _ = infer(folder / 'model.ckpt-0', noise, ON_RECORDS)
    assert counts(row) == counts(first)
    before = sorted(folder.iterdir())
    # A name without a checkpoint is refused, too.
    for name in ('model.ckpt-4', 'model.ckpt-7'):
        with refused(
            f'--train_dir={folder}/{name}',
            f'use --train_dir={folder} ',
            f'--backbone_model_path={folder}/',
        ):
            train(noise, ON_RECORDS, train_dir=folder / name)
    with refused(f'--train_dir={folder}/model.ckpt-7', f'use --train_dir={folder} '):
        evaluate(folder / 'model.ckpt-7', noise, ON_RECORDS)
    with refused(f'--train_dir={folder}/model.ckpt-4', '--eval_interval_secs=1.0'):
        evaluate(folder / 'model.ckpt-4', noise, f'{ON_RECORDS} --eval_interval_secs=1')
    assert sorted(folder.iterdir()) == before


def test_folders_where_a_run_writes_nothing_are_not_made(tmp_path):
    plan_of('--forward_only', train_dir=tmp_path / 'mistyped', eval_dir=tmp_path / 'ignored')
    assert not [*tmp_path.iterdir()]


def test_runs_warn_of_a_newest_checkpoint_without_a_file_and_use_another(trained, digits, tmp_path):
    folder = shutil.copytree(trained, tmp_path / 'train')
    (folder / 'model.ckpt-4.data-00000-of-00001').unlink()
    facts = (folder / 'model.ckpt-4', 'data', f'{folder}/model.ckpt-0 is used instead')
    evaluation = run_benchmark('--model=linear --eval', train_dir=folder, data_dir=digits)
    assert [row.step for row in evaluation.result.evaluations] == [0]
    for err in (
        evaluation.err,
        train(digits, backbone_model_path=folder).err,
        train(digits, train_dir=folder).err,
    ):
        check_warning(err, *facts)
    # Now the newest checkpoint is whole.
    assert 'newest checkpoint' not in train(digits, train_dir=folder).err
    for path in folder.glob('model.ckpt-*.index'):
        path.unlink()
    check_warning(
        train(digits, train_dir=folder).err, folder / 'model.ckpt-', 'no other checkpoint'
    )


@pytest.mark.usefixtures('with_head')
def test_evaluation_ignores_variables_that_only_training_has(digits, tmp_path):
    model = '--model=with_head'
    steps = '--num_batches=1 --eval_during_training_at_specified_steps=2 --optimizer=momentum'
    [during] = train(digits, f'{model} {steps}', train_dir=tmp_path).result.evaluations
    names = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert names >= {'auxiliary/logits/kernel/momentum', 'auxiliary/norm/moving_mean'}
    [after] = evaluate(tmp_path, digits, model)
    assert counts(during) == counts(after)
    # Other networks do not expect these variables.
    with failed(tmp_path / 'model.ckpt-2', 'unexpected', 'auxiliary/'):
        evaluate(tmp_path, digits)


def test_a_damaged_validation_image_or_shard_is_named(trained_on_records, noise, tmp_path):
    shard = tmp_path / shard_name('validation', 0, 1)
    # Cut within the last of nine records.
    shard.write_bytes((noise / shard_name('validation', 0, 2)).read_bytes()[:-5])
    with failed(f'{shard}, record 8'):
        evaluate(trained_on_records, tmp_path, ON_RECORDS)
    write_shard(
        shard,
        [example(encoded(np.zeros([8, 8, 3], np.uint8)), 1), example(b'\xff\xd8\xffnothing', 1)],
    )
    shutil.copy(noise / shard_name('train', 0, 1), tmp_path)
    with failed(f'--data_dir={tmp_path}', 'records', f'--check={tmp_path}'):
        train(tmp_path, f'{ON_RECORDS} --eval_during_training_at_specified_steps=2')


@pytest.mark.parametrize(('num_images', 'seconds'), [(3, 20.0), (4, 20.0), (5, 30.0), (0, 10.0)])
def test_an_evaluation_lasts_until_its_last_image(num_images, seconds):
    """Batches have 2 images, and each takes 10 seconds by the clock of this test."""
    pixels, labels = np.zeros([num_images, 28, 28, 1], np.uint8), np.zeros(num_images, np.int32)
    source, options = (
        Arrays('validation', pixels, labels),
        ImageOptions(28, 28, 1, training=False),
    )
    with tf.Graph().as_default(), open_session() as session:
        variables = RestoredVariables('/cpu:0', 'v')
        pipeline = ValidationInput(cpus(1), 2, lambda: array_examples(source, options, Share()))
        network = MODELS.find_model('mnist', 'mnist').network
        config = training_step(network, num_classes=10)
        evaluation = Evaluation(config, [variables], cpus(1), pipeline, 2, None)
        parts = [part for [part] in variables.slices.values()]
        session.run([part.variable.assign(tf.zeros(part.full_shape)) for part in parts])
        # The clock is read only after batches that count.
        row = evaluation.run(session, step=7, clock=itertools.count(0.0, 10.0).__next__)
    assert (row.num_images, row.seconds) == (num_images, seconds)


@pytest.mark.parametrize('num_classes', [3, 12])
def test_top_k_agrees_with_numpy_even_if_logits_are_equal(num_classes):
    generator = np.random.default_rng(4)
    logits = generator.integers(0, 3, [60, num_classes]).astype(np.float32)
    logits[0] = 0
    labels = generator.integers(-1, num_classes, 60).astype(np.int32)
    ranking = np.argsort(-logits, axis=1, kind='stable')
    with tf.Graph().as_default(), open_session() as session:
        ranks = session.run(label_ranks(tf.constant(logits), tf.constant(labels)))
        for k in (1, 5):
            assert np.array_equal(ranks < k, (ranking[:, :k] == labels[:, None]).any(axis=1))
        for spoiled, bad in itertools.product((0, 1), (np.nan, np.inf, -np.inf)):
            row = np.zeros([1, num_classes], np.float32)
            row[0, spoiled] = bad
            assert session.run(label_ranks(tf.constant(row), tf.constant([0]))) == [np.inf]


def labels_of(num_towers: int, share: Share) -> list[int]:
    """Returns the labels that one process reads; fails unless each image fits its label."""
    labels = np.arange(NUM_VALIDATION, dtype=np.int32)
    images = np.tile(labels.astype(np.uint8)[:, None, None, None], [1, 2, 2, 1])
    source = Arrays('validation', images, labels)
    options = ImageOptions(2, 2, 1, training=False)
    all_labels: list[int] = []
    with tf.Graph().as_default(), open_session(num_towers) as session:
        examples = functools.partial(array_examples, source, options, share)
        pipeline = ValidationInput(cpus(num_towers), BATCH, examples)
        session.run(pipeline.initializers)
        batches = [pipeline.tower_batch(tower) for tower in range(num_towers)]
        while not all_labels or all_labels[-1] != NO_IMAGE:
            for pixels, read in session.run([(batch.images, batch.labels) for batch in batches]):
                assert np.allclose(pixels[read >= 0, 0, 0, 0], read[read >= 0] / 127.5 - 1)
                all_labels += read.tolist()
    return [label for label in all_labels if label != NO_IMAGE]


@pytest.mark.parametrize(('num_processes', 'num_towers'), [(1, 1), (1, 3), (3, 2), (5, 1)])
def test_processes_share_the_images(num_processes, num_towers):
    shares = [
        labels_of(num_towers, Share(process, num_processes)) for process in range(num_processes)
    ]
    assert sorted(label for share in shares for label in share) == list(range(NUM_VALIDATION))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_share_may_end_early_or_repeat_images():
    assert labels_of(1, Share(num_examples=5)) == list(range(5))
    twice = sorted([*range(1, NUM_VALIDATION, 2), *range(0, NUM_VALIDATION, 2)])
    assert sorted(labels_of(2, Share(1, 2, 2 * NUM_VALIDATION))) == twice
