"""Scanning an image folder: which files are images, which class each belongs to, and how labels are
numbered.
"""

import os
from pathlib import Path

import pytest

from tests.convert.image_files import read_examples
from tests.support.files import write_files
from tests.support.images import convert, encoded, picture
from tests.support.outputs import refused
from tf_cnn.inputs.layout import ImageFolder, read_labels, scan_folder

pytestmark = pytest.mark.graph


def test_images_are_found_at_any_depth_and_belong_to_the_class_of_their_top_folder(photos):
    folder = scan_folder(str(photos))
    assert folder.classes == ('bird', 'cat', 'zebra')
    assert len(folder.images) == 3 * 8 + 1
    for image in folder.images:
        assert image.path.split('/')[0] == folder.classes[image.class_index]
    assert 'bird/more/6.JPEG' in {image.path for image in folder.images}
    # Other files are passed over, and listed by reason.
    passed_over = [('.DS_Store', 'cat/.hidden.jpg'), ('cat/list.csv',), ('notes.txt',)]
    assert sorted(folder.skipped_paths.values()) == passed_over


def test_links_to_files_are_followed_and_links_to_folders_are_passed_over(tmp_path):
    photos = write_files(tmp_path / 'photos', {'a/1.jpg': b'x'})
    (photos / 'a' / 'link.jpg').symlink_to('1.jpg')
    (photos / 'a' / 'loop').symlink_to(photos)
    (photos / 'b').symlink_to(photos / 'a')
    os.mkfifo(photos / 'a' / 'pipe.jpg')
    folder = scan_folder(str(photos))
    paths = ['a/1.jpg', 'a/link.jpg', 'b/1.jpg', 'b/link.jpg']
    assert [image.path for image in folder.images] == paths
    passed_over = [('a/loop', 'b/loop'), ('a/pipe.jpg', 'b/pipe.jpg')]
    assert sorted(folder.skipped_paths.values()) == passed_over


@pytest.mark.parametrize(
    'target', ['nothing', 'owl', 'cat/1.jpg/owl'], ids=['dangling', 'loop', 'below a file']
)
def test_a_link_where_a_class_folder_may_be_must_lead_to_one(tmp_path, target):
    photos = write_files(tmp_path, {'cat/1.jpg': b'x', 'dog/1.jpg': b'x'})
    (photos / 'owl').symlink_to(target)
    with refused(f'--input={photos}: owl is a link to {target}'):
        scan_folder(str(photos))
    # In a class folder, links to folders are passed over, and broken links to images are reported
    # when the images are decoded.
    (photos / 'owl').rename(photos / 'cat' / 'owl')
    (photos / 'cat' / '2.jpg').symlink_to(target)
    (photos / '3.jpg').symlink_to(target)
    folder = scan_folder(str(photos))
    assert folder.skipped_paths == {'a broken link': ('cat/owl',), 'in no class folder': ('3.jpg',)}
    assert [image.path for image in folder.images] == ['cat/1.jpg', 'cat/2.jpg', 'dog/1.jpg']


def test_a_folder_without_class_folders_is_refused_with_what_it_has(tmp_path):
    write_files(tmp_path, {f'{index}.jpg': b'x' for index in range(3)})
    with refused(f'--input={tmp_path}', ' 3 ', '0.jpg'):
        scan_folder(str(tmp_path))


def scan(root: Path, *paths: str) -> ImageFolder:
    return scan_folder(str(write_files(root, dict.fromkeys(paths, b'x'))))


@pytest.mark.parametrize(
    ('paths', 'remedy'),
    [
        (['Train/cat/1.jpg', 'val/cat/1.jpg', 'test/1.jpg', 'annotations/list.xml'], 'Train'),
        (['testing/cat/1.jpg', 'training/cat/1.jpg', 'training/dog/1.jpg'], 'training'),
        (
            [
                f'seg_{subset}/{name}/1.jpg'
                for subset in ('test', 'train')
                for name in ('cat', 'dog')
            ],
            'seg_train',
        ),
        (['photos/photos/cat/1.jpg', 'photos/photos/dog/1.jpg', '__MACOSX/photos/1.jpg'], 'photos'),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else value,
)
def test_a_folder_above_the_class_folders_is_refused_with_the_one_to_give(tmp_path, paths, remedy):
    with refused(f'--input={tmp_path}', f'--input={tmp_path}/{remedy}'):
        scan(tmp_path, *paths)


@pytest.mark.parametrize(
    'paths',
    [
        ['test/1.jpg', *(f'{number}/1.jpg' for number in range(9))],
        ['train/red/1.jpg', 'bus/red/1.jpg'],
        ['train ticket/red/1.jpg', 'test tube/glass/1.jpg'],
        ['test pattern/1.jpg', 'train ticket/1.jpg'],
        ['cat/2020/1.jpg', 'cat/1.jpg'],
    ],
    ids=lambda value: value[0],
)
def test_classes_may_be_named_like_subsets(tmp_path, paths):
    classes = {path.split('/')[0] for path in paths}
    assert scan(tmp_path, *paths).classes == tuple(sorted(classes))


def test_files_of_archives_systems_and_thumbnails_are_passed_over_at_every_level(tmp_path):
    leftovers = [
        '$RECYCLE.BIN/1.jpg',
        '__MACOSX/cat/1.jpg',
        'cat/@eaDir/1.jpg/thumb.jpg',
        'cat/Thumbs.db',
        'desktop.ini',
    ]
    folder = scan(tmp_path, 'cat/1.jpg', *leftovers)
    assert (folder.classes, len(folder.images)) == (('cat',), 1)
    [passed_over] = folder.skipped_paths.values()
    expected = ['$RECYCLE.BIN', '__MACOSX', 'cat/@eaDir', 'cat/Thumbs.db', 'desktop.ini']
    assert sorted(passed_over) == expected


def test_first_label_0_leaves_no_room_for_background(tmp_path):
    files = {f'{name}/1.jpg': encoded(picture()) for name in ('background', 'cat')}
    output = tmp_path / 'out'
    convert(write_files(tmp_path / 'photos', files), output, '--shards=1', '--first_label=0')
    assert read_labels(str(output)) == ('background', 'cat')
    labels = {(e['image/class/label'], e['image/class/text']) for e in read_examples(output)}
    assert labels == {(0, b'background'), (1, b'cat')}
