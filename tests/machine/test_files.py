"""Files are replaced as a whole, and only files of this program are removed; a damaged document
gives one error in one line.
"""

import os
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tf_cnn.cluster.environments import read_tf_config
from tf_cnn.inputs.layout import read_dataset_info
from tf_cnn.lab.sweep_file import read_sweep_file
from tf_cnn.results.document import read_result
from tf_cnn.system.atomic import move_atomically, remove_own_files, write_atomically
from tf_cnn.system.errors import UsageError
from tf_cnn.training.checkpoint_files import read_end_step

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


# ---- damaged documents ---------------------------------------------------------------------------


DAMAGES = {
    'infinity': b'{"end": Infinity}',
    'beyond float64': b'{"end": 1e999, "length": [1, 2, 3], "cluster": 1e999}',
    'not a number': b'{"end": NaN}',
    'deep lists': b'[' * 100_000,
    'deep objects': b'{"end": ' * 100_000,
    'deep values': b'end = ' + b'[' * 100_000,
    'no UTF-8': b'{"end": "\xff\xfe"}',
    'zeros': bytes(1000),
    'cut off': b'{"end": 3, "leng',
    'a list': b'[]',
    'a text': b'"end"',
    'a number': b'5',
    'several lines': b'{\n"a"\n:\n}\n',
}


@pytest.mark.parametrize('damage', DAMAGES)
@pytest.mark.parametrize(
    ('name', 'read'),
    [
        ('training-begun', lambda folder: read_end_step(str(folder), [1, 2, 3])),
        ('dataset.json', lambda folder: read_dataset_info(str(folder))),
        ('sweep.toml', lambda folder: read_sweep_file(folder / 'sweep.toml')),
        ('result.json', lambda folder: read_result(folder / 'result.json')),
    ],
)
def test_a_damaged_document_is_refused_in_one_line_that_names_its_file(
    name, read, damage, tmp_path
):
    (tmp_path / name).write_bytes(DAMAGES[damage])
    with pytest.raises(UsageError) as caught:
        read(tmp_path)
    check_line(caught.value, tmp_path / name)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_tf_config_is_refused_in_one_line(damage):
    with pytest.raises(UsageError) as caught:
        read_tf_config({'TF_CONFIG': DAMAGES[damage].decode(errors='surrogateescape')})
    check_line(caught.value, 'TF_CONFIG')
