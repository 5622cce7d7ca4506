"""Decodes a part of a JPEG file, at full size or scaled down by the decoder."""

import tensorflow.compat.v1 as tf

from inputs.shared_constants import shared

# By which factors libjpeg-turbo scales while it decodes: its inverse transforms turn the 8x8 coefficients of a block
# into 4x4, 2x2 or 1x1 pixels, each the mean of those that it replaces, as nearly as these coefficients say.
RATIOS = (2, 4, 8)


def decode_window(
    encoded: tf.Tensor, window: tf.Tensor, channels: int, enough: tuple[int, int] | None = None
) -> tf.Tensor:
    """Decodes a window of a JPEG file; what is below it is not read, and what is beside it not transformed.

    Args:
      encoded: scalar string, a JPEG file. Grey and CMYK files are converted to channels, too.
      window: [4] int32: y, x, height, width, in the pixels of the whole image.
      enough: scale by the largest of RATIOS that leaves the window this height and width; None: never scale.

    Returns:
      [h, w, channels] uint8. The step fails with InvalidArgumentError if the file is not a JPEG file or is damaged.
    """
    if enough is None:
        return _decode(encoded, window, channels, 1)
    fits = tf.reduce_min(tf.slice(window, shared([2]), shared([2])) // shared(enough), axis=shared(0)) >= shared(RATIOS)
    halvings = tf.reduce_sum(tf.cast(fits, tf.int32), axis=shared(0))
    scaled = _scaled(window, tf.bitwise.left_shift(shared(1), halvings))
    # Only the decoder that gets the window runs. tf.switch_case would make a function of each, for each image.
    images = []
    for ratio, chosen in reversed(list(zip(RATIOS, tf.unstack(fits), strict=True))):
        scaled, taken = tf.raw_ops.Switch(data=scaled, pred=chosen)
        images.append(_decode(encoded, taken, channels, ratio))
    return tf.raw_ops.Merge(inputs=[*images, _decode(encoded, scaled, channels, 1)])[0]


def _scaled(window: tf.Tensor, ratio: tf.Tensor) -> tf.Tensor:
    """A window, [4] int32, in the pixels of the image scaled down by ratio, a scalar: its edges rounded to the nearest.

    It is as high and as wide as the window divided by the ratio, or at most one pixel more or less, but never less than
    the whole part of that.
    """
    begin, size = tf.split(window, 2)
    half = ratio // shared(2)
    new_begin, new_end = (begin + half) // ratio, (begin + size + half) // ratio
    return tf.concat([new_begin, new_end - new_begin], shared(0))


def _decode(encoded: tf.Tensor, window: tf.Tensor, channels: int, ratio: int) -> tf.Tensor:
    # The fast DCT would save 3 % of the decoding time but darken every image by 0.8 of 255 levels; fancy upscaling of
    # the colour planes would cost 6 %, and the resize removes its effect.
    return tf.raw_ops.DecodeAndCropJpeg(
        contents=encoded,
        crop_window=window,
        channels=channels,
        ratio=ratio,
        fancy_upscaling=False,
        dct_method='INTEGER_ACCURATE',
    )
