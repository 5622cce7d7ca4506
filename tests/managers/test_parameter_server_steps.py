"""Workers and parameter servers in one process take each step as a whole, or each its own."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.managers.worker_graphs import (
    COLLECTIVE,
    DEADLINE_SECS,
    NUM_SERVERS,
    NUM_STEPS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    WHOLE_BATCH,
    Replica,
    build,
    normalised,
    task,
    train_alone,
    waiting,
    wide,
)
from tests.support.graphs import LEARNING_RATE, assert_close, cpus, needed_by, plain
from tests.support.oracles import Weights
from tests.support.runs import values_in
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.launch.hosts import reserve_addresses
from tf_cnn.managers.config import VariableConfig
from tf_cnn.training.checkpoints import Checkpointer, join_slices
from tf_cnn.training.precision import FP32, Precision

pytestmark = [pytest.mark.graph, pytest.mark.long]

# The images of as many towers in one process.
TOWERS = [[number] for number in WHOLE_BATCH[0]]


def test_the_number_of_a_step_is_read_before_it_is_counted():
    for worker, sync in ((0, True), (0, False), (1, False)):
        replica = build(PS, worker, is_synchronous=sync)
        read = replica.step.fetches.global_step.op.inputs[0].op
        [count] = replica.ops('AssignAddVariableOp')
        assert read in needed_by([count])
    # One that waits for the chief has read it before the chief has all gradients.
    replica = build(PS, 1)
    read = replica.step.fetches.global_step.op.inputs[0].op
    assert any(
        read in needed_by([push]) for push in replica.ops('ResourceAccumulatorApplyGradient')
    )


def wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_reached():
        assert time.monotonic() < deadline


@dataclass(frozen=True)
class Worker:
    """A worker: its graph and a session on its server."""

    replica: Replica
    session: Any

    def take_step(self) -> dict[str, Any]:
        return self.session.run(self.replica.step.fetches.as_dict())

    def open_gate(self) -> None:
        """Lets one step of the network `waiting` continue."""
        with self.replica.graph.as_default():
            for gate in self.replica.ops('FIFOQueueV2'):
                with tf.device(gate.device):
                    opened = tf.raw_ops.QueueEnqueueV2(
                        handle=gate.outputs[0], components=[tf.constant(0.0)]
                    )
                self.session.run(opened)

    def read(self) -> Weights:
        """Returns the checkpoint values, each variable whole."""
        with self.replica.graph.as_default():
            whole = {
                name: join_slices(parts, [part.variable.value for part in parts])
                for name, parts in self.replica.step.slices.items()
            }
        return self.session.run(whole)

    def wait_for_changes(self, before: Weights, names: set[str]) -> Weights:
        """Waits until these variables have changed since `before`; fails if others have, too."""

        def changed() -> set[str]:
            return {name for name, value in self.read().items() if np.any(value != before[name])}

        wait_until(lambda: names <= changed())
        assert changed() == names
        return self.read()

    def num_summed(self) -> int:
        """Returns how many gradients of all workers lie in the accumulators."""
        with self.replica.graph.as_default():
            sizes = []
            for op in self.replica.ops('ResourceConditionalAccumulator'):
                with tf.device(op.device):
                    sizes.append(tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=op.outputs[0]))
        return sum(self.session.run(sizes))


class Workers:
    """The workers of a cluster, the chief first. close() ends all of their steps."""

    def __init__(self, targets: list[str], mode: str, **options: Any) -> None:
        self.targets = targets
        self.workers = []
        for number, target in enumerate(targets):
            replica = build(mode, number, **options)
            self.workers.append(Worker(replica, tf.Session(target, graph=replica.graph)))
        self.chief = self.workers[0]
        self._threads = ThreadPoolExecutor()
        for worker in self.workers:
            worker.session.run(worker.replica.step.initializers)
        if synchronous_step := self.chief.replica.step.synchronous_step:
            synchronous_step.restart(self.chief.session, 0)
        # At the same time: some copies need all workers.
        for copied in [
            self._threads.submit(worker.replica.step.prepare_first_step, worker.session)
            for worker in self.workers
        ]:
            copied.result(DEADLINE_SECS)

    def begin(self, worker: int) -> Future[dict[str, Any]]:
        """Starts a step of this worker."""
        return self._threads.submit(self.workers[worker].take_step)

    def take_steps(self, num_steps: int = 1, workers: Iterable[int] = range(NUM_WORKERS)) -> None:
        for _ in range(num_steps):
            for step in [self.begin(worker) for worker in workers]:
                step.result(DEADLINE_SECS)

    def close(self) -> None:
        for worker in self.workers:
            worker.session.close()
        self._threads.shutdown()
        # Otherwise the servers keep variables, queues and accumulators, which the next test would
        # find by name.
        for target in self.targets:
            tf.Session.reset(target)


Start = Callable[..., Workers]


@contextlib.contextmanager
def running_servers() -> Iterator[list[str]]:
    """Starts the servers of all tasks in this process, and yields the targets of the workers."""
    config = tf.ConfigProto(device_count={'CPU': NUM_TOWERS})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
    with reserve_addresses(NUM_SERVERS + NUM_WORKERS) as addresses:
        hosts = {'ps': addresses[:NUM_SERVERS], 'worker': addresses[NUM_SERVERS:]}
        running = [
            tf.train.Server(hosts, job, index, config=config)
            for job in hosts
            for index in range(len(hosts[job]))
        ]
        yield [server.target for server in running[NUM_SERVERS:]]


@pytest.fixture(scope='module')
def targets() -> Iterator[list[str]]:
    with running_servers() as targets:
        yield targets


@pytest.fixture
def start(targets: list[str]) -> Iterator[Start]:
    """Starts workers, one cluster at a time."""
    with contextlib.ExitStack() as stack:

        def start(mode: str, **options: Any) -> Workers:
            num_workers = options.get('num_workers', NUM_WORKERS)
            if mode != COLLECTIVE:
                workers = Workers(targets[:num_workers], mode, **options)
            else:
                # A server remembers the shapes and types of all collective sums.
                own_targets = stack.enter_context(running_servers())
                workers = Workers(own_targets, mode, server_devices=(), **options)
            return stack.enter_context(contextlib.closing(workers))

        yield start


def with_slots(names: set[str]) -> set[str]:
    return names | {f'{name}/momentum' for name in names}


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_are_those_of_the_chiefs_first_tower(mode, start):
    cluster = start(mode, network=normalised, optimizer='momentum')
    cluster.take_steps(NUM_STEPS)
    weights = cluster.chief.read()
    # As many towers in one process also normalise by their own images.
    assert_close(weights, train_alone(normalised, 'momentum', TOWERS))
    assert np.abs(weights['norm/moving_mean']).min() > 0


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_16_bits_are_cast_once_for_all_workers(mode):
    chief, other = (
        build(mode, worker, network=wide, transfer=tf.bfloat16) for worker in range(NUM_WORKERS)
    )
    num_parts = sum(len(parts) for parts in chief.manager.slices().values())
    for replica, expected in ((chief, num_parts), (other, 0)):
        on_servers = [op for op in replica.ops('Cast') if 'ps' in op.device]
        assert sum(op.outputs[0].dtype == tf.bfloat16 for op in on_servers) == expected


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_a_step_with_an_overflow_is_skipped_by_all_workers(mode, start):
    """They take the steps of one process with all towers; test_precision.py compares these with the
    plain algorithm.
    """
    # The scale is too high for the first steps, then grows until it is again.
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=1)
    cluster = start(mode, network=normalised, optimizer='adam', precision=precision)
    skipped = []
    for num_steps in range(1, 8):
        cluster.take_steps()
        weights = cluster.chief.read()
        skipped.append(int(weights['loss_scale/skipped_steps']))
        if mode != STAGED:
            expected = train_alone(normalised, 'adam', TOWERS, num_steps, precision)
            for name in ('scale', 'good_steps', 'skipped_steps'):
                assert weights[f'loss_scale/{name}'] == expected[f'loss_scale/{name}']
            assert_close(weights, expected, 1e-2)
        assert weights['global_step'] == num_steps
        assert weights['loss_scale/scale'] == 2.0 ** (20 + num_steps - 2 * skipped[-1])
    assert 0 < skipped[0] < skipped[-1] < 7


@pytest.mark.parametrize('forward_only', [False, True])
def test_a_worker_that_does_not_wait_learns_what_was_counted_until_its_step_is_done(
    forward_only, start
):
    cluster = start(PS, network=waiting, is_synchronous=False, forward_only=forward_only)
    slow, quick = cluster.workers
    step = cluster.begin(0)
    for number in range(1, 4):
        quick.open_gate()
        assert quick.take_step()['steps_after'] == number
    slow.open_gate()
    assert step.result(DEADLINE_SECS)['steps_after'] == 4


def test_workers_that_do_not_wait_skip_their_own_steps_and_share_the_scale(start):
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=2)
    cluster = start(PS, optimizer='momentum', precision=precision, is_synchronous=False)
    before = cluster.chief.read()
    skipped = []
    for number in range(12):
        cluster.take_steps(workers=[number % NUM_WORKERS])
        after = cluster.chief.read()
        skipped.append(bool(after['loss_scale/skipped_steps'] > before['loss_scale/skipped_steps']))
        assert np.array_equal(after['logits/kernel'], before['logits/kernel']) is skipped[-1]
        is_due = not skipped[-1] and before['loss_scale/good_steps'] == 1
        factor = 0.5 if skipped[-1] else 2 if is_due else 1
        assert after['loss_scale/scale'] == factor * before['loss_scale/scale']
        before = after
    assert (skipped[0], skipped[-1], before['global_step']) == (True, False, 12)


@pytest.mark.parametrize('sync', [True, False])
def test_lars_takes_the_norm_of_a_whole_layer_that_is_on_several_servers(sync, start):
    cluster = start(PS, network=wide, optimizer='lars', is_synchronous=sync)
    if sync:
        cluster.take_steps(2)
        expected = train_alone(wide, 'lars', WHOLE_BATCH, num_steps=2)
    else:
        cluster.take_steps(workers=[0])
        expected = train_alone(wide, 'lars', [[0], [1]], num_steps=1)
    parts = cluster.chief.replica.step.slices['hidden/kernel']
    assert len({part.variable.device for part in parts}) == NUM_SERVERS
    weights, names = cluster.chief.read(), with_slots({'hidden/kernel', 'logits/kernel'})
    assert_close({name: weights[name] for name in names}, {name: expected[name] for name in names})


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_slices_change_no_step(mode, start):
    """test_staged_variables.py compares staged steps of one process with the plain algorithm."""
    cluster = start(mode, network=wide, optimizer='momentum')
    cluster.take_steps(2)
    expected = train_alone(wide, 'momentum', WHOLE_BATCH, 2, staged=mode == STAGED)
    assert_close(cluster.chief.read(), expected)
    unsliced = build(mode, network=wide, flags=VariableConfig(slice_variables=False))
    # 72 x 20,000 values, 5.5 MiB.
    num_slices = NUM_SERVERS if mode == PS else 12
    for replica, expected_number in ((cluster.chief.replica, num_slices), (unsliced, 1)):
        assert len(replica.step.slices['hidden/kernel']) == expected_number


@pytest.mark.parametrize('written', [True, False])
def test_a_checkpoint_of_slices_is_read_without_them_and_the_other_way_round(
    written, start, tmp_path
):
    prefixes: list[str] = []
    expected = train_alone(wide, 'momentum', WHOLE_BATCH, num_steps=2)
    for slices, num_steps in ((written, 1), (not written, 1), (written, 0)):
        cluster = start(
            PS, network=wide, optimizer='momentum', flags=VariableConfig(slice_variables=slices)
        )
        chief = cluster.chief
        with chief.replica.graph.as_default(), tf.device(task('worker', 0)):
            saver = Checkpointer(str(tmp_path), chief.replica.step.slices, HOST_DEVICE, 9)
        if prefixes:
            # Each cluster continues where the one before it ended.
            saver.restore(chief.session, prefixes[-1])
        cluster.take_steps(num_steps)
        prefixes.append(saver.save(chief.session, len(prefixes)))
        cluster.close()
    # The last one took no step: it read what it writes.
    for prefix in prefixes[1:]:
        assert_close(values_in(prefix), expected)


@pytest.mark.parametrize(
    'precision', [FP32, Precision('fp16', loss_scale=1.0, steps_until_doubling=9)]
)
def test_a_variable_is_updated_when_all_gradients_for_it_are_there(precision, start):
    """With an automatic loss scale, when all gradients are there, since one of them may skip the
    step.
    """
    cluster = start(PS, optimizer='momentum', precision=precision)
    chief, other = cluster.workers
    cluster.take_steps()
    synchronous_step = chief.replica.step.synchronous_step
    assert synchronous_step
    begun = [number.value for number in synchronous_step.begun.values()]
    before = chief.read()
    expected = train_alone(plain, 'momentum', WHOLE_BATCH, 2, precision)
    tolerance = 1e-2 if precision.steps_until_doubling else 1e-5
    step = cluster.begin(0)
    pushes = other.replica.ops('ResourceAccumulatorApplyGradient')
    gradients = [push.inputs[2] for push in pushes]
    fed = dict(zip(gradients, other.session.run(gradients), strict=True))
    wait_until(lambda: chief.num_summed() == len(pushes))
    pushed: set[str] = set()
    for push in pushes[:-1]:
        pushed.add(resource_of(push).removeprefix('sum_of_').removesuffix('_0'))
        other.session.run(push, fed)
        updated = set() if precision.steps_until_doubling else with_slots(pushed)
        weights = chief.wait_for_changes(before, updated)
        assert_close(
            {name: weights[name] for name in updated},
            {name: expected[name] for name in updated},
            tolerance,
        )
        assert bool(max(chief.session.run(begun)) == 2) is bool(updated)
    other.session.run(pushes[-1], fed)
    step.result(DEADLINE_SECS)
    assert_close(chief.read(), expected, tolerance)
    assert chief.session.run(begun) == [2] * NUM_SERVERS


def resource_of(op: tf.Operation) -> str:
    """Returns the name of the op's resource, which all processes share."""
    return str(op.inputs[0].op.get_attr('shared_name').decode())


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
@pytest.mark.parametrize('worker', [0, 1])
def test_no_update_or_copy_of_a_variable_waits_for_the_gradient_of_another(mode, worker):
    replica = build(mode, worker, optimizer='momentum')
    # The sums, the signals and the four variables of a graph are known by their names.
    updates, copies = replica.ops('ResourceApplyMomentum'), []
    if mode == REPLICATED:
        copies = [
            op
            for op in replica.ops('AssignVariableOp')
            if resource_of(op).startswith(('v0/', 'v1/'))
        ]
        # Before the first step, and in each.
        assert len(copies) == 2 * NUM_TOWERS * 4
    assert len(updates) == (0 if worker else 4)
    for op in [*updates, *copies]:
        name = resource_of(op).partition('/')[2]
        awaited = {
            resource_of(op)
            for op in needed_by([op])
            if op.type.startswith(('ResourceAccumulator', 'Queue'))
        }
        assert awaited <= {f'sum_of_{name}_0', f'update_of_{name}_{worker}'}


def test_a_worker_alone_takes_the_steps_of_one_process(start):
    cluster = start(PS, optimizer='momentum', num_workers=1)
    cluster.take_steps(NUM_STEPS, workers=[0])
    assert_close(cluster.chief.read(), train_alone(plain, 'momentum', [[0], [1]]))


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED, COLLECTIVE])
def test_the_gradients_of_an_exchange_meet(mode, transfer, start):
    shapes = {'small': (3,), 'in_parts': (1100, 1000)}
    cluster = start(mode, exchanged=[*shapes.items()], transfer=transfer)
    cluster.take_steps(NUM_STEPS)
    values = cluster.chief.read()
    total = -LEARNING_RATE * NUM_STEPS * (NUM_WORKERS * NUM_TOWERS + 1) / 2
    assert_close(
        {name: values[name] for name in shapes},
        {name: np.full(shape, total) for name, shape in shapes.items()},
        1e-2 if transfer else 1e-6,
    )
    # Checkpoints are saved only while no step has begun to change variables.
    begun = [number.value for number in cluster.chief.replica.step.begun_steps]
    assert set(cluster.chief.session.run(begun)) <= {NUM_STEPS}


@pytest.mark.parametrize('optimizer', ['sgd', 'momentum'])
def test_no_update_of_workers_that_do_not_wait_is_lost(optimizer, start):
    """Without a lock one is lost so rarely that the steps alone may not show it."""
    cluster = start(
        PS, optimizer=optimizer, is_synchronous=False, devices=cpus(1), exchanged=[('v', [1 << 17])]
    )
    update_type = {'sgd': 'ResourceApplyGradientDescent', 'momentum': 'ResourceApplyMomentum'}
    for worker in cluster.workers:
        [update] = worker.replica.ops(update_type[optimizer])
        assert update.get_attr('use_locking')
    cluster.take_steps(workers=[*range(NUM_WORKERS)] * 20)
    values = cluster.chief.read()
    assert values['global_step'] == 20 * NUM_WORKERS
    if optimizer == 'sgd':
        # The gradients in memory of a tower alone are 1.
        np.testing.assert_allclose(values['v'], -LEARNING_RATE * 20 * NUM_WORKERS, rtol=1e-5)
