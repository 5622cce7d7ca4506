"""Damaged shards and records are reported by path and record, also by the quick checks of a run."""

import bz2
import gzip
import json
import lzma
import zlib
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from tests.convert.image_files import claiming
from tests.support.files import write_files
from tests.support.images import (
    content,
    encoded,
    example,
    features,
    flip_a_bit,
    header_of,
    picture,
    shard_paths,
    write_shard,
)
from tests.support.outputs import check_line, failed
from tf_cnn.cli import records
from tf_cnn.inputs.data_folder import open_folder
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.framing import ScanSummary, scan_shards
from tf_cnn.run.shard_faults import check_record_lengths

pytestmark = pytest.mark.graph


@pytest.fixture
def shards(good_shards: Path, tmp_path: Path) -> list[Path]:
    """The 4 shards of a copy that a test may damage, with labels 1 to 3."""
    return shard_paths(write_files(tmp_path, content(good_shards)))


def replace_record(path: Path, number: int, record: bytes) -> None:
    data = list(tf.io.tf_record_iterator(str(path)))
    write_shard(path, [*data[:number], record, *data[number + 1 :]])


def scan(*paths: Path, deadline_secs: float = 60) -> ScanSummary:
    """Checks only the lengths of the records."""
    return scan_shards([*map(str, paths)], deadline_secs)


def check_named(
    shards: list[Path], capsys: pytest.CaptureFixture[str], kind: str, facts: str
) -> str:
    """Returns the line about the second shard."""
    folder = shards[0].parent
    with failed(f'--check={folder}', shards[1], *facts.split(', ')):
        records.main([f'--check={folder}'])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith(f' {kind} 1')]
    [line] = [line for line in lines if line.startswith(f'{shards[1]}')]
    return check_line(line, *facts.split(', '))


@pytest.mark.parametrize(
    ('damage', 'kind', 'facts'),
    [
        (lambda data: data[:-20], 'cut short', 'record 5'),
        (lambda data: data + b'\x05\x00\x00', 'cut short', 'record 6,  3 '),
        (lambda data: data[:7], 'cut short', 'record 0,  7 '),
        (lambda data: header_of(2**60) + data[12:], 'cut short', 'record 0, length'),
        (lambda data: b'404: no such file', 'cut short', 'record 0, TFRecords, 404: no such file'),
        (gzip.compress, 'not TFRecords', 'gzip, gunzip'),
        (zlib.compress, 'not TFRecords', 'zlib.decompress'),
        (bz2.compress, 'not TFRecords', 'bzip2, bunzip2'),
        (lzma.compress, 'not TFRecords', 'xz, unxz'),
        (lambda data: b'', 'empty shard', ''),
    ],
)
def test_a_damaged_shard_is_found_named_and_counted(shards, capsys, damage, kind, facts):
    shards[1].write_bytes(damage(shards[1].read_bytes()))
    line = check_named(shards, capsys, kind, facts)
    assert scan(*shards).fault == (None if kind == 'empty shard' else line)


@pytest.mark.parametrize(
    'damage', [flip_a_bit, lambda path: path.write_bytes(bytes(path.stat().st_size // 16 * 16))]
)
def test_a_wrong_checksum_is_found_where_records_are_read(shards, capsys, damage):
    damage(shards[1])
    check_named(shards, capsys, 'corrupt', 'record ')
    assert scan(*shards).fault is None


JPEG, IMAGE, LABEL = encoded(picture()), 'image/encoded', 'image/class/label'
BOMB = claiming(JPEG, 60_000, 50_000)


@pytest.mark.parametrize(
    ('record', 'kind', 'facts'),
    [
        (b'\xff\xff', 'no Example', 'tf.train.Example'),
        ({LABEL: [1]}, 'no image', IMAGE),
        ({IMAGE: [b''], LABEL: [1]}, 'no image', IMAGE),
        ({IMAGE: [JPEG]}, 'no label', LABEL),
        ({IMAGE: [JPEG], LABEL: [1, 2]}, 'no label', LABEL),
        ({IMAGE: [JPEG], LABEL: [1.0]}, 'no label', LABEL),
        ({IMAGE: [JPEG], LABEL: [5000]}, 'label out of range', '5000, 0..3'),
        (
            {IMAGE: [JPEG], LABEL: [5000], 'image/filename': [b'cat/7.jpg']},
            'label out of range',
            'cat/7.jpg',
        ),
        ({IMAGE: [JPEG], LABEL: [-1]}, 'label out of range', '-1, 0..3'),
        (
            {IMAGE: [JPEG], LABEL: [1], 'image/object/bbox/xmin': [0.5]},
            'unreadable Example',
            'record 3',
        ),
        ({IMAGE: [BOMB], LABEL: [1]}, 'undecodable JPEG', 'JPEG'),
        ({IMAGE: [JPEG[:-50]], LABEL: [1]}, 'undecodable JPEG', f'JPEG, {len(JPEG) - 50}'),
        ({IMAGE: [encoded(picture(), 'PNG')], LABEL: [1]}, 'not a JPEG', 'JPEG, PNG'),
        ({IMAGE: [b'garbage'], LABEL: [1]}, 'not a JPEG', 'JPEG, garb'),
    ],
)
def test_a_damaged_record_is_found_named_and_counted(shards, capsys, record, kind, facts):
    replace_record(shards[1], 3, record if isinstance(record, bytes) else features(record))
    check_named(shards, capsys, kind, f'record 3, {facts}')
    assert scan(*shards).fault is None


def test_good_shards_have_no_fault(shards):
    for number, mode in enumerate(('L', 'CMYK')):
        replace_record(shards[0], number, example(encoded(picture(mode=mode)), 1))
    assert records.main([f'--check={shards[0].parent}']) == 0
    assert scan(*shards) == ScanSummary(num_records=24)


def test_shards_that_cannot_be_looked_at_in_time_are_counted(shards):
    assert scan(*shards, deadline_secs=-1).num_unfinished == 4


def test_a_wrong_length_is_found_in_a_shard_of_many_records(tmp_path):
    path = tmp_path / 'many'
    write_shard(path, [b'x'] * 10_000)
    data = bytearray(path.read_bytes())
    data[17 * 9_000] ^= 2
    path.write_bytes(data)
    check_line(scan(path).fault, path, 'record 9001', 'length')


def with_info(shards: list[Path], name: str, value: object) -> Path:
    """Changes a fact of the training images in dataset.json."""
    path = shards[0].parent / 'dataset.json'
    facts = json.loads(path.read_text())
    facts['train'][name] = value
    path.write_text(json.dumps(facts))
    return path


def test_a_run_compares_the_counts_of_dataset_json_with_the_shards(shards):
    def check() -> None:
        folder = open_folder(str(shards[0].parent), 'records')
        check_record_lengths(folder.shards['train'], pytest.fail)

    check()
    with failed(with_info(shards, 'images', 1_000_000), '1,000,000'):
        check()


@pytest.mark.parametrize(
    ('name', 'value', 'kind', 'facts'),
    [
        ('images', 7, 'wrong', '7 train images, there are 24'),
        ('shards', 5, 'wrong', '5 train shards, there are 4'),
        ('shards', 'four', 'unusable', 'shards'),
        ('images', 0, 'unusable', 'images'),
    ],
)
def test_records_check_finds_what_is_wrong_with_dataset_json(
    shards, capsys, name, value, kind, facts
):
    check = f'--check={shards[0].parent}'
    assert records.main([check]) == 0
    path = with_info(shards, name, value)
    with failed(f'{check}: 1 fault', path, *facts.split(', ')):
        records.main([check])
    assert f'  faults: {kind} dataset.json 1' in capsys.readouterr().out.splitlines()
    labels = path.parent / 'labels.txt'
    labels.unlink()
    if kind == 'unusable':
        # Without labels.txt it may be the file of another program.
        assert records.main([check]) == 0
        return
    with failed(f'{check}: 1 fault', labels, 'missing'):
        records.main([check])
    assert '  faults: missing labels.txt 1' in capsys.readouterr().out.splitlines()


def test_a_shard_that_was_copied_over_another_one_is_named(shards, capsys):
    shards[2].write_bytes(shards[0].read_bytes())
    check = f'--check={shards[0].parent}'
    with failed(f'{check}: 1 fault', shards[2], shards[0].name):
        records.main([check])
    assert '  faults: duplicate shard 1' in capsys.readouterr().out.splitlines()


def test_a_shard_without_a_record_is_named_before_training(shards):
    shards[2].write_bytes(b'')
    warnings: list[str] = []
    check_record_lengths(Shards('train', tuple(map(str, shards)), 0), warnings.append)
    [warning] = warnings
    check_line(warning, shards[2])
