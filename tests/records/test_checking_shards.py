"""Damaged shards and records are found, and named by path and record, also by the quick checks that runs make."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from commands import records
from inputs.data_folder import open_folder
from inputs.data_sets import Shards
from records.framing import WalkedShards, walk_shards
from records.shard_check import first_fault
from run.process import check_lengths
from tests.support.images import (
    claiming,
    content,
    encoded,
    flip_a_bit,
    header_of,
    picture,
    read_examples,
    shard_paths,
    write_files,
    write_photos,
    write_shard,
    write_shards_of,
)
from tests.support.outputs import check_line, failed, refused

pytestmark = pytest.mark.graph


@pytest.fixture(scope='module')
def good_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards_of(write_photos(tmp_path_factory.mktemp('photos')), tmp_path_factory.mktemp('shards'))


@pytest.fixture
def shards(good_shards: Path, tmp_path: Path) -> list[Path]:
    """The 4 shards of a copy that a test may damage, with labels 1 to 3."""
    return shard_paths(write_files(tmp_path, content(good_shards)))


def rewrite(path: Path, index: int, change: Callable[[Any], None]) -> None:
    """Writes a shard anew with one record changed by change(features)."""
    data = list(tf.io.tf_record_iterator(str(path)))
    example = tf.train.Example.FromString(data[index])
    change(example.features.feature)
    data[index] = example.SerializeToString()
    write_shard(path, data)


def set_image(data: bytes) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        feature['image/encoded'].bytes_list.value[:] = [data]

    return change


def set_label(label: int) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        feature['image/class/label'].int64_list.value[:] = [label]

    return change


def set_feature(name: str, **kind: Any) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        feature[name].CopyFrom(tf.train.Feature(**kind))

    return change


def without(name: str) -> Callable[[Any], None]:
    def change(feature: Any) -> None:
        del feature[name]

    return change


LABEL = 'image/class/label'
Damage = Callable[[Path], object]


def in_record_3(change: Callable[[Any], None]) -> Damage:
    return lambda path: rewrite(path, 3, change)


def cut_in_record(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def cut_in_header(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b'\x05\x00\x00')


def with_length(length: int) -> Damage:
    """Replaces the length of record 0 and its checksum."""
    return lambda path: path.write_bytes(header_of(length) + path.read_bytes()[12:])


CUT_JPEG = encoded(picture())[:-50]
BOMB = claiming(encoded(picture()), 60_000, 50_000)
TWO_LABELS = set_feature(LABEL, int64_list=tf.train.Int64List(value=[1, 2]))
FLOAT_LABEL = set_feature(LABEL, float_list=tf.train.FloatList(value=[1]))
NO_VALUE = set_feature('image/encoded', bytes_list=tf.train.BytesList())
ONE_SIDE = set_feature('image/object/bbox/xmin', float_list=tf.train.FloatList(value=[0.5]))
# By name: what damages a shard, the kind that the fault is counted as, and what its line names besides the shard.
DAMAGES: dict[str, tuple[Damage, str, list[str]]] = {
    'cut in a record': (cut_in_record, 'cut short', ['record 5']),
    'cut in a header': (cut_in_header, 'cut short', ['record 6', ' 3 ']),
    'a flipped bit': (flip_a_bit, 'corrupt', ['record ']),
    'text': (lambda path: path.write_bytes(b'404: no such file'), 'not TFRecords', ['text', '404: no such file']),
    'gzip': (lambda path: path.write_bytes(gzip.compress(path.read_bytes())), 'not TFRecords', ['gzip', 'gunzip']),
    'a length of 2^40': (with_length(2**40), 'cut short', ['record 0', 'length']),
    'a length of 2^60': (with_length(2**60), 'cut short', ['record 0', 'length']),
    'a length of 2^62': (with_length(2**62), 'cut short', ['record 0', 'length']),
    'the largest length': (with_length(2**64 - 1), 'cut short', ['record 0', 'length']),
    'cut in its first header': (lambda path: path.write_bytes(path.read_bytes()[:7]), 'cut short', ['record 0', ' 7 ']),
    'zeros': (lambda path: path.write_bytes(bytes(100_000)), 'not TFRecords', ['zeros', 'download']),
    'no record': (lambda path: path.write_bytes(b''), 'empty shard', []),
    'text in a record': (
        lambda path: write_shard(path, [b'\xff\xff text']),
        'no Example',
        ['record 0', 'tf.train.Example'],
    ),
    'no image': (in_record_3(without('image/encoded')), 'no image', ['record 3', 'image/encoded']),
    'an empty image': (in_record_3(set_image(b'')), 'no image', ['record 3', 'image/encoded']),
    'no label': (in_record_3(without('image/class/label')), 'no label', ['record 3', 'image/class/label']),
    'two labels': (in_record_3(TWO_LABELS), 'no label', ['record 3', LABEL, '2 values']),
    'a label that is no integer': (in_record_3(FLOAT_LABEL), 'no label', ['record 3', LABEL, '1 value of float']),
    'an image without a value': (in_record_3(NO_VALUE), 'no image', ['record 3', 'image/encoded', '0 values']),
    'one side of a box': (in_record_3(ONE_SIDE), 'unreadable Example', ['record 3', 'bbox/ymin 0', 'bbox/xmin 1']),
    'a JPEG bomb': (in_record_3(set_image(BOMB)), 'too large', ['record 3', '60000 x 50000', '178,956,970']),
    'a large label': (in_record_3(set_label(5000)), 'label out of range', ['record 3', '5000', '0..3']),
    'a negative label': (in_record_3(set_label(-1)), 'label out of range', ['record 3', '-1', '0..3']),
    'a PNG': (in_record_3(set_image(encoded(picture(), 'PNG'))), 'not a JPEG', ['record 3', 'JPEG', 'PNG']),
    'bytes': (in_record_3(set_image(b'garbage')), 'not a JPEG', ['record 3', 'JPEG', 'garb']),
    'a cut JPEG': (in_record_3(set_image(CUT_JPEG)), 'undecodable JPEG', ['record 3', 'JPEG', f'{len(CUT_JPEG)}']),
}


@pytest.mark.parametrize('name', DAMAGES)
def test_a_fault_is_found_named_and_counted(
    shards: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damage, kind, facts = DAMAGES[name]
    damage(shards[1])
    with failed(f'--check={tmp_path}', shards[1], *facts):
        records.main([f'--check={tmp_path}'])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(f' {kind} 1')]
    (line,) = (line for line in lines if line.startswith(f'{shards[1]}'))
    check_line(line, *facts)
    assert first_fault([str(path) for path in shards], 4, deadline_secs=60) == line


def test_a_fault_in_a_record_names_its_image_file(good_shards: Path, shards: list[Path]) -> None:
    rewrite(shards[0], 3, set_label(5000))
    filename = [example['image/filename'].decode() for example in read_examples(good_shards)][3]
    check_line(first_fault([str(shards[0])], 1001, 60), shards[0], 'record 3', filename, '5000', '0..1000')


def test_good_shards_have_no_fault(good_shards: Path) -> None:
    paths = [str(path) for path in shard_paths(good_shards)]
    assert first_fault(paths, 4, deadline_secs=60) is None
    assert walk_shards(paths, deadline_secs=60) == WalkedShards(num_records=len(list(read_examples(good_shards))))


def test_grey_and_cmyk_jpegs_are_good(shards: list[Path]) -> None:
    rewrite(shards[0], 0, set_image(encoded(picture(mode='L'))))
    rewrite(shards[0], 1, set_image(encoded(picture(mode='CMYK'))))
    assert first_fault([str(shards[0])], 4, 60) is None


def test_a_corrupt_shard_is_named_before_a_bad_record_of_an_earlier_one(shards: list[Path]) -> None:
    rewrite(shards[0], 0, set_label(-1))
    flip_a_bit(shards[3])
    fault = first_fault([str(path) for path in shards], 4, 60)
    assert fault is not None
    assert fault.startswith(f'{shards[3]}, record ')


def test_the_search_for_a_fault_ends_at_its_deadline(shards: list[Path]) -> None:
    flip_a_bit(shards[3])
    assert first_fault([str(path) for path in shards], 4, deadline_secs=0) is None


@pytest.mark.parametrize(
    'name', ['cut in a record', 'cut in a header', 'cut in its first header', 'a length of 2^60', 'zeros']
)
def test_a_cut_shard_is_found_without_reading_its_records(shards: list[Path], name: str) -> None:
    damage, _, facts = DAMAGES[name]
    damage(shards[1])
    check_line(walk_shards([str(path) for path in shards], deadline_secs=60).fault, shards[1], *facts)


def test_shards_that_could_not_be_looked_at_in_time_are_counted(good_shards: Path) -> None:
    assert walk_shards([str(path) for path in shard_paths(good_shards)], deadline_secs=-1).num_unknown == 4


def test_a_wrong_length_is_found_in_a_shard_of_many_records(tmp_path: Path) -> None:
    path = tmp_path / 'many'
    write_shard(path, [b'x'] * 10_000)
    content = bytearray(path.read_bytes())
    content[17 * 9_000] ^= 2
    path.write_bytes(content)
    check_line(walk_shards([str(path)], deadline_secs=60).fault, path, 'record 9000', 'checksum')


def test_the_counts_of_dataset_json_are_compared_with_the_shards(
    shards: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = shards[0].parent / 'dataset.json'
    facts = json.loads(path.read_text())
    for images in (facts['train']['images'], 1_000_000):
        facts['train']['images'] = images
        path.write_text(json.dumps(facts))
        held = open_folder(str(path.parent), 'records').shards['train']
        if images == 1_000_000:
            with failed(path, '1,000,000'):
                check_lengths(held, {}, pytest.fail)
            with failed(path):
                records.main(['--check', str(path.parent)])
        else:
            check_lengths(held, {}, pytest.fail)
            assert records.main(['--check', str(path.parent)]) == 0
    capfd.readouterr()
    # Damaged ones, and one that would be read for ever.
    path.write_text('[' * 100_000)
    with refused(path):
        records.main(['--check', str(path.parent)])
    path.unlink()
    os.mkfifo(path)
    with refused(path):
        open_folder(str(path.parent), 'records')


def test_a_shard_without_a_record_is_named_before_training(shards: list[Path]) -> None:
    shards[2].write_bytes(b'')
    warnings: list[str] = []
    check_lengths(Shards('train', tuple(map(str, shards)), 0), {}, warnings.append)
    [warning] = warnings
    check_line(warning, shards[2])
