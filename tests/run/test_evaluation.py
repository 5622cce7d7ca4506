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
from preprocessing import RESIZE_METHODS, ImageOptions
from tests.support.graphs import cpus, open_session, training_step
from tests.support.images import encoded, example, write_shard
from tests.support.outputs import check_warning, failed, refused
from tests.support.programs import launched, run
from tests.support.runs import BenchmarkRun, document_in, make_benchmark, run_benchmark, values_in
from tf_cnn.inputs.data_sets import Arrays, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.inputs.validation import (
    NO_IMAGE,
    Share,
    ValidationInput,
    array_examples,
    record_examples,
)
from tf_cnn.results.sections import EvaluationRow, Phase
from tf_cnn.results.steps import StepValues
from tf_cnn.run.session import Stepper
from tf_cnn.step.evaluation import Evaluation, RestoredVariables
from tf_cnn.system.signals import Stopped
from tf_cnn.training.checkpoint_files import has_training_ended

pytestmark = [pytest.mark.graph, pytest.mark.long]

# Batches of one or two towers do not divide the number of images.
NUM_VALIDATION, BATCH, SIZE = 23, 4, 28


@pytest.fixture(scope='module')
def trained(noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with checkpoints of steps 0 and 4."""
    folder = tmp_path_factory.mktemp('train')
    train(noise, train_dir=folder)
    return folder


def train(data_dir: Path, flags: str = '', **values: Any) -> BenchmarkRun:
    return run_benchmark(f'--init_learning_rate=0.05 {flags}', data_dir=data_dir, **values)


def evaluate(
    train_dir: Path, data_dir: Path, flags: str = '', **values: Any
) -> Sequence[EvaluationRow]:
    flags = f'--eval --eval_batch_size={BATCH} {flags}'
    return make_benchmark(flags, train_dir=train_dir, data_dir=data_dir, **values).run().evaluations


def counts(row: EvaluationRow) -> tuple[int, ...]:
    """Returns the step, the number of images, and how many are right in top 1 and in top 5."""
    num_top = (round(row.num_images * (accuracy or 0)) for accuracy in (row.top_1, row.top_5))
    return row.step, row.num_images, *num_top


def by_numpy(folder: Path, data_dir: Path) -> tuple[int, int]:
    """Returns how many validation images NumPy ranks right in top 1 and in top 5."""
    shards, weights = find_shards(str(data_dir), 'validation'), values_in(folder)
    num_right = [0, 0]
    with tf.Graph().as_default(), open_session() as session:
        options = ImageOptions(SIZE, SIZE, 3, training=False)
        element = tf.data.make_one_shot_iterator(
            record_examples(shards, 1001, options, Share())
        ).get_next()
        pixels = tf.placeholder(tf.uint8, [SIZE, SIZE, 3])
        x = tf.cast(pixels, tf.float32)[tf.newaxis] / 127.5 - 1.0
        for layer in ('conv1', 'conv2'):
            x = tf.nn.conv2d(x, weights[f'{layer}/kernel'], 1, 'SAME') + weights[f'{layer}/bias']
            x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, 'VALID')
        x = tf.nn.relu(tf.reshape(x, [1, -1]) @ weights['fc1/kernel'] + weights['fc1/bias'])
        logits = (x @ weights['logits/kernel'] + weights['logits/bias'])[0]
        for _ in range(NUM_VALIDATION):
            image, label = session.run(element)
            ranking = np.argsort(-session.run(logits, {pixels: image}))
            num_right[0] += label == ranking[0]
            num_right[1] += label in ranking[:5]
    return num_right[0], num_right[1]


def test_every_image_counts_once_as_numpy_counts(trained, noise):
    [one_tower] = evaluate(trained, noise)
    assert counts(one_tower) == (4, NUM_VALIDATION, *by_numpy(trained, noise))
    assert 0 < counts(one_tower)[-1] < NUM_VALIDATION
    [three] = evaluate(trained, noise, '--num_gpus=3 --eval_batch_size=5 --data_format=NCHW')
    assert counts(three) == counts(one_tower)


def test_training_waits_for_evaluations_of_the_same_variables(noise, tmp_path):
    flags = '--eval_during_training_every_n_steps=2'
    result = train(noise, flags, train_dir=tmp_path).result
    assert [accuracy.step for accuracy in result.evaluations] == [2, 4]
    assert counts(result.evaluations[-1]) == counts(evaluate(tmp_path, noise)[0])
    assert result.steps.index == [1, 1, 2, 3]


def test_an_evaluation_writes_its_accuracies_as_summaries(trained, noise, tmp_path):
    [row] = evaluate(trained, noise, eval_dir=tmp_path)
    [events] = tmp_path.glob('events.out.tfevents.*')
    written = {
        value.tag: (event.step, value.simple_value)
        for event in tf.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert written['eval_top_5_accuracy'] == (4, pytest.approx(row.top_5))


def with_batch_norm(cnn: Any, images: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(images, 8, 3, 'conv', strides=2), 'bn'))
    return cnn.dense(cnn.flatten(cnn.max_pool(x, 2, 2)), num_classes, 'logits')


@pytest.mark.parametrize(
    'mode',
    [
        '--model=lenet --variable_update=replicated --num_gpus=2 --optimizer=momentum',
        '--model=lenet --variable_update=parameter_server --staged_vars --num_gpus=2',
        '--model=lenet --variable_update=independent --num_gpus=2',
        '--model=with_batch_norm --num_gpus=2 --eval_batch_size=8',
    ],
)
@pytest.mark.usefixtures('forget_models')
def test_every_mode_evaluates_during_training_as_from_its_checkpoint(mode, noise, tmp_path):
    register_model('with_batch_norm', with_batch_norm, data_set='imagenet', image_size=SIZE)
    flags = '--batch_size=2 --num_batches=1 --eval_during_training_at_specified_steps=2'
    [during] = train(noise, f'{flags} {mode}', train_dir=tmp_path).result.evaluations
    [after] = evaluate(tmp_path, noise, mode.split()[0])
    assert counts(during) == counts(after)
    assert during.num_images == NUM_VALIDATION
    assert counts(during)[-1] > 0


@pytest.mark.parametrize(
    ('flags', 'num_images'),
    [
        ('--num_eval_batches=2 --num_epochs=3', 2 * BATCH),
        ('--num_batches=2', 2 * BATCH),
        ('--num_epochs=0.5', 12),
        ('--num_eval_batches=2 --num_gpus=2 --eval_batch_size=3', 12),
        ('--num_eval_epochs=0.5 --num_batches=1', 12),
        ('--num_eval_epochs=2', 2 * NUM_VALIDATION),
    ],
)
def test_flags_limit_the_number_of_images(flags, num_images, trained, noise):
    [accuracy] = evaluate(trained, noise, flags)
    assert accuracy.num_images == num_images


def test_training_stops_at_the_requested_accuracy(noise, tmp_path):
    path = tmp_path / 'result.json'
    flags = '--eval_during_training_every_n_steps=3 --num_batches=50 --stop_at_top_1_accuracy=0'
    result, _, err = train(noise, flags, train_dir=tmp_path, result_file=path)
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


def test_training_stops_once_if_the_warm_up_reaches_the_accuracy(noise):
    flags = '--eval_during_training_every_n_steps=1 --stop_at_top_1_accuracy=0'
    err = train(noise, f'--num_warmup_batches=3 {flags}').err
    assert len(re.findall('^Stopping after', err, re.MULTILINE)) == 1


def test_the_seconds_of_steps_evaluations_and_other_causes_add_up_to_the_wall_time(noise, tmp_path):
    path = tmp_path / 'result.json'
    train(noise, '--eval_during_training_every_n_steps=2 --num_batches=5', result_file=path)
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


def test_an_evaluator_follows_a_training_run_to_its_last_checkpoint(noise, tmp_path):
    """The evaluator starts before there is a checkpoint."""
    train_dir = tmp_path / 'train'
    task = {'cluster': {'worker': ['localhost:1']}, 'task': {'type': 'evaluator', 'index': 0}}
    flags = f'--model=lenet --device=cpu --batch_size={BATCH} --eval_interval_secs=0.2'
    flags += f' --data_dir={noise} --train_dir={train_dir}'
    env = {'PATH': '', 'TF_CONFIG': json.dumps(task)}
    with launched(flags, tmp_path, env) as follower:
        train(noise, '--num_batches=5 --save_model_steps=3', train_dir=train_dir)
        assert follower.has_ended()
        assert follower.exit_code == 0
    # A line that ends with the checkpoint's name announces each evaluation.
    evaluated = follower.lines(r'/train/model\.ckpt-(\d+)$')
    assert evaluated[-1] == '6'
    assert (
        follower.out.count(f'[{NUM_VALIDATION} examples]') == len(evaluated) == len(set(evaluated))
    )


def test_checkpoints_that_are_saved_during_the_first_evaluation_are_evaluated(noise, tmp_path):
    train(noise, train_dir=tmp_path)
    flags = (
        f'--model=lenet --device=cpu --batch_size={BATCH} --num_batches=3 --train_dir={tmp_path}'
    )

    def train_on(*arguments: Any) -> None:
        if not (tmp_path / 'model.ckpt-17.index').exists():
            assert run(flags).code == 0

    with mock.patch('tf_cnn.run.evaluator.check_classes', train_on):
        rows = evaluate(tmp_path, noise, '--eval_interval_secs=0.1')
    assert [row.step for row in rows] == [4, 17]


def test_a_signal_ends_an_evaluator_that_waits(trained, noise):
    def stop(folder: str) -> None:
        signal.raise_signal(signal.SIGTERM)

    with mock.patch('tf_cnn.run.evaluator.has_training_ended', stop), pytest.raises(Stopped):
        evaluate(trained, noise, '--eval_interval_secs=600')


def test_a_missing_checkpoint_or_one_of_another_model_is_named(trained, noise, tmp_path):
    with failed(f'--train_dir={tmp_path}'):
        evaluate(tmp_path, noise)
    with refused(f'--train_dir={noise / shard_name("train", 0, 1)}'):
        evaluate(noise / shard_name('train', 0, 1), noise, '--eval_interval_secs=1')
    with failed(trained / 'model.ckpt-4', 'fc2/bias', 'conv1/bias'):
        evaluate(trained, noise, '--model=trivial')


def test_evaluation_takes_the_name_of_a_checkpoint_and_training_refuses_it(
    trained, noise, tmp_path
):
    folder = shutil.copytree(trained, tmp_path / 'train')
    [first] = evaluate(folder / 'model.ckpt-0', noise)
    assert counts(first) == (0, NUM_VALIDATION, *by_numpy(folder / 'model.ckpt-0', noise))
    before = sorted(folder.iterdir())
    # A name without a checkpoint is refused, too.
    for name in ('model.ckpt-0', 'model.ckpt-4', 'model.ckpt-7'):
        with refused(
            f'--train_dir={folder}/{name}',
            f'use --train_dir={folder} ',
            f'--backbone_model_path={folder}/',
        ):
            train(noise, train_dir=folder / name)
    with refused(f'--train_dir={folder}/model.ckpt-7', f'use --train_dir={folder} '):
        evaluate(folder / 'model.ckpt-7', noise)
    with refused(f'--train_dir={folder}/model.ckpt-4', '--eval_interval_secs=1.0'):
        evaluate(folder / 'model.ckpt-4', noise, '--eval_interval_secs=1')
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize('suffix', ['data-00000-of-00001', 'index'])
def test_a_warning_names_the_newest_checkpoint_if_a_file_of_it_is_missing(
    trained, noise, tmp_path, suffix
):
    folder = shutil.copytree(trained, tmp_path / 'train')
    (folder / f'model.ckpt-4.{suffix}').unlink()
    facts = (folder / 'model.ckpt-4', suffix[:4], f'{folder}/model.ckpt-0 is used instead')
    check_warning(run_benchmark('--eval', train_dir=folder, data_dir=noise).err, *facts)
    check_warning(train(noise, backbone_model_path=folder).err, *facts)
    check_warning(train(noise, train_dir=folder).err, *facts)
    # Now the newest checkpoint is whole.
    assert 'newest checkpoint' not in train(noise, train_dir=folder).err


@pytest.mark.parametrize('suffix', ['data-00000-of-00001', 'index'])
def test_training_starts_anew_if_no_checkpoint_is_whole(trained, noise, tmp_path, suffix):
    folder = shutil.copytree(trained, tmp_path / 'train')
    for path in folder.glob(f'model.ckpt-*.{suffix}'):
        path.unlink()
    err = train(noise, train_dir=folder).err
    check_warning(err, folder / 'model.ckpt-4', 'no other checkpoint')


@pytest.mark.usefixtures('forget_models')
def test_evaluation_ignores_variables_that_only_training_has(noise, tmp_path):
    def with_head_in_training(cnn: Any, images: Any, num_classes: int) -> Any:
        auxiliary = None
        if cnn.is_training:
            with cnn.scope('auxiliary'):
                auxiliary = with_batch_norm(cnn, images, num_classes)
        return with_batch_norm(cnn, images, num_classes), auxiliary

    networks = {'with_head': with_head_in_training, 'with_batch_norm': with_batch_norm}
    for model, network in networks.items():
        register_model(model, network, data_set='imagenet', image_size=SIZE)
    flags = '--num_batches=1 --eval_during_training_at_specified_steps=2 --optimizer=momentum'
    [during] = train(noise, f'{flags} --model=with_head', train_dir=tmp_path).result.evaluations
    names = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert names >= {'auxiliary/logits/kernel/momentum', 'auxiliary/bn/moving_mean'}
    [after] = evaluate(tmp_path, noise, '--model=with_head', export_saved_model=tmp_path / 'model')
    assert counts(during) == counts(after)
    assert (tmp_path / 'model/saved_model.pb').exists()
    # Other networks do not expect these variables.
    with failed(tmp_path / 'model.ckpt-2', 'unexpected', 'auxiliary/'):
        evaluate(tmp_path, noise, '--model=with_batch_norm')


# Evaluates during training, after step 2.
DURING_TRAINING = f'--eval_during_training_at_specified_steps=2 --eval_batch_size={BATCH - 1}'


def test_a_damaged_validation_image_or_shard_is_named(trained, noise, tmp_path):
    shard = tmp_path / shard_name('validation', 0, 1)
    whole = (noise / shard_name('validation', 0, 2)).read_bytes()
    # Cut within the last of nine records, and within the header of a tenth.
    for num_bytes, record in ((len(whole) - 5, 8), (len(whole) + 7, 9)):
        shard.write_bytes((whole + whole)[:num_bytes])
        with failed(f'{shard}, record {record}'):
            evaluate(trained, tmp_path)
    write_shard(
        shard,
        [example(encoded(np.zeros([8, 8, 3], np.uint8)), 1), example(b'\xff\xd8\xffnothing', 1)],
    )
    with failed(f'{shard}, record 1'):
        evaluate(trained, tmp_path)
    shutil.copy(noise / shard_name('train', 0, 1), tmp_path)
    with failed(f'{shard}, record 1'):
        train(tmp_path, DURING_TRAINING)


def test_out_of_memory_names_the_batch_size_of_its_phase(trained, noise):
    fault = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating a tensor')
    training = make_benchmark(DURING_TRAINING, data_dir=noise)
    with mock.patch.object(Evaluation, 'run', side_effect=fault):
        with failed(f'--eval_batch_size={BATCH - 1}: out of memory'):
            evaluate(trained, noise, eval_batch_size=BATCH - 1)
        with failed(f'--eval_batch_size={BATCH - 1}: out of memory'):
            training.run()
    take_steps = Stepper.run

    def fail_after_the_evaluation(
        stepper: Stepper, phase: Phase, indices: range
    ) -> list[StepValues]:
        if phase is Phase.TIMED and 2 in indices:
            raise fault
        return take_steps(stepper, phase, indices)

    with (
        mock.patch.object(Stepper, 'run', fail_after_the_evaluation),
        failed(f'--batch_size={BATCH}: out of memory'),
    ):
        training.run()


@pytest.mark.parametrize(('num_images', 'seconds'), [(3, 20.0), (4, 20.0), (5, 30.0), (0, 10.0)])
def test_an_evaluation_lasts_until_its_last_image(num_images, seconds):
    """Batches have 2 images, and each takes 10 seconds by the clock of this test."""
    pixels, labels = np.zeros([num_images, 28, 28, 1], np.uint8), np.zeros(num_images, np.int32)
    digits, options = (
        Arrays('validation', pixels, labels),
        ImageOptions(28, 28, 1, training=False),
    )
    with tf.Graph().as_default(), open_session() as session:
        variables = RestoredVariables('/cpu:0', 'v')
        pipeline = ValidationInput(cpus(1), 2, lambda: array_examples(digits, options, Share()))
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


def test_round_robin_resizes_an_image_by_its_number_in_every_process(noise):
    shards = find_shards(str(noise), 'validation')
    pixels = np.random.default_rng(0).integers(0, 256, [6, 20, 20, 3], np.uint8)
    arrays = Arrays('validation', pixels, np.zeros(6, np.int32))

    def resized(method: str) -> list[np.ndarray]:
        """Returns the images 1, 3 and 5 of the records and of the arrays."""
        options = ImageOptions(SIZE, SIZE, 3, training=False, resize_method=method)
        with tf.Graph().as_default(), open_session() as session:
            both = (
                record_examples(shards, 1001, options, Share(1, 2)),
                array_examples(arrays, options, Share(1, 2)),
            )
            return [
                session.run(tf.data.make_one_shot_iterator(examples.batch(3)).get_next()[0])
                for examples in both
            ]

    for images, first, third in zip(
        *map(resized, ('round_robin', RESIZE_METHODS[1], RESIZE_METHODS[3])), strict=True
    ):
        np.testing.assert_array_equal(images, [first[0], third[1], first[2]])
        assert (first != third).any()


def test_a_share_may_end_early_or_repeat_images():
    assert labels_of(1, Share(num_examples=5)) == list(range(5))
    twice = sorted([*range(1, NUM_VALIDATION, 2), *range(0, NUM_VALIDATION, 2)])
    assert sorted(labels_of(2, Share(1, 2, 2 * NUM_VALIDATION))) == twice
