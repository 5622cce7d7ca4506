"""Damaged shards and records are found, and named by path and record, also by the quick checks that
runs make.
"""

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

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
from tf_cnn.cli import records
from tf_cnn.inputs.data_folder import open_folder
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.framing import ScanSummary, scan_shards
from tf_cnn.inputs.shard_check import first_fault
from tf_cnn.run.shard_faults import check_record_lengths

pytestmark = pytest.mark.graph


@pytest.fixture(scope='module')
def good_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards_of(
        write_photos(tmp_path_factory.mktemp('photos')), tmp_path_factory.mktemp('shards')
    )


@pytest.fixture
def shards(good_shards: Path, tmp_path: Path) -> list[Path]:
    """The 4 shards of a copy that a test may damage, with labels 1 to 3."""
    return shard_paths(write_files(tmp_path, content(good_shards)))


Damage = Callable[[Path], object]


def with_feature(name: str, kind: str, *values: object, record: int = 3) -> Damage:
    """Writes a shard anew with another feature in one record; without it if there is no kind."""

    def damage(path: Path) -> None:
        data = list(tf.io.tf_record_iterator(str(path)))
        example = tf.train.Example.FromString(data[record])
        feature = example.features.feature
        feature[name].Clear()
        if kind:
            getattr(feature[name], kind).SetInParent()
            getattr(feature[name], kind).value[:] = values
        else:
            del feature[name]
        data[record] = example.SerializeToString()
        write_shard(path, data)

    return damage


def with_record(data: bytes, record: int = 3) -> Damage:
    """Writes a shard anew with another record in place of one."""

    def damage(path: Path) -> None:
        records = list(tf.io.tf_record_iterator(str(path)))
        write_shard(path, [*records[:record], data, *records[record + 1 :]])

    return damage


def with_image(data: bytes, record: int = 3) -> Damage:
    return with_feature('image/encoded', 'bytes_list', data, record=record)


def with_label(*labels: int, record: int = 3) -> Damage:
    return with_feature(LABEL, 'int64_list', *labels, record=record)


def with_bytes(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: path.write_bytes(change(path.read_bytes()))


IMAGE, LABEL, BOX = 'image/encoded', 'image/class/label', 'image/object/bbox'
CUT_JPEG = encoded(picture())[:-50]
BOMB = claiming(encoded(picture()), 60_000, 50_000)
# By name: what damages a shard, the kind that the fault is counted as, and what its line names
# besides the shard.
DAMAGES: dict[str, tuple[Damage, str, list[str]]] = {
    'cut in a record': (with_bytes(lambda whole: whole[:-20]), 'cut short', ['record 5']),
    'cut in a header': (
        with_bytes(lambda whole: whole + b'\x05\x00\x00'),
        'cut short',
        ['record 6', ' 3 '],
    ),
    'cut in its first header': (
        with_bytes(lambda whole: whole[:7]),
        'cut short',
        ['record 0', ' 7 '],
    ),
    'a flipped bit': (flip_a_bit, 'corrupt', ['record ']),
    'text': (with_bytes(lambda _: b'404: no such file'), 'not TFRecords', ['404: no such file']),
    'gzip': (with_bytes(gzip.compress), 'not TFRecords', ['gzip', 'gunzip']),
    'bzip2': (with_bytes(bz2.compress), 'not TFRecords', ['bzip2', 'bunzip2']),
    'xz': (with_bytes(lzma.compress), 'not TFRecords', ['xz', 'unxz']),
    'zeros': (with_bytes(lambda _: bytes(100_000)), 'not TFRecords', ['x00']),
    'a length of 2^60': (
        with_bytes(lambda whole: header_of(2**60) + whole[12:]),
        'cut short',
        ['record 0', 'length'],
    ),
    'no record': (with_bytes(lambda _: b''), 'empty shard', []),
    'text in a record': (with_record(b'\xff\xff'), 'no Example', ['record 3', 'tf.train.Example']),
    'no image': (with_feature(IMAGE, ''), 'no image', ['record 3', IMAGE]),
    'an empty image': (with_image(b''), 'no image', ['record 3', IMAGE]),
    'no label': (with_feature(LABEL, ''), 'no label', ['record 3', LABEL]),
    'two labels': (with_label(1, 2), 'no label', ['record 3', LABEL]),
    'a float as label': (with_feature(LABEL, 'float_list', 1.0), 'no label', ['record 3', LABEL]),
    'a large label': (with_label(5000), 'label out of range', ['record 3', '5000', '0..3']),
    'a negative label': (with_label(-1), 'label out of range', ['record 3', '-1', '0..3']),
    'one side of a box': (
        with_feature(f'{BOX}/xmin', 'float_list', 0.5),
        'unreadable Example',
        ['record 3'],
    ),
    'a JPEG bomb': (with_image(BOMB), 'undecodable JPEG', ['record 3', 'JPEG']),
    'a PNG': (with_image(encoded(picture(), 'PNG')), 'not a JPEG', ['record 3', 'JPEG', 'PNG']),
    'bytes': (with_image(b'garbage'), 'not a JPEG', ['record 3', 'JPEG', 'garb']),
    'a cut JPEG': (
        with_image(CUT_JPEG),
        'undecodable JPEG',
        ['record 3', 'JPEG', f'{len(CUT_JPEG)}'],
    ),
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
    paths = [str(path) for path in shards]
    assert first_fault(paths, 4, deadline_secs=60) == line
    # Without reading the records.
    assert scan_shards(paths, deadline_secs=60).fault == (
        line if kind in ('cut short', 'not TFRecords') else None
    )


@pytest.mark.parametrize('level', [None, 1, 9])
@pytest.mark.parametrize(
    ('kind', 'facts'), [('ZLIB', ['zlib', 'zlib.decompress']), ('GZIP', ['gzip', 'gunzip'])]
)
def test_a_shard_that_was_written_with_compression_is_said_to_be_compressed(
    shards: list[Path], kind: str, facts: list[str], level: int | None
) -> None:
    data = list(tf.io.tf_record_iterator(str(shards[0])))
    options = tf.io.TFRecordOptions(compression_type=kind, compression_level=level)
    with tf.io.TFRecordWriter(str(shards[0]), options) as writer:
        for record in data:
            writer.write(record)
    line = check_line(scan_shards([str(shards[0])], deadline_secs=60).fault, shards[0], *facts)
    assert 'corrupt' not in line


def test_a_fault_in_a_record_names_its_image_file(good_shards: Path, shards: list[Path]) -> None:
    with_label(5000)(shards[0])
    filename = [example['image/filename'].decode() for example in read_examples(good_shards)][3]
    check_line(
        first_fault([str(shards[0])], 1001, 60), shards[0], 'record 3', filename, '5000', '0..1000'
    )


def test_good_shards_have_no_fault(good_shards: Path, shards: list[Path]) -> None:
    # Grey and CMYK JPEGs are good.
    with_image(encoded(picture(mode='L')), record=0)(shards[0])
    with_image(encoded(picture(mode='CMYK')), record=1)(shards[0])
    paths = [str(path) for path in shards]
    assert first_fault(paths, 4, deadline_secs=60) is None
    assert scan_shards(paths, deadline_secs=60) == ScanSummary(
        num_records=len(list(read_examples(good_shards)))
    )
    # Shards that could not be looked at in time are counted.
    assert scan_shards(paths, deadline_secs=-1).num_unfinished == 4


def test_a_corrupt_shard_is_named_before_a_bad_record_of_an_earlier_one_within_the_deadline(
    shards: list[Path],
) -> None:
    with_label(-1)(shards[0])
    flip_a_bit(shards[3])
    paths = [str(path) for path in shards]
    check_line(first_fault(paths, 4, deadline_secs=60), f'{shards[3]}, record ')
    assert first_fault(paths, 4, deadline_secs=0) is None


def test_a_wrong_length_is_found_in_a_shard_of_many_records(tmp_path: Path) -> None:
    path = tmp_path / 'many'
    write_shard(path, [b'x'] * 10_000)
    content = bytearray(path.read_bytes())
    content[17 * 9_000] ^= 2
    path.write_bytes(content)
    check_line(scan_shards([str(path)], deadline_secs=60).fault, path, 'record 9000', 'checksum')


def test_the_counts_of_dataset_json_are_compared_with_the_shards(shards: list[Path]) -> None:
    path = shards[0].parent / 'dataset.json'

    def check() -> None:
        check_record_lengths(
            open_folder(str(path.parent), 'records').shards['train'], {}, pytest.fail
        )

    check()
    facts = json.loads(path.read_text())
    facts['train']['images'] = 1_000_000
    path.write_text(json.dumps(facts))
    with failed(path, '1,000,000'):
        check()
    # A damaged one, and one that would be read for ever.
    path.write_text('[' * 100_000)
    with refused(path):
        check()
    path.unlink()
    os.mkfifo(path)
    with refused(path):
        check()


@pytest.mark.parametrize(
    ('name', 'value', 'kind', 'facts'),
    [
        ('images', 7, 'wrong', ['7 train images', 'there are 24']),
        ('shards', 5, 'wrong', ['5 train shards', 'there are 4']),
        ('shards', 'four', 'unusable', ['shards']),
        ('images', 0, 'unusable', ['images']),
    ],
)
def test_records_check_finds_what_is_wrong_with_dataset_json(
    shards: list[Path],
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: object,
    kind: str,
    facts: list[str],
) -> None:
    path = shards[0].parent / 'dataset.json'
    assert records.main([f'--check={path.parent}']) == 0
    content = json.loads(path.read_text())
    content['train'][name] = value
    path.write_text(json.dumps(content))
    capsys.readouterr()
    with failed(f'--check={path.parent}: 1 fault', path, *facts):
        records.main([f'--check={path.parent}'])
    assert f'  faults: {kind} dataset.json 1' in capsys.readouterr().out.splitlines()
    # Without labels.txt a run does not read the file, which may be another program's.
    (path.parent / 'labels.txt').unlink()
    assert records.main([f'--check={path.parent}']) == 0


def test_a_damaged_dataset_json_is_a_fault_and_the_shards_are_checked_too(
    shards: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = shards[0].parent / 'dataset.json'
    shards[1].write_bytes(shards[1].read_bytes()[:-20])
    # A shard that is cut short hides records, so that their number says nothing about the file.
    with failed(f'--check={path.parent}: 1 fault', shards[1]):
        records.main([f'--check={path.parent}'])
    path.write_text('{"train": ')
    with failed(f'--check={path.parent}: 2 faults', path):
        records.main([f'--check={path.parent}'])
    lines = capsys.readouterr().out.splitlines()
    assert [
        line
        for line in lines
        if line.startswith((f'{path}: it cannot be used', f'{shards[1]}, record'))
    ]


def test_a_shard_without_a_record_is_named_before_training(shards: list[Path]) -> None:
    shards[2].write_bytes(b'')
    warnings: list[str] = []
    check_record_lengths(Shards('train', tuple(map(str, shards)), 0), {}, warnings.append)
    [warning] = warnings
    check_line(warning, shards[2])
