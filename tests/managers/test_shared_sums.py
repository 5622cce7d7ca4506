"""Workers sum their gradients in memory that they share."""

import dataclasses
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from small_networks import NUM_SERVERS, NUM_WORKERS, PS, REPLICATED, Built, build, needed_by, normalised

from managers.shared_sums import Decay, SharedSums
from training.shared_memory import SharedMemory, create_memory, serve_memory

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


def test_weight_decay_is_added_once_also_from_values_that_lie_where_the_sums_are_written() -> None:
    num_workers, size = 2, 12 * (1 << 16) + 5
    shapes = [(size, 2), (7,), (3, 3)]
    sums = [SharedSums(shapes, worker, num_workers) for worker in range(num_workers)]
    memory = create_memory(sums[0].num_floats)
    generator = np.random.default_rng(4)
    values, first, second = ([generator.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(3))
    places = [slice(start, start + value.size) for start, value in zip(sums[0].starts, values, strict=True)]
    for place, value in zip(places, values, strict=True):
        memory.all()[place] = value.reshape(-1)
    with tf.Graph().as_default(), tf.Session() as session:
        kept = memory.view(memory.num_floats)
        read = [
            tf.numpy_function(lambda place=place, shape=shape: kept[place].reshape(shape), [], tf.float32)
            for place, shape in zip(places, shapes, strict=True)
        ]
        decay = Decay(tf.constant(0.25), [read[0], None, read[2]])
        writes: list[tf.Operation] = []
        adds = [
            own.add(memory, [tf.constant(gradient) for gradient in gradients], lambda ops: meet(writes, ops), decay)
            for own, gradients in zip(sums, (first, second), strict=True)
        ]
        session.run(writes)
        session.run(adds)
    for number, place in enumerate(places):
        factor = np.float32(0.25 if number != 1 else 0)
        expected = first[number] + second[number] + factor * values[number]
        np.testing.assert_array_equal(kept[place], expected.reshape(-1))


def meet(writes: list[tf.Operation], ops: Sequence[tf.Operation]) -> tf.Operation:
    """A barrier for a test that runs the writes of all workers before it adds."""
    writes += ops
    return tf.no_op()


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_a_step_computes_the_same_with_shared_memory_and_reads_variables_before_they_are_overwritten(mode: str) -> None:
    for worker in range(NUM_WORKERS):
        sent, shared = (
            build(mode, worker, network=normalised, optimizer='momentum', share=share) for share in (None, make_share())
        )
        of_both = [types_needed(built, 'Conv2DBackpropInput', 'Conv2DBackpropFilter') for built in (sent, shared)]
        assert of_both[1] == of_both[0]
        assert set(of_both[0]) == {'Conv2DBackpropFilter'}
        needed = needed_of_step(shared)
        readers = [
            reader
            for tower in shared.manager.variables
            for variable in tower.values()
            if variable.trainable
            for reader in variable.value.consumers()
            if reader in needed
        ]
        # What adds weight decay reads only what it overwrites itself.
        adders = [reader for reader in readers if 'shared_sums/' in reader.name and reader.type == 'PyFunc']
        assert set(readers) > set(adders) > set()
        [arrival] = [
            op
            for op in shared.ops('ResourceAccumulatorApplyGradient')
            if op.inputs[0].op.get_attr('shared_name') == b'all_written'
        ]
        assert set(readers) - set(adders) <= needed_by([arrival])


def make_share() -> Any:
    tokens = (serve_memory(),) * NUM_SERVERS
    return lambda num_floats: dataclasses.replace(create_memory(num_floats), tokens=tokens)


def needed_of_step(built: Built) -> set[Any]:
    fetched = built.step.fetches.present()
    return needed_by([getattr(value, 'op', value) for value in (*fetched.pop('ops'), *fetched.values())])


def types_needed(built: Built, *types: str) -> list[str]:
    return sorted(op.type for op in needed_of_step(built) if op.type in types)
