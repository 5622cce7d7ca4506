"""Windows of JPEG files equal PIL's, at full size and scaled down; colours change as NumPy and
tf.image change them one after the other, for images of any size.
"""

import functools
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from preprocessing import decode_window, distort_in_hsv, distort_in_yiq, to_uint8
from tests.support.graphs import evaluate, open_session
from tests.support.images import encoded

pytestmark = pytest.mark.graph


# 427 x 640 pixels; neither is a multiple of 16.
PHOTOGRAPH = load_sample_image('china.jpg')


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('progressive', [False, True])
def test_the_decoder_scales_down_as_far_as_enough_pixels_remain(channels, progressive):
    def pil_window(box, ratio):
        """Returns the window (y, x, height, width) of the picture as PIL scales it; the edges are
        rounded to whole pixels.
        """
        with Image.open(io.BytesIO(file)) as image:
            mode, size = 'RGB' if channels == 3 else 'L', image.size
            image.draft(mode, (size[0] // ratio, size[1] // ratio))
            assert image.size == tuple(math.ceil(side / ratio) for side in size)
            y, x, height, width = box
            edges = np.floor(np.array([x, y, x + width, y + height]) / ratio + 0.5)
            return np.atleast_3d(
                np.asarray(image.convert(mode).crop(edges.astype(int).tolist()), int)
            )

    # Without subsampling of colours: decoders differ in how they smooth these.
    file = encoded(PHOTOGRAPH, quality=90, subsampling=0, progressive=progressive)
    boxes = [[0, 0, 427, 640], [0, 0, 52, 100], [375, 540, 52, 100], [426, 639, 1, 1]]
    for size in ((103, 399), (104, 80), (207, 160), (208, 160), (208, 159)):
        boxes.append([24, 40, *size])
    random = np.random.default_rng(1)
    for height, width in random.integers(1, [428, 641], [30, 2]).tolist():
        boxes.append([*random.integers([428 - height, 641 - width]).tolist(), height, width])
    ratios = set()
    with tf.Graph().as_default(), open_session() as session:
        window = tf.placeholder(tf.int32, [4])
        decoded = decode_window(tf.constant(file), window, channels, (26, 20))
        assert decoded.shape.as_list() == [None, None, channels]
        for box in boxes:
            fitting = [n for n in (2, 4, 8) if box[2] >= 26 * n and box[3] >= 20 * n]
            ratio = max([1, *fitting])
            expected = pil_window(box, ratio)
            image = session.run(decoded, {window: box}).astype(int)
            np.testing.assert_allclose(image, expected, atol=3, err_msg=str(box))
            assert ratio == 1 or (image.shape[0] >= 26 and image.shape[1] >= 20)
            ratios.add(ratio)
    assert ratios == {1, 2, 4, 8}


# ---- colours -------------------------------------------------------------------------------------


# Brightness, saturation, hue and contrast, from one end of their ranges to the other.
DRAWS = [(0.3, 0.9, 0.1, 0.8), (0.9, 0.1, 0.7, 0.2), (0.0, 0.99, 0.99, 0.99), (0.5, 0.0, 0.5, 0.0)]
ORDERS = [
    ('brightness', 'saturation', 'hue', 'contrast'),
    ('brightness', 'contrast', 'saturation', 'hue'),
]
# Even and odd sides.
SIZES = pytest.mark.parametrize(('height', 'width'), [(104, 160), (33, 47)])


def photograph(height: int, width: int) -> np.ndarray:
    """Returns [H, W, 3] float32 with black, white and pure colours among its pixels."""
    image = load_sample_image('china.jpg')[: 2 * height : 2, : 2 * width : 2].astype(np.float32)
    image[0, :8] = [[255 * (number >> bit & 1) for bit in range(3)] for number in range(8)]
    return image


def distorted(
    change: Callable[..., Any], image: np.ndarray, draws: Sequence[float], *more: int
) -> np.ndarray:
    levels = evaluate(lambda: change(tf.constant(image), [*map(tf.constant, draws)], *more))
    assert (levels.dtype, levels.shape) == (np.uint8, image.shape)
    return levels


@SIZES
@pytest.mark.parametrize('order', ORDERS)
@pytest.mark.parametrize('draws', DRAWS)
def test_one_matrix_changes_colors_as_steps_in_either_order_do(height, width, order, draws):
    image = photograph(height, width)
    brightness, saturation, hue, contrast = draws
    pixels = image.reshape(-1, 3).astype(np.float64) / 255
    for name in order:
        if name == 'brightness':
            pixels = pixels + (64 * brightness - 32) / 255
        elif name == 'saturation':
            # With the matrices of tf.image.
            luma, *chromaticity = evaluate(functools.partial(tf.image.rgb_to_yiq, pixels)).T
            turned = (chromaticity[0] + 1j * chromaticity[1]) * (0.5 + saturation)
            turned *= np.exp(1j * (0.4 * hue - 0.2) * np.pi)
            yiq = np.stack([luma, turned.real, turned.imag], -1)
            pixels = evaluate(functools.partial(tf.image.yiq_to_rgb, yiq))
        elif name == 'contrast':
            pixels = pixels.mean(0) + (0.5 + contrast) * (pixels - pixels.mean(0))
    expected = 255 * np.clip(pixels, 0, 1).reshape(image.shape)
    ours = distorted(distort_in_yiq, image, draws)
    # The matrices of tf.image have more digits: 0.59590059 for 0.596.
    np.testing.assert_allclose(ours, expected, atol=2)
    assert np.abs(ours - expected).mean() < 0.4


@SIZES
@pytest.mark.parametrize('position', [0, 1, 2, 3])
@pytest.mark.parametrize('draws', DRAWS)
def test_colors_change_in_hsv_as_tf_image_changes_them_in_the_order_of_the_position(
    height, width, position, draws
):
    oracles: dict[str, Callable[[Any, float], Any]] = {
        'brightness': lambda image, draw: tf.image.adjust_brightness(image, (64 * draw - 32) / 255),
        'saturation': lambda image, draw: tf.image.adjust_saturation(image, 0.5 + draw),
        'hue': lambda image, draw: tf.image.adjust_hue(image, 0.4 * draw - 0.2),
        'contrast': lambda image, draw: tf.image.adjust_contrast(image, 0.5 + draw),
    }

    def changed() -> Any:
        theirs = tf.constant(image / 255)
        for name, draw in zip(ORDERS[position % 2], draws, strict=True):
            theirs = oracles[name](theirs, draw)
        return tf.clip_by_value(theirs, 0, 1) * 255

    image = photograph(height, width)
    ours = distorted(distort_in_hsv, image, draws, position)
    np.testing.assert_allclose(ours, evaluate(changed), atol=0.55)


def test_levels_are_rounded_and_clipped():
    pixels = [-1e6, -0.6, 0.4, 0.6, 99.49, 99.51, 254.6, 255.4, 300, 1e6]
    levels = evaluate(lambda: to_uint8(tf.constant(pixels)))
    assert levels.tolist() == [0, 0, 0, 1, 99, 100, 255, 255, 255, 255]
