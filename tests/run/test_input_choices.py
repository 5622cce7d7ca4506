"""Flags choose the input pipeline and the preprocessing of runs on records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.registry import register_model
from tests.support.images import encoded, example, write_noise, write_shard
from tests.support.outputs import failed
from tests.support.runs import BenchmarkRun, run_benchmark
from tf_cnn.inputs.layout import shard_name

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 10)
    return folder


STILL = '--init_learning_rate=0 --weight_decay=0'


def run(data_dir: Path, flags: str, **values: Any) -> BenchmarkRun:
    return run_benchmark(
        # Graph passes take longer than the steps.
        f'--num_batches=6 --num_warmup_batches=0 --noenable_optimizations {flags}',
        data_dir=data_dir,
        **values,
    )


@pytest.mark.parametrize('flags', [STILL, '--forward_only'])
def test_the_preprocessing_changes_what_the_model_sees(data_dir, flags):
    preprocessings = ('', '--ml_perf', '--input_preprocessor=official_models_imagenet')
    plain, ml_perf, official = (
        run(data_dir, f'--use_datasets {flags} {preprocessing}').losses
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
    result = run(
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
            run(tmp_path, flags)
