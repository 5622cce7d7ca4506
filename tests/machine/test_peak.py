"""Measuring the peak of a machine: every matrix product is computed, and the best run counts."""

import math

import pytest
import tensorflow.compat.v1 as tf

from tf_cnn.machine.peak import build_products, measure_peak

pytestmark = pytest.mark.graph


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_no_product_is_left_out_and_the_results_are_finite(dtype):
    devices = ['/cpu:0', '/cpu:1']
    metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
    config = tf.ConfigProto(device_count={'CPU': 2})
    with tf.Graph().as_default() as graph, tf.Session(config=config) as session:
        step, initializer = build_products(devices, dtype, 32, 3)
        session.run(initializer)
        values = session.run(step, options=options, run_metadata=metadata)
        count = tf.profiler.ProfileOptionBuilder(tf.profiler.ProfileOptionBuilder.float_operation())
        count = count.with_node_names(['.*MatMul.*']).with_empty_output()
        counted = tf.profiler.profile(graph, options=count.build())
    assert all(0 < value < math.inf for value in values)
    assert len(set(values)) == 2
    nodes = [
        node for part in metadata.partition_graphs for node in part.node if 'MatMul' in node.op
    ]
    assert len(nodes) == 6
    assert {node.device.rpartition('/')[2] for node in nodes} == {'device:CPU:0', 'device:CPU:1'}
    assert counted.total_float_ops == 6 * 2 * 32**3


def test_the_best_run_counts_and_the_time_is_kept():
    config = tf.ConfigProto(device_count={'CPU': 1})
    # The size stays 512, since the first run takes a second. The next run is faster.
    ticks = iter([0.0, 0.0, 1.0, 1.0, 1.0, 1.5, 1.5, 1.5, 3.0, 3.0, *[9.0] * 9])
    peak = measure_peak(config, ['/cpu:0'], 'float32', 4.0, lambda: next(ticks))
    assert peak == 2 * 2 * 512**3 / 0.5
