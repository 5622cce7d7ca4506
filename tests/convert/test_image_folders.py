"""Which files of a folder are images, which class each belongs to, and how each becomes one RGB
JPEG.
"""

import io
import os
from errno import ENOENT
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.convert.image_files import claiming, pixels, read_examples
from tests.support.files import write_files
from tests.support.images import convert, encoded, picture
from tests.support.outputs import check_line, refused
from tf_cnn.convert.images import EncodedImage, encode_image
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


# ---- encoding ------------------------------------------------------------------------------------


BAD_EXIF = b'Exif\x00\x00garbage'


def encode(tmp_path: Path, data: bytes) -> EncodedImage:
    path = tmp_path / 'image'
    path.write_bytes(data)
    result = encode_image(str(path), 95)
    assert isinstance(result, EncodedImage), result
    return result


def assert_alike(result: EncodedImage, expected: Image.Image) -> None:
    array = pixels(result.jpeg)
    assert (result.height, result.width) == (expected.height, expected.width) == array.shape[:2]
    assert np.abs(array - np.asarray(expected.convert('RGB'), int)).mean() < 3


@pytest.mark.parametrize(
    'options',
    [{}, {'progressive': True}, {'keep_rgb': True}, {'optimize': True}, {'exif': BAD_EXIF}],
)
def test_a_jpeg_of_three_channels_passes_through_byte_for_byte(tmp_path, options):
    data = encoded(picture(), quality=90, **options)
    expected = EncodedImage(data, 48, 64, passed_through=True, is_first_of_several=False)
    assert encode(tmp_path, data) == expected


def of_mode(mode: str) -> Image.Image:
    # Squares of 16 pixels are the blocks of a JPEG with halved colour: it changes them little,
    # whatever the colours.
    squares = picture(4, 3).resize((64, 48), Image.Resampling.NEAREST)
    return squares.quantize(12) if mode == 'P' else squares.convert(mode, dither=Image.Dither.NONE)


GREY_16 = Image.fromarray(np.asarray(picture(mode='L'), np.uint16) * 256 + 77)


@pytest.mark.parametrize(
    ('data', 'expected'),
    [
        pytest.param(encoded(picture(mode='L')), picture(mode='L'), id='grey JPEG'),
        pytest.param(encoded(picture(mode='CMYK')), picture(mode='CMYK'), id='CMYK JPEG'),
        *(
            pytest.param(encoded(of_mode(mode), 'PNG'), of_mode(mode), id=f'{mode} PNG')
            for mode in ('RGB', 'P', 'L', '1')
        ),
        # The upper byte is kept.
        pytest.param(encoded(GREY_16, 'PNG'), picture(mode='L'), id='16 bits'),
        pytest.param(
            encoded(GREY_16, 'PNG', transparency=40000),
            picture(mode='L'),
            id='16 bits, transparent',
        ),
        pytest.param(encoded(picture(), 'PNG', exif=BAD_EXIF), picture(), id='unreadable EXIF'),
        pytest.param(encoded(picture(), 'WEBP', quality=95), picture(), id='WebP'),
        pytest.param(encoded(of_mode('P'), 'GIF'), of_mode('P'), id='GIF'),
        pytest.param(encoded(picture(), 'BMP'), picture(), id='BMP'),
        pytest.param(encoded(picture(), 'TIFF', compression='tiff_lzw'), picture(), id='TIFF'),
        pytest.param(encoded(GREY_16, 'TIFF'), picture(mode='L'), id='TIFF of 16 bits'),
    ],
)
def test_everything_else_becomes_an_rgb_jpeg(tmp_path, data, expected):
    result = encode(tmp_path, data)
    assert not result.passed_through
    assert_alike(result, expected)


@pytest.mark.parametrize('file_format', ['MPO', 'GIF', 'WEBP', 'PNG', 'TIFF'])
def test_the_first_of_several_frames_or_pages_is_encoded(tmp_path, file_format):
    first = picture(mode='L')
    later_frames = [ImageOps.mirror(first), ImageOps.invert(first)]
    data = encoded(first, file_format, save_all=True, append_images=later_frames)
    result = encode(tmp_path, data)
    assert_alike(result, first)
    assert result.is_first_of_several
    assert not encode(tmp_path, encoded(first, file_format)).is_first_of_several


@pytest.mark.parametrize('mode', ['RGB', 'L'])
def test_transparent_parts_become_white(tmp_path, mode):
    image, alpha = of_mode(mode), Image.new('L', (64, 48), 255)
    alpha.paste(0, (32, 0, 64, 48))
    expected = image.convert('RGB')
    expected.paste('white', (32, 0, 64, 48))
    image.putalpha(alpha)
    assert_alike(encode(tmp_path, encoded(image, 'PNG')), expected)


def test_a_transparent_colour_becomes_white(tmp_path):
    image, expected = Image.new('P', (32, 16), 1), Image.new('RGB', (32, 16), (0, 0, 200))
    image.putpalette([0, 0, 0, 0, 0, 200])
    image.paste(0, (0, 0, 16, 16))
    expected.paste('white', (0, 0, 16, 16))
    assert_alike(encode(tmp_path, encoded(image, 'PNG', transparency=0)), expected)


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('file_format', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_exif_orientation_is_applied_as_pil_applies_it(tmp_path, file_format, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(), file_format, exif=exif)
    result = encode(tmp_path, data)
    assert result.passed_through == (file_format == 'JPEG' and orientation == 1)
    with Image.open(io.BytesIO(data)) as image:
        assert_alike(result, ImageOps.exif_transpose(image))
    if not result.passed_through:
        with Image.open(io.BytesIO(result.jpeg)) as image:
            assert 0x0112 not in image.getexif()


def undecodable(path: Path) -> str:
    result = encode_image(str(path), 95)
    assert isinstance(result, str)
    return check_line(result)


@pytest.mark.parametrize(
    ('data', 'facts'),
    [
        (b'', 'it is empty'),
        (b'hello' * 100, 'JPEG, PNG'),
        (encoded(picture(), 'PPM'), 'JPEG, PNG, WEBP, GIF, BMP, TIFF'),
        (encoded(picture(mode='F'), 'TIFF'), '32 bits, PNG'),
        (encoded(picture(mode='I'), 'TIFF'), '32 bits, PNG'),
        (claiming(encoded(picture()), 60_000, 60_000), '178,956,970 pixels'),
        (claiming(encoded(picture()), 15_000, 12_000), '178,956,970 pixels'),
        # PIL's word.
        (encoded(picture())[:-40], 'truncated'),
        (encoded(picture())[:-2], 'truncated'),
        (encoded(picture(), 'PNG')[:-200], 'truncated'),
    ],
)
def test_the_reason_why_a_file_cannot_be_decoded_is_one_line(tmp_path, data, facts):
    path = tmp_path / 'image.jpg'
    path.write_bytes(data)
    check_line(undecodable(path), *facts.split(', '))


def test_a_file_that_cannot_be_read_or_is_too_large_for_any_picture_is_undecodable(tmp_path):
    path = tmp_path / 'image.jpg'
    path.symlink_to('missing.jpg')
    assert undecodable(path) == os.strerror(ENOENT)
    path.unlink()
    path.touch()
    os.truncate(path, 1 << 31)
    check_line(undecodable(path), 1 << 31)
