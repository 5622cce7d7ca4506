"""An evaluation counts each validation image once, on any number of towers, during training and apart from it."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf_cnn_benchmarks
from benchmark_cnn import BenchmarkCNN
from cluster.signals import Terminated
from inputs.data_sets import Arrays, find_shards
from inputs.validation import Share, ValidationInput, array_examples, record_examples
from models.networks import rank_of_labels
from models.registry import MODELS, register_model
from params import make_params, parse_argv
from preprocessing import ImageOptions
from records.layout import shard_name
from results.console import Console
from results.result import Accuracy, Result, StepValues
from results.sections import Phase
from run.evaluation import Evaluation, OwnVariables
from run.session import Stepper
from tests.support.graphs import cpus, open_session
from tests.support.images import encoded, example, write_noise, write_shard
from tests.support.outputs import check_warning, failed, warnings_in
from training.checkpoint_files import has_ended

pytestmark = [pytest.mark.graph, pytest.mark.long]

PROGRAM = tf_cnn_benchmarks.__file__
# Neither divides the other, nor a batch of two towers.
NUM_VALIDATION, BATCH, SIZE = 23, 4, 28
SETTINGS: dict[str, Any] = {
    'model': 'lenet',
    'device': 'cpu',
    'batch_size': BATCH,
    'num_batches': 3,
    'num_warmup_batches': 1,
    'init_learning_rate': 0.05,
}
COUNTED = f'[{NUM_VALIDATION} examples]'


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('data')
    write_noise(folder, NUM_VALIDATION)
    return folder


@pytest.fixture(scope='module')
def trained(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A folder with checkpoints of steps 0 and 4, and what evaluations found after steps 2 and 4."""
    folder = tmp_path_factory.mktemp('train')
    flags = {'data_dir': str(data_dir), 'train_dir': str(folder), 'eval_during_training_every_n_steps': 2}
    return folder, BenchmarkCNN(make_params(**SETTINGS, **flags)).run()


def evaluate(folder: Path, data_dir: Path, console: Console | None = None, **flags: Any) -> tuple[Accuracy, ...]:
    common = {'model': 'lenet', 'device': 'cpu', 'eval_batch_size': BATCH}
    settings = {**common, 'eval': True, 'train_dir': str(folder), 'data_dir': str(data_dir), **flags}
    return BenchmarkCNN(make_params(**settings), console).run().evaluations


def counts(accuracy: Accuracy) -> tuple[int, ...]:
    return accuracy.step, accuracy.num_images, accuracy.num_top_1, accuracy.num_top_5


def by_numpy(folder: Path, data_dir: Path) -> tuple[int, int]:
    """How many validation images have their label first, and among the first five: image by image, ranked by NumPy."""
    shards = find_shards(str(data_dir), 'validation')
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(folder)))
    weights = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    found = [0, 0]
    with tf.Graph().as_default(), open_session() as session:
        options = ImageOptions(SIZE, SIZE, 3, training=False)
        iterator = tf.data.make_one_shot_iterator(record_examples(shards, 1001, options, Share()))
        element = iterator.get_next()
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
            found[0] += label == ranking[0]
            found[1] += label in ranking[:5]
    return found[0], found[1]


def test_every_image_counts_once_as_numpy_counts(trained: tuple[Path, Result], data_dir: Path) -> None:
    folder, _ = trained
    (one,) = evaluate(folder, data_dir)
    assert counts(one) == (4, NUM_VALIDATION, *by_numpy(folder, data_dir))
    assert 0 < one.num_top_5 < NUM_VALIDATION
    (more,) = evaluate(folder, data_dir, num_gpus=3, eval_batch_size=5, data_format='NCHW')
    assert counts(more) == counts(one)


def test_training_waits_for_evaluations_of_the_same_variables(trained: tuple[Path, Result], data_dir: Path) -> None:
    folder, result = trained
    assert [accuracy.step for accuracy in result.evaluations] == [2, 4]
    assert counts(result.evaluations[-1]) == counts(*evaluate(folder, data_dir))
    assert [step.index for step in result.timed_steps] == [1, 2, 3]


def with_batch_norm(cnn: Any, images: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(images, 8, 3, 'conv', strides=2), 'bn'))
    return cnn.dense(cnn.flatten(cnn.max_pool(x, 2, 2)), num_classes, 'logits')


@pytest.mark.parametrize(
    'mode',
    [
        {'variable_update': 'replicated', 'num_gpus': 2, 'optimizer': 'momentum'},
        {'variable_update': 'parameter_server', 'staged_vars': True, 'num_gpus': 2},
        {'variable_update': 'independent', 'num_gpus': 2},
        {'model': 'with_batch_norm', 'num_gpus': 2, 'eval_batch_size': 8},
    ],
    ids=lambda mode: '-'.join(map(str, mode.values())),
)
@pytest.mark.usefixtures('forget_models')
def test_every_mode_evaluates_what_its_checkpoint_holds(mode: dict[str, Any], data_dir: Path, tmp_path: Path) -> None:
    register_model('with_batch_norm', with_batch_norm, data_set='imagenet', image_size=SIZE)
    settings = {**SETTINGS, 'batch_size': 2, 'num_batches': 1, **mode}
    flags = {'data_dir': str(data_dir), 'train_dir': str(tmp_path), 'eval_during_training_at_specified_steps': '2'}
    [during] = BenchmarkCNN(make_params(**settings, **flags)).run().evaluations
    [after] = evaluate(tmp_path, data_dir, model=settings['model'])
    assert counts(during) == counts(after)
    assert during.num_images == NUM_VALIDATION
    assert during.num_top_5 > 0


@pytest.mark.parametrize(
    ('flags', 'num_images'),
    [
        ({'num_eval_batches': 2, 'num_epochs': 3}, 2 * BATCH),
        ({'num_batches': 2}, 2 * BATCH),
        ({'num_epochs': 0.5}, 12),
        ({'num_eval_batches': 2, 'num_gpus': 2, 'eval_batch_size': 3}, 12),
        ({'num_eval_epochs': 0.5, 'num_batches': 1}, 12),
        ({'num_eval_epochs': 2}, 2 * NUM_VALIDATION),
        ({'num_eval_epochs': 0.001}, 1),
    ],
    ids=str,
)
def test_flags_limit_the_number_of_images(
    flags: dict[str, Any], num_images: int, trained: tuple[Path, Result], data_dir: Path
) -> None:
    [accuracy] = evaluate(trained[0], data_dir, **flags)
    assert accuracy.num_images == num_images


def test_an_evaluation_prints_the_lines_that_scripts_read(
    trained: tuple[Path, Result], data_dir: Path, tmp_path: Path
) -> None:
    out = io.StringIO()
    flags = ['--model=lenet', '--device=cpu', '--eval', f'--train_dir={trained[0]}', f'--data_dir={data_dir}']
    params = parse_argv([*flags, f'--eval_dir={tmp_path}']).params
    [found] = BenchmarkCNN(params, Console(out)).run().evaluations
    lines = out.getvalue().splitlines()
    assert 'Mode:        evaluation' in lines
    accuracies = f'Accuracy @ 1 = {found.top_1:.4f} Accuracy @ 5 = {found.top_5:.4f} {COUNTED}'
    assert lines[-4:-2] == [accuracies, '-' * 64]
    assert re.fullmatch(r'total images/sec: \d+\.\d\d', lines[-2])
    [events] = tmp_path.glob('events.out.tfevents.*')
    written = {
        value.tag: (event.step, value.simple_value)
        for event in tf.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert written['eval_top_5_accuracy'] == (4, pytest.approx(found.top_5))


def test_training_stops_at_the_requested_accuracy(data_dir: Path, tmp_path: Path) -> None:
    flags = {'data_dir': str(data_dir), 'train_dir': str(tmp_path), 'eval_during_training_every_n_steps': 3}
    settings = {**SETTINGS, 'num_batches': 50}
    told = io.StringIO()
    path = tmp_path / 'result.json'
    goal = {'stop_at_top_1_accuracy': 0.0, 'result_file': str(path)}
    result = BenchmarkCNN(make_params(**settings, **flags, **goal), Console(None, told)).run()
    # A machine that does other things, too, may be warned of.
    assert not [line for line in warnings_in(told.getvalue()) if 'evaluat' in line]
    assert [accuracy.step for accuracy in result.evaluations] == [3]
    assert (len(result.timed_steps), result.complete) == (2, True)
    assert has_ended(str(tmp_path))
    document = json.loads(path.read_text())
    steps, [found] = document['workers'][0]['steps'], document['evaluations']
    seconds = found['end'] - steps['start'][0]
    # From the first step, a warm-up, to the end of the evaluation, which lies between its last step and the end.
    assert seconds >= sum(steps['seconds']) + found['seconds']
    (line,) = (line for line in told.getvalue().splitlines() if line.startswith('accuracy: '))
    assert line == f'accuracy: top-1 0 reached at step 3, {seconds:.3g} s after the first step began'
    flags['eval_during_training_every_n_steps'] = 9
    told = io.StringIO()
    BenchmarkCNN(make_params(**SETTINGS, **flags), Console(None, told)).run()
    # It goes on from step 3 to step 7; the first evaluation would be after step 9.
    check_warning(told.getvalue(), 'evaluation', '3', '7', '9')


def test_an_accuracy_that_is_reached_in_the_warm_up_is_told_once(data_dir: Path) -> None:
    flags = {'data_dir': str(data_dir), 'eval_during_training_every_n_steps': 1, 'stop_at_top_1_accuracy': 0.0}
    told = io.StringIO()
    BenchmarkCNN(make_params(**SETTINGS | {'num_warmup_batches': 3}, **flags), Console(None, told)).run()
    assert len(re.findall('^Stopping after', told.getvalue(), re.MULTILINE)) == 1


def test_an_evaluator_follows_a_training_run_to_its_last_checkpoint(data_dir: Path, tmp_path: Path) -> None:
    """The evaluator starts before there is a checkpoint."""
    common = ['--model=lenet', '--device=cpu', f'--batch_size={BATCH}', f'--data_dir={data_dir}']
    train_dir = tmp_path / 'train'
    environ = json.dumps({'cluster': {'worker': ['localhost:1']}, 'task': {'type': 'evaluator', 'index': 0}})
    follower = subprocess.Popen(
        [sys.executable, PROGRAM, *common, f'--train_dir={train_dir}', '--eval_interval_secs=0.2'],
        env={'PATH': '', 'TF_CONFIG': environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    flags = {**SETTINGS, 'num_batches': 5, 'data_dir': str(data_dir), 'train_dir': str(train_dir)}
    BenchmarkCNN(make_params(**flags, save_model_steps=3)).run()
    out, err = follower.communicate(timeout=900)
    assert follower.returncode == 0, err
    # Each is announced by its name, in a line that ends with it.
    evaluated = re.findall(r'/train/model\.ckpt-(\d+)$', err, re.MULTILINE)
    assert evaluated[-1] == '6'
    assert out.count(COUNTED) == len(evaluated) == len(set(evaluated))


class _Stopping(io.StringIO):
    """Raises SIGTERM in this process once an accuracy is written to it."""

    def write(self, text: str) -> int:
        if COUNTED in text:
            signal.raise_signal(signal.SIGTERM)
        return super().write(text)


def test_a_signal_ends_an_evaluator_as_it_ends_a_run(trained: tuple[Path, Result], data_dir: Path) -> None:
    with pytest.raises(Terminated):
        evaluate(trained[0], data_dir, Console(_Stopping()), eval_interval_secs=600)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_without_a_checkpoint_the_folder_is_named(data_dir: Path, tmp_path: Path) -> None:
    with failed(f'--train_dir={tmp_path}'):
        evaluate(tmp_path, data_dir)


def test_a_checkpoint_of_another_model_is_refused(trained: tuple[Path, Result], data_dir: Path) -> None:
    with failed(trained[0] / 'model.ckpt-4', 'fc2/bias', 'conv1/bias'):
        evaluate(trained[0], data_dir, model='trivial')


def with_head_in_training(cnn: Any, images: Any, num_classes: int) -> Any:
    auxiliary = None
    if cnn.is_training:
        with cnn.scope('auxiliary'):
            auxiliary = with_batch_norm(cnn, images, num_classes)
    return with_batch_norm(cnn, images, num_classes), auxiliary


@pytest.mark.usefixtures('forget_models')
def test_variables_that_only_training_has_are_left_out(
    trained: tuple[Path, Result], data_dir: Path, tmp_path: Path
) -> None:
    for model, network in (('with_head', with_head_in_training), ('with_batch_norm', with_batch_norm)):
        register_model(model, network, data_set='imagenet', image_size=SIZE)
    settings = {**SETTINGS, 'model': 'with_head', 'optimizer': 'momentum', 'num_batches': 1}
    flags = {'data_dir': str(data_dir), 'train_dir': str(tmp_path), 'eval_during_training_at_specified_steps': '2'}
    [during] = BenchmarkCNN(make_params(**settings, **flags)).run().evaluations
    names = {name for name, _ in tf.train.list_variables(str(tmp_path))}
    assert names >= {'auxiliary/logits/kernel/momentum', 'auxiliary/bn/moving_mean'}
    [after] = evaluate(tmp_path, data_dir, model='with_head', export_saved_model=str(tmp_path / 'model'))
    assert counts(during) == counts(after)
    assert (tmp_path / 'model/saved_model.pb').exists()
    # To other networks these variables are unexpected, and this one refuses other checkpoints.
    with failed(tmp_path / 'model.ckpt-2', 'unexpected', 'auxiliary/'):
        evaluate(tmp_path, data_dir, model='with_batch_norm')
    with failed(trained[0] / 'model.ckpt-4', 'missing', 'bn/', 'unexpected', 'conv1/bias'):
        evaluate(trained[0], data_dir, model='with_head')
    # Most networks have none, and are not built twice.
    with mock.patch('run.evaluator.variables_in_training', side_effect=AssertionError):
        evaluate(trained[0], data_dir)


# An evaluation during training is the first after step 2.
DURING_TRAINING: dict[str, Any] = {'eval_during_training_at_specified_steps': '2', 'eval_batch_size': BATCH - 1}


def test_a_damaged_validation_image_is_named(trained: tuple[Path, Result], data_dir: Path, tmp_path: Path) -> None:
    shard = tmp_path / shard_name('validation', 0, 1)
    write_shard(shard, [example(encoded(np.zeros([8, 8, 3], np.uint8)), 1), example(b'\xff\xd8\xffnothing', 1)])
    with failed(f'{shard}, record 1'):
        evaluate(trained[0], tmp_path)
    shutil.copy(data_dir / shard_name('train', 0, 1), tmp_path)
    params = make_params(**SETTINGS, **DURING_TRAINING, data_dir=str(tmp_path))
    with failed(f'{shard}, record 1'):
        BenchmarkCNN(params, Console(None, io.StringIO())).run()


def test_out_of_memory_in_an_evaluation_names_its_batch_size(trained: tuple[Path, Result], data_dir: Path) -> None:
    fault = tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating a tensor')
    params = make_params(**SETTINGS, **DURING_TRAINING, data_dir=str(data_dir))
    training = BenchmarkCNN(params, Console(None, io.StringIO()))
    with mock.patch.object(Evaluation, 'run', side_effect=fault):
        with failed(f'--eval_batch_size={BATCH - 1}: out of memory'):
            evaluate(trained[0], data_dir, eval_batch_size=BATCH - 1)
        with failed(f'--eval_batch_size={BATCH - 1}: out of memory'):
            training.run()
    take_steps = Stepper.run

    def fail_after_the_evaluation(stepper: Stepper, phase: Phase, indices: range) -> list[StepValues]:
        if phase is Phase.TIMED and 2 in indices:
            raise fault
        return take_steps(stepper, phase, indices)

    with (
        mock.patch.object(Stepper, 'run', fail_after_the_evaluation),
        failed(f'--batch_size={BATCH}: out of memory') as caught,
    ):
        training.run()
    assert isinstance(caught.value.result, Result)
    assert [accuracy.step for accuracy in caught.value.result.evaluations] == [2]


def test_a_validation_shard_that_is_cut_short_is_named(
    trained: tuple[Path, Result], data_dir: Path, tmp_path: Path
) -> None:
    shard = tmp_path / shard_name('validation', 0, 1)
    whole = (data_dir / shard_name('validation', 0, 2)).read_bytes()
    # In the last of its nine records, and in the header of a tenth.
    for num_bytes, record in ((len(whole) - 5, 8), (len(whole) + 7, 9)):
        shard.write_bytes((whole + whole)[:num_bytes])
        with failed(f'{shard}, record {record}'):
            evaluate(trained[0], tmp_path)


def evaluation_of(digits: Arrays, variables: OwnVariables) -> Evaluation:
    """The evaluation of LeNet on all of these digits, in batches of 2 on one tower."""
    options = ImageOptions(28, 28, 1, training=False)
    pipeline = ValidationInput(cpus(1), 2, lambda: array_examples(digits, options, Share()))
    network = MODELS.find_model('mnist', 'mnist').network
    return Evaluation(network, 10, 'NHWC', [variables], cpus(1), pipeline, 2, None)


def test_images_without_their_label_among_five_logits_do_not_count() -> None:
    """The ranks are known: weights are zero, and biases alone order the classes."""
    digits = Arrays('validation', np.zeros([3, 28, 28, 1], np.uint8), np.array([0, 4, 9], np.int32))
    with tf.Graph().as_default(), open_session() as session:
        variables = OwnVariables('/cpu:0', 'v')
        evaluation = evaluation_of(digits, variables)
        for name, [part] in variables.slices.items():
            value = np.zeros(part.full, np.float32)
            if value.shape == (10,):
                value = -np.arange(10, dtype=np.float32)
            session.run(part.variable.assign(tf.constant(value, name=name.replace('/', '_'))))
        found = evaluation.run(session, step=7)
    assert counts(found) == (7, 3, 1, 2)


@pytest.mark.parametrize(('num_images', 'seconds'), [(3, 20.0), (4, 20.0), (5, 30.0), (0, 10.0)])
def test_an_evaluation_lasts_until_its_last_image_has_come(num_images: int, seconds: float) -> None:
    """In batches of 2; each takes 10 seconds by the clock of this test."""
    digits = Arrays('validation', np.zeros([num_images, 28, 28, 1], np.uint8), np.zeros(num_images, np.int32))
    with tf.Graph().as_default(), open_session() as session:
        variables = OwnVariables('/cpu:0', 'v')
        evaluation = evaluation_of(digits, variables)
        for [part] in variables.slices.values():
            session.run(part.variable.assign(tf.zeros(part.full)))
        counted = Counter[str]()

        def run(fetches: Any, *fed: Any) -> Any:
            counted['batches'] += isinstance(fetches, list) and len(fetches) == 2
            return session.run(fetches, *fed)

        timed = SimpleNamespace(run=run)
        found = evaluation.run(timed, step=7, clock=lambda: 10.0 * counted['batches'])
    assert (found.num_images, found.seconds) == (num_images, seconds)


@pytest.mark.parametrize('num_classes', [3, 12])
def test_top_k_agrees_with_numpy_also_where_logits_are_equal(num_classes: int) -> None:
    generator = np.random.default_rng(4)
    logits = generator.integers(0, 3, [60, num_classes]).astype(np.float32)
    logits[0] = 0
    labels = generator.integers(-1, num_classes, 60).astype(np.int32)
    ranking = np.argsort(-logits, axis=1, kind='stable')
    with tf.Graph().as_default(), open_session() as session:
        ranks = session.run(rank_of_labels(tf.constant(logits), tf.constant(labels)))
        for k in (1, 5):
            assert np.array_equal(ranks < k, (ranking[:, :k] == labels[:, None]).any(axis=1))
        for spoiled in (0, 1):
            for bad in (np.nan, np.inf, -np.inf):
                logits[0] = 0
                logits[0, spoiled] = bad
                assert session.run(rank_of_labels(tf.constant(logits[:1]), tf.constant([0]))) == [np.inf]
