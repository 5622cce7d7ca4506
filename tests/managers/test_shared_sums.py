"""Workers sum their gradients in memory that they share."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from managers.shared_sums import SharedSums
from training.memory_files import SharedMemory, create_memory

pytestmark = pytest.mark.graph

# Scalars, an empty tensor, and some that cross the borders of slices and of pages.
SHAPES = [(), (3, 1700), (0,), (7,), (40, 50), (1,)]
NUM_STEPS = 3
DEADLINE_SECS = 60.0


def gradients_of(worker: int, step: int) -> list[Any]:
    random = np.random.default_rng([worker, step])
    return [random.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def take_steps(worker: int, num_workers: int, memory: SharedMemory, meeting: threading.Barrier) -> list[list[Any]]:
    """The sums of each step, as this worker reads them."""

    def meet() -> Any:
        meeting.wait(DEADLINE_SECS)
        return np.int32(0)

    def barrier(after: Any) -> tf.Operation:
        with tf.control_dependencies(after):
            return tf.numpy_function(meet, [], tf.int32).op

    sums = SharedSums(SHAPES, worker, num_workers)
    # Threads of its own: those that wait must not hold the ones of another worker.
    own_threads = tf.ConfigProto(use_per_session_threads=True, inter_op_parallelism_threads=4)
    with tf.Graph().as_default(), tf.Session(config=own_threads) as session:
        gradients = [tf.placeholder(tf.float32, shape) for shape in SHAPES]
        added = sums.add(memory, gradients, barrier)
        with tf.control_dependencies([barrier(added)]):
            found = sums.read(memory)
        assert [total.shape.as_list() for total in found] == [list(shape) for shape in SHAPES]
        results = []
        for step in range(NUM_STEPS):
            values = session.run(found, dict(zip(gradients, gradients_of(worker, step), strict=True)))
            results.append([value.copy() for value in values])
        return results


@pytest.mark.parametrize('num_workers', [1, 2, 3])
def test_every_worker_reads_the_sum_of_all_added_in_their_order(num_workers: int) -> None:
    memory = create_memory(SharedSums(SHAPES, 0, num_workers).num_floats)
    meeting = threading.Barrier(num_workers)
    with ThreadPoolExecutor(num_workers) as threads:
        runs = [threads.submit(take_steps, worker, num_workers, memory, meeting) for worker in range(num_workers)]
        results = [run.result(DEADLINE_SECS) for run in runs]
    for step in range(NUM_STEPS):
        expected = gradients_of(0, step)
        for worker in range(1, num_workers):
            expected = [total + own for total, own in zip(expected, gradients_of(worker, step), strict=True)]
        for found in results:
            for value, total in zip(found[step], expected, strict=True):
                np.testing.assert_array_equal(value, total)
