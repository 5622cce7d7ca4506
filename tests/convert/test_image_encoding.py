"""An image file becomes one RGB JPEG: the same bytes where possible, otherwise a new encoding of
the picture.
"""

import io
import os
from errno import ENOENT
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.convert.image_files import claiming, pixels
from tests.support.images import encoded, picture
from tests.support.outputs import check_line
from tf_cnn.convert.images import EncodedImage, encode_image

pytestmark = pytest.mark.graph

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
