"""A checkpoint is used only with the number of classes of its training, and workers train together
only with the same names.
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.registry import MODELS, register_model
from tests.support.files import write_files
from tests.support.images import convert, encoded
from tests.support.outputs import check_line, failed
from tests.support.runs import BenchmarkRun, plan_of, run_benchmark, values_in
from tf_cnn.cluster.rendezvous import find_difference

pytestmark = [pytest.mark.graph, pytest.mark.long]


@pytest.fixture(scope='module')
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with training and validation shards of three classes."""
    folder, image = tmp_path_factory.mktemp('data'), encoded(np.zeros([8, 8, 3], np.uint8))
    photos = write_files(
        folder / 'photos', {f'{name}/1.png': image for name in ('cat', 'dog', 'owl')}
    )
    with redirect_stdout(io.StringIO()):
        for subset in ('train', 'validation'):
            assert convert(photos, folder / 'animals', '--shards=1', f'--subset={subset}') == 0
    return folder / 'animals'


def copy_data(data_dir: Path, folder: Path, *classes: str) -> Path:
    """Copies the shards to a folder with these classes, in this order."""
    shutil.copytree(data_dir, folder)
    (folder / 'labels.txt').write_text('\n'.join(['background', *classes]))
    return folder


@pytest.fixture(scope='module', autouse=True)
def _model() -> Iterator[None]:
    def build(cnn: Any, images: Any, num_classes: int) -> Any:
        return cnn.dense(cnn.flatten(images), num_classes, 'logits')

    register_model('linear_imagenet', build, image_size=28)
    yield
    MODELS.unregister('linear_imagenet')


# Graph passes take longer than the steps.
COMMON = '--model=linear_imagenet --noenable_optimizations'


@pytest.fixture(scope='module')
def trained(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with checkpoints of a training on cat, dog, owl."""
    folder = tmp_path_factory.mktemp('train')
    train(data_dir=animals, train_dir=folder)
    return folder


def train(**values: Any) -> BenchmarkRun:
    return run_benchmark(f'{COMMON} --num_batches=1', **values)


def evaluate(**values: Any) -> BenchmarkRun:
    return run_benchmark(f'{COMMON} --eval', **values)


def test_another_number_of_classes_is_refused(trained, animals, tmp_path):
    more = copy_data(animals, tmp_path / 'data', 'cat', 'dog', 'owl', 'yak')
    before = sorted(trained.iterdir())
    for run in (evaluate, train):
        with failed(trained / 'model.ckpt-2', 'number of classes', 'logits/bias', '[4]', '[5]'):
            run(data_dir=more, train_dir=trained)
    assert sorted(trained.iterdir()) == before


def test_the_names_of_earlier_versions_in_a_checkpoint_are_no_variable(trained, animals, tmp_path):
    names, values = zip(*{**values_in(trained), 'class_names': [b'cat']}.items(), strict=True)
    tf.raw_ops.SaveV2(
        prefix=f'{tmp_path}/model.ckpt-2',
        tensor_names=names,
        shape_and_slices=[''] * len(names),
        tensors=[*map(tf.constant, values)],
    )
    assert 'Continuing from' in train(data_dir=animals, train_dir=tmp_path).err


def test_workers_with_other_class_names_do_not_train_together(animals, tmp_path):
    other = copy_data(animals, tmp_path / 'data', 'dog', 'cat', 'owl')
    mine, theirs = (plan_of(data_dir=folder).shared_data for folder in (animals, other))
    line = find_difference({'worker 0': mine, 'worker 1': theirs})
    for names in ('cat, dog', 'dog, cat'):
        check_line(line, f'--data_dir with background, {names}, owl')


def test_many_class_names_are_all_compared(animals, tmp_path):
    many = copy_data(animals, tmp_path / 'many', *(f'class-{number:03d}' for number in range(30)))
    names = plan_of(data_dir=many).shared_data['as class names']
    (many / 'labels.txt').write_text(
        (many / 'labels.txt').read_text().replace('class-029', 'class-030')
    )
    assert plan_of(data_dir=many).shared_data['as class names'] != names
