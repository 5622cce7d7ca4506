"""Each preprocessor makes the numbers that its source describes, of the part of the image that it
describes.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from preprocessing import ImageOptions, Scale, normalize, preprocess
from tests.support.graphs import cpus, open_session
from tests.support.images import encoded
from tf_cnn.inputs.preprocessors import ML_PERF, PREPROCESSORS, Preprocessor
from tf_cnn.inputs.validation import ValidationInput

pytestmark = pytest.mark.graph

LEVELS = np.arange(256, dtype=np.uint8).repeat(3).reshape(256, 3)
PLAIN = PREPROCESSORS['official_models_imagenet']


@pytest.mark.parametrize('row', [*PREPROCESSORS.values(), ML_PERF], ids=lambda row: row.name)
def test_pixels_become_the_numbers_of_numpy(row: Preprocessor) -> None:
    with tf.Graph().as_default(), open_session() as session:
        found = session.run(normalize(tf.constant(LEVELS), Scale(row.factor, row.offsets)))
    expected = (
        LEVELS / 127.5 - 1 if row.name == 'default' else LEVELS - np.array([123.68, 116.78, 103.94])
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_evaluations_normalise_in_the_same_way() -> None:
    images = LEVELS.reshape(4, 8, 8, 3)
    with tf.Graph().as_default(), open_session() as session:
        examples = tf.data.Dataset.from_tensor_slices((images, np.arange(4, dtype=np.int32)))
        pipeline = ValidationInput(cpus(1), 4, lambda: examples, Scale(PLAIN.factor, PLAIN.offsets))
        session.run(pipeline.initializers)
        found = session.run(pipeline.tower_batch(0).images)
    np.testing.assert_allclose(found, images - np.array([123.68, 116.78, 103.94]), atol=1e-5)


@pytest.mark.parametrize(('width', 'height'), [(400, 300), (270, 512)])
@pytest.mark.parametrize('size', [224, 128, 299])
def test_the_centre_of_an_image_is_that_of_an_image_of_256_pixels(
    width: int, height: int, size: int
) -> None:
    """PIL resizes the shorter side and cuts the middle out; a size above 256 takes all of the
    shorter side.
    """
    ramps = np.linspace(0, 255, width)[np.newaxis, :] * np.ones([height, 1])
    levels = np.linspace(0, 255, height)[:, np.newaxis] * np.ones([1, width])
    picture = Image.fromarray(
        np.stack([ramps, levels, (ramps + levels) / 2], axis=2).astype(np.uint8)
    )
    scale = max(256, size) / min(width, height)
    resized = picture.resize(
        (round(width * scale), round(height * scale)), Image.Resampling.BILINEAR
    )
    left, top = (resized.width - size) // 2, (resized.height - size) // 2
    expected = np.asarray(resized.crop((left, top, left + size, top + size)), np.float32)
    options = ImageOptions(size, size, 3, training=False, shorter_side=PLAIN.shorter_side)
    with tf.Graph().as_default(), open_session() as session:
        image = preprocess(
            tf.constant(encoded(picture, quality=95)), tf.zeros([1, 0, 4]), options, 0
        )
        found = session.run(image).astype(np.float32)
    assert np.abs(found - expected).mean() < 1.0
    if size == 224:
        # The default takes 87.5 % of the sides, which is the same for this size.
        default = ImageOptions(size, size, 3, training=False)
        assert default.central_fraction == options.central_fraction
