"""Sessions for small graphs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

DATA_FORMATS = ('NHWC', 'NCHW')


@contextlib.contextmanager
def open_session(num_cpus: int = 1, *, has_nchw: bool = False) -> Iterator[Any]:
    """A session of the current graph, with the devices /device:CPU:0 ... of one CPU.

    Graphs run without graph passes, which take longer than the tests. Only has_nchw enables the layout pass, for ops
    whose CPU kernels support NHWC only.
    """
    config = tf.ConfigProto(device_count={'CPU': num_cpus})
    rewrites = config.graph_options.rewrite_options
    if has_nchw:
        rewrites.optimizers.append('layout')
        rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    else:
        rewrites.disable_meta_optimizer = True
    with tf.Session(config=config) as session:
        yield session


def cpus(count: int) -> list[str]:
    """The names of that many devices of one CPU."""
    return [f'/device:CPU:{number}' for number in range(count)]
