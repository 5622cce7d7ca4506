"""Measures how fast devices multiply matrices, as the peak that a model is compared with."""

import time
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

# Rows and columns, from small to large. Larger sizes are tried as long as a run stays short; in
# float32 the largest one needs 150 MB on a CPU and 1 GB on a GPU.
_SIZES = {'cpu': (512, 1024, 2048, 3072), 'gpu': (1024, 4096, 8192)}
# The number of products in a row: enough to make the start of a run a small part of it.
_NUM_PRODUCTS = {'cpu': 2, 'gpu': 16}
# No larger size is tried after a run that took more than this share of the whole time.
_LONG_RUN = 1 / 8


def measure_peak(
    config: tf.ConfigProto,
    devices: Sequence[str],
    dtype: str,
    secs: float = 2.0,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Measures the FLOP/s of products of large matrices on all devices at once, in a separate graph
    and session.

    The result is the best of all runs, after one warm-up for each size. Call it after the peak
    memory was read. dtype is float32, bfloat16 or float16. It takes about secs, but runs each size
    that it tries at least once.
    """
    kind = 'gpu' if 'gpu' in devices[0].lower() else 'cpu'
    best = 0.0
    deadline = clock() + secs
    for size in _SIZES[kind]:
        is_last_size = size == _SIZES[kind][-1]
        with tf.Graph().as_default():
            step, initializer = build_products(devices, dtype, size, _NUM_PRODUCTS[kind])
            # A multiply-add counts as two operations.
            flops = len(devices) * _NUM_PRODUCTS[kind] * 2 * size**3
            with tf.Session(config=config) as session:
                session.run(initializer)
                session.run(step)
                while True:
                    start = clock()
                    session.run(step)
                    seconds = clock() - start
                    best = max(best, flops / seconds)
                    is_last_size = is_last_size or seconds > secs * _LONG_RUN
                    if not is_last_size or clock() + seconds > deadline:
                        break
        if is_last_size or clock() > deadline:
            break
    return best


def build_products(
    devices: Sequence[str], dtype: str, size: int, num_products: int
) -> tuple[list[tf.Tensor], tf.Operation]:
    """Adds products of [size, size] matrices to the default graph, num_products in a row on each
    device.

    Returns a finite number for each device, which depends on all of its products; and the op that
    initializes the matrices. The matrices are variables, and each product needs the previous one,
    so TensorFlow cannot skip any.
    """
    results: list[tf.Tensor] = []
    initializers: list[tf.Operation] = []
    for device in devices:
        with tf.device(device):
            # Elements of variance 1/size keep the variance of the matrix that they multiply.
            limit = (3 / size) ** 0.5
            factor, product = (
                tf.get_variable(
                    f'{name}_{len(results)}',
                    initializer=tf.cast(
                        tf.random.uniform([size, size], -bound, bound, seed=seed), dtype
                    ),
                    use_resource=True,
                    collections=[],
                )
                for name, bound, seed in (
                    ('factor', limit, 2 * len(results)),
                    ('first', 1.0, 2 * len(results) + 1),
                )
            )
            initializers += [factor.initializer, product.initializer]
            right = factor.read_value()
            product = product.read_value()
            for _ in range(num_products):
                product = tf.matmul(product, right)
            results.append(tf.reduce_max(tf.abs(tf.cast(product, tf.float32))))
    return results, tf.group(*initializers)
