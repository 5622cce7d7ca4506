"""How fast the CPU computes and moves data. Imports TensorFlow only for products of matrices."""

import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from doctor.verdicts import Context, Verdict, ok
from machine.peak import measure_peak

# The size of each of three arrays: several times the last-level cache of all processors except those of large servers.
_ARRAY_BYTES = 2**28
_NUM_ROUNDS = 8
_GIGA = 1e9
_PRECISIONS = {'fp32': 'float32', 'bf16': 'bfloat16', 'fp16': 'float16'}
_PEAK_SECS = 1.5


def memory_bandwidth(context: Context) -> Verdict:
    """Measures how fast all cores read and write memory, by two kernels of STREAM (McCalpin 1995).

    Copy is c = a, and Add is c = a + b; NumPy computes these in one loop over the arrays, but not Scale and Triad. As
    in STREAM, only the bytes that the program reads and writes count, not those that caches fetch before a write, and
    the best of several rounds is the result. One thread for each usable core works on its own part of the arrays.
    """
    del context
    num_threads = len(os.sched_getaffinity(0))
    a, b, c = (np.full(_ARRAY_BYTES // 8, value) for value in (1.0, 2.0, 0.0))
    ends = [len(a) * part // num_threads for part in range(num_threads + 1)]
    parts = list(itertools.starmap(slice, itertools.pairwise(ends)))

    def copy(part: slice) -> None:
        np.copyto(c[part], a[part])

    def add(part: slice) -> None:
        np.add(a[part], b[part], out=c[part])

    with ThreadPoolExecutor(num_threads) as pool:

        def best(kernel: Callable[[slice], None], num_arrays: int) -> float:
            seconds = []
            for _ in range(_NUM_ROUNDS):
                start = time.perf_counter()
                list(pool.map(kernel, parts))
                seconds.append(time.perf_counter() - start)
            return num_arrays * _ARRAY_BYTES / min(seconds) / _GIGA

        copied, added = best(copy, 2), best(add, 3)
    found = f'copy {copied:.1f} GB/s, add {added:.1f} GB/s, with {num_threads} threads'
    return ok(found, copy_gb_per_second=copied, add_gb_per_second=added, num_threads=num_threads)


def matrix_products(context: Context) -> Verdict:
    """Measures the FLOP/s of products of large matrices on the CPU, in each precision."""
    import tensorflow.compat.v1 as tf

    config = tf.ConfigProto(device_count={'GPU': 0})
    rates = {}
    for precision, dtype in _PRECISIONS.items():
        context.doing(f'multiplying matrices in {precision}')
        rates[precision] = measure_peak(config, ['/cpu:0'], dtype, _PEAK_SECS) / _GIGA
    found = ', '.join(f'{precision} {rate:.0f}' for precision, rate in rates.items()) + ' GFLOP/s'
    slow = [precision for precision, rate in rates.items() if rate < rates['fp32']]
    if slow:
        found += f'; on this processor {" and ".join(slow)} cannot be faster than fp32'
    return ok(found, gflops_per_second=rates)
