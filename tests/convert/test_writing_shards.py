"""The written shards hold every image once; --validation divides the images; shards join the shards
of another subset only if the classes agree.
"""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.convert.image_files import pixels, read_examples
from tests.support.files import write_files
from tests.support.images import content, convert, encoded, picture
from tests.support.outputs import check_line, failed, refused
from tests.support.programs import ROOT
from tf_cnn.convert.output import unfinished_folder
from tf_cnn.convert.write_folder import split_images
from tf_cnn.inputs.layout import (
    DATASET_INFO_FILE,
    ImageFolder,
    read_dataset_info,
    read_labels,
    scan_folder,
    shard_name,
)

pytestmark = pytest.mark.graph


def test_every_image_is_in_one_record_with_its_label_and_class(photos, good_shards):
    records = {
        example['image/filename'].decode(): example for example in read_examples(good_shards)
    }
    expected = {image.path: image.class_index + 1 for image in scan_folder(str(photos)).images}
    del expected['cat/broken.jpg']
    assert len(list(read_examples(good_shards))) == len(expected) == 24
    assert {name: example['image/class/label'] for name, example in records.items()} == expected
    names = read_labels(str(good_shards))
    assert names == ('background', 'bird', 'cat', 'zebra')
    for filename, example in records.items():
        name = example['image/class/text'].decode()
        assert filename.split('/')[0] == name == names[example['image/class/label']]
        assert (example['image/format'], example['image/colorspace']) == (b'JPEG', b'RGB')
        sizes = [example[f'image/{side}'] for side in ('height', 'width', 'channels')]
        assert list(pixels(example['image/encoded']).shape) == sizes
        if not filename.endswith('.png'):
            assert example['image/encoded'] == (photos / filename).read_bytes()


def test_the_order_of_images_depends_on_the_seed_and_not_on_the_number_of_processes(
    photos, good_shards, tmp_path
):
    convert(photos, tmp_path, '--shards=4', '--num_processes=2')
    assert content(tmp_path) == content(good_shards)
    labels = [example['image/class/label'] for example in read_examples(good_shards)]
    assert labels != sorted(labels), 'images are not shuffled'
    convert(photos, tmp_path / 'other', '--shards=4', '--seed=2')
    ours, expected = (
        [example['image/filename'] for example in read_examples(folder)]
        for folder in (tmp_path / 'other', good_shards)
    )
    assert ours != expected
    assert sorted(ours) == sorted(expected)


@pytest.mark.parametrize(
    ('files', 'facts'),
    [
        ({'a/1.jpg': b'x', 'b/2.png': b''}, '--input=, shard 0'),
        # A shard is never empty.
        ({'a/1.jpg': b'x', 'a/2.jpg': encoded(picture())}, '--input=, shard 1, --shards'),
    ],
)
def test_nothing_is_written_without_an_image_for_each_shard(tmp_path, files, facts):
    photos, output = write_files(tmp_path / 'photos', files), tmp_path / 'out'
    with failed(*facts.split(', ')):
        convert(photos, output)
    assert list(output.iterdir()) == []


def test_a_class_without_an_image_keeps_its_label_and_is_named(tmp_path, capsys):
    photos = write_files(tmp_path / 'photos', {'aaa/1.jpg': b'x', 'bbb/2.jpg': encoded(picture())})
    (photos / 'ccc').mkdir()
    output = tmp_path / 'out'
    convert(photos, output, '--shards=1')
    [line] = [line for line in capsys.readouterr().out.splitlines() if 'aaa' in line]
    assert 'bbb' not in check_line(line, 'ccc')
    assert read_labels(str(output)) == ('background', 'aaa', 'bbb', 'ccc')
    assert [example['image/class/label'] for example in read_examples(output)] == [2]


def test_existing_shards_are_replaced_only_with_overwrite(photos, good_shards, tmp_path):
    write_files(tmp_path, content(good_shards))
    with refused(f'--output={tmp_path}', 'train', '--overwrite'):
        convert(photos, tmp_path, '--shards=3')
    assert content(tmp_path) == content(good_shards)
    convert(photos, tmp_path, '--shards=3', '--overwrite')
    written = [shard_name('train', number, 3) for number in range(3)]
    assert sorted(content(tmp_path)) == ['dataset.json', 'labels.txt', *written]


def test_shards_that_records_did_not_write_are_never_replaced(photos, tmp_path):
    other = tmp_path / 'train-00000-of-00001.tfrecord'
    other.touch()
    with refused(f'--output={tmp_path}', other.name):
        convert(photos, tmp_path, '--overwrite')
    assert other.exists()


def test_a_failed_overwrite_leaves_the_old_shards(good_shards, tmp_path):
    output = write_files(tmp_path / 'out', content(good_shards))
    broken = write_files(tmp_path / 'photos', {'a/1.jpg': b'x'})
    with failed(f'--input={broken}'):
        convert(broken, output, '--overwrite')
    assert content(output) == content(good_shards)


def test_validation_shards_join_the_train_shards_when_the_classes_agree(
    photos, good_shards, tmp_path
):
    write_files(tmp_path, content(good_shards))
    convert(photos, tmp_path, '--subset=validation', '--shards=2')
    train_files = {
        name: data for name, data in content(tmp_path).items() if 'validation' not in name
    }
    assert {**train_files, DATASET_INFO_FILE: b''} == {
        **content(good_shards),
        DATASET_INFO_FILE: b'',
    }
    assert read_dataset_info(str(tmp_path))['train'] == read_dataset_info(str(good_shards))['train']
    assert len(list(read_examples(tmp_path, 'validation'))) == 24


@pytest.mark.parametrize(
    ('classes', 'flags', 'facts'),
    [
        (['bird', 'dog'], [], ['--input=', 'labels.txt', 'cat', 'dog']),
        (['bird', 'cat', 'zebra', 'zoo'], [], ['label 4 is no class there and zoo here']),
        (['bird', 'cat', 'zebra'], ['--first_label=0'], ['labels.txt', 'background']),
    ],
    ids=['other classes', 'one more class', 'other labels'],
)
@pytest.mark.parametrize('more', [[], ['--overwrite']])
def test_shards_of_other_classes_or_labels_do_not_join(
    good_shards, tmp_path, classes, flags, more, facts
):
    output = write_files(tmp_path / 'out', content(good_shards))
    files = {f'{name}/1.jpg': encoded(picture()) for name in classes}
    photos = write_files(tmp_path / 'photos', files)
    with refused(f'--output={output}', *facts) as error:
        convert(photos, output, '--subset=validation', *flags, *more)
    # Classes that agree are not named.
    assert ('bird' in str(error.value)) == bool(flags)
    assert content(output) == content(good_shards)


def test_an_output_folder_that_cannot_be_made_or_is_in_use_is_refused(photos, tmp_path):
    (tmp_path / 'file').touch()
    for output in (tmp_path / 'file', tmp_path / 'file' / 'out'):
        with refused(f'--output={output}', 'Not a directory'):
            convert(photos, output)
    with refused(f'--output={photos / "shards"}', f'--input={photos}'):
        convert(photos, photos / 'shards')
    assert not (photos / 'shards').exists()
    # By a second run.
    with unfinished_folder(tmp_path, 'train', print), refused(f'--output={tmp_path}', 'train'):
        convert(photos, tmp_path)


@pytest.mark.long
def test_sample_photographs_become_shards(tmp_path):
    script, photos = ROOT / 'benchmarks' / 'sample_photographs.py', tmp_path / 'photos'
    command = [sys.executable, str(script), f'--output={photos}', '--num_images=9']
    subprocess.run(command, check=True)
    convert(photos, tmp_path / 'out', '--shards=2')
    sizes = sorted(len(example['image/encoded']) for example in read_examples(tmp_path / 'out'))
    assert sizes == sorted(path.stat().st_size for path in photos.rglob('*.jpg'))


# ---- two subsets of one folder -------------------------------------------------------------------


COUNTS = {'ant': 1, 'bee': 2, 'cow': 3, 'dog': 10, 'eel': 100}


def folder_of(root: Path, counts: dict[str, int]) -> ImageFolder:
    paths = [f'{name}/{index:03d}.jpg' for name, count in counts.items() for index in range(count)]
    return scan_folder(str(write_files(root, dict.fromkeys(reversed(paths), b'x'))))


def validation_paths(folder: ImageFolder, seed: int = 1) -> list[str]:
    return [image.path for image in split_images(folder, 0.3, seed)[1]]


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
    paths = validation_paths(folder)
    assert validation_paths(there) == paths
    assert validation_paths(reverse) == paths[::-1]
    assert validation_paths(folder, seed=2) != paths


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
