"""Workers and parameter servers in one process take each step as a whole, or each its own."""

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder
from tests.support.graphs import cpus
from tests.support.networks import (
    COLLECTIVE,
    DEADLINE_SECS,
    LEARNING_RATE,
    NUM_SERVERS,
    NUM_STEPS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    WHOLE_BATCH,
    Built,
    assert_close,
    build,
    needed_by,
    normalised,
    plain,
    task,
    train_alone,
    waiting,
    wide,
)
from tests.support.oracles import Weights
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.launch.hosts import reserve_addresses
from tf_cnn.managers.config import VariableConfig
from tf_cnn.training.checkpoints import Checkpointer, join_slices
from tf_cnn.training.precision import FP32, Precision

pytestmark = [pytest.mark.graph, pytest.mark.long]


def test_the_number_of_a_step_is_read_before_it_is_counted() -> None:
    for worker, sync in ((0, True), (0, False), (1, False)):
        built = build(PS, worker, is_synchronous=sync)
        read = built.step.fetches.global_step.op.inputs[0].op
        [count] = built.ops('AssignAddVariableOp')
        assert read in needed_by([count])
    # One that waits for the chief has read it before the chief has all gradients.
    built = build(PS, 1)
    read = built.step.fetches.global_step.op.inputs[0].op
    assert any(read in needed_by([push]) for push in built.ops('ResourceAccumulatorApplyGradient'))


@dataclass(frozen=True)
class Member:
    """A worker: its graph and a session on its server."""

    built: Built
    session: Any

    def take_step(self) -> dict[str, Any]:
        """Takes a step, and returns what it computed."""
        return self.session.run(self.built.step.fetches.as_dict())

    def open_gate(self) -> None:
        """Lets one step of the network `waiting` continue."""
        with self.built.graph.as_default():
            for gate in self.built.ops('FIFOQueueV2'):
                with tf.device(gate.device):
                    opened = tf.raw_ops.QueueEnqueueV2(
                        handle=gate.outputs[0], components=[tf.constant(0.0)]
                    )
                self.session.run(opened)

    def read(self) -> Weights:
        """Returns the checkpoint values, each variable whole."""
        slices = self.built.step.slices
        with self.built.graph.as_default():
            whole = {
                name: join_slices(parts, [part.variable.value for part in parts])
                for name, parts in slices.items()
            }
        return self.session.run(whole)

    def num_summed(self) -> int:
        """Returns how many gradients of all workers lie in the accumulators."""
        with self.built.graph.as_default():
            sizes = []
            for op in self.built.ops('ResourceConditionalAccumulator'):
                with tf.device(op.device):
                    sizes.append(tf.raw_ops.ResourceAccumulatorNumAccumulated(handle=op.outputs[0]))
        return sum(self.session.run(sizes))


class WorkerSessions:
    """The workers of a cluster, the chief first. close() ends all of their steps."""

    def __init__(self, targets: list[str], mode: str, **options: Any) -> None:
        self.targets = targets
        self.members = []
        for worker, target in enumerate(targets):
            built = build(mode, worker, **options)
            self.members.append(Member(built, tf.Session(target, graph=built.graph)))
        self._threads = ThreadPoolExecutor()
        for member in self.members:
            member.session.run(member.built.step.initializers)
        if together := self.members[0].built.step.synchronous_step:
            together.restart(self.members[0].session, 0)
        # At the same time: some copies need all workers.
        for copied in [
            self._threads.submit(member.built.step.prepare_first_step, member.session)
            for member in self.members
        ]:
            copied.result(DEADLINE_SECS)

    def begin(self, *workers: int) -> list[Future[dict[str, Any]]]:
        """Starts a step of each of these workers."""
        return [self._threads.submit(self.members[worker].take_step) for worker in workers]

    def take_steps(self, num_steps: int = 1) -> None:
        for _ in range(num_steps):
            for step in self.begin(*range(NUM_WORKERS)):
                step.result(DEADLINE_SECS)

    def close(self) -> None:
        for member in self.members:
            member.session.close()
        self._threads.shutdown()
        # Otherwise the servers keep variables, queues and accumulators, which the next test would
        # find by name.
        for target in self.targets:
            tf.Session.reset(target)


@contextlib.contextmanager
def running_servers() -> Iterator[list[str]]:
    """Starts the servers of all tasks in this process, and yields the targets of the workers."""
    config = tf.ConfigProto(device_count={'CPU': NUM_TOWERS})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.experimental.collective_group_leader = '/job:worker/replica:0/task:0'
    with reserve_addresses(NUM_SERVERS + NUM_WORKERS) as addresses:
        hosts = tf.train.ClusterSpec(
            {'ps': addresses[:NUM_SERVERS], 'worker': addresses[NUM_SERVERS:]}
        )
        tasks = [('ps', index) for index in range(NUM_SERVERS)] + [
            ('worker', index) for index in range(NUM_WORKERS)
        ]
        running = [tf.train.Server(hosts, job, index, config=config) for job, index in tasks]
        yield [server.target for server in running[NUM_SERVERS:]]


@pytest.fixture(scope='module', name='targets')
def servers_of_module() -> Iterator[list[str]]:
    with running_servers() as targets:
        yield targets


@pytest.fixture(name='start')
def starter(targets: list[str]) -> Iterator[Callable[..., WorkerSessions]]:
    """Starts workers, one cluster at a time."""
    with contextlib.ExitStack() as started:
        yield lambda mode, **more: started.enter_context(
            contextlib.closing(WorkerSessions(targets, mode, **more))
        )


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_are_those_of_the_chiefs_first_tower(
    mode: str, start: Callable[..., WorkerSessions]
) -> None:
    cluster = start(mode, network=normalised, optimizer='momentum')
    cluster.take_steps(NUM_STEPS)
    weights = cluster.members[0].read()
    # As many towers in one process, each of which normalises by its own images, too.
    assert_close(
        weights, train_alone(normalised, 'momentum', [[number] for number in WHOLE_BATCH[0]])
    )
    assert np.abs(weights['norm/moving_mean']).min() > 0


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_16_bits_are_cast_once_for_all_workers(mode: str) -> None:
    chief, other = (
        build(mode, worker, network=wide, transfer=tf.bfloat16) for worker in range(NUM_WORKERS)
    )
    num_parts = sum(len(parts) for parts in chief.manager.slices().values())
    for built, expected in ((chief, num_parts), (other, 0)):
        casts = [
            op
            for op in built.ops('Cast')
            if op.outputs[0].dtype == tf.bfloat16 and 'ps' in op.device
        ]
        assert len(casts) == expected


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_a_step_with_an_overflow_is_skipped_by_all_workers(
    mode: str, start: Callable[..., WorkerSessions]
) -> None:
    """The steps are those of one process with all towers, which test_precision.py compares with the
    plain algorithm.
    """
    # The scale is too high for the first steps, then grows until it is again.
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=1)
    cluster = start(mode, network=normalised, optimizer='adam', precision=precision)
    skipped = []
    for num_steps in range(1, 8):
        cluster.take_steps()
        weights = cluster.members[0].read()
        skipped.append(int(weights['loss_scale/skipped_steps']))
        if mode != STAGED:
            towers = [[number] for number in WHOLE_BATCH[0]]
            expected = train_alone(normalised, 'adam', towers, num_steps, precision)
            for name in ('scale', 'good_steps', 'skipped_steps'):
                assert weights[f'loss_scale/{name}'] == expected[f'loss_scale/{name}']
            assert_close(weights, expected, 1e-2)
        assert weights['global_step'] == num_steps
        assert weights['loss_scale/scale'] == 2.0 ** (20 + num_steps - 2 * skipped[-1])
    assert 0 < skipped[0] < skipped[-1] < 7


@pytest.mark.parametrize('forward_only', [False, True])
def test_a_worker_that_does_not_wait_learns_what_was_counted_until_its_step_is_done(
    forward_only: bool, start: Callable[..., WorkerSessions]
) -> None:
    cluster = start(PS, network=waiting, is_synchronous=False, forward_only=forward_only)
    slow, quick = cluster.members
    [step] = cluster.begin(0)
    for number in range(1, 4):
        quick.open_gate()
        assert quick.take_step()['steps_after'] == number
    slow.open_gate()
    assert step.result(DEADLINE_SECS)['steps_after'] == 4


def test_workers_that_do_not_wait_skip_their_own_steps_and_share_the_scale(
    start: Callable[..., WorkerSessions],
) -> None:
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=2)
    cluster = start(PS, optimizer='momentum', precision=precision, is_synchronous=False)
    before = cluster.members[0].read()
    skipped = []
    for number in range(12):
        cluster.begin(number % NUM_WORKERS)[0].result(DEADLINE_SECS)
        after = cluster.members[0].read()
        skipped.append(bool(after['loss_scale/skipped_steps'] > before['loss_scale/skipped_steps']))
        assert np.array_equal(after['logits/kernel'], before['logits/kernel']) is skipped[-1]
        is_due = not skipped[-1] and before['loss_scale/good_steps'] == 1
        factor = 0.5 if skipped[-1] else 2 if is_due else 1
        assert after['loss_scale/scale'] == factor * before['loss_scale/scale']
        before = after
    assert (skipped[0], skipped[-1], before['global_step']) == (True, False, 12)


@pytest.mark.parametrize('sync', [True, False])
def test_lars_takes_the_norm_of_a_whole_layer_that_is_on_several_servers(
    sync: bool, start: Callable[..., WorkerSessions]
) -> None:
    cluster = start(PS, network=wide, optimizer='lars', is_synchronous=sync)
    if sync:
        cluster.take_steps(2)
        expected = train_alone(wide, 'lars', WHOLE_BATCH, num_steps=2)
    else:
        cluster.begin(0)[0].result(DEADLINE_SECS)
        expected = train_alone(wide, 'lars', [[0], [1]], num_steps=1)
    chief = cluster.members[0]
    assert (
        len({part.variable.device for part in chief.built.step.slices['hidden/kernel']})
        == NUM_SERVERS
    )
    weights, names = chief.read(), ('hidden/kernel', 'hidden/kernel/momentum', 'logits/kernel')
    assert_close({name: weights[name] for name in names}, {name: expected[name] for name in names})


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_slices_change_no_step(mode: str, start: Callable[..., WorkerSessions]) -> None:
    found = []
    for slices in (True, False):
        cluster = start(
            mode, network=wide, optimizer='momentum', flags=VariableConfig(slice_variables=slices)
        )
        cluster.take_steps(2)
        chief = cluster.members[0]
        # 72 x 20,000 values, 5.5 MiB.
        most = NUM_SERVERS if mode == PS else 12
        assert len(chief.built.step.slices['hidden/kernel']) == (most if slices else 1)
        found.append(chief.read())
        cluster.close()
    assert_close(found[0], found[1])


@pytest.mark.parametrize('written', [True, False])
def test_a_checkpoint_of_slices_is_read_without_them_and_the_other_way_round(
    written: bool, start: Callable[..., WorkerSessions], tmp_path: Path
) -> None:
    contents: list[str] = []
    expected = train_alone(wide, 'momentum', WHOLE_BATCH, num_steps=2)
    for slices, num_steps in ((written, 1), (not written, 1), (written, 0)):
        cluster = start(
            PS, network=wide, optimizer='momentum', flags=VariableConfig(slice_variables=slices)
        )
        chief = cluster.members[0]
        with chief.built.graph.as_default(), tf.device(task('worker', 0)):
            saver = Checkpointer(str(tmp_path), chief.built.step.slices, HOST_DEVICE, 9)
        if contents:
            # Each cluster continues where the one before it ended.
            saver.restore(chief.session, contents[-1])
        cluster.take_steps(num_steps)
        contents.append(saver.save(chief.session, len(contents)))
        cluster.close()
    # The last one took no step: it read what it writes.
    for prefix in contents[1:]:
        reader = tf.train.load_checkpoint(prefix)
        stored = {name: reader.get_tensor(name) for name in expected}
        assert stored['global_step'] == 2
        assert_close(stored, expected)


@pytest.mark.parametrize(
    'precision', [FP32, Precision('fp16', loss_scale=1.0, steps_until_doubling=9)]
)
def test_a_variable_is_updated_when_all_gradients_for_it_are_there(
    precision: Precision, start: Callable[..., WorkerSessions]
) -> None:
    """With an automatic loss scale, when all gradients are there, since one of them may skip the
    step.
    """
    cluster = start(PS, optimizer='momentum', precision=precision)
    chief, other = cluster.members
    cluster.take_steps()
    together = chief.built.step.synchronous_step
    assert together
    before, begun = chief.read(), [number.value for number in together.begun.values()]
    expected = train_alone(plain, 'momentum', WHOLE_BATCH, 2, precision)
    [step] = cluster.begin(0)
    pushes = other.built.ops('ResourceAccumulatorApplyGradient')
    gradients = [push.inputs[2] for push in pushes]
    fed = dict(zip(gradients, other.session.run(gradients), strict=True))
    wait_until(lambda: chief.num_summed() == len(pushes))
    updated: set[str] = set()
    for push in pushes[:-1]:
        updated.add(resource_of(push).removeprefix('sum_of_').removesuffix('_0'))
        other.session.run(push, fed)
        if precision.steps_until_doubling:
            updated.clear()
        else:
            wait_until(lambda: have_changed(chief.read(), before, updated))
        now = chief.read()
        changed = {name for name, value in now.items() if np.any(value != before[name])}
        assert changed == updated | {f'{name}/momentum' for name in updated}
        assert_close(
            {name: now[name] for name in changed}, {name: expected[name] for name in changed}, 1e-2
        )
        assert bool(max(chief.session.run(begun)) == 2) is bool(updated)
    other.session.run(pushes[-1], fed)
    step.result(DEADLINE_SECS)
    assert_close(chief.read(), expected, 1e-2 if precision.steps_until_doubling else 1e-5)
    assert chief.session.run(begun) == [2] * NUM_SERVERS


def gated_backwards(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The network `plain`, whose gradients of the first layer wait for a number in the queue of
    their worker.
    """

    @tf.custom_gradient
    def gated(values: Any) -> Any:
        def gradient(dy: Any) -> Any:
            queue = tf.raw_ops.FIFOQueueV2(
                component_types=[tf.float32], shapes=[[]], shared_name='gate'
            )
            (number,) = tf.raw_ops.QueueDequeueV2(handle=queue, component_types=[tf.float32])
            return dy + tf.reshape(number, [])

        return tf.identity(values), gradient

    hidden = cnn.relu(gated(cnn.dense(cnn.flatten(x), 7, 'hidden')))
    return cnn.dense(hidden, num_classes, 'logits')


@pytest.fixture(name='start_apart')
def starter_on_new_servers() -> Iterator[Callable[..., WorkerSessions]]:
    """Starts workers on servers of their own: a server remembers the shapes of all collective
    sums.
    """
    with running_servers() as targets, contextlib.ExitStack() as started:
        yield lambda mode, **more: started.enter_context(
            contextlib.closing(WorkerSessions(targets, mode, **more))
        )


def test_a_collective_sum_updates_its_variable_while_other_sums_wait(
    start_apart: Callable[..., WorkerSessions],
) -> None:
    cluster = start_apart(
        COLLECTIVE, network=gated_backwards, optimizer='momentum', server_devices=()
    )
    chief, other = cluster.members
    [begun] = chief.built.step.begun_steps
    before = chief.read()
    steps = cluster.begin(0, 1)
    chief.open_gate()
    first = {'logits/kernel', 'logits/bias'}
    wait_until(lambda: have_changed(chief.read(), before, first))
    now = chief.read()
    assert {name for name in now if np.any(now[name] != before[name])} == first | {
        f'{name}/momentum' for name in first
    }
    # A checkpoint of this moment would hold half a step.
    assert (now['global_step'], chief.session.run(begun.value)) == (0, 1)
    other.open_gate()
    for step in steps:
        step.result(DEADLINE_SECS)
    assert_close(chief.read(), train_alone(plain, 'momentum', WHOLE_BATCH, 1))
    assert chief.session.run(begun.value) == 1


def wait_until(is_reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_reached():
        assert time.monotonic() < deadline


def have_changed(now: Weights, before: Weights, names: set[str]) -> bool:
    """Whether these variables and their slots have changed."""
    return all(
        np.any(now[name + slot] != before[name + slot])
        for name in names
        for slot in ('', '/momentum')
    )


NUM_VARIABLES = 4


def resource_of(op: tf.Operation) -> str:
    """Returns the name by which all processes know the resource that an op uses."""
    return str(op.inputs[0].op.get_attr('shared_name').decode())


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
@pytest.mark.parametrize('worker', [0, 1])
def test_no_update_or_copy_of_a_variable_waits_for_the_gradient_of_another(
    mode: str, worker: int
) -> None:
    built = build(mode, worker, optimizer='momentum')
    # The sums, the signals and the variables of a graph are known by their names.
    updates, copies = built.ops('ResourceApplyMomentum'), []
    if mode == REPLICATED:
        copies = [
            op for op in built.ops('AssignVariableOp') if resource_of(op).startswith(('v0/', 'v1/'))
        ]
        # Before the first step, and in each.
        assert len(copies) == 2 * NUM_TOWERS * NUM_VARIABLES
    assert len(updates) == (0 if worker else NUM_VARIABLES)
    for op in [*updates, *copies]:
        name = resource_of(op).partition('/')[2]
        others = {
            resource_of(op)
            for op in needed_by([op])
            if op.type.startswith(('ResourceAccumulator', 'Queue'))
        }
        assert others <= {f'sum_of_{name}_0', f'update_of_{name}_{worker}'}


def test_staged_steps_of_all_workers_are_those_of_one_process(
    start: Callable[..., WorkerSessions],
) -> None:
    """test_staged_variables.py compares these with the plain algorithm."""
    cluster = start(STAGED, optimizer='momentum')
    cluster.take_steps(NUM_STEPS)
    weights = cluster.members[0].read()
    assert_close(weights, train_alone(plain, 'momentum', WHOLE_BATCH, staged=True))
    assert (
        np.abs(
            weights['logits/kernel'] - train_alone(plain, 'momentum', WHOLE_BATCH)['logits/kernel']
        ).max()
        > 1e-3
    )


def test_a_worker_alone_takes_the_steps_of_one_process(targets: list[str]) -> None:
    with contextlib.closing(
        WorkerSessions(targets[:1], PS, optimizer='momentum', num_workers=1)
    ) as cluster:
        for _ in range(NUM_STEPS):
            cluster.begin(0)[0].result(DEADLINE_SECS)
        assert_close(cluster.members[0].read(), train_alone(plain, 'momentum', [[0], [1]]))


# Servers remember the type of a collective sum, so there is one of them.
@pytest.mark.parametrize(
    ('mode', 'transfer'),
    [
        (COLLECTIVE, None),
        *((mode, dtype) for mode in (PS, STAGED, REPLICATED) for dtype in (None, tf.bfloat16)),
    ],
)
def test_the_gradients_of_an_exchange_meet(
    mode: str, transfer: Any, start: Callable[..., WorkerSessions]
) -> None:
    more = {'server_devices': ()} if mode == COLLECTIVE else {}
    shapes = {'small': (3,), 'in_parts': (1100, 1000)}
    cluster = start(mode, exchanged=[*shapes.items()], transfer=transfer, **more)
    cluster.take_steps(NUM_STEPS)
    values = cluster.members[0].read()
    expected = -LEARNING_RATE * NUM_STEPS * (NUM_WORKERS * NUM_TOWERS + 1) / 2
    for name, shape in shapes.items():
        assert values[name].shape == shape
        np.testing.assert_allclose(
            values[name], expected, rtol=1e-2 if transfer else 1e-6, err_msg=name
        )


@pytest.mark.parametrize('optimizer', ['sgd', 'momentum'])
def test_no_update_of_workers_that_do_not_wait_is_lost(
    optimizer: str, start: Callable[..., WorkerSessions]
) -> None:
    """Without a lock one is lost so rarely that the steps alone may not show it."""
    cluster = start(
        PS, optimizer=optimizer, is_synchronous=False, devices=cpus(1), exchanged=[('v', [1 << 17])]
    )
    for member in cluster.members:
        updates = [
            op for op in member.built.graph.get_operations() if op.type.startswith('ResourceApply')
        ]
        assert updates
        assert all(update.get_attr('use_locking') for update in updates)
    for step in cluster.begin(*[*range(NUM_WORKERS)] * 20):
        step.result(DEADLINE_SECS)
    values = cluster.members[0].read()
    assert values['global_step'] == 20 * NUM_WORKERS
    if optimizer == 'sgd':
        # The gradients in memory of a tower alone are 1.
        np.testing.assert_allclose(values['v'], -LEARNING_RATE * 20 * NUM_WORKERS, rtol=1e-5)
