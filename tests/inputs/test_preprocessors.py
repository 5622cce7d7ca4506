"""Each preprocessor makes the numbers that its source describes, of the part of the image that it
describes.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from preprocessing import ImageOptions, Scale, normalize, preprocess
from tests.support.graphs import cpus, open_session
from tests.support.images import NO_BOXES, encoded, picture
from tests.support.networks import evaluate
from tf_cnn.inputs.preprocessors import ML_PERF, PREPROCESSORS, Preprocessor
from tf_cnn.inputs.validation import ValidationInput

pytestmark = pytest.mark.graph

LEVELS = np.arange(256, dtype=np.uint8).repeat(3).reshape(4, 8, 8, 3)
WITHOUT_MEANS = LEVELS - np.array([123.68, 116.78, 103.94])
PLAIN = PREPROCESSORS['official_models_imagenet']


@pytest.mark.parametrize('row', [*PREPROCESSORS.values(), ML_PERF], ids=lambda row: row.name)
def test_pixels_become_the_numbers_of_numpy(row: Preprocessor) -> None:
    found = evaluate(lambda: normalize(tf.constant(LEVELS), Scale(row.factor, row.offsets)))
    expected = LEVELS / 127.5 - 1 if row.name == 'default' else WITHOUT_MEANS
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_evaluations_normalise_in_the_same_way() -> None:
    with tf.Graph().as_default(), open_session() as session:
        examples = tf.data.Dataset.from_tensor_slices((LEVELS, np.arange(4, dtype=np.int32)))
        pipeline = ValidationInput(cpus(1), 4, lambda: examples, Scale(PLAIN.factor, PLAIN.offsets))
        session.run(pipeline.initializers)
        found = session.run(pipeline.tower_batch(0).images)
    np.testing.assert_allclose(found, WITHOUT_MEANS, atol=1e-5)


@pytest.mark.parametrize(('width', 'height'), [(400, 300), (270, 512)])
@pytest.mark.parametrize('size', [224, 128, 299])
def test_the_centre_of_an_image_is_that_of_an_image_of_256_pixels(
    width: int, height: int, size: int
) -> None:
    """PIL resizes the shorter side and cuts the middle out; a size above 256 takes all of the
    shorter side.
    """
    image = picture(width, height)
    scale = max(256, size) / min(width, height)
    sides = (round(width * scale), round(height * scale))
    left, top = (sides[0] - size) // 2, (sides[1] - size) // 2
    resized = image.resize(sides, Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + size, top + size)), np.float32)
    options = ImageOptions(size, size, 3, training=False, shorter_side=PLAIN.shorter_side)
    file = encoded(image, quality=95)
    found = evaluate(lambda: preprocess(tf.constant(file), NO_BOXES, options, 0))
    assert np.abs(found - expected).mean() < 1.0


def test_an_output_of_224_pixels_is_the_default_part_of_the_image() -> None:
    default = ImageOptions(224, 224, 3, training=False)
    options = ImageOptions(224, 224, 3, training=False, shorter_side=PLAIN.shorter_side)
    assert default.central_fraction == options.central_fraction
