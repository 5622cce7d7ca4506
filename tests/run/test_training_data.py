"""Runs that train and evaluate on data sets on disk, also with images that stay on the device or
that Python feeds, by the pipeline and the preprocessing that flags choose.
"""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow.compat.v1 as tf

from models.registry import register_model
from tests.support.files import write_files
from tests.support.images import (
    encoded,
    example,
    write_mnist,
    write_noise,
    write_shard,
    write_shards_of,
)
from tests.support.outputs import check_warning, failed, refused
from tests.support.runs import BenchmarkRun, document_in, losses, params_of, plan_of, run_benchmark
from tf_cnn.inputs.layout import shard_name
from tf_cnn.step.make_input import make_input

pytestmark = [pytest.mark.graph, pytest.mark.long]


LABELS = np.arange(40) % 4
# The places of two bars are the class.
DIGITS = np.zeros([40, 28, 28], np.uint8)
for _digit, _label in zip(DIGITS, LABELS, strict=True):
    _digit[4 + 6 * _label : 8 + 6 * _label] = 255
    _digit[:, 20 - 5 * _label : 23 - 5 * _label] = 255


# Graph passes take longer than the steps.
DIGITS_RUN = '--model=linear --noenable_optimizations'
RECORDS_RUN = '--model=linear_on_records --noenable_optimizations'


def run(data_dir: Path, flags: str = '', **values: Any) -> BenchmarkRun:
    settings = '--batch_size=20 --num_batches=25 --init_learning_rate=0.02'
    return run_benchmark(f'{settings} {flags}', data_dir=data_dir, **values)


@pytest.fixture(scope='module')
def mnist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('mnist')
    write_mnist(folder, DIGITS, LABELS, suffix='.gz')
    write_mnist(folder, DIGITS[:20], LABELS[:20], 'validation')
    return folder


@pytest.fixture(scope='module')
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converts the digits into shards of images of 14 x 14 pixels."""
    folder = tmp_path_factory.mktemp('shards')
    files = {
        f'class{label}/{number}.png': encoded(digit[::2, ::2], 'PNG')
        for number, (digit, label) in enumerate(zip(DIGITS, LABELS, strict=True))
    }
    return write_shards_of(write_files(folder / 'photos', files), folder / 'out', '--shards=2')


@pytest.mark.parametrize(
    'mode', ['--num_gpus=1', '--num_gpus=2 --variable_update=replicated --batch_size=10']
)
def test_mnist_trains(mnist, mode):
    trained = run(mnist, f'{DIGITS_RUN} {mode}')
    facts = trained.result.run
    assert (facts.data_set, facts.is_synthetic, facts.num_missing_shards) == ('mnist', False, 0)
    assert trained.losses[-1] < 0.1 * trained.losses[0]
    check_warning(trained.err, mnist, '40', '60000')


@pytest.mark.parametrize('pipeline', ['record_input', 'tf_data'])
def test_resumed_training_reads_records_in_another_order(pipeline, shards, tmp_path):
    """The test reads one shard: with several, the order also depends on the readers' speed."""
    content = b''.join(path.read_bytes() for path in sorted(shards.glob('train-*')))
    (tmp_path / 'train-00000-of-00001').write_bytes(content)
    shutil.copy(shards / 'labels.txt', tmp_path)

    def first_losses(**values: Any) -> list[float]:
        steps = '--batch_size=8 --num_warmup_batches=0 --num_batches=3'
        still = '--init_learning_rate=0 --augmentation=none --weight_decay=0'
        flags = f'{RECORDS_RUN} {steps} {still} --input_pipeline={pipeline}'
        return losses(flags, data_dir=tmp_path, **values)

    fresh = first_losses()
    first, resumed = (first_losses(train_dir=tmp_path / 'trained') for _ in range(2))
    assert first == pytest.approx(fresh, rel=1e-5), 'the seed decides the order'
    assert resumed != pytest.approx(first, rel=1e-3)


def test_training_on_records_uses_the_classes_of_the_folder(shards):
    steps = '--num_batches=300 --init_learning_rate=0.005'
    trained = run(shards, f'{RECORDS_RUN} {steps} --augmentation=none')
    assert 'Dataset:     records (real)\n' in trained.out
    assert 'Num epochs:  150.00\n' in trained.out
    # Guesses among 5 classes have a loss of 1.6, among 1001 of 6.9; the first weights add to it.
    assert trained.losses[0] < 4
    assert np.mean(trained.losses[-200:]) < 0.1 * trained.losses[0]


@pytest.mark.parametrize(('model', 'image_size'), [('lenet', 28), ('resnet20', 14)])
def test_images_are_resized_unless_the_model_takes_any_size(shards, model, image_size):
    plan = plan_of(f'--model={model} --batch_size=2', data_dir=shards)
    with tf.Graph().as_default():
        images = make_input(plan, plan.devices.towers).tower_batch(0).images
    assert images.shape.as_list() == [2, image_size, image_size, 3]


@pytest.mark.surroundings
def test_a_warning_and_the_result_count_missing_shards(shards, tmp_path):
    for name in ('train-00000-of-00002', 'labels.txt'):
        shutil.copy(shards / name, tmp_path)
    result, _, err = run(tmp_path, f'{RECORDS_RUN} --num_batches=1')
    assert result.run.num_missing_shards == 1
    check_warning(err, f'--data_dir={tmp_path}', '1', '2')


def test_augmentation_that_does_not_fit_arrays_is_refused(mnist):
    with refused('--augmentation=resized_crop', 'mnist', '--augmentation=padded_crop'):
        run(mnist, '--augmentation=resized_crop')
    with refused('--distortions', '1', '3', '--nodistortions'):
        run(mnist, '--distortions')


by_pipeline = pytest.mark.parametrize('pipeline', ['device', 'feed_dict'])


@by_pipeline
def test_pipelines_of_images_in_memory_train_and_evaluate_on_records(noise, tmp_path, pipeline):
    flags = f'{RECORDS_RUN} --input_pipeline={pipeline} --num_batches=5'
    more = '--eval_during_training_every_n_steps=3 --save_summaries_steps=2 --summary_verbosity=3'
    files = {name: tmp_path / name for name in ('train_dir', 'result_file', 'trace_file')}
    result, out, err = run_benchmark(f'{flags} {more}', data_dir=noise, **files)
    check_warning(err, f'--input_pipeline={pipeline}', '--augmentation=padded_crop')
    assert f'Input:       {pipeline}\n' in out
    assert document_in(tmp_path / 'result_file')['run']['input_pipeline'] == pipeline
    assert (result.steps.input_wait is not None) == (pipeline == 'feed_dict')
    assert [row.num_images for row in result.evaluations] == [23, 23]
    assert (tmp_path / 'trace_file').stat().st_size


@by_pipeline
def test_a_resumed_training_goes_on_within_the_order_of_the_images(mnist, tmp_path, pipeline):
    def run(num_batches: int, **values: Any) -> list[float]:
        flags = f'{DIGITS_RUN} --input_pipeline={pipeline} --num_batches={num_batches}'
        return losses(flags, data_dir=mnist, **values)

    halves = [run(5, train_dir=tmp_path) for _ in range(2)]
    assert halves[0] + halves[1] == run(11)


@by_pipeline
def test_augmentation_that_needs_the_jpeg_is_refused(pipeline):
    for flag in ('--distortions', '--augmentation=resized_crop'):
        flags = f'--input_pipeline={pipeline} --data_dir=d {flag}'
        with refused(f'--input_pipeline={pipeline}', flag):
            params_of(flags)
        params_of(f'{flags} --forward_only')


@by_pipeline
def test_images_that_do_not_fit_into_memory_are_refused_with_both_numbers(
    noise, pipeline, monkeypatch
):
    monkeypatch.setattr(
        psutil, 'virtual_memory', lambda: SimpleNamespace(total=10**9, available=30 * 1024)
    )
    flags = f'--input_pipeline={pipeline} --augmentation=none --data_name=imagenet'
    with refused(f'--input_pipeline={pipeline}', 16 * 28 * 28 * 3, 30 * 1024):
        run_benchmark(flags, data_dir=noise)


# ---- pipelines and preprocessing -----------------------------------------------------------------


STILL = '--init_learning_rate=0 --weight_decay=0'


def run_few(data_dir: Path, flags: str, **values: Any) -> BenchmarkRun:
    return run_benchmark(
        # Graph passes take longer than the steps.
        f'--num_batches=6 --num_warmup_batches=0 --noenable_optimizations {flags}',
        data_dir=data_dir,
        **values,
    )


@pytest.mark.parametrize('flags', [STILL, '--forward_only'])
def test_the_preprocessing_changes_what_the_model_sees(noise, flags):
    preprocessings = ('', '--ml_perf', '--input_preprocessor=official_models_imagenet')
    plain, ml_perf, official = (
        run_few(noise, f'--use_datasets {flags} {preprocessing}').losses
        for preprocessing in preprocessings
    )
    assert plain != pytest.approx(ml_perf, rel=1e-5)
    assert plain != pytest.approx(official, rel=1e-5)
    # Both subtract the means, and training takes the same random parts of an image.
    assert (ml_perf == pytest.approx(official, rel=1e-5)) == (flags == STILL)


def darkness(cnn: Any, images: Any, num_classes: int) -> Any:
    """Predicts class 1 for pixels below -50, that is, for black minus the mean colour; else 0."""
    is_dark = tf.reduce_mean(images, axis=[1, 2, 3]) < -50
    return 1e-6 * cnn.dense(cnn.flatten(images), num_classes, 'fc') + tf.one_hot(
        tf.cast(is_dark, tf.int32), num_classes
    )


@pytest.mark.usefixtures('forget_models')
@pytest.mark.parametrize('ml_perf', [False, True])
def test_training_and_evaluations_normalise_alike(tmp_path, ml_perf):
    register_model('darkness', darkness, image_size=16)
    black = np.zeros([16, 16, 3], np.uint8)
    for subset in ('train', 'validation'):
        write_shard(
            tmp_path / shard_name(subset, 0, 1), [example(encoded(black), int(ml_perf))] * 4
        )
    flags = f'--model=darkness --num_batches=1 --ml_perf={ml_perf}'
    trained = tmp_path / 'trained'
    result = run_few(
        tmp_path,
        f'{flags} {STILL} --print_training_accuracy --eval_during_training_every_n_steps=1',
        train_dir=trained,
    ).result
    assert result.steps.top_1 == [1.0]
    assert [row.top_1 for row in result.evaluations] == [1.0]
    (alone,) = run_benchmark(
        f'{flags} --eval', data_dir=tmp_path, train_dir=trained
    ).result.evaluations
    assert alone.top_1 == 1.0


@pytest.mark.parametrize(
    'bad', [b'no picture', encoded(np.zeros([8, 8, 3], np.uint8))], ids=['no JPEG', 'label']
)
def test_a_bad_record_ends_the_run_with_what_names_it(tmp_path, bad):
    write_noise(tmp_path, 10)
    shard = tmp_path / shard_name('train', 0, 1)
    write_shard(shard, [example(encoded(np.zeros([8, 8, 3], np.uint8)), 1), example(bad, 1001)])
    for flags in ('--use_datasets', '--input_pipeline=device --augmentation=none'):
        with failed(f'--data_dir={tmp_path}', 'records', f'--check={tmp_path}'):
            run_few(tmp_path, flags)
