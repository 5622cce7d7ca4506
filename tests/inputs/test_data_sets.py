"""The shards of a subset are found in their folder, or one line names the folder and what is wrong with it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from inputs.data_sets import Shards, find_shards
from records.layout import shard_name
from tests.support.outputs import refused

pytestmark = pytest.mark.unit


def touch(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).touch()
    return str(folder)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root reads everything, so that a permission can only be tested as somebody else."""
    user = os.geteuid()
    try:
        os.seteuid(65534 if user == 0 else user)
    except OSError as error:
        pytest.skip(f'root cannot drop its privileges here: {error}')
    try:
        yield
    finally:
        os.seteuid(user)


def test_the_shards_of_a_subset_are_found_in_order(tmp_path: Path) -> None:
    data_dir = touch(tmp_path, *(shard_name(subset, i, 3) for subset in ('validation', 'train') for i in (2, 0, 1)))
    assert find_shards(data_dir, 'train') == Shards(
        'train', tuple(str(tmp_path / f'train-0000{i}-of-00003') for i in range(3)), num_missing=0
    )


def test_shards_are_found_that_the_original_finds_and_files_beside_them_are_passed_over(tmp_path: Path) -> None:
    names = ['train-00000-of-00003.tfrecord', 'train-00002-of-00003.tfrecord']
    beside = [
        f'train-{end}' for end in ('00000-of-00001.tmp', '00000-of-00003.tfrecord.md5', '00001-of-00003.tfrecord.gz')
    ]
    touch(tmp_path, '.train-00000-of-00001', 'train-of-1', 'labels.txt')
    found = find_shards(touch(tmp_path, *names, *beside, 'validation-00000-of-00001'), 'train')
    assert found == Shards('train', tuple(str(tmp_path / name) for name in names), 1, passed_over=tuple(beside))
    others = ['validation-a-of-b', 'validation-00000-of-00001']
    assert [Path(path).name for path in find_shards(touch(tmp_path, *others), 'validation').paths] == sorted(others)


def test_the_error_shows_what_is_there_instead_of_shards(tmp_path: Path) -> None:
    (tmp_path / 'train').mkdir()
    (tmp_path / 'val').mkdir()
    name, other = shard_name('train', 0, 1), shard_name('validation', 0, 1)
    touch(tmp_path, f'train/{name}', f'val/{other}')
    with refused(name, f'--data_dir={tmp_path}/train', 'val'):
        find_shards(str(tmp_path), 'train')
    with refused(f'{other}.gz', 'empty'):
        find_shards(touch(tmp_path / 'train', f'{other}.gz'), 'validation')
    with refused('set.tar.gz', 'unpack'):
        find_shards(touch(tmp_path / 'val', 'set.tar.gz'), 'train')


@pytest.mark.parametrize(
    ('names', 'facts'),
    [
        (['set-train.tfrecord-00000-of-00001'], ['set-train.tfrecord-00000-of-00001', 'name them']),
        (['train-00000-of-00001', 'train-00000-of-00001.tfrecord'], ['00001.tfrecord', 'twice']),
        ([], ['train-00000-of-00001']),
        (['labels.txt', 'a.jpg', 'b.jpg'], ['train-00000-of-00001', '3 ']),
        ([shard_name('validation', 0, 1)], ['train-00000-of-00001', 'validation-*-of-*']),
        ([shard_name('train', 0, 2), shard_name('train', 0, 4)], ['train', '2, 4']),
        ([shard_name('train', 5, 4)], ['train-00005-of-00004', 'shard 5', ' 4']),
        (['train-0-of-2', shard_name('train', 0, 2)], ['train-00000-of-00002', 'shard 0']),
    ],
)
def test_a_folder_without_one_set_of_shards_is_refused(tmp_path: Path, names: list[str], facts: list[str]) -> None:
    with refused(f'--data_dir={tmp_path}', *facts):
        find_shards(touch(tmp_path, *names), 'train')


def test_the_error_gives_the_command_that_makes_the_missing_shards(tmp_path: Path) -> None:
    for subset, end in (('train', ''), ('validation', ' --subset=validation')):
        with refused(f'tf_cnn_benchmarks records --input=DIR --output=SHARDS{end}') as error:
            find_shards(str(tmp_path), subset)
        assert ('--subset' in str(error.value)) == bool(end)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with refused(f'--data_dir={tmp_path}/missing', 'train-*-of-*') as error:
        find_shards(str(tmp_path / 'missing'), 'train')
    assert isinstance(error.value.__cause__, FileNotFoundError)


def test_a_folder_or_a_shard_that_cannot_be_read_is_named() -> None:
    # Not tmp_path, which is for its owner only.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(touch(Path(name), shard_name('train', 0, 2), shard_name('train', 1, 2)))
        folder.chmod(0o311)
        with unprivileged(), refused(f'--data_dir={folder}', 'Permission denied'):
            find_shards(name, 'train')
        folder.chmod(0o755)
        (folder / shard_name('train', 1, 2)).chmod(0)
        with unprivileged(), refused(f'--data_dir={folder}', 'train-00001-of-00002'):
            find_shards(name, 'train')
