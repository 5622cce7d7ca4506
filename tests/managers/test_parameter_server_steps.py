"""Servers of several tasks in this process: workers take each step together, or each its own."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder
from models.model_spec import Build
from tests.managers.worker_graphs import (
    COLLECTIVE,
    NUM_SERVERS,
    NUM_TOWERS,
    NUM_WORKERS,
    PS,
    REPLICATED,
    STAGED,
    Replica,
    build,
    servers,
    wide,
)
from tests.support.graphs import (
    LEARNING_RATE,
    FixedInput,
    assert_close,
    cpus,
    make_manager,
    needed_by,
    normalised,
    plain,
    train_towers,
    training_step,
)
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.launch.hosts import reserve_addresses
from tf_cnn.managers.config import VariableConfig
from tf_cnn.training.checkpoints import join_slices
from tf_cnn.training.precision import FP32, Precision

pytestmark = [pytest.mark.graph, pytest.mark.long]

# The images of as many towers in one process.
TOWERS = tuple((number,) for number in range(NUM_WORKERS * NUM_TOWERS))
# Only failing tests wait so long for another thread.
DEADLINE_SECS = 120.0


def test_the_number_of_a_step_is_read_before_and_after_it_is_counted():
    for worker, sync, forward_only in (
        (0, True, False),
        (0, False, False),
        (1, False, False),
        (1, False, True),
    ):
        replica = build(PS, worker, is_synchronous=sync, forward_only=forward_only)
        read = replica.step.fetches.global_step.op.inputs[0].op
        [count] = replica.ops('AssignAddVariableOp')
        assert read in needed_by([count])
        steps_after = replica.step.fetches.steps_after
        assert (steps_after is None) == sync
        if steps_after is not None:
            # Others may have counted their steps meanwhile.
            assert count in needed_by([steps_after.op])
    # A worker that waits for the chief reads it before the chief has all gradients.
    replica = build(PS, 1)
    read = replica.step.fetches.global_step.op.inputs[0].op
    assert any(
        read in needed_by([push]) for push in replica.ops('ResourceAccumulatorApplyGradient')
    )


def wide_and_normalised(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.batch_norm(cnn.conv(x, 2, 3, 'conv', use_bias=False), 'norm')
    return wide(cnn, cnn.relu(x), num_classes)


@functools.cache
def train_alone(
    network: Build,
    optimizer: str,
    images: tuple[tuple[int, ...], ...],
    num_steps: int,
    precision: Precision = FP32,
    *,
    staged: bool = False,
) -> list[Weights]:
    """Returns the checkpoint values before and after each step in one process; images has the
    numbers of each tower.
    """
    manager = make_manager('parameter_server', cpus(len(images)), staged=staged)
    values = train_towers(
        training_step(network, precision),
        OPTIMIZERS[optimizer].ours,
        manager,
        FixedInput(images),
        num_steps,
    )
    return [weights for (weights,) in values]


class Workers:
    """The workers of a cluster, the chief first. close() ends all of their steps."""

    def __init__(self, targets: list[str], mode: str, **options: Any) -> None:
        self.targets = targets
        self.replicas = [build(mode, number, **options) for number in range(len(targets))]
        self.sessions = [
            tf.Session(target, graph=replica.graph)
            for target, replica in zip(targets, self.replicas, strict=True)
        ]
        self._threads = ThreadPoolExecutor()
        for replica, session in zip(self.replicas, self.sessions, strict=True):
            session.run(replica.step.initializers)
        if synchronous_step := self.replicas[0].step.synchronous_step:
            synchronous_step.restart(self.sessions[0], 0)
        # All at once, since some copies need all workers.
        self._run(
            lambda replica, session: replica.step.prepare_first_step(session), range(len(targets))
        )

    def _run(self, function: Callable[[Replica, Any], Any], workers: Iterable[int]) -> None:
        calls = [
            self._threads.submit(function, self.replicas[worker], self.sessions[worker])
            for worker in workers
        ]
        for call in calls:
            call.result(DEADLINE_SECS)

    def take_steps(self, num_steps: int = 1, workers: Sequence[int] = range(NUM_WORKERS)) -> None:
        for _ in range(num_steps):
            self._run(lambda replica, session: session.run(replica.step.fetches.as_dict()), workers)

    def read(self) -> Weights:
        """Returns the checkpoint values of the chief, each variable whole."""
        chief = self.replicas[0]
        with chief.graph.as_default():
            whole = {
                name: join_slices(parts, [part.variable.value for part in parts])
                for name, parts in chief.step.slices.items()
            }
        return self.sessions[0].run(whole)

    def close(self) -> None:
        for session in self.sessions:
            session.close()
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


@pytest.mark.parametrize(
    ('mode', 'network', 'optimizer', 'num_workers'),
    [
        (PS, plain, 'momentum', 1),
        # The chief's first tower keeps the moving averages, and a variable is in slices.
        (PS, wide_and_normalised, 'momentum', 2),
        (STAGED, wide_and_normalised, 'momentum', 2),
        (REPLICATED, wide_and_normalised, 'momentum', 2),
        # LARS takes the norm of a whole layer.
        (PS, wide, 'lars', 2),
    ],
)
def test_workers_take_the_steps_of_one_process_with_as_many_towers(
    mode, network, optimizer, num_workers, start
):
    """test_variable_mgr.py compares the steps of one process with the plain algorithm."""
    cluster = start(mode, network=network, optimizer=optimizer, num_workers=num_workers)
    cluster.take_steps(2, range(num_workers))
    towers = TOWERS[: num_workers * NUM_TOWERS]
    *_, expected = train_alone(network, optimizer, towers, 2, staged=mode == STAGED)
    weights = cluster.read()
    # The biases of LARS are small differences of large numbers.
    names = [name for name in expected if optimizer != 'lars' or 'kernel' in name]
    assert_close({name: weights[name] for name in names}, {name: expected[name] for name in names})


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
    # The scale is too high for the first steps, and again after it has grown.
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=1)
    cluster = start(mode, network=normalised, optimizer='adam', precision=precision)
    expected_values = train_alone(normalised, 'adam', TOWERS, 7, precision)
    skipped = []
    for num_steps, expected in enumerate(expected_values[1:], 1):
        cluster.take_steps()
        weights = cluster.read()
        skipped.append(int(weights['loss_scale/skipped_steps']))
        if mode != STAGED:
            for name in ('scale', 'good_steps', 'skipped_steps'):
                assert weights[f'loss_scale/{name}'] == expected[f'loss_scale/{name}']
            assert_close(weights, expected, 1e-2)
        assert weights['global_step'] == num_steps
        assert weights['loss_scale/scale'] == 2.0 ** (20 + num_steps - 2 * skipped[-1])
    assert 0 < skipped[0] < skipped[-1] < 7


def test_workers_that_do_not_wait_skip_their_own_steps_and_share_the_scale(start):
    precision = Precision('fp16', loss_scale=2.0**20, steps_until_doubling=2)
    cluster = start(PS, optimizer='momentum', precision=precision, is_synchronous=False)
    before = cluster.read()
    skipped = []
    for number in range(12):
        cluster.take_steps(workers=[number % NUM_WORKERS])
        after = cluster.read()
        skipped.append(bool(after['loss_scale/skipped_steps'] > before['loss_scale/skipped_steps']))
        assert np.array_equal(after['logits/kernel'], before['logits/kernel']) is skipped[-1]
        is_due = not skipped[-1] and before['loss_scale/good_steps'] == 1
        factor = 0.5 if skipped[-1] else 2 if is_due else 1
        assert after['loss_scale/scale'] == factor * before['loss_scale/scale']
        before = after
    assert (skipped[0], skipped[-1], before['global_step']) == (True, False, 12)


def test_a_flag_keeps_a_large_variable_whole():
    """test_worker_graphs.py has its slices without the flag."""
    replica = build(REPLICATED, network=wide, flags=VariableConfig(slice_variables=False))
    assert len(replica.step.slices['hidden/kernel']) == 1


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
    for update in updates:
        # A checkpoint shows that its server has begun to change variables.
        server = tf.DeviceSpec.from_string(update.device).task
        earlier = [op for op in needed_by([update]) if op.type == 'AssignVariableOp']
        assert f'v/begun_{server}' in map(resource_of, earlier)


def test_with_an_automatic_loss_scale_a_step_begins_to_change_variables_after_all_gradients():
    precision = Precision('fp16', loss_scale=1.0, steps_until_doubling=9)
    replica = build(PS, optimizer='momentum', precision=precision)
    sums = replica.ops('ResourceAccumulatorTakeGradient')
    updates = replica.ops('ResourceApplyMomentum')
    assert (len(sums), len(updates)) == (4, 4)
    marks = [
        op
        for op in needed_by(updates)
        if op.type == 'AssignVariableOp' and resource_of(op).startswith('v/begun_')
    ]
    assert len(marks) == 4
    assert all({*sums} <= needed_by([op]) for op in [*updates, *marks])


@pytest.mark.parametrize(
    ('mode', 'transfer'),
    [
        (PS, None),
        (STAGED, tf.bfloat16),
        (REPLICATED, tf.bfloat16),
        (COLLECTIVE, None),
        (COLLECTIVE, tf.bfloat16),
    ],
)
def test_exchanged_gradients_of_all_workers_are_summed(mode, transfer, start):
    shapes = {'small': (3,), 'in_parts': (550, 500)}
    cluster = start(mode, exchanged=[*shapes.items()], transfer=transfer)
    cluster.take_steps(3)
    values = cluster.read()
    total = -LEARNING_RATE * 3 * (NUM_WORKERS * NUM_TOWERS + 1) / 2
    assert_close(
        {name: values[name] for name in shapes},
        {name: np.full(shape, total) for name, shape in shapes.items()},
        1e-2 if transfer else 1e-6,
    )
    # Checkpoints are saved only while no step has begun to change variables.
    begun = [number.value for number in cluster.replicas[0].step.begun_steps]
    assert set(cluster.sessions[0].run(begun)) <= {3}


def large(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """A network with four weights, of 3.2 MB and less: more than are on their way at once."""
    for number, channels in enumerate([4_000, 200, 4_000]):
        x = cnn.dense(cnn.flatten(x), channels, f'hidden_{number}')
    return cnn.dense(x, num_classes, 'logits')


@pytest.mark.parametrize('is_synchronous', [True, False])
@pytest.mark.parametrize(('source', 'target'), [('ps', 'worker'), ('worker', 'ps')])
def test_transfers_have_an_order_where_workers_wait_for_each_other(is_synchronous, source, target):
    replica = build(
        PS,
        1,
        network=large,
        is_synchronous=is_synchronous,
        devices=cpus(1),
        server_devices=servers(1),
    )
    transfers = {
        op
        for op in replica.graph.get_operations()
        if op.device.startswith(f'/job:{target}')
        and any(value.device.startswith(f'/job:{source}') for value in op.inputs)
        and op.inputs[0].dtype == tf.float32
        and op.inputs[0].shape.num_elements() > 1
    }
    # A weight and a bias of each layer.
    assert len(transfers) == 8
    waiting = [op for op in transfers if (needed_by([op]) & transfers) - {op}]
    assert bool(waiting) == is_synchronous


@pytest.mark.parametrize('optimizer', ['sgd', 'momentum'])
def test_no_update_of_workers_that_do_not_wait_is_lost(optimizer, start):
    """Without a lock, lost updates are too rare for the steps to show them."""
    cluster = start(
        PS, optimizer=optimizer, is_synchronous=False, devices=cpus(1), exchanged=[('v', [1 << 17])]
    )
    update_type = {'sgd': 'ResourceApplyGradientDescent', 'momentum': 'ResourceApplyMomentum'}
    for replica in cluster.replicas:
        [update] = replica.ops(update_type[optimizer])
        assert update.get_attr('use_locking')
    cluster.take_steps(workers=[*range(NUM_WORKERS)] * 20)
    values = cluster.read()
    assert values['global_step'] == 20 * NUM_WORKERS
    if optimizer == 'sgd':
        # The gradients in memory of a single tower are 1.
        np.testing.assert_allclose(values['v'], -LEARNING_RATE * 20 * NUM_WORKERS, rtol=1e-5)
