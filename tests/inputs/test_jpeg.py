"""Windows of JPEG files are what PIL decodes, at full size and scaled down."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image
from sklearn.datasets import load_sample_image

from preprocessing import ImageOptions, decode_window, preprocess
from tests.support.graphs import open_session
from tests.support.images import encoded, example, write_shard
from tests.support.runs import losses
from tf_cnn.inputs.layout import shard_name

pytestmark = pytest.mark.graph

# 427 x 640 pixels, none of which is a multiple of 16.
PHOTOGRAPH = load_sample_image('china.jpg')
LARGE = encoded(Image.fromarray(PHOTOGRAPH).resize((720, 480)))
OPTIONS = ImageOptions(height=64, width=48, channels=3, training=False, scaled_decode=True)
NO_BOXES = np.zeros([1, 0, 4], np.float32)


def windows(
    file: bytes, boxes: Sequence[Sequence[int]], channels: int, enough: tuple[int, int]
) -> list[np.ndarray]:
    """What is decoded of each window y, x, height, width."""
    with tf.Graph().as_default(), open_session() as session:
        window = tf.placeholder(tf.int32, [4])
        image = decode_window(tf.constant(file), window, channels, enough)
        assert image.shape.as_list() == [None, None, channels]
        return [session.run(image, {window: box}) for box in boxes]


def pil_window(file: bytes, box: Sequence[int], channels: int, ratio: int) -> np.ndarray:
    """The window as PIL decodes the scaled picture; its edges are rounded to whole pixels."""
    with Image.open(io.BytesIO(file)) as image:
        mode, size = 'RGB' if channels == 3 else 'L', image.size
        image.draft(mode, (size[0] // ratio, size[1] // ratio))
        assert image.size == tuple(math.ceil(side / ratio) for side in size)
        y, x, height, width = box
        left, top, right, bottom = (
            math.floor(edge / ratio + 0.5) for edge in (x, y, x + width, y + height)
        )
        crop = np.asarray(image.convert(mode).crop((left, top, right, bottom)))
        return crop.reshape(bottom - top, right - left, channels)


@pytest.mark.parametrize('channels', [1, 3])
@pytest.mark.parametrize('progressive', [False, True])
def test_the_decoder_scales_as_much_as_leaves_enough_pixels(
    channels: int, progressive: bool
) -> None:
    # Without subsampling of colours: decoders differ in how they smooth these.
    file = encoded(PHOTOGRAPH, quality=90, subsampling=0, progressive=progressive)
    random = np.random.default_rng(1)
    boxes: list[Sequence[int]] = [
        [0, 0, 427, 640],
        [0, 0, 52, 100],
        [375, 540, 52, 100],
        [426, 639, 1, 1],
    ]
    boxes += [
        [24, 40, height, width]
        for height, width in ((103, 399), (104, 80), (207, 160), (208, 160), (208, 159))
    ]
    for _ in range(30):
        height, width = int(random.integers(1, 428)), int(random.integers(1, 641))
        boxes.append(
            [int(random.integers(428 - height)), int(random.integers(641 - width)), height, width]
        )
    enough, ratios = (26, 20), set()
    for box, image in zip(boxes, windows(file, boxes, channels, enough), strict=True):
        ratio = max(
            ratio
            for ratio in (1, 2, 4, 8)
            if ratio == 1 or (box[2] >= 26 * ratio and box[3] >= 20 * ratio)
        )
        assert ratio == 1 or (image.shape[0] >= 26 and image.shape[1] >= 20)
        np.testing.assert_allclose(
            image.astype(int), pil_window(file, box, channels, ratio), atol=3
        )
        ratios.add(ratio)
    assert ratios == {1, 2, 4, 8}


def test_scaled_images_are_those_that_pil_shrinks_by_means() -> None:
    file = encoded(PHOTOGRAPH, quality=95)
    size = 427 * 7 // 8
    with Image.open(io.BytesIO(file)) as image:
        top, left = (427 - round(0.875 * 427)) // 2, (640 - round(0.875 * 427)) // 2
        theirs = np.asarray(
            image.resize((80, 80), Image.Resampling.BOX, (left, top, left + size, top + size)), int
        )
    with tf.Graph().as_default(), open_session() as session:
        options = replace(OPTIONS, height=80, width=80)
        scaled, sampled = (
            preprocess(
                tf.constant(file), tf.constant(NO_BOXES), replace(options, scaled_decode=scales), 0
            )
            for scales in (True, False)
        )
        ours, jagged = session.run([scaled, sampled])
    # Bilinear sampling alone reads four pixels of twenty.
    assert np.abs(ours - theirs).mean() < min(8, 0.7 * np.abs(jagged - theirs).mean())


def test_scaling_changes_pixels_slightly_in_a_run(tmp_path: Path) -> None:
    # One photograph, 16 times: no order of records changes a step.
    write_shard(tmp_path / shard_name('train', 0, 1), [example(LARGE, 1)] * 16)
    settings: dict[str, Any] = {
        'data_dir': str(tmp_path),
        'data_name': 'imagenet',
        'augmentation': 'none',
    }
    settings |= {'model': 'trivial', 'batch_size': 2, 'init_learning_rate': 1e-6}
    scaled, sampled = (losses(scaled_decode=scales, **settings) for scales in (True, False))
    assert scaled != pytest.approx(sampled, rel=1e-6)
    assert scaled == pytest.approx(sampled, rel=0.05)
