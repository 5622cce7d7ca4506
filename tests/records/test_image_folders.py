"""Scanning an image folder: which files are images, which class each belongs to, and how labels are numbered."""

import os
from pathlib import Path

import pytest

from records.layout import label_names, read_labels, scan_folder
from tests.support.images import convert, encoded, picture, read_examples, write_files, write_photos
from tests.support.outputs import refused

pytestmark = pytest.mark.graph


def test_images_are_found_at_any_depth_and_belong_to_the_class_of_their_top_folder(tmp_path: Path) -> None:
    folder = scan_folder(str(write_photos(tmp_path)))
    assert folder.classes == ('bird', 'cat', 'zebra')
    assert len(folder.images) == 3 * 8 + 1
    assert all(image.path.split('/')[0] == folder.classes[image.class_index] for image in folder.images)
    assert 'bird/more/6.JPEG' in {image.path for image in folder.images}


def test_files_that_are_not_images_are_passed_over_by_reason(tmp_path: Path) -> None:
    folder = scan_folder(str(write_photos(tmp_path)))
    assert sorted(folder.passed_over.values()) == [('.DS_Store', 'cat/.hidden.jpg'), ('cat/list.csv',), ('notes.txt',)]


def test_links_to_files_are_followed_and_links_to_folders_are_passed_over(tmp_path: Path) -> None:
    photos = write_files(tmp_path / 'photos', {'a/1.jpg': b'x'})
    (photos / 'a' / 'link.jpg').symlink_to('1.jpg')
    (photos / 'a' / 'loop').symlink_to(photos)
    (photos / 'b').symlink_to(photos / 'a')
    os.mkfifo(photos / 'a' / 'pipe.jpg')
    folder = scan_folder(str(photos))
    assert [image.path for image in folder.images] == ['a/1.jpg', 'a/link.jpg', 'b/1.jpg', 'b/link.jpg']
    assert sorted(folder.passed_over.values()) == [('a/loop', 'b/loop'), ('a/pipe.jpg', 'b/pipe.jpg')]


def test_a_folder_without_class_folders_is_refused_with_the_number_of_its_files(tmp_path: Path) -> None:
    write_files(tmp_path, {f'{index}.jpg': b'x' for index in range(3)})
    with refused(f'--input={tmp_path}', ' 3 '):
        scan_folder(str(tmp_path))


def test_first_label_0_leaves_no_room_for_background(tmp_path: Path) -> None:
    photos = write_files(tmp_path / 'photos', {f'{name}/1.jpg': encoded(picture()) for name in ('bird', 'cat')})
    convert(photos, tmp_path / 'out', '--shards=1', '--first_label=0')
    assert read_labels(str(tmp_path / 'out')) == ('bird', 'cat')
    examples = read_examples(tmp_path / 'out')
    assert {(e['image/class/label'], e['image/class/text']) for e in examples} == {(0, b'bird'), (1, b'cat')}


def test_a_class_named_background_needs_first_label_0() -> None:
    with refused('--first_label=1', '--first_label=0', 'background'):
        label_names(('background', 'cat'), 1)
    assert label_names(('background', 'cat'), 0) == ('background', 'cat')
