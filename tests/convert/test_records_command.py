"""The subcommand `records`: its options, and what it prints about the shards that it writes or
checks.
"""

import re
import sys

import pytest

from tests.support.files import write_files
from tests.support.images import (
    content,
    convert,
    encoded,
    flip_a_bit,
    picture,
    shard_paths,
)
from tests.support.outputs import check_line, refused
from tests.support.programs import run_main
from tf_cnn.inputs.layout import shard_name
from tf_cnn.system.errors import install_command

pytestmark = pytest.mark.graph


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
