"""The placement of variables on parameter servers."""

import itertools
from collections import Counter

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.networks import build_network
from models.registry import MODELS
from tests.managers.worker_graphs import NUM_WORKERS, PS, REPLICATED, manager_of, servers
from tests.support.graphs import cpus
from tf_cnn.graph.variables import num_bytes
from tf_cnn.managers.parameter_servers import ParameterServerVariables, TransferQueue

pytestmark = pytest.mark.graph


def variables_on_servers(
    model: str, num_ps: int, mode: str = PS, worker: int = 0
) -> ParameterServerVariables:
    """Returns the variables of a network on parameter servers, as a worker has them."""
    spec = MODELS.find_model(model)
    with tf.Graph().as_default():
        manager = manager_of(
            mode, cpus(1), server_devices=servers(num_ps), worker=worker, num_workers=NUM_WORKERS
        )
        with manager.create_outer_variable_scope(0) as variables:
            build_network(
                spec.network,
                tf.placeholder(tf.float32, [1, spec.image_size, spec.image_size, 3]),
                1000,
                variables,
                'NHWC',
                is_training=True,
                keep_statistics=manager.keeps_statistics(0),
            )
    # mypy does not know that these modes have parameter servers.
    return manager.server_variables  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('model', 'num_ps'), [('alexnet', 1), ('official_resnet18', 3), ('vgg16', 3)]
)
def test_parameter_servers_hold_about_the_same_bytes(model, num_ps):
    variables = variables_on_servers(model, num_ps)
    slices = variables.slices.values()
    held: Counter[str] = Counter()
    for part in itertools.chain(*slices):
        held[part.variable.device] += num_bytes(part.variable.shape)
    assert variables.server_bytes == held
    assert len(held) == num_ps
    assert max(held.values()) - min(held.values()) < 2 << 20
    assert sum(held.values()) == sum(num_bytes(parts[0].full_shape) for parts in slices)
    if model == 'vgg16':
        # Simonyan & Zisserman 2014 (arXiv:1409.1556), table 2: 138 million weights.
        assert sum(held.values()) == 4 * 138_357_544


def test_the_parts_of_a_large_variable_tile_it():
    variables = variables_on_servers('vgg16', 3, REPLICATED)
    assert num_bytes(variables.slices['fc1/kernel'][0].full_shape) > 400e6
    created_bytes = 0
    for parts in variables.slices.values():
        full = parts[0].full_shape
        created_bytes += num_bytes(full)
        assert (len(parts) > 1) is (num_bytes(full) > 256 << 10)
        if len(parts) > 1:
            # A part is about as large as one of 32 segments. The largest is one row above the mean.
            largest = max(256 << 10, created_bytes / 32)
            assert num_bytes(full) / len(parts) <= largest
            assert len(parts) == 3 or num_bytes(full) > (len(parts) - 3) * largest
            assert Counter(part.variable.device for part in parts) == dict.fromkeys(
                servers(3), len(parts) // 3
            )
        assert len({part.variable.name for part in parts}) == len(parts)
        times_held = np.zeros(full, np.int8)
        for part in parts:
            assert part.full_shape == full
            ends = np.add(part.offset, part.variable.shape)
            times_held[tuple(map(slice, part.offset, ends))] += 1
        assert times_held.min() == times_held.max() == 1


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_all_workers_look_for_a_variable_on_the_same_server(mode):
    """Only the chief keeps moving averages; the variables created after them must not move."""
    chief, other = (variables_on_servers('resnet20', 2, mode, worker) for worker in range(2))
    placed, placed_by_other = (
        {
            name: [(part.variable.device, part.offset) for part in parts]
            for name, parts in variables.slices.items()
        }
        for variables in (chief, other)
    )
    assert placed == placed_by_other
    assert sum(name.endswith('/moving_mean') for name in placed) == 19
    assert chief.server_bytes == other.server_bytes


def test_a_transfer_waits_for_all_transfers_of_the_segment_before_the_last():
    with tf.Graph().as_default():
        queue = TransferQueue(most_bytes=10)
        transfers: list[tf.Operation] = []
        waits: list[list[int]] = []
        # Segments: 6 + 4 bytes, 6, 11 (larger than a segment), 4 + 4 + 2, and 1.
        for size in (6, 4, 6, 11, 4, 4, 2, 1):
            ops = queue.ops_to_wait_for(size)
            waits.append([transfers.index(op) for group in ops for op in group.control_inputs])
            transfers.append(tf.constant(size).op)
            queue.add(transfers[-1:])
    assert [*map(sorted, waits)] == [[], [], [], [0, 1], [2], [2], [2], [3]]
