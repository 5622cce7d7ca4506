"""Gradients of kernels by products are those of the convolution, and are only computed so where it is faster."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sessions import open_session

from training.kernel_gradients import kernel_gradients_by_products

pytestmark = pytest.mark.graph

IMAGES = (2, 6, 7, 8)  # [N, H, W, C]

# Kernel [H, W, in, out] and the arguments of the convolution, by what is special; first those that use products.
FASTER: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    'pixels': ((1, 1, 8, 3), {}),
    'patches': ((3, 3, 8, 384), {}),
    'a row': ((1, 3, 8, 400), {}),
    'a column': ((7, 1, 8, 384), {}),
    'an even size': ((2, 4, 8, 384), {}),
    'no padding': ((2, 3, 8, 384), {'padding': 'VALID'}),
}
SLOWER: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    'few filters': ((3, 3, 8, 32), {}),
    'strides': ((1, 1, 8, 3), {'strides': 2}),
    'dilations': ((3, 3, 8, 384), {'dilations': 2}),
    'explicit padding': ((3, 3, 8, 384), {'padding': [[0, 0], [1, 0], [1, 1], [0, 0]]}),
}


def gradients_of(shape: tuple[int, ...], arguments: dict[str, Any], dtype: tf.DType, *, by_products: bool) -> Any:
    """The gradients of an image batch and a kernel as float32, and the number of products in the graph."""
    random = np.random.default_rng(1)
    with tf.Graph().as_default() as graph, open_session() as session:
        x, kernel = (tf.constant(random.normal(size=size), dtype) for size in (IMAGES, shape))
        with kernel_gradients_by_products(by_products):
            y = tf.nn.conv2d(x, kernel, **{'strides': 1, 'padding': 'SAME', **arguments})
        # Not the same for every result.
        gradients = tf.gradients(y, [x, kernel], [tf.cast(tf.constant(random.normal(size=y.shape)), dtype)])
        num_products = sum(op.type == 'MatMul' for op in graph.get_operations())
        return *session.run([tf.cast(gradient, tf.float32) for gradient in gradients]), num_products


@pytest.mark.parametrize('name', FASTER)
def test_products_give_the_gradients_of_the_convolution(name: str) -> None:
    shape, arguments = FASTER[name]
    x, kernel, num_products = gradients_of(shape, arguments, tf.bfloat16, by_products=True)
    exact_x, exact_kernel, none = gradients_of(shape, arguments, tf.float32, by_products=True)
    assert (num_products, none) == (1, 0)
    for found, exact in ((x, exact_x), (kernel, exact_kernel)):
        # bfloat16 keeps 8 bits of each factor and of the result.
        assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize('name', SLOWER)
def test_other_convolutions_keep_their_gradients(name: str) -> None:
    x, kernel, num_products = gradients_of(*SLOWER[name], tf.bfloat16, by_products=True)
    assert num_products == 0
    same_x, same_kernel, _ = gradients_of(*SLOWER[name], tf.bfloat16, by_products=False)
    np.testing.assert_array_equal(x, same_x)
    np.testing.assert_array_equal(kernel, same_kernel)


def test_images_too_large_for_a_gain_and_other_graphs_keep_the_gradient_of_the_convolution() -> None:
    def num_products(size: int, *, wanted: bool) -> int:
        with tf.Graph().as_default() as graph:
            x, kernel = tf.zeros([1, size, size, 4], tf.bfloat16), tf.zeros([1, 1, 4, 4], tf.bfloat16)
            with kernel_gradients_by_products(wanted):
                y = tf.nn.conv2d(x, kernel, 1, 'SAME')
            tf.gradients(y, [kernel])
            return sum(op.type == 'MatMul' for op in graph.get_operations())

    assert [num_products(17, wanted=True), num_products(18, wanted=True), num_products(17, wanted=False)] == [1, 0, 0]
