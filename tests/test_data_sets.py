"""The shards of a subset are found, or one line says what is wrong with the folder."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_sets import Shards, find_shards, shard_name, subset_of
from errors import UsageError

pytestmark = pytest.mark.unit


def touch(folder: Path, *names: str) -> str:
    for name in names:
        (folder / name).touch()
    return str(folder)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root reads everything, so that a permission can only be tested as somebody else."""
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f'root cannot drop its privileges here: {error}')
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; tmp_path is for its owner only."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_shards_of_a_subset_are_found_in_order(tmp_path: Path) -> None:
    data_dir = touch(tmp_path, *(shard_name(subset, i, 3) for subset in ('validation', 'train') for i in (2, 0, 1)))
    assert find_shards(data_dir, 'train') == Shards(
        'train', tuple(str(tmp_path / f'train-0000{i}-of-00003') for i in range(3)), num_missing=0
    )


def test_shards_that_are_missing_from_the_set_are_counted(tmp_path: Path) -> None:
    assert find_shards(touch(tmp_path, shard_name('train', 1, 4)), 'train').num_missing == 3


def test_a_name_that_only_looks_like_a_shard_belongs_to_no_subset() -> None:
    assert subset_of('train-00000-of-00001') == 'train'
    for name in ('.train-00000-of-00001', 'train-00000-of-00001.tmp', 'train-of-1', 'labels.txt'):
        assert subset_of(name) is None


@pytest.mark.parametrize(
    ('names', 'told'),
    [
        ([], 'it is empty'),
        (['labels.txt', 'a.jpg'], '2 other files'),
        ([shard_name('validation', 0, 1)], 'it holds validation-*-of-*'),
        ([shard_name('train', 0, 2), shard_name('train', 0, 4)], 'several sets (of 2, 4 shards)'),
        ([shard_name('train', 5, 4)], 'shard 5 cannot be one of 4'),
        (['train-0-of-2', shard_name('train', 0, 2)], 'shard 0 is there twice'),
    ],
)
def test_a_folder_without_one_set_of_shards_is_refused(tmp_path: Path, names: list[str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        find_shards(touch(tmp_path, *names), 'train')
    assert told in str(error.value)
    assert str(error.value).startswith(f'--data_dir={tmp_path}: ')


@pytest.mark.parametrize(('subset', 'end'), [('train', ''), ('validation', ' --subset=validation')])
def test_the_error_tells_how_to_make_the_shards_that_lack(tmp_path: Path, subset: str, end: str) -> None:
    with pytest.raises(UsageError) as error:
        find_shards(str(tmp_path), subset)
    assert str(error.value).endswith(f'tf_cnn_benchmarks records --input=DIR --output=DIR{end}')


def test_the_error_names_the_flag_that_gave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r'^--check=.*it is empty'):
        find_shards(str(tmp_path), 'train', flag='--check')


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='there is no such folder'):
        find_shards(str(tmp_path / 'missing'), 'train')


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='it is not a folder'):
        find_shards(touch(tmp_path, 'file') + '/file', 'train')


def test_a_folder_that_cannot_be_read_is_refused(open_folder: Path) -> None:
    open_folder.chmod(0o311)
    with unprivileged(), pytest.raises(UsageError, match=r'cannot be read \(Permission denied\)'):
        find_shards(str(open_folder), 'train')


def test_a_shard_that_cannot_be_read_is_named(open_folder: Path) -> None:
    data_dir = touch(open_folder, shard_name('train', 0, 2), shard_name('train', 1, 2))
    (open_folder / shard_name('train', 1, 2)).chmod(0)
    with unprivileged(), pytest.raises(UsageError, match='train-00001-of-00002 cannot be read'):
        find_shards(data_dir, 'train')
