"""Windows of JPEG files equal PIL's, at full size and scaled down."""

import io
import math

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from preprocessing import decode_window
from tests.support.graphs import open_session
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
