"""The files of a data folder decide its data set, its classes and its numbers of images."""

import io
import json
import os
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.files import write_files
from tests.support.images import (
    content,
    encoded,
    example,
    write_cifar,
    write_mnist,
    write_shard,
    write_shards_of,
)
from tests.support.outputs import check_line, failed, refused
from tests.support.runs import plan_of
from tf_cnn.cli import records
from tf_cnn.inputs.data_folder import open_folder, recognise_data_set
from tf_cnn.inputs.data_sets import DATA_SETS, DataSet, Shards, find_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.plan.parsing import make_params
from tf_cnn.plan.plan import check_launch

pytestmark = pytest.mark.graph

IMAGES = np.zeros([10, 32, 32, 3], np.uint8)
DIGITS = np.zeros([4, 28, 28], np.uint8)


def to_records(folder: Path, images: dict[str, tuple[int, int]], *flags: str) -> str:
    """Writes PNGs with these widths and heights, and two shards of them."""
    files = {f'{name}.png': encoded(Image.new('L', size), 'PNG') for name, size in images.items()}
    photos = write_files(folder / ' '.join(['photos', *flags]), files)
    return str(write_shards_of(photos, folder / 'out', '--shards=2', *flags))


@pytest.fixture(scope='module')
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The shards that `records` writes of 5 training and 4 validation images, all of 8 x 8
    pixels.
    """
    folder = tmp_path_factory.mktemp('digits')
    images = dict.fromkeys(('one/1', 'one/2', 'two/1', 'two/2', 'two/3'), (8, 8))
    to_records(folder, images)
    images.popitem()
    return to_records(folder, images, '--subset=validation')


EXPECTED = DataSet(
    'records', 3, 3, 5, 4, has_records=True, image_size=8, class_names=('background', 'one', 'two')
)


def test_a_folder_written_by_records_describes_its_own_data_set(digits):
    assert recognise_data_set(digits) == 'records'
    folder = open_folder(digits, 'records')
    assert folder.data_set == EXPECTED
    shards = folder.open('train')
    assert isinstance(shards, Shards)
    assert len(shards.paths) == 2
    assert folder.completeness_warning(shards) is None
    assert folder.subset_for_steps(forward_only=False) == 'train'
    assert folder.subset_for_steps(forward_only=True) == 'validation'
    train = {'images': 5, 'shards': 2, 'height': 8, 'width': 8}
    facts = json.loads((Path(digits) / 'dataset.json').read_text())
    assert facts == {'train': train, 'validation': {**train, 'images': 4}}


def test_a_folder_written_by_records_can_be_read_as_imagenet(digits):
    data_set = plan_of(data_dir=digits, data_name='imagenet').data.data_set
    assert data_set == replace(DATA_SETS['imagenet'], num_train_examples=5)


def copied(digits: str, folder: Path) -> Path:
    return write_files(folder, content(Path(digits)))


def test_the_records_of_a_folder_without_dataset_json_are_counted(digits, tmp_path):
    (copied(digits, tmp_path) / 'dataset.json').unlink()
    assert open_folder(str(tmp_path), 'records').data_set == replace(EXPECTED, image_size=None)
    shard = tmp_path / shard_name('train', 1, 2)
    shard.write_bytes(shard.read_bytes()[:-3])
    with refused(shard, 'record ', 'records --check'):
        open_folder(str(tmp_path), 'records')


def test_the_records_of_a_folder_that_lost_a_shard_are_counted_and_the_loss_is_reported(
    digits, tmp_path
):
    (copied(digits, tmp_path) / shard_name('train', 0, 2)).unlink()
    folder = open_folder(str(tmp_path), 'records')
    assert 0 < folder.data_set.num_train_examples < 5
    warning = folder.completeness_warning(folder.open('train'))
    check_line(warning, f'--data_dir={tmp_path}', ' 1 ', ' 2 ')


@pytest.mark.parametrize(
    'text',
    [
        '{',
        pytest.param('[' * 100_000, id='nested lists'),
        '{"train": {"images": 5}}',
        '{"train": {"images": -5, "shards": 2, "height": null, "width": null}}',
    ],
)
def test_an_invalid_dataset_json_is_refused(digits, tmp_path, text):
    (copied(digits, tmp_path) / 'dataset.json').write_text(text)
    with refused(tmp_path / 'dataset.json'):
        open_folder(str(tmp_path), 'records')


def test_shards_without_labels_txt_are_those_of_imagenet(tmp_path):
    write_shard(tmp_path / shard_name('train', 0, 1), [example(encoded(IMAGES[0]), 1)])
    assert recognise_data_set(str(tmp_path)) == 'imagenet'
    folder = open_folder(str(tmp_path), 'imagenet')
    assert folder.data_set == DATA_SETS['imagenet']
    assert folder.subset_for_steps(forward_only=True) == 'train'
    facts = ['--data_name=records', 'labels.txt', '--data_name=imagenet']
    with refused(f'--data_dir={tmp_path}', *facts):
        open_folder(str(tmp_path), 'records')


def test_shards_without_records_are_refused(tmp_path):
    write_shard(tmp_path / shard_name('validation', 0, 1), [])
    with refused(f'--data_dir={tmp_path}', ' 1 ', 'validation', 'records --input=DIR'):
        open_folder(str(tmp_path), 'imagenet').open('validation')


@pytest.mark.parametrize('kind', ['dangling link', 'folder', 'pipe'])
def test_a_shard_that_cannot_be_read_is_refused_before_the_run(digits, tmp_path, kind):
    shard = copied(digits, tmp_path) / shard_name('train', 1, 2)
    shard.unlink()
    if kind == 'pipe':
        os.mkfifo(shard)
    elif kind == 'folder':
        shard.mkdir()
    else:
        shard.symlink_to(tmp_path / 'nothing')
    unreadable = f'{shard}: it cannot be read'
    for name in ('records', 'imagenet'):
        with refused(unreadable):
            plan_of(data_dir=tmp_path, data_name=name, model='lenet')
    # Without the number of images in dataset.json, the shards are counted.
    (tmp_path / 'dataset.json').unlink()
    with refused(unreadable):
        plan_of(data_dir=tmp_path, model='lenet')
    with failed(f'--check={tmp_path}: 1 fault', unreadable), redirect_stdout(io.StringIO()):
        records.main([f'--check={tmp_path}'])


def test_an_incomplete_subset_of_arrays_is_reported_with_both_counts(tmp_path):
    write_cifar(tmp_path / 'cifar-10-batches-bin', IMAGES, np.arange(10))
    folder = open_folder(str(tmp_path), 'cifar10')
    counts = folder.data_set.num_train_examples, folder.data_set.num_validation_examples
    assert counts == (10, 0)
    assert folder.subset_for_steps(forward_only=True) == 'train'
    warning = folder.completeness_warning(folder.open('train'))
    check_line(warning, f'--data_dir={folder.path}', ' 10 ', 'train', 50000)


def test_a_run_that_does_not_train_reads_validation_images_where_there_are_some(tmp_path):
    assert recognise_data_set(str(tmp_path)) is None
    write_mnist(tmp_path, DIGITS, np.arange(4), 'validation')
    folder = open_folder(str(tmp_path), 'mnist')
    assert folder.subset_for_steps(forward_only=True) == 'validation'
    assert folder.data_set.num_validation_examples == 4


# A run checks it, and the launcher before it starts processes.
@pytest.mark.parametrize('check', [plan_of, lambda **flags: check_launch(make_params(**flags))])
def test_only_the_subsets_that_a_run_reads_must_be_in_the_folder(tmp_path, check):
    write_mnist(tmp_path, DIGITS, np.arange(4))
    run: dict[str, Any] = {'data_dir': str(tmp_path), 'model': 'mnist'}
    evaluation = {**run, 'eval': True, 'train_dir': str(tmp_path), 'eval_interval_secs': 10.0}
    check(**run, forward_only=True)
    with refused(f'--data_dir={tmp_path}', 't10k-images-idx3-ubyte'):
        check(**evaluation)
    for path in tmp_path.iterdir():
        path.rename(str(path).replace('train', 't10k'))
    check(**evaluation)
    with refused(f'--data_dir={tmp_path}', 'train-images-idx3-ubyte'):
        check(**run)


def test_a_model_that_is_not_defined_for_the_data_of_the_folder_is_refused(tmp_path):
    write_mnist(tmp_path, DIGITS, np.arange(4))
    with refused('--model=vgg16', f'--data_dir={tmp_path}', 'lenet, mnist') as error:
        plan_of(data_dir=tmp_path, model='vgg16')
    assert 'alexnet' not in str(error.value)


# ---- the shards of a subset ----------------------------------------------------------------------


def touch(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).touch()
    return str(folder)


def test_shards_are_found_in_order_and_files_beside_them_are_passed_over(tmp_path):
    names = ['train-00000-of-00003.tfrecord', 'train-00002-of-00003.tfrecord']
    beside = [
        'train-00000-of-00001.tmp',
        'train-00000-of-00003 (1).tfrecord',
        'train-00000-of-00003.tfrecord.md5',
        'train-00000-of-00003_.gstmp',
        'train-00000-of-00003~',
        'train-00001-of-00003.tfrecord.gz',
        'train-a-of-b.zip',
    ]
    unrelated = ['.train-00000-of-00001', 'train-of-1', 'labels.txt', 'validation-00000-of-00001']
    paths = tuple(str(tmp_path / name) for name in names)
    expected = Shards('train', paths, num_missing=1, skipped_files=tuple(beside))
    assert find_shards(touch(tmp_path, *unrelated, *beside, *reversed(names)), 'train') == expected


def test_shards_may_have_other_names_than_numbers(tmp_path):
    names = ['validation-00000-of-00001', 'validation-a-of-b']
    paths = find_shards(touch(tmp_path, *names), 'validation').paths
    assert [Path(path).name for path in paths] == names


@pytest.mark.parametrize(
    ('names', 'facts'),
    [
        ([], ['train-00000-of-00001', 'empty', 'tf_cnn_benchmarks records --input=DIR']),
        (['labels.txt', 'a.jpg', 'b.jpg'], ['train-00000-of-00001', '3 ', 'a.jpg']),
        ([shard_name('validation', 0, 1)], ['train-00000-of-00001', 'validation-00000-of-00001']),
        (['train-00000-of-00001', 'train-00000-of-00001.tfrecord'], ['00001.tfrecord', 'twice']),
        ([shard_name('train', 0, 2), shard_name('train', 0, 4)], ['train', '2, 4']),
        ([shard_name('train', 5, 4)], ['train-00005-of-00004', 'shard 5', ' 4']),
        (['train-0-of-2', shard_name('train', 0, 2)], ['train-00000-of-00002', 'shard 0']),
    ],
)
def test_a_folder_without_one_set_of_shards_is_refused(tmp_path, names, facts):
    with refused(f'--data_dir={tmp_path}', *facts):
        find_shards(touch(tmp_path, *names), 'train')
