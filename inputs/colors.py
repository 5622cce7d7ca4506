"""Random changes of the colours of an image: brightness, saturation, hue and contrast, in as few passes as possible.

Howard 2013 (arXiv:1312.5402, section 2.2) changes colours in a random order; the orders and ranges here are those of
the published Inception code. Brightness is added to each channel. Contrast stretches each channel about its mean.
Saturation and hue are changed in one of two colour spaces:

- YIQ: the chromaticity (I, Q) of each pixel is multiplied and rotated. All changes together are one matrix and one
  offset for the whole image, whatever their order: those of brightness and contrast keep I and Q or stretch them
  about their means, and the matrix keeps grey. Results outside [0, 255] are clipped once, at the end.
- HSV: the saturation of each pixel is multiplied and clipped, and the hue is rotated.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.shared_constants import shared

# The ranges of the changes: brightness in levels of 255, hue in full turns; the others are factors.
_RANGES = {'brightness': (-32.0, 32.0), 'saturation': (0.5, 1.5), 'hue': (-0.2, 0.2), 'contrast': (0.5, 1.5)}
_YIQ_RANGES = {**_RANGES, 'hue': (-0.1, 0.1)}
_HSV_ORDERS = (
    ('brightness', 'saturation', 'hue', 'contrast'),
    ('brightness', 'contrast', 'saturation', 'hue'),
)
# The number of random numbers for each image.
NUM_DRAWS = len(_RANGES)
NUM_HSV_ORDERS = len(_HSV_ORDERS)

# Y, I, Q from red, green, blue: FCC 1953 (47 CFR 73.682), with the three digits of the I and Q rows that TensorFlow's
# contrib.image used. I and Q of grey are 0.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
# How many pixels make a row of the matrix product. Rows of 3 numbers would be three times as slow, and the zeros in the
# larger matrix cost little: measured for images of 224 pixels, from 1 to 16.
_PIXELS_IN_ROW = 8


def distort_in_yiq(image: tf.Tensor, draws: Sequence[tf.Tensor]) -> tf.Tensor:
    """[H, W, 3] float32 in [0, 255] -> [H, W, 3] uint8. draws: a scalar in [0, 1) for each change.

    A pixel x becomes c * M x + (1 - c) * M m + b, where m is the mean pixel, c the contrast, b the brightness, and M
    saturates and rotates.
    """
    height, width = image.shape.as_list()[:2]
    num_pixels, pixels = height * width, tf.reshape(image, shared([-1]))
    if missing := -num_pixels % _PIXELS_IN_ROW:
        pixels = tf.pad(pixels, shared([[0, 3 * missing]]))
    num_rows = (num_pixels + missing) // _PIXELS_IN_ROW
    rows = tf.reshape(pixels, shared([num_rows, 3 * _PIXELS_IN_ROW]))
    low, high = np.transpose([*_YIQ_RANGES.values()])
    changes = tf.stack(draws) * shared(high - low, tf.float32) + shared(low, tf.float32)
    brightness, saturation, turn, contrast = tf.unstack(changes)

    # The matrix is linear in these three numbers.
    angle, chroma = turn * shared(2 * np.pi, tf.float32), contrast * saturation
    parts = tf.stack([[contrast, chroma * tf.cos(angle), chroma * tf.sin(angle)]])
    matrix = tf.matmul(parts, shared(_parts_of_matrix().reshape([3, -1]), tf.float32))
    matrix = tf.reshape(matrix, shared([3 * _PIXELS_IN_ROW] * 2))

    # A matrix product sums faster than a reduction does.
    sums = tf.matmul(shared(np.full([1, num_rows], 1 / num_pixels), tf.float32), rows)
    mean = tf.matmul(sums, shared(_repeated(np.eye(3)), tf.float32))
    offset = tf.matmul(mean, matrix) * (tf.math.reciprocal(contrast) - shared(1, tf.float32)) + brightness
    changed = tf.nn.bias_add(tf.matmul(rows, matrix), tf.reshape(offset, shared([-1])))
    levels = tf.reshape(to_levels(changed), shared([-1]))
    if missing:
        levels = tf.slice(levels, shared([0]), shared([3 * num_pixels]))
    return tf.reshape(levels, shared([height, width, 3]))


def _parts_of_matrix() -> np.ndarray:
    """[3, K, K]: the matrices, for rows of pixels, that keep Y only, I and Q only, and rotate I and Q by 90 degrees."""
    inverse = np.linalg.inv(_YIQ)
    kept, turned = np.diag([0, 1, 1]), np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]])
    parts = [inverse @ part @ _YIQ for part in (np.diag([1, 0, 0]), kept, turned)]
    return np.stack([np.kron(np.eye(_PIXELS_IN_ROW), part.T) for part in parts])


def _repeated(matrix: np.ndarray) -> np.ndarray:
    """[3, 3] -> [K, K]: adds what it makes of all pixels of a row, and gives the sum to each of them."""
    return np.kron(np.ones([_PIXELS_IN_ROW, _PIXELS_IN_ROW]), matrix)


def distort_in_hsv(image: tf.Tensor, draws: Sequence[tf.Tensor], position: int) -> tf.Tensor:
    """[H, W, 3] float32 in [0, 255] -> [H, W, 3] uint8.

    Args:
      draws: a scalar in [0, 1) for each change, in their order.
      position: the position in the batch, which determines the order.
    """
    height, width = image.shape.as_list()[:2]
    order = _HSV_ORDERS[position % NUM_HSV_ORDERS]
    change = {}
    for name, draw in zip(order, draws, strict=True):
        low, high = _RANGES[name]
        change[name] = shared(low, tf.float32) + draw * shared(high - low, tf.float32)
    contrast, brightness = change['contrast'], change['brightness']

    # Arithmetic on whole planes is vectorised.
    planes = tf.transpose(tf.reshape(image, shared([height * width, 3])), shared([1, 0]))
    if order[-1] == 'contrast':
        changed = _rotated(planes + brightness, change['saturation'], change['hue'])
        changed = _stretched(changed, contrast, shared(0, tf.float32))
    else:
        changed = _rotated(_stretched(planes, contrast, brightness), change['saturation'], change['hue'])
    return tf.reshape(tf.transpose(to_levels(changed), shared([1, 0])), shared([height, width, 3]))


def _stretched(planes: tf.Tensor, contrast: tf.Tensor, brightness: tf.Tensor) -> tf.Tensor:
    """Stretches each plane of [3, N] about its mean, and adds the brightness."""
    means = tf.reduce_mean(planes, axis=shared([1]), keepdims=True)
    return planes * contrast + (means * (shared(1, tf.float32) - contrast) + brightness)


def _rotated(planes: tf.Tensor, saturation: tf.Tensor, turn: tf.Tensor) -> tf.Tensor:
    """Changes the saturation and the hue of [3, N]: red, green and blue.

    With value v, the largest of the three, and chroma c, the distance from the smallest to it, saturation is c / v, and
    a hue h in turns has a red of v - c * min(max(6 |h| - 1, 0), 1), where |h| is the distance from h to the nearest
    whole number; green is the red of h - 1/3, and blue of h - 2/3 (Smith 1978, Color Gamut Transform Pairs).
    """
    zero, one, six = (shared(number, tf.float32) for number in (0, 1, 6))
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    is_red, is_green = tf.equal(red, value), tf.equal(green, value)
    difference = tf.where_v2(is_red, green - blue, tf.where_v2(is_green, blue - red, red - green))
    begin = tf.where_v2(is_red, zero, tf.where_v2(is_green, shared(1 / 3, tf.float32), shared(2 / 3, tf.float32)))
    # Grey has the hue 0.
    hue = difference / (six * tf.maximum(chroma, shared(1e-20, tf.float32))) + (begin + turn)
    # Saturation is at most 1, and 0 in a pixel that brightness or contrast has made negative.
    chroma = tf.maximum(tf.minimum(chroma * saturation, value), zero)
    hues = hue - shared(np.array([[0], [1 / 3], [2 / 3]]), tf.float32)
    distances = tf.abs(hues - tf.round(hues))
    return value - chroma * tf.raw_ops.ClipByValue(t=six * distances - one, clip_value_min=zero, clip_value_max=one)


def to_levels(pixels: tf.Tensor) -> tf.Tensor:
    """Clips float32 to [0, 255] and rounds it to uint8, in one pass."""
    low, high = shared(0, tf.float32), shared(255, tf.float32)
    return tf.bitcast(tf.raw_ops.QuantizeV2(input=pixels, min_range=low, max_range=high, T=tf.quint8).output, tf.uint8)
