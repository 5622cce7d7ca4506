"""An image file becomes one RGB JPEG: the same bytes where possible, otherwise the same picture encoded anew."""

import io
import os
from errno import ENOENT
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from records.images import EncodedImage, Undecodable, encode_image
from tests.support.images import claiming, encoded, picture, pixels
from tests.support.outputs import check_line

pytestmark = pytest.mark.graph


def encode(tmp_path: Path, data: bytes, quality: int = 95) -> EncodedImage:
    path = tmp_path / 'image'
    path.write_bytes(data)
    result = encode_image(str(path), quality)
    assert isinstance(result, EncodedImage), result
    return result


def assert_alike(result: EncodedImage, expected: Image.Image) -> None:
    array = pixels(result.jpeg)
    assert (result.height, result.width) == (expected.height, expected.width) == array.shape[:2]
    assert np.abs(array - np.asarray(expected.convert('RGB')).astype(int)).mean() < 3


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'keep_rgb': True}, {'optimize': True}])
def test_a_jpeg_of_three_channels_passes_through_byte_for_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    data = encoded(picture(), quality=90, **options)
    assert encode(tmp_path, data) == EncodedImage(data, 48, 64, passed_through=True)


@pytest.mark.parametrize('mode', ['L', 'CMYK'])
def test_a_grey_or_cmyk_jpeg_becomes_rgb(tmp_path: Path, mode: str) -> None:
    data = encoded(picture(mode=mode), quality=95)
    result = encode(tmp_path, data)
    assert not result.passed_through
    with Image.open(io.BytesIO(data)) as expected:
        assert_alike(result, expected)


@pytest.mark.parametrize('orientation', range(1, 9))
@pytest.mark.parametrize('file_format', ['JPEG', 'PNG'])
def test_exif_orientation_is_applied_as_pil_applies_it(tmp_path: Path, file_format: str, orientation: int) -> None:
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


def test_an_image_with_unreadable_exif_is_kept(tmp_path: Path) -> None:
    for file_format in ('JPEG', 'PNG'):
        result = encode(tmp_path, encoded(picture(), file_format, exif=b'Exif\x00\x00garbage'))
        assert result.passed_through == (file_format == 'JPEG')
        assert_alike(result, picture())


def of_mode(mode: str) -> Image.Image:
    # Squares of 16 pixels are the blocks of a JPEG with halved colour: it changes them little, whatever the colours.
    squares = picture(4, 3).resize((64, 48), Image.Resampling.NEAREST)
    return squares.quantize(12) if mode == 'P' else squares.convert(mode, dither=Image.Dither.NONE)


@pytest.mark.parametrize('image', [picture(), of_mode('P'), of_mode('L'), of_mode('1')], ids=['RGB', 'P', 'L', '1'])
def test_a_png_becomes_an_rgb_jpeg(tmp_path: Path, image: Image.Image) -> None:
    assert_alike(encode(tmp_path, encoded(image, 'PNG')), image)


@pytest.mark.parametrize('mode', ['RGBA', 'LA'])
def test_transparent_pixels_are_blended_with_white(tmp_path: Path, mode: str) -> None:
    image = picture().convert(mode)
    alpha = Image.new('L', image.size, 0)
    alpha.paste(255, (0, 0, 32, 48))
    image.putalpha(alpha)
    expected = Image.new('RGB', image.size, 'white')
    expected.paste(picture().convert(mode[:-1]).convert('RGB'), (0, 0), alpha)
    assert_alike(encode(tmp_path, encoded(image, 'PNG'), quality=100), expected)


def test_a_transparent_palette_colour_is_blended_with_white(tmp_path: Path) -> None:
    image = Image.new('P', (32, 16), 1)
    image.putpalette([0, 0, 0, 0, 0, 200])
    image.paste(0, (0, 0, 16, 16))
    expected = Image.new('RGB', (32, 16), (0, 0, 200))
    expected.paste((255, 255, 255), (0, 0, 16, 16))
    assert_alike(encode(tmp_path, encoded(image, 'PNG', transparency=0)), expected)


@pytest.mark.parametrize('options', [{}, {'transparency': 40000}])
def test_a_16_bit_grey_png_keeps_the_upper_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    grey = np.asarray(picture(mode='L')).astype(np.uint16)
    image = Image.fromarray(grey * 256 + 77)
    assert_alike(encode(tmp_path, encoded(image, 'PNG', **options)), Image.fromarray(grey.astype(np.uint8)))


def test_a_lower_quality_makes_a_smaller_jpeg(tmp_path: Path) -> None:
    data = encoded(picture(256, 256), 'PNG')
    assert len(encode(tmp_path, data, quality=20).jpeg) < len(encode(tmp_path, data, quality=95).jpeg)


def test_only_the_first_picture_of_a_file_of_several_is_kept(tmp_path: Path) -> None:
    data = encoded(picture(), 'MPO', save_all=True, append_images=[picture(32, 32)])
    result = encode(tmp_path, data)
    assert not result.passed_through
    assert_alike(result, picture())


@pytest.mark.parametrize(
    ('data', 'facts'),
    [
        (b'', []),
        (b'hello' * 100, ['JPEG', 'PNG']),
        (encoded(picture(), 'GIF'), ['JPEG', 'PNG']),
        (claiming(encoded(picture()), 60_000, 60_000), ['178,956,970 pixels']),
        (claiming(encoded(picture()), 15_000, 12_000), ['178,956,970 pixels']),
        # PIL's own word.
        (encoded(picture())[:-40], ['truncated']),
        (encoded(picture())[:-2], ['truncated']),
        (encoded(picture(), 'PNG')[:-200], ['truncated']),
    ],
)
def test_the_reason_why_a_file_cannot_be_decoded_is_one_line(tmp_path: Path, data: bytes, facts: list[str]) -> None:
    (tmp_path / 'image.jpg').write_bytes(data)
    result = encode_image(str(tmp_path / 'image.jpg'), 95)
    assert isinstance(result, Undecodable)
    check_line(result.reason, *facts)


def test_a_file_that_cannot_be_read_or_is_too_large_for_any_picture_is_undecodable(tmp_path: Path) -> None:
    (tmp_path / 'link.jpg').symlink_to('missing.jpg')
    assert encode_image(str(tmp_path / 'link.jpg'), 95) == Undecodable(os.strerror(ENOENT))
    with open(tmp_path / 'image.jpg', 'wb') as file:
        file.truncate(1 << 31)
    result = encode_image(str(tmp_path / 'image.jpg'), 95)
    assert isinstance(result, Undecodable)
    check_line(result.reason, str(1 << 31))
