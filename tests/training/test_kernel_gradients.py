"""Gradients of kernels by products are those of the convolution, and are only computed so where it is faster."""

from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from sessions import open_session

from training.kernel_gradients import have_faster_products, kernel_gradients_by_products

pytestmark = pytest.mark.graph

DTYPES = (tf.float32, tf.bfloat16, tf.float16)

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


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize('name', FASTER)
def test_products_give_the_gradients_of_the_convolution(name: str, dtype: tf.DType) -> None:
    shape, arguments = FASTER[name]
    x, kernel, num_products = gradients_of(shape, arguments, dtype, by_products=True)
    exact_x, exact_kernel, none = gradients_of(shape, arguments, tf.float32, by_products=False)
    assert (num_products, none) == (1, 0)
    # bfloat16 keeps 8 bits of each factor and of the result, float32 24.
    most = 0.02 if dtype == tf.bfloat16 else 1e-6
    for found, exact in ((x, exact_x), (kernel, exact_kernel)):
        assert np.abs(found - exact).max() < most * np.abs(exact).max()


@pytest.mark.parametrize('dtype', [tf.bfloat16, tf.float32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize('name', SLOWER)
def test_other_convolutions_keep_their_gradients(name: str, dtype: tf.DType) -> None:
    x, kernel, num_products = gradients_of(*SLOWER[name], dtype, by_products=True)
    assert num_products == 0
    same_x, same_kernel, _ = gradients_of(*SLOWER[name], dtype, by_products=False)
    np.testing.assert_array_equal(x, same_x)
    np.testing.assert_array_equal(kernel, same_kernel)


@pytest.mark.parametrize(
    ('dtype', 'size', 'filters', 'batch_sizes'),
    [
        # The side of the kernel and of the image; and by the batch size how many products there are.
        (tf.bfloat16, (1, 17), 4, {1: 1, 100: 1, None: 1}),
        (tf.bfloat16, (1, 18), 4, {1: 0, 100: 0, None: 0}),
        (tf.bfloat16, (3, 17), 384, {1: 1, 100: 1, None: 1}),
        (tf.float32, (1, 112), 4, {1: 1, 100: 1, None: 1}),
        (tf.float32, (3, 7), 384, {8: 1, 9: 0, None: 0}),
        (tf.float16, (1, 7), 4, {1: 0}),
    ],
)
def test_sizes_without_a_gain_keep_the_gradient_of_the_convolution(
    dtype: tf.DType, size: tuple[int, int], filters: int, batch_sizes: dict[int | None, int]
) -> None:
    of_kernel, of_image = size
    for batch_size, expected in batch_sizes.items():
        for wanted in (True, False):
            with tf.Graph().as_default() as graph:
                x = tf.placeholder(dtype, [batch_size, of_image, of_image, 4])
                kernel = tf.zeros([of_kernel, of_kernel, 4, filters], dtype)
                with kernel_gradients_by_products(wanted):
                    y = tf.nn.conv2d(x, kernel, 1, 'SAME')
                tf.gradients(y, [kernel])
                num_products = sum(op.type == 'MatMul' for op in graph.get_operations())
            assert num_products == (expected if wanted else 0), batch_size


def test_processors_with_tiles_or_without_long_vectors_keep_the_gradients_of_convolutions() -> None:
    kinds = {
        'AVX2': ['avx', 'avx2', 'fma'],
        'AVX-512': ['avx2', 'avx512f'],
        'AVX-512 with bfloat16': ['avx2', 'avx512f', 'avx512_bf16'],
        'AMX': ['avx512f', 'avx512_bf16', 'amx_bf16'],
        'ARM': ['asimd', 'bf16'],
    }
    faster = {name: tuple(have_faster_products(kind, dtype) for dtype in DTYPES) for name, kind in kinds.items()}
    assert faster == {
        'AVX2': (False, False, False),
        'AVX-512': (True, False, False),
        'AVX-512 with bfloat16': (True, True, False),
        'AMX': (True, False, False),
        'ARM': (False, False, False),
    }
