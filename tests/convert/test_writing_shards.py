"""The written shards hold every image once, and join the shards of another subset only if the
classes agree.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT
from tests.support.images import (
    content,
    convert,
    encoded,
    picture,
    pixels,
    read_examples,
    write_files,
    write_photos,
    write_shards_of,
)
from tests.support.outputs import check_line, failed, refused
from tf_cnn.convert.output import unfinished_folder
from tf_cnn.inputs.layout import (
    DATASET_INFO_FILE,
    read_dataset_info,
    read_labels,
    scan_folder,
    shard_name,
)

pytestmark = pytest.mark.graph


@pytest.fixture(scope='module')
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp('photos'))


@pytest.fixture(scope='module')
def shards(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards_of(photos, tmp_path_factory.mktemp('shards'))


def test_every_image_is_in_one_record_with_its_label_and_class(photos: Path, shards: Path) -> None:
    found = {example['image/filename'].decode(): example for example in read_examples(shards)}
    expected = {image.path: image.class_index + 1 for image in scan_folder(str(photos)).images}
    del expected['cat/broken.jpg']
    assert len(list(read_examples(shards))) == len(expected) == 24
    assert {name: example['image/class/label'] for name, example in found.items()} == expected
    names = read_labels(str(shards))
    assert names == ('background', 'bird', 'cat', 'zebra')
    for filename, example in found.items():
        assert (
            filename.split('/')[0]
            == example['image/class/text'].decode()
            == names[example['image/class/label']]
        )
        array = pixels(example['image/encoded'])
        assert array.shape == (
            example['image/height'],
            example['image/width'],
            example['image/channels'],
        )
        assert (example['image/format'], example['image/colorspace']) == (b'JPEG', b'RGB')
        if not filename.endswith('.png'):
            assert example['image/encoded'] == (photos / filename).read_bytes()


def test_a_seed_gives_the_same_shards_with_any_number_of_processes_and_another_one_another_order(
    photos: Path, shards: Path, tmp_path: Path
) -> None:
    convert(photos, tmp_path, '--shards=4', '--num_processes=2')
    assert content(tmp_path) == content(shards)
    labels = [example['image/class/label'] for example in read_examples(shards)]
    assert labels != sorted(labels), 'images are not shuffled'
    convert(photos, tmp_path / 'other', '--shards=4', '--seed=2')
    ours, others = (
        [e['image/filename'] for e in read_examples(folder)]
        for folder in (tmp_path / 'other', shards)
    )
    assert ours != others
    assert sorted(ours) == sorted(others)


@pytest.mark.parametrize(
    ('files', 'facts'),
    [
        ({'a/1.jpg': b'x', 'b/2.png': b''}, ['--input=', 'shard 0']),
        # A shard is never empty.
        ({'a/1.jpg': b'x', 'a/2.jpg': encoded(picture())}, ['--input=', 'shard 1', '--shards']),
    ],
)
def test_nothing_is_written_without_an_image_for_each_shard(
    tmp_path: Path, files: dict[str, bytes], facts: list[str]
) -> None:
    with failed(*facts):
        convert(write_files(tmp_path / 'photos', files), tmp_path / 'out')
    assert list((tmp_path / 'out').iterdir()) == []


def test_a_class_without_an_image_keeps_its_label_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = write_files(tmp_path / 'photos', {'aaa/1.jpg': b'x', 'bbb/2.jpg': encoded(picture())})
    (photos / 'ccc').mkdir()
    convert(photos, tmp_path / 'out', '--shards=1')
    (line,) = (line for line in capsys.readouterr().out.splitlines() if 'aaa' in line)
    assert 'bbb' not in check_line(line, 'ccc')
    assert read_labels(str(tmp_path / 'out')) == ('background', 'aaa', 'bbb', 'ccc')
    assert [example['image/class/label'] for example in read_examples(tmp_path / 'out')] == [2]


def test_existing_shards_are_replaced_only_with_overwrite(
    photos: Path, shards: Path, tmp_path: Path
) -> None:
    write_files(tmp_path, content(shards))
    with refused(f'--output={tmp_path}', 'train', '--overwrite'):
        convert(photos, tmp_path, '--shards=3')
    assert content(tmp_path) == content(shards)
    convert(photos, tmp_path, '--shards=3', '--overwrite')
    assert sorted(content(tmp_path)) == [
        'dataset.json',
        'labels.txt',
        *(shard_name('train', i, 3) for i in range(3)),
    ]
    # Nor is a shard that records did not write.
    other = tmp_path / 'train-00000-of-00001.tfrecord'
    other.touch()
    with refused(f'--output={tmp_path}', other.name):
        convert(photos, tmp_path, '--overwrite')
    assert other.exists()


def test_a_failed_overwrite_leaves_the_old_shards(shards: Path, tmp_path: Path) -> None:
    output = write_files(tmp_path / 'out', content(shards))
    broken = write_files(tmp_path / 'photos', {'a/1.jpg': b'x'})
    with failed(f'--input={broken}'):
        convert(broken, output, '--overwrite')
    assert content(output) == content(shards)


def test_validation_shards_join_the_train_shards_when_the_classes_agree(
    photos: Path, shards: Path, tmp_path: Path
) -> None:
    write_files(tmp_path, content(shards))
    convert(photos, tmp_path, '--subset=validation', '--shards=2')
    kept = {name: data for name, data in content(tmp_path).items() if 'validation' not in name}
    assert {**kept, DATASET_INFO_FILE: b''} == {**content(shards), DATASET_INFO_FILE: b''}
    assert read_dataset_info(str(tmp_path))['train'] == read_dataset_info(str(shards))['train']
    assert len(list(read_examples(tmp_path, 'validation'))) == 24


@pytest.mark.parametrize('more', [[], ['--overwrite']])
def test_shards_of_other_classes_or_labels_do_not_join(
    photos: Path, shards: Path, tmp_path: Path, more: list[str]
) -> None:
    output = write_files(tmp_path / 'out', content(shards))
    others = write_files(
        tmp_path / 'photos', {'bird/1.jpg': encoded(picture()), 'dog/1.jpg': encoded(picture())}
    )
    with refused(f'--output={output}', f'--input={others}', 'labels.txt', 'cat', 'dog') as error:
        convert(others, output, '--subset=validation', *more)
    assert 'bird' not in str(error.value)
    more_classes = {
        name: encoded(picture()) for name in ('bird/1.jpg', 'cat/1.jpg', 'zebra/1.jpg', 'zoo/1.jpg')
    }
    longer = write_files(tmp_path / 'longer', more_classes)
    with refused('label 4 is no class there and zoo here'):
        convert(longer, output, '--subset=validation', *more)
    with refused(f'--output={output}', 'labels.txt', 'background'):
        convert(photos, output, '--subset=validation', '--first_label=0', *more)
    assert content(output) == content(shards)


def test_an_output_folder_that_cannot_be_made_or_is_in_use_is_refused(
    photos: Path, tmp_path: Path
) -> None:
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
def test_sample_photographs_are_the_same_each_time_and_become_shards(tmp_path: Path) -> None:
    script = ROOT / 'benchmarks' / 'sample_photographs.py'
    for folder in ('photos', 'again'):
        subprocess.run(
            [sys.executable, script, f'--output={tmp_path / folder}', '--num_images=9'], check=True
        )
    photos, again = (
        {
            path.relative_to(tmp_path / folder): path.read_bytes()
            for path in (tmp_path / folder).rglob('*.jpg')
        }
        for folder in ('photos', 'again')
    )
    assert len(photos) == 9
    assert photos == again
    convert(tmp_path / 'photos', tmp_path / 'out', '--shards=2')
    sizes = sorted(len(example['image/encoded']) for example in read_examples(tmp_path / 'out'))
    assert sizes == sorted(map(len, photos.values()))
