"""Damaged shards and records are reported by path and record, also by the quick checks of a run;
what the subcommand `records` prints.
"""

import bz2
import gzip
import json
import lzma
import re
import sys
import zlib
from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from tests.convert.image_files import claiming
from tests.support.files import write_files
from tests.support.images import (
    content,
    convert,
    encoded,
    example,
    features,
    flip_a_bit,
    header_of,
    picture,
    shard_paths,
    write_shard,
)
from tests.support.outputs import check_line, failed, refused
from tests.support.programs import run_main
from tf_cnn.cli import records
from tf_cnn.inputs.data_folder import open_folder
from tf_cnn.inputs.data_sets import Shards
from tf_cnn.inputs.framing import ScanSummary, scan_shards
from tf_cnn.inputs.layout import shard_name
from tf_cnn.run.shard_faults import check_record_lengths
from tf_cnn.system.errors import install_command

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


# ---- the subcommand ------------------------------------------------------------------------------


def numbers_in(text: str, *facts: object) -> list[str]:
    """The numbers in the one line of a text that names all of the facts."""
    (line,) = (line for line in text.splitlines() if all(str(fact) in line for fact in facts))
    return re.findall(r'\d+', line)


def test_without_pillow_the_command_that_installs_it_is_named(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'PIL', None)
    with refused('records', install_command('pillow')):
        convert(photos, tmp_path)


def test_files_that_are_left_out_or_passed_over_are_named_and_counted(photos, tmp_path, capfd):
    convert(photos, tmp_path / 'out', '--shards=2')
    out, err = capfd.readouterr()
    for path in ('cat/broken.jpg', 'notes.txt', 'cat/.hidden.jpg', 'cat/list.csv', '.DS_Store'):
        numbers_in(err, f' {path}: ')
    written, *counts = out.splitlines()
    assert written.endswith(str(tmp_path / 'out'))
    # Images, classes and shards.
    assert numbers_in(written, 'train: ')[:3] == ['24', '3', '2']
    size = sum(file.stat().st_size for file in (tmp_path / 'out').glob('train-*')) / 2
    assert f' of {size / 1000:.3g} kB in ' in written
    passed_through_and_encoded, left_out, passed_over = map(numbers_in, counts)
    assert passed_through_and_encoded == ['21', '3']
    assert left_out == ['1']
    assert sorted(passed_over) == ['1', '1', '2']


def test_images_of_other_formats_are_converted_or_named(tmp_path, capfd):
    frames = encoded(picture(), 'GIF', save_all=True, append_images=[picture(mode='L')])
    files = {'a/1.gif': frames, 'a/2.WEBP': encoded(picture(), 'WEBP')}
    files |= {'a/3.bmp': encoded(picture(), 'BMP'), 'a/4.tif': encoded(picture(), 'TIFF')}
    files |= {f'a/{index}.heic': b'x' for index in range(30)}
    convert(write_files(tmp_path / 'photos', files), tmp_path / 'out', '--shards=1')
    out, err = capfd.readouterr()
    assert numbers_in(out, 'train: ')[:3] == ['4', '1', '1']
    assert numbers_in(out, 'encoded anew') == ['0', '4']
    assert numbers_in(out, 'only the first of several frames') == ['1']
    assert numbers_in(out, 'passed over') == ['30']
    assert numbers_in(err, 'passed over 10 more', 'WEBP') == ['10']


def test_a_check_of_good_shards_prints_what_they_hold(good_shards):
    out, _ = run_main('records', f'--check={good_shards}')
    numbers_in(out, good_shards, '0..3', 'labels.txt')
    # Shards present and expected, records, labels seen and possible.
    assert numbers_in(out, 'train: ') == ['4', '4', '24', '3', '4']


def test_a_missing_shard_is_named(good_shards, tmp_path):
    write_files(tmp_path, content(good_shards))
    missing = shard_paths(tmp_path)[2]
    missing.unlink()
    out, err = run_main('records', f'--check={tmp_path}', code=1)
    check_line(err.splitlines()[-1], f'--check={tmp_path}', missing)
    assert numbers_in(out, 'train: ')[:2] == ['3', '4']
    numbers_in(out, 'missing shard 1')
    numbers_in(out, f'{missing}: ')


def test_every_subset_is_checked_unless_a_flag_names_one(good_shards, tmp_path):
    write_files(tmp_path, content(good_shards))
    for index, path in enumerate(shard_paths(good_shards)):
        (tmp_path / shard_name('validation', index, 4)).write_bytes(path.read_bytes())
    flip_a_bit(tmp_path / shard_name('validation', 3, 4))
    out, _ = run_main('records', f'--check={tmp_path}', '--subset=train')
    assert 'validation' not in out
    out, err = run_main('records', f'--check={tmp_path}', code=1)
    check_line(err.splitlines()[-1], f'--check={tmp_path}', 'validation-00003-of-00004')
    for subset in ('train', 'validation'):
        assert numbers_in(out, f'{subset}: ')[:2] == ['4', '4']
