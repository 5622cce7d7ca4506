"""Runs on records that choose the input pipeline and the preprocessing by flags."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from models.registry import register_model
from tests.support.images import encoded, example, write_noise, write_shard
from tests.support.outputs import check_line
from tf_cnn.inputs.layout import shard_name
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, as_float
from tf_cnn.run.parsing import make_params
from tf_cnn.system.errors import RunError

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('noise')
    write_noise(folder, 10)
    return folder


def run(data_dir: Path, **overrides: Any) -> Result:
    settings: dict[str, Any] = {
        'model': 'lenet', 'device': 'cpu', 'batch_size': 4, 'num_batches': 6,
        'num_warmup_batches': 0, 'data_dir': str(data_dir),
        'init_learning_rate': 0.0, 'weight_decay': 0.0,
    }  # fmt: skip
    return BenchmarkCNN(
        make_params(**{**settings, **overrides}), Console(io.StringIO(), io.StringIO())
    ).run()


def losses(result: Result) -> list[float]:
    return [*map(as_float, result.steps.loss)]


def test_training_with_tf_data_reads_the_same_images_in_each_run(data_dir: Path) -> None:
    settings: dict[str, Any] = {
        'use_datasets': True,
        'num_gpus': 2,
        'variable_update': 'replicated',
        'batch_size': 2,
    }
    first, second = (losses(run(data_dir, **settings)) for _ in range(2))
    assert first == pytest.approx(second, rel=1e-6)
    assert losses(run(data_dir, **settings, tf_random_seed=5)) != pytest.approx(first, rel=1e-3)


def test_the_preprocessing_changes_what_the_model_sees_in_training_and_in_evaluation(
    data_dir: Path,
) -> None:
    ways: list[dict[str, Any]] = [
        {},
        {'ml_perf': True},
        {'input_preprocessor': 'official_models_imagenet'},
    ]
    trained = [losses(run(data_dir, use_datasets=True, **way)) for way in ways]
    evaluated = [
        losses(
            run(
                data_dir,
                use_datasets=True,
                forward_only=True,
                init_learning_rate=None,
                weight_decay=4e-5,
                **way,
            )
        )
        for way in ways
    ]
    for found in (trained, evaluated):
        for one, other in itertools.combinations(found, 2):
            # Both subtract the means, and training takes the same random parts of an image.
            alike = found is trained and one is trained[1] and other is trained[2]
            assert (one == pytest.approx(other, rel=1e-5)) == alike


def darkness(cnn: Any, images: Any, num_classes: int) -> Any:
    """Says 1 where pixels are below -50, which only black with the mean colour subtracted is, else
    0.
    """
    is_dark = tf.reduce_mean(images, axis=[1, 2, 3]) < -50
    return 1e-6 * cnn.dense(cnn.flatten(images), num_classes, 'fc') + tf.one_hot(
        tf.cast(is_dark, tf.int32), num_classes
    )


@pytest.mark.usefixtures('forget_models')
@pytest.mark.parametrize('ml_perf', [False, True])
def test_training_evaluations_and_the_exported_model_normalise_alike(
    tmp_path: Path, ml_perf: bool
) -> None:
    register_model('darkness', darkness, image_size=16)
    black = np.zeros([16, 16, 3], np.uint8)
    for subset in ('train', 'validation'):
        write_shard(
            tmp_path / shard_name(subset, 0, 1), [example(encoded(black), int(ml_perf))] * 4
        )
    settings: dict[str, Any] = {'model': 'darkness', 'num_batches': 1, 'ml_perf': ml_perf}
    folders: dict[str, Any] = {
        'train_dir': str(tmp_path / 'trained'),
        'export_saved_model': str(tmp_path / 'model'),
    }
    trained = run(
        tmp_path,
        **settings,
        **folders,
        print_training_accuracy=True,
        eval_during_training_every_n_steps=1,
    )
    assert trained.steps.top_1 == [1.0]
    assert [found.top_1 for found in trained.evaluations] == [1.0]
    (alone,) = run(
        tmp_path,
        **settings,
        train_dir=folders['train_dir'],
        eval=True,
        init_learning_rate=None,
        weight_decay=4e-5,
    ).evaluations
    assert alone.top_1 == 1.0
    classify = tf.compat.v2.saved_model.load(folders['export_saved_model']).signatures[
        'serving_default'
    ]
    assert classify(images=tf.constant(black[np.newaxis]))['classes'].numpy() == [int(ml_perf)]


@pytest.mark.parametrize(
    'bad', [b'no picture', encoded(np.zeros([8, 8, 3], np.uint8))], ids=['no JPEG', 'label']
)
def test_a_bad_record_is_named_with_its_shard(tmp_path: Path, bad: bytes) -> None:
    write_noise(tmp_path, 10)
    shard = tmp_path / shard_name('train', 0, 1)
    write_shard(shard, [example(encoded(np.zeros([8, 8, 3], np.uint8)), 1), example(bad, 1001)])
    for flags in ({'use_datasets': True}, {'input_pipeline': 'device', 'augmentation': 'none'}):
        with pytest.raises(RunError) as error:
            run(tmp_path, **flags)
        check_line(error.value, shard, 'record 1')
