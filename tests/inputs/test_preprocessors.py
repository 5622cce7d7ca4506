"""Each preprocessor makes the numbers that its source describes."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from preprocessing import Scale, normalize
from tests.support.graphs import cpus, evaluate, open_session
from tf_cnn.inputs.preprocessors import ML_PERF, PREPROCESSORS
from tf_cnn.inputs.validation import ValidationInput

pytestmark = pytest.mark.graph

LEVELS = np.arange(256, dtype=np.uint8).repeat(3).reshape(4, 8, 8, 3)
WITHOUT_MEANS = LEVELS - np.array([123.68, 116.78, 103.94])
PLAIN = PREPROCESSORS['official_models_imagenet']


@pytest.mark.parametrize('row', [*PREPROCESSORS.values(), ML_PERF], ids=lambda row: row.name)
def test_pixels_become_the_numbers_of_numpy(row):
    pixels = evaluate(lambda: normalize(tf.constant(LEVELS), Scale(row.factor, row.offsets)))
    expected = LEVELS / 127.5 - 1 if row.name == 'default' else WITHOUT_MEANS
    assert pixels.dtype == np.float32
    np.testing.assert_allclose(pixels, expected, atol=1e-5)


def test_evaluations_normalise_in_the_same_way():
    with tf.Graph().as_default(), open_session() as session:
        examples = tf.data.Dataset.from_tensor_slices((LEVELS, np.arange(4, dtype=np.int32)))
        pipeline = ValidationInput(cpus(1), 4, lambda: examples, Scale(PLAIN.factor, PLAIN.offsets))
        session.run(pipeline.initializers)
        pixels = session.run(pipeline.tower_batch(0).images)
    np.testing.assert_allclose(pixels, WITHOUT_MEANS, atol=1e-5)


def test_the_official_models_cut_the_middle_out_of_256_pixels():
    assert PLAIN.shorter_side == 256
