"""Converts an image file to a JPEG that every decoder decodes alike. Runs in worker processes, without TensorFlow."""

import io
import warnings
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

from errors import read_regular
from records.file_kinds import START_BYTES, other_kind
from records.layout import MOST_PIXELS

# How a JPEG and a PNG begin.
_STARTS = (b'\xff\xd8\xff', b'\x89PNG')
# A picture of the most pixels that TensorFlow decodes, without compression.
_MOST_BYTES = 3 * MOST_PIXELS
_ORIENTATION_TAG = 0x0112
# EXIF 2.3 (JEITA CP-3451C), section 4.6.4, tag Orientation: the operation that turns the stored picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The start-of-frame markers that every JPEG decoder supports: baseline, extended and progressive, with Huffman coding.
# The others stand for lossless, hierarchical or arithmetic coding. ITU-T T.81, table B.1.
_PLAIN_FRAMES = (0xC0, 0xC1, 0xC2)
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclass(frozen=True)
class EncodedImage:
    """A JPEG of three channels, height x width pixels; passed_through: it is the file, byte for byte."""

    jpeg: bytes
    height: int
    width: int
    passed_through: bool


@dataclass(frozen=True)
class Undecodable:
    reason: str


def encode_image(path: str, jpeg_quality: int) -> EncodedImage | Undecodable:
    """Decodes an image file completely, and returns it as an upright JPEG of three channels.

    An upright Huffman-coded JPEG of three 8-bit channels passes through byte for byte. Everything else is encoded again
    as RGB with jpeg_quality in [1, 100]: 16-bit samples keep their upper byte, transparent images are drawn on white,
    and embedded colour profiles are dropped.
    """
    # A damaged file must not end the run. PIL raises many types of exception for one, so any becomes the reason.
    try:
        data = read_regular(path, _MOST_BYTES)
        try:
            return _encode(data, jpeg_quality)
        except UnidentifiedImageError:
            kind = None if data.startswith(_STARTS) else other_kind(data[:START_BYTES], 'a JPEG or PNG')
            return Undecodable(kind or 'it is neither a JPEG nor a PNG')
    except Image.DecompressionBombError:
        return Undecodable(f'it has more than {MOST_PIXELS:,} pixels, which TensorFlow cannot decode; make it smaller')
    except OSError as error:
        return Undecodable(error.strerror or str(error))
    except Exception as error:
        return Undecodable(f'{type(error).__name__}: {error}')


def _encode(data: bytes, jpeg_quality: int) -> EncodedImage | Undecodable:
    if not data:
        return Undecodable('it is empty')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with Image.open(io.BytesIO(data), formats=('JPEG', 'PNG')) as image:
            image.load()
            turn = _UPRIGHT.get(_orientation(image))
            # PIL calls the format of a file with several pictures MPO; it is encoded again, with its first picture.
            if image.format == 'JPEG' and image.mode == 'RGB' and turn is None and _frame(data) in _PLAIN_FRAMES:
                return EncodedImage(data, image.height, image.width, passed_through=True)
            upright = _to_rgb(image)
            if turn is not None:
                upright = upright.transpose(turn)
            jpeg = io.BytesIO()
            upright.save(jpeg, 'JPEG', quality=jpeg_quality)
            return EncodedImage(jpeg.getvalue(), upright.height, upright.width, passed_through=False)


def _orientation(image: Image.Image) -> int:
    # An image with unreadable metadata is still usable.
    try:
        return image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith('I'):
        # PIL clips 16-bit samples at 255 when it converts them, so they are scaled first.
        image = image.convert('I').point(lambda sample: sample * (1 / 256)).convert('L')
    if 'A' in image.getbands() or 'transparency' in image.info:
        layers = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        image = Image.alpha_composite(white, layers)
    # A new image has no metadata that save() would write.
    plain = Image.new('RGB', image.size)
    plain.paste(image.convert('RGB'))
    return plain


def _frame(jpeg: bytes) -> int | None:
    """Returns the start-of-frame marker of a JPEG, or None: ITU-T T.81, annex B.1.1."""
    at = 2
    while at + 4 <= len(jpeg):
        if jpeg[at] != 0xFF:
            return None
        marker = jpeg[at + 1]
        if marker in _FRAMES:
            return marker
        # Repeated 0xFF is padding; TEM and RSTn have no length.
        if marker == 0xFF:
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        else:
            at += 2 + int.from_bytes(jpeg[at + 2 : at + 4], 'big')
    return None
