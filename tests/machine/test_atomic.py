"""Files are replaced as a whole; only files of this program are removed."""

import os
from pathlib import Path

import pytest

from tf_cnn.system.atomic import move_atomically, remove_own_files, write_atomically

pytestmark = pytest.mark.unit


def test_a_file_keeps_its_mode_and_owner_when_it_is_replaced(tmp_path):
    file, link = tmp_path / 'private', tmp_path / 'link'
    file.touch(0o600)
    if os.geteuid() == 0:
        os.chown(file, 1234, 1235)
    before = file.stat()
    link.symlink_to(file)
    write_atomically('new', link)
    after = file.stat()
    for name in ('st_mode', 'st_uid', 'st_gid'):
        assert getattr(after, name) == getattr(before, name)
    assert after.st_ino != before.st_ino
    assert link.is_symlink()
    assert file.read_text() == 'new'


def test_a_folder_keeps_its_mode_when_it_is_replaced(tmp_path):
    old, new = tmp_path / 'old', tmp_path / 'new'
    old.mkdir(0o700)
    new.mkdir(0o755)
    (new / 'file').touch()
    move_atomically(new, old)
    assert old.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.rglob('*')) == [old, old / 'file']


def test_a_new_file_has_the_mode_of_any_new_file_and_a_name_as_long_as_names_can_be(tmp_path):
    other, file = tmp_path / 'other', tmp_path / ('x' * 255)
    other.touch()
    write_atomically(b'new', file)
    assert file.stat().st_mode == other.stat().st_mode
    assert sorted(tmp_path.iterdir()) == sorted([other, file])


@pytest.mark.parametrize('name', ['.r.json.mine.part', 'folder/file'])
def test_files_of_other_programs_stay(tmp_path, name):
    """A file that looks like the remains of a kill; a folder."""
    other = tmp_path / name
    other.parent.mkdir(exist_ok=True)
    other.write_text('mine')
    os.utime(other, (0, 0))
    (tmp_path / 'made').touch()
    write_atomically('new', tmp_path / 'r.json')
    with pytest.raises(OSError, match=str(tmp_path)):
        remove_own_files(tmp_path, lambda file: file in ('made', 'r.json'))
    assert {path.name for path in tmp_path.iterdir()} == {'made', 'r.json', Path(name).parts[0]}


def test_nothing_is_removed_by_way_of_a_link(tmp_path):
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'folder' / 'made').touch()
    (tmp_path / 'link').symlink_to(tmp_path / 'folder')
    with pytest.raises(OSError, match=str(tmp_path / 'link')):
        remove_own_files(tmp_path / 'link', lambda file: file == 'made')
    assert (tmp_path / 'folder' / 'made').exists()
