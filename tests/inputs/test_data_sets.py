"""The shards of a subset are found in their folder, or one line names the folder and what is wrong
with it.
"""

from pathlib import Path

import pytest

from tests.support.outputs import refused
from tf_cnn.inputs.data_sets import Shards, find_shards
from tf_cnn.inputs.layout import shard_name

pytestmark = pytest.mark.unit


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
