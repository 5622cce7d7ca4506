"""--validation writes training and validation shards of one folder, which share no image."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.convert.image_files import read_examples
from tests.support.files import write_files
from tests.support.images import convert, encoded, picture
from tests.support.outputs import refused
from tf_cnn.convert.write_folder import split_images
from tf_cnn.inputs.layout import (
    ImageFolder,
    read_dataset_info,
    read_labels,
    scan_folder,
)

pytestmark = pytest.mark.graph

COUNTS = {'ant': 1, 'bee': 2, 'cow': 3, 'dog': 10, 'eel': 100}


def folder_of(root: Path, counts: dict[str, int]) -> ImageFolder:
    paths = [f'{name}/{index:03d}.jpg' for name, count in counts.items() for index in range(count)]
    return scan_folder(str(write_files(root, dict.fromkeys(reversed(paths), b'x'))))


def validation_paths(folder: ImageFolder, share: float, seed: int = 1) -> list[str]:
    return [image.path for image in split_images(folder, share, seed)[1]]


@pytest.mark.parametrize(
    ('share', 'validation_counts'),
    [
        (0.001, {'bee': 1, 'cow': 1, 'dog': 1, 'eel': 1}),
        (0.2, {'bee': 1, 'cow': 1, 'dog': 2, 'eel': 20}),
        (0.999, {'bee': 1, 'cow': 2, 'dog': 9, 'eel': 99}),
    ],
)
def test_each_class_gives_its_share_to_validation_and_keeps_an_image(
    tmp_path, share, validation_counts
):
    folder = folder_of(tmp_path, COUNTS)
    train, validation = split_images(folder, share, seed=1)
    assert sorted([*train, *validation], key=lambda image: image.path) == list(folder.images)
    counts = Counter(folder.classes[image.class_index] for image in validation)
    assert counts == validation_counts


def test_a_seed_chooses_the_same_images_in_whatever_order_they_are_listed(tmp_path):
    folder = folder_of(tmp_path / 'here', COUNTS)
    there = folder_of(tmp_path / 'there', dict(reversed(COUNTS.items())))
    reverse = replace(folder, images=folder.images[::-1])
    paths = validation_paths(folder, 0.3)
    assert validation_paths(there, 0.3) == paths
    assert validation_paths(reverse, 0.3) == paths[::-1]
    assert validation_paths(folder, 0.3, seed=2) != paths


def test_both_subsets_are_written_with_the_same_labels(photos, good_shards, tmp_path):
    convert(photos, tmp_path, '--shards=4', '--validation=0.25')
    assert read_labels(str(tmp_path)) == read_labels(str(good_shards))
    train, validation = (
        {example['image/filename']: example for example in read_examples(tmp_path, subset)}
        for subset in ('train', 'validation')
    )
    everything = {example['image/filename']: example for example in read_examples(good_shards)}
    assert train | validation == everything
    assert not train.keys() & validation.keys()
    assert {*Counter(e['image/class/label'] for e in validation.values())} == {1, 2, 3}
    info = read_dataset_info(str(tmp_path))
    assert {name: (subset.images, subset.shards) for name, subset in info.items()} == {
        'train': (len(train), 4),
        'validation': (len(validation), 1),
    }


@pytest.mark.parametrize(
    ('flags', 'facts'),
    [
        ('--validation=0.1 --subset=validation', '--validation=0.1, --subset=validation'),
        ('--validation=10', '--validation=10, 0.999'),
        ('--validation=0', '--validation=0, 0.001'),
        ('--validation=0.2 --shards=30', '--shards=30, train images'),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(photos, tmp_path, flags, facts):
    with refused(*facts.split(', ')):
        convert(photos, tmp_path / 'out', *flags.split())
    assert not (tmp_path / 'out').exists()


def test_classes_of_one_image_cannot_be_split(tmp_path):
    files = {f'{name}/1.jpg': encoded(picture()) for name in ('cat', 'dog')}
    photos = write_files(tmp_path / 'photos', files)
    with refused('--validation=0.5', f'--input={photos}'):
        convert(photos, tmp_path / 'out', '--validation=0.5')
