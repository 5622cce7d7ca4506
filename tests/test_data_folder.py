"""The files of a folder tell the data set, its classes and how many images there are."""

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_writers import write_cifar, write_mnist
from examples import encoded, example, write_shard
from PIL import Image

import records
from data_folder import Arrays, find_data, open_folder, recognise
from data_sets import DATA_SETS, DataSet, Shards, shard_name
from errors import UsageError
from params import Params, make_params

pytestmark = pytest.mark.graph

IMAGES = np.zeros([10, 32, 32, 3], np.uint8)


def make_photos(root: Path, sizes: dict[str, list[tuple[int, int]]]) -> Path:
    """Class folders of JPEGs with these widths and heights."""
    for name, each in sizes.items():
        (root / name).mkdir(parents=True)
        for number, size in enumerate(each):
            Image.new('L', size, 40 * number).save(root / name / f'{number}.png')
    return root


def to_records(photos: Path, output: Path, *flags: str) -> str:
    with redirect_stdout(io.StringIO()):
        assert records.main([f'--input={photos}', f'--output={output}', '--num_processes=1', '--shards=2', *flags]) == 0
    return str(output)


@pytest.fixture(scope='module')
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What records makes of 5 training images and 4 for validation, all of 8 x 8 pixels."""
    tmp = tmp_path_factory.mktemp('digits')
    train = make_photos(tmp / 'train', {'one': [(8, 8)] * 2, 'two': [(8, 8)] * 3})
    validation = make_photos(tmp / 'validation', {'one': [(8, 8)] * 2, 'two': [(8, 8)] * 2})
    to_records(train, tmp / 'out')
    return to_records(validation, tmp / 'out', '--subset=validation')


EXPECTED = DataSet('records', 3, 3, 5, 4, has_records=True, image_size=8)


def test_the_facts_of_a_folder_made_by_records_are_its_own(digits: str) -> None:
    assert recognise(digits) == 'records'
    folder = open_folder(digits, 'records')
    assert folder.data_set == EXPECTED
    shards = folder.open('train')
    assert isinstance(shards, Shards)
    assert len(shards.paths) == 2
    assert folder.lacks(shards) is None
    assert [folder.subset_of_steps(forward_only=alone) for alone in (False, True)] == ['train', 'validation']


def test_dataset_json_tells_what_was_written(digits: str) -> None:
    told = {'images': 5, 'shards': 2, 'height': 8, 'width': 8}
    assert json.loads((Path(digits) / 'dataset.json').read_text()) == {
        'train': told,
        'validation': {**told, 'images': 4},
    }


def copied(digits: str, folder: Path) -> Path:
    for path in Path(digits).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_an_older_folder_is_counted(digits: str, tmp_path: Path) -> None:
    (copied(digits, tmp_path) / 'dataset.json').unlink()
    found = open_folder(str(tmp_path), 'records').data_set
    assert found == replace(EXPECTED, image_size=None)


def test_a_folder_that_lost_a_shard_is_counted_and_told(digits: str, tmp_path: Path) -> None:
    (copied(digits, tmp_path) / shard_name('train', 0, 2)).unlink()
    folder = open_folder(str(tmp_path), 'records')
    assert 0 < folder.data_set.num_train_examples < 5
    assert folder.lacks(folder.open('train')) == (
        f'--data_dir={tmp_path}: 1 of the 2 shards that the file names promise are missing; the run uses the others'
    )


def test_shards_that_are_written_anew_are_told_anew(digits: str, tmp_path: Path) -> None:
    (tmp_path / 'out').mkdir()
    copied(digits, tmp_path / 'out')
    photos = make_photos(tmp_path / 'photos', {'one': [(8, 8), (9, 8)], 'two': [(8, 8)]})
    output = to_records(photos, tmp_path / 'out', '--overwrite')
    found = open_folder(output, 'records').data_set
    assert found == replace(EXPECTED, num_train_examples=3, image_size=None)


def test_labels_begin_where_records_says(tmp_path: Path) -> None:
    photos = make_photos(tmp_path / 'photos', {'one': [(8, 4)], 'two': [(8, 4)]})
    output = to_records(photos, tmp_path / 'out', '--first_label=0')
    found = open_folder(output, 'records').data_set
    assert (found.num_classes, found.num_train_examples, found.num_validation_examples) == (2, 2, 0)
    assert found.image_size is None  # no squares


@pytest.mark.parametrize(
    'spoil',
    [
        lambda folder: (folder / 'dataset.json').write_text('{'),
        lambda folder: (folder / 'dataset.json').write_text('[]'),
        lambda folder: (folder / 'dataset.json').write_text('{"train": {"images": 5}}'),
        lambda folder: (folder / 'dataset.json').write_text(
            '{"train": {"images": -5, "shards": 2, "height": null, "width": null}}'
        ),
    ],
)
def test_facts_that_are_none_are_refused_with_their_file(
    digits: str, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(copied(digits, tmp_path))
    with pytest.raises(UsageError, match=rf'^{tmp_path}/dataset.json: it cannot be used \(.*remove it'):
        open_folder(str(tmp_path), 'records')


def test_a_shard_that_is_cut_short_is_named_when_it_is_counted(digits: str, tmp_path: Path) -> None:
    (copied(digits, tmp_path) / 'dataset.json').unlink()
    shard = tmp_path / shard_name('train', 1, 2)
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(UsageError, match=rf'^{shard}, record .*cut short'):
        open_folder(str(tmp_path), 'records')


def test_shards_without_labels_are_those_of_imagenet(tmp_path: Path) -> None:
    write_shard(tmp_path / shard_name('train', 0, 1), [example(encoded(IMAGES[0]), 1)])
    assert recognise(str(tmp_path)) == 'imagenet'
    folder = open_folder(str(tmp_path), 'imagenet')
    assert folder.data_set == DATA_SETS['imagenet']
    assert folder.subset_of_steps(forward_only=True) == 'train'
    with pytest.raises(UsageError, match=r'^--data_name=records: --data_dir=.* has no labels.txt'):
        open_folder(str(tmp_path), 'records')


def test_a_folder_of_records_can_be_read_as_imagenet(digits: str) -> None:
    assert find_data(params_of(digits, data_name='imagenet'))[1] == DATA_SETS['imagenet']


def test_arrays_are_recognised_and_counted(tmp_path: Path) -> None:
    write_cifar(tmp_path / 'cifar' / 'cifar-10-batches-bin', IMAGES, np.arange(10))
    write_mnist(tmp_path / 'mnist', IMAGES[:4, :28, :28, 0], np.arange(4), 'validation')
    assert [recognise(str(tmp_path / name)) for name in ('cifar', 'mnist', 'none')] == ['cifar10', 'mnist', None]
    cifar = open_folder(str(tmp_path / 'cifar'), 'cifar10')
    assert (cifar.data_set.num_train_examples, cifar.data_set.num_validation_examples) == (10, 0)
    assert cifar.subset_of_steps(forward_only=True) == 'train'
    arrays = cifar.open('train')
    assert isinstance(arrays, Arrays)
    assert (arrays.subset, arrays.images.shape, arrays.labels.tolist()) == ('train', (10, 32, 32, 3), list(range(10)))
    assert cifar.lacks(arrays) == f'--data_dir={cifar.path}: it holds 10 train images, and 50000 are published'
    mnist = open_folder(str(tmp_path / 'mnist'), 'mnist')
    assert (mnist.subset_of_steps(forward_only=True), mnist.data_set.num_validation_examples) == ('validation', 4)


def test_what_a_run_reads_must_be_there(tmp_path: Path) -> None:
    write_mnist(tmp_path, IMAGES[:4, :28, :28, 0], np.arange(4))
    find_data(params_of(tmp_path, model='mnist', forward_only=True))
    with pytest.raises(UsageError, match='there is no t10k-images-idx3-ubyte'):
        find_data(params_of(tmp_path, model='mnist', eval=True, train_dir=str(tmp_path)))
    for path in tmp_path.iterdir():
        path.rename(str(path).replace('train', 't10k'))
    find_data(params_of(tmp_path, model='mnist', eval=True, train_dir=str(tmp_path)))
    with pytest.raises(UsageError, match='there is no train-images-idx3-ubyte'):
        find_data(params_of(tmp_path, model='mnist'))


def params_of(data_dir: object, **more: Any) -> Params:
    return make_params(data_dir=str(data_dir), **more)


def test_every_model_is_for_a_folder_of_records(digits: str) -> None:
    model, data_set, folder = find_data(params_of(digits, model='mnist'))
    assert (model.name, model.data_set, model.image_size, data_set) == ('mnist', 'records', 28, EXPECTED)
    assert folder is not None


def test_a_model_that_is_not_for_what_the_folder_holds_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, IMAGES[:4, :28, :28, 0], np.arange(4))
    with pytest.raises(UsageError) as error:
        find_data(params_of(tmp_path, model='vgg16'))
    assert str(error.value) == (
        f'--model=vgg16: it is not defined for mnist, which is what --data_dir={tmp_path} holds; '
        'models for it: lenet, mnist'
    )


def test_the_name_records_needs_a_folder() -> None:
    with pytest.raises(UsageError, match=r'^--data_name=records: the folder tells the classes; add --data_dir=DIR'):
        make_params(data_name='records')
    assert find_data(make_params(model='mnist')) == (find_data(make_params(model='mnist'))[0], DATA_SETS['mnist'], None)
