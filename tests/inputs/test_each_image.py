"""A function over the images of a batch gives what the function gives for each image."""

import gc
import weakref

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.each_image import for_each_image
from preprocessing import shared
from tests.support.graphs import open_session

pytestmark = pytest.mark.graph


def test_the_results_are_those_of_each_image_in_order() -> None:
    images, factors = np.random.default_rng(1).random([64, 5, 4], np.float32), np.arange(64, dtype=np.float32)
    with tf.Graph().as_default() as graph, open_session() as session:
        arguments = [tf.constant(images), tf.constant(factors)]
        products, totals = for_each_image(lambda image, factor: (image * factor, tf.reduce_sum(image)), arguments)
        assert (products.shape.as_list(), totals.shape.as_list()) == ([64, 5, 4], [64])
        found = session.run([products, totals])
    np.testing.assert_array_equal(found[0], images * factors[:, None, None])
    np.testing.assert_allclose(found[1], images.sum((1, 2)), rtol=1e-5)
    assert len(graph.get_operations()) == 3


def test_a_fault_in_one_image_fails_the_step() -> None:
    with tf.Graph().as_default(), open_session() as session:
        texts = tf.constant(['1', 'x', '3'])
        numbers = for_each_image(lambda text: [tf.strings.to_number(text)], [texts])
        with pytest.raises(tf.errors.InvalidArgumentError, match='x'):
            session.run(numbers)


def test_a_graph_is_forgotten_with_its_constants() -> None:
    with tf.Graph().as_default() as graph:
        shared([1, 2])
    seen = weakref.ref(graph)
    del graph
    gc.collect()
    assert seen() is None
