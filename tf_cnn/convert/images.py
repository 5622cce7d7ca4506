"""Converts an image file to an upright RGB JPEG. Runs in worker processes, without TensorFlow."""

import io
import warnings
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError

from tf_cnn.inputs.layout import IMAGE_FORMATS, MAX_PIXELS
from tf_cnn.system.errors import join_with_or, read_file

# The size of the largest image that TensorFlow decodes, uncompressed.
_MAX_BYTES = 3 * MAX_PIXELS
# EXIF 2.3 (JEITA CP-3451C), section 4.6.4: 1 is upright, 2 to 8 are mirrored or rotated.
_ORIENTATION_TAG = 0x0112


@dataclass(frozen=True)
class EncodedImage:
    """A JPEG of three channels, height x width pixels.

    passed_through: whether the JPEG is the file, byte for byte.
    is_first_of_several: whether the file has further pictures, such as the frames of an animation.
    """

    jpeg: bytes
    height: int
    width: int
    passed_through: bool
    is_first_of_several: bool


def encode_image(path: str, jpeg_quality: int) -> EncodedImage | str:
    """Decodes an image file completely, and returns it as an upright JPEG of three channels, or the
    reason why it cannot be decoded.

    An upright JPEG of three 8-bit channels passes through byte for byte. All other images are
    encoded again as RGB with jpeg_quality in [1, 100]: 16-bit samples keep their upper byte,
    transparent images are drawn on white, and embedded colour profiles are dropped. Of a file with
    several frames, pages or pictures, only the first is used.
    """
    # A damaged file must not end the run. PIL raises many types of exception for damaged files, so
    # any exception counts.
    try:
        data = read_file(path, _MAX_BYTES)
        return _encode(data, jpeg_quality)
    except UnidentifiedImageError:
        if not data:
            return 'it is empty'
        formats = join_with_or([*IMAGE_FORMATS])
        return f'it is not a readable {formats}, it begins with {data[:8]!r}; convert it to JPEG'
    except Image.DecompressionBombError:
        return (
            f'it has more than {MAX_PIXELS:,} pixels, which TensorFlow cannot decode; make it '
            'smaller'
        )
    except OSError as error:
        return error.strerror or str(error)
    except Exception as error:
        return f'{type(error).__name__}: {error}'


def _encode(data: bytes, jpeg_quality: int) -> EncodedImage | str:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        with Image.open(io.BytesIO(data), formats=tuple(IMAGE_FORMATS)) as image:
            # Asked before load(), as GIFs seek to the next frame for the answer.
            is_first_of_several = getattr(image, 'is_animated', False)
            image.load()
            if image.format == 'TIFF' and image.mode in ('F', 'I'):
                # Nothing says which of their values is white.
                return 'its samples have 32 bits; convert it to PNG'
            orientation = _orientation(image)
            # PIL calls a JPEG with several pictures MPO; its first picture is encoded again.
            if image.format == 'JPEG' and image.mode == 'RGB' and orientation == 1:
                return EncodedImage(
                    data,
                    image.height,
                    image.width,
                    passed_through=True,
                    is_first_of_several=False,
                )
            upright = _to_rgb(image)
            upright.getexif()[_ORIENTATION_TAG] = orientation
            ImageOps.exif_transpose(upright, in_place=True)
            jpeg = io.BytesIO()
            upright.save(jpeg, 'JPEG', quality=jpeg_quality)
            return EncodedImage(
                jpeg.getvalue(),
                upright.height,
                upright.width,
                passed_through=False,
                is_first_of_several=is_first_of_several,
            )


def _orientation(image: Image.Image) -> int:
    # An image with unreadable metadata is still usable.
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:
        return 1
    return orientation if isinstance(orientation, int) and 2 <= orientation <= 8 else 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith('I'):
        # PIL clips 16-bit samples at 255 when it converts them, so scale them first.
        image = image.convert('I').point(lambda sample: sample * (1 / 256)).convert('L')
    if 'A' in image.getbands() or 'transparency' in image.info:
        layers = image.convert('RGBA')
        white = Image.new('RGBA', image.size, 'white')
        image = Image.alpha_composite(white, layers)
    # A new image has no metadata that save() would write.
    plain = Image.new('RGB', image.size)
    plain.paste(image.convert('RGB'))
    return plain
