"""How fast GPUs compute, and how fast data moves between them and the host."""

import statistics
import time
from typing import Any

import tensorflow.compat.v1 as tf

from doctor.verdicts import Context, Verdict, ok, warning
from errors import counted
from machine.peak import measure_peak

_BYTES = 2**28
_NUM_RUNS = 12
_GIGA, _TERA = 1e9, 1e12
# PCI Express 3.0 with 4 lanes moves 3.9 GB/s, and host memory that is not pinned is copied once more on the way. A GPU
# for training has 16 lanes.
_SLOWEST_GB_PER_SECOND = 2.5
_PEAK_SECS = 2.0
# A GPU is slow if it reaches less than this part of the rate of the fastest GPU of the same name.
_SLOWEST_SHARE = 0.9


def bandwidth(context: Context, source: str, target: str) -> Verdict:
    """Measures copies of 256 MiB from one device to another: the median rate of several.

    On the host a copy begins or ends in a tensor of TensorFlow, as in a run.
    """
    context.doing(f'copying from {source} to {target}')
    with tf.Graph().as_default() as graph:
        with tf.device(source):
            data = tf.get_variable('data', [_BYTES // 4], initializer=tf.ones_initializer(), use_resource=True)
            value = data.read_value()
        with tf.device(target):
            # One element of the copy: TensorFlow copies the whole tensor first, and on a GPU slices it there.
            last = tf.slice(tf.identity(value), [_BYTES // 4 - 1], [1])
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    # Otherwise an optimization pass might take the element before the copy.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    seconds = []
    with tf.Session(graph=graph, config=config) as session:
        session.run(data.initializer)
        copy = session.make_callable(last)
        for _ in range(_NUM_RUNS):
            start = time.perf_counter()
            copy()
            seconds.append(time.perf_counter() - start)
    # The first runs allocate memory.
    rate = _BYTES / statistics.median(seconds[2:]) / _GIGA
    figures = {'gb_per_second': rate, 'seconds': seconds}
    if rate < _SLOWEST_GB_PER_SECOND:
        return warning(
            f'{rate:.1f} GB/s',
            'look at nvidia-smi -q for the link width of PCI Express: the GPU may be in a slot of few lanes',
            **figures,
        )
    return ok(f'{rate:.1f} GB/s', **figures)


def matrix_products(context: Context) -> Verdict:
    """Measures the FLOP/s of products of large matrices on each GPU alone; equal GPUs should be equally fast."""
    gpus = tf.config.list_physical_devices('GPU')
    names = [tf.config.experimental.get_device_details(gpu).get('device_name', 'GPU') for gpu in gpus]
    rates: dict[str, list[float]] = {}
    for precision, (dtype, tf32) in _PRECISIONS.items():
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        rates[precision] = []
        for index in range(len(gpus)):
            context.doing(f'multiplying matrices in {precision} on GPU {index}')
            config = tf.ConfigProto()
            config.gpu_options.allow_growth = True
            rates[precision].append(measure_peak(config, [f'/gpu:{index}'], dtype, _PEAK_SECS) / _TERA)
    shown = ', '.join(f'{precision} {statistics.median(found):.1f}' for precision, found in rates.items())
    shown = f'{shown} TFLOP/s{f", median of {len(gpus)} GPUs" if len(gpus) > 1 else ""}'
    figures: dict[str, Any] = {'names': names, 'tflops_per_second': rates}
    if slow := slow_gpus(names, rates):
        return warning(
            f'{shown}; slower than others of their kind: {", ".join(map(str, slow))}',
            f'look at nvidia-smi for what else uses {counted(len(slow), "GPU")} of these numbers, at the temperature '
            'and at the power limit',
            **figures,
        )
    return ok(shown, **figures)


_PRECISIONS = {
    'fp32': ('float32', False),
    'tf32': ('float32', True),
    'fp16': ('float16', True),
    'bf16': ('bfloat16', True),
}


def slow_gpus(names: list[str], rates: dict[str, list[float]]) -> list[int]:
    """Returns the indices of the GPUs that are clearly slower than another of the same name, in any precision."""
    slow = set()
    for found in rates.values():
        for index, name in enumerate(names):
            best = max(rate for rate, other in zip(found, names, strict=True) if other == name)
            if found[index] < _SLOWEST_SHARE * best:
                slow.add(index)
    return sorted(slow)
