"""Gradients of convolution kernels as products of matrices, where these are faster than oneDNN's own.

The gradient of a kernel [H, W, in, out] is the transposed patches of the input, [N*rows*columns, H*W*in], times the
gradient of the result, [N*rows*columns, out]. On CPUs with AVX-512, oneDNN computes it with an older kind of code
(jit) than its products (brg_matmul); in bfloat16 only if there are no tiles (AMX). Measured alternately on 2 cores with
AVX512_BF16 (TensorFlow 2.21), as processor time of oneDNN's gradient / of patches and product:

    bfloat16: kernel and size of the result ratio
    3x3, 512 filters, 7x7 / 14x14 / 28x28   2.0 / 1.3 / 1.1
    3x3, 256 filters, 13x13 / 14x14         1.0 / 0.9
    1x3 and 3x1, 384 filters, 8x8           2.2, 2.0
    1x7, 192 and 160 filters, 17x17         1.0, 0.9
    1x1, 7x7 / 14x14 / 17x17 / 28x28        1.3 / 1.1 / 1.05 / 1.0
    1x1 with strides 2                      0.8 or less: slicing costs more than it gains

    float32, 4 / 32 images                                       ratio
    1x1, 512 -> 2048 and 2048 -> 512, 7x7                        1.3 to 1.6 / 1.0 to 1.2
    1x1, 256 -> 1024 and 1024 -> 256, 14x14; 768 -> 192, 17x17   1.2 to 1.4 / 1.1 to 1.3
    1x1, 128 -> 512 and 512 -> 128, 28x28                        1.3 to 1.6 / 1.2 to 1.5
    1x1, 64 -> 256 and 256 -> 64, 56x56                          1.9 and 1.2 / 2.0 and 1.1
    1x1, 288 -> 64, 35x35; 32 -> 64, 112x112                     1.1, 1.5 / 0.9, 1.2
    1x1, 64 -> 80, 73x73; 256 -> 48, 35x35; 96 -> 128, 56x56     3.2, 1.9, 2.4 / 3.2, 1.9, 2.4
    3x3, 512 filters, 7x7: 2, 4, 8, 16 images                    1.7, 1.5, 1.3, 1.1 (2 threads: 1.4, 1.3, 1.0)
    3x3, 256 filters, 14x14                                      0.9 / 0.8

With AVX2 only (ONEDNN_MAX_CPU_ISA=AVX2), float32 has 0.8 to 1.4, so there it is left to oneDNN.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import tensorflow.compat.v1 as tf

Tensor = Any

_GRADIENT = 'Conv2DWithKernelGradientByProducts'
# The limits of products, see the tables. In bfloat16 a result has at most so many pixels; in float32 the results of a
# whole batch, unless the kernel is 1x1. Kernels other than 1x1 have at least so many filters.
_MOST_PIXELS = 17 * 17
_MOST_PIXELS_OF_BATCH = 8 * 7 * 7
_FEWEST_FILTERS = 384


def have_faster_products(cpu_features: Collection[str], dtype: tf.DType) -> bool:
    """Whether processors with these features (hardware/processors.py) compute some gradients faster as products."""
    if dtype == tf.bfloat16:
        return 'avx512_bf16' in cpu_features and 'amx_bf16' not in cpu_features
    return dtype == tf.float32 and 'avx512f' in cpu_features


@contextlib.contextmanager
def kernel_gradients_by_products(wanted: bool) -> Iterator[None]:
    """The convolutions that the block adds to the current graph get gradients by products where that is faster."""
    with tf.get_default_graph().gradient_override_map({'Conv2D': _GRADIENT} if wanted else {}):
        yield


@tf.RegisterGradient(_GRADIENT)
def _gradients(op: tf.Operation, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the input and the kernel of a convolution."""
    x, kernel = op.inputs
    x_shape, kernel_shape = tf.raw_ops.ShapeN(input=[x, kernel])
    names = ('strides', 'padding', 'explicit_paddings', 'data_format', 'dilations', 'use_cudnn_on_gpu')
    settings = {name: op.get_attr(name) for name in names}
    of_x = tf.raw_ops.Conv2DBackpropInput(input_sizes=x_shape, filter=kernel, out_backprop=gradient, **settings)
    if _is_faster(op):
        return of_x, _by_product(op, gradient)
    return of_x, tf.raw_ops.Conv2DBackpropFilter(input=x, filter_sizes=kernel_shape, out_backprop=gradient, **settings)


def _is_faster(op: tf.Operation) -> bool:
    x, kernel = op.inputs
    shapes = x.shape, kernel.shape, op.outputs[0].shape
    if op.get_attr('data_format') != b'NHWC' or op.get_attr('padding') == b'EXPLICIT':
        return False
    if {*op.get_attr('strides'), *op.get_attr('dilations')} != {1} or not all(s[1:].is_fully_defined() for s in shapes):
        return False
    height, width, channels, filters = kernel.shape.as_list()
    batch_size, rows, columns, _ = op.outputs[0].shape.as_list()
    has_groups = channels != x.shape.as_list()[3]
    if has_groups:
        return False
    is_pointwise, has_many_filters = height * width == 1, filters >= _FEWEST_FILTERS
    if x.dtype == tf.bfloat16:
        return rows * columns <= _MOST_PIXELS and (is_pointwise or has_many_filters)
    is_small = batch_size is not None and batch_size * rows * columns <= _MOST_PIXELS_OF_BATCH
    return x.dtype == tf.float32 and (is_pointwise or (has_many_filters and is_small))


def _by_product(op: tf.Operation, gradient: Tensor) -> Tensor:
    """The gradient of the kernel of a convolution without strides, [H, W, in, out]."""
    x, kernel = op.inputs
    height, width, channels, filters = kernel.shape.as_list()
    _, rows, columns, _ = op.outputs[0].shape.as_list()
    if op.get_attr('padding') == b'SAME':
        missing = ([(size - 1) // 2, size // 2] for size in (height, width))
        x = tf.pad(x, [[0, 0], *missing, [0, 0]]) if height * width > 1 else x
    patches = [x[:, row : row + rows, column : column + columns] for row in range(height) for column in range(width)]
    patches = tf.concat(patches, 3) if len(patches) > 1 else x
    product = tf.matmul(
        tf.reshape(patches, [-1, height * width * channels]), tf.reshape(gradient, [-1, filters]), transpose_a=True
    )
    return tf.reshape(product, [height, width, channels, filters])
