"""A checkpoint is used only with the classes of its training, by name and in order."""

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
from tests.support.images import convert, encoded, write_digits
from tests.support.outputs import check_line, check_warning, failed
from tests.support.runs import BenchmarkRun, plan_of, run_benchmark, values_in
from tf_cnn.cluster.rendezvous import find_difference
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.training.contents import read_class_names

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

    for data_set in ('imagenet', 'mnist'):
        register_model(f'linear_{data_set}', build, data_set=data_set, image_size=28)
    yield
    MODELS.unregister('linear_imagenet', 'linear_mnist')


# Graph passes take longer than the steps.
COMMON = '--model=linear_imagenet --noenable_optimizations'


@pytest.fixture(scope='module')
def trained(animals: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with checkpoints of a training on cat, dog, owl."""
    folder = tmp_path_factory.mktemp('train')
    flags = '--eval_during_training_at_specified_steps=2 --precision=bf16 --num_gpus=2'
    train(flags, data_dir=animals, train_dir=folder)
    return folder


def train(flags: str = '', **values: Any) -> BenchmarkRun:
    return run_benchmark(f'{COMMON} --num_batches=1 {flags}', **values)


def evaluate(train_dir: Path, data_dir: Path) -> BenchmarkRun:
    return run_benchmark(f'{COMMON} --eval', train_dir=train_dir, data_dir=data_dir)


def notes(run: BenchmarkRun) -> list[str]:
    text = 'only the number of classes is compared'
    return [line for line in run.err.splitlines() if text in line]


def test_evaluation_and_training_go_on_with_the_same_classes_in_another_folder(
    trained, animals, tmp_path
):
    data_dir, train_dir = (
        shutil.copytree(folder, tmp_path / folder.name) for folder in (animals, trained)
    )
    assert not notes(evaluate(train_dir, data_dir))
    again = train(data_dir=data_dir, train_dir=train_dir)
    assert f'Continuing from {train_dir}/model.ckpt-2' in again.err
    assert 'Reading the checkpoint' in again.err
    assert 'Initialising' not in again.err
    assert not notes(again)
    assert read_class_names(str(train_dir / 'model.ckpt-4')) == ('background', 'cat', 'dog', 'owl')


@pytest.mark.parametrize(
    ('classes', 'first', 'kind'),
    [
        ('dog, cat, owl', '1 is cat there, and 1 is dog here', 'another order'),
        ('x, y, z', '1 is cat there, and 1 is x here', 'other names'),
        ('cat, dog, owl, yak', '4 is missing there, and 4 is yak here', 'other names'),
    ],
)
def test_other_classes_are_refused_with_both_lists(
    trained, animals, tmp_path, classes, first, kind
):
    data_dir = copy_data(animals, tmp_path / 'data', *classes.split(', '))
    before = sorted(trained.iterdir())
    both = (
        'background, cat, dog, owl in the checkpoint',
        f'background, {classes} in the folder',
    )
    facts = (trained / 'model.ckpt-2', f'--data_dir={data_dir}', *both, first, kind)
    with failed(*facts):
        evaluate(trained, data_dir)
    with failed(*facts):
        train(data_dir=data_dir, train_dir=trained)
    assert sorted(trained.iterdir()) == before


def test_a_checkpoint_without_names_is_used_with_a_note_and_the_next_one_has_names(
    trained, animals, tmp_path
):
    # Older versions and other programs write checkpoints without class names.
    (old := tmp_path / 'old').mkdir()
    names, values = zip(*values_in(trained).items(), strict=True)
    tensors, slices = [*map(tf.constant, values)], [''] * len(names)
    tf.raw_ops.SaveV2(
        prefix=f'{old}/model.ckpt-2', tensor_names=names, shape_and_slices=slices, tensors=tensors
    )
    [line] = notes(evaluate(old, animals))
    check_line(line, old / 'model.ckpt-2')
    assert '--data_dir' not in line
    assert len(notes(train(data_dir=animals, train_dir=old))) == 1
    assert not notes(evaluate(old, animals))


def test_steps_on_synthetic_images_leave_the_names_in_the_checkpoints(tmp_path):
    train_dir, digits_run = tmp_path / 'train', '--model=linear_mnist --data_name=mnist'
    train(digits_run, data_dir=write_digits(tmp_path / 'digits'), train_dir=train_dir)
    assert not notes(train(digits_run, train_dir=train_dir))
    assert read_class_names(f'{train_dir}/model.ckpt-4') == DATA_SETS['mnist'].class_names


def test_a_folder_without_names_is_used_with_a_note(noise, tmp_path):
    train(data_dir=noise, train_dir=tmp_path)
    assert read_class_names(str(tmp_path / 'model.ckpt-2')) is None
    [line] = notes(evaluate(tmp_path, noise))
    facts = (
        f'{tmp_path}/model.ckpt-2 has no class names',
        f'reads no class names from --data_dir={noise}',
    )
    check_line(line, *facts)


def test_a_backbone_of_other_classes_starts_training_with_a_warning(trained, animals, tmp_path):
    other = copy_data(animals, tmp_path / 'data', 'dog', 'cat', 'owl')
    err = train(data_dir=other, backbone_model_path=trained).err
    classes = ('background, cat, dog, owl', 'background, dog, cat, owl')
    check_warning(err, f'--backbone_model_path={trained}', 'last layer', *classes)
    assert 'last layer' not in train(data_dir=animals, backbone_model_path=trained).err


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
