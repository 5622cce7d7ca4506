"""Clusters in one process: where variables lie, what crosses between tasks, and that a step is taken as a whole."""

import dataclasses
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracles import OPTIMIZERS, Weights
from sessions import cpus, open_session

from all_reduce import make_algorithm
from cluster.command import reserved_addresses
from input_pipeline import Batch, InputPipeline
from managers.masters import Masters, Meeting, ParameterServers
from models.catalog import find_model
from models.layers import LayerBuilder, truncated_normal, zeros
from models.networks import NETWORKS, Network, build_network
from packing import Packing
from step_graph import StepGraph, StepSettings, build_step_graph
from stepper import Stepper
from training.instruments import StepTracer
from training.optimizers import GradientDescent, Momentum, Optimizer, OptimizerStep
from training.precision import FP32, Precision
from training.schedules import LearningRate
from training.step_loop import Phase
from variable_mgr import Placement, VariableMgr, make_variable_mgr

pytestmark = pytest.mark.graph

SEED, LEARNING_RATE, NUM_STEPS = 5, 0.1, 3
NUM_WORKERS, NUM_TOWERS, NUM_SERVERS, BATCH = 2, 2, 2, 2
IMAGE_SHAPE, NUM_CLASSES = (6, 6, 2), 5
PS, STAGED, REPLICATED, COLLECTIVE, CONTROLLED = (
    'parameter_server',
    'parameter_server --staged_vars',
    'distributed_replicated',
    'collective_all_reduce',
    'distributed_all_reduce',
)
# For what waits for another thread. Only a fault makes it that long.
DEADLINE_SECS = 120.0


def task(job: str, index: int) -> str:
    return f'/job:{job}/task:{index}'


def servers(count: int) -> list[str]:
    return [f'{task("ps", index)}/cpu:0' for index in range(count)]


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 7, 'hidden')), num_classes, 'logits')


def wide(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """With a weight that is too large for one server, 5.8 MB."""
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 20_000, 'hidden')), num_classes, 'logits')


def normalised(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', use_bias=False), 'norm'))
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def waiting(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """Each use of it waits for a number in the queue of its worker."""
    gate = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shapes=[[]], shared_name='gate')
    (number,) = tf.raw_ops.QueueDequeueV2(handle=gate, component_types=[tf.float32])
    return plain(cnn, x + tf.reshape(number, []), num_classes)


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, 'plain', Network(plain))
    monkeypatch.setitem(NETWORKS, 'wide', Network(wide))
    monkeypatch.setitem(NETWORKS, 'normalised', Network(normalised))
    monkeypatch.setitem(NETWORKS, 'waiting', Network(waiting))


class FixedInput(InputPipeline):
    """Images that depend on the number of a tower among those of all workers; each step has the same ones."""

    def __init__(self, towers: Sequence[Sequence[int]]) -> None:
        """Each tower gets the images of some of these numbers."""
        super().__init__()
        self._towers = towers

    def tower_batch(self, tower: int) -> Batch:
        randoms = [np.random.default_rng(number) for number in self._towers[tower]]
        images = [random.normal(size=(BATCH, *IMAGE_SHAPE)) for random in randoms]
        labels = [random.integers(NUM_CLASSES, size=BATCH) for random in randoms]
        return Batch(tf.constant(np.concatenate(images), tf.float32), tf.constant(np.concatenate(labels), tf.int32))


@dataclass(frozen=True)
class Built:
    """One worker's graph."""

    graph: tf.Graph
    manager: VariableMgr
    step: StepGraph

    def ops(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.graph.get_operations() if op.type in types]


def settings(model: str, precision: Precision = FP32) -> StepSettings:
    return StepSettings(
        model=model,
        num_classes=NUM_CLASSES,
        data_format='NHWC',
        forward_only=False,
        with_accuracy=False,
        loss_type_to_report='total_loss',
        weight_decay=0.01,
        gradient_clip=None,
        learning_rate=LearningRate((LEARNING_RATE,)),
        seed=SEED,
        precision=precision,
    )


def place(towers: Sequence[str], **more: Any) -> Placement:
    """Where one process computes on these devices. more are further fields, or others."""
    algorithm = make_algorithm('pscpu', towers, cpus(1)[0])
    alone = Placement(towers, SEED, parameter_devices=cpus(1), algorithm=algorithm, packing=Packing())
    return dataclasses.replace(alone, **more)


def build(
    mode: str,
    worker: int = 0,
    *,
    model: str = 'plain',
    optimizer: str = 'sgd',
    precision: Precision = FP32,
    forward_only: bool = False,
    job: str = 'worker',
    **placed: Any,
) -> Built:
    """A worker of a cluster in one of its modes, or its controller. placed are further fields of its Placement."""
    at = {'server_devices': servers(NUM_SERVERS), 'worker': worker, 'num_workers': NUM_WORKERS, **placed}
    towers = at.pop('devices', cpus(NUM_TOWERS))
    images = [[worker * len(towers) + tower] for tower in range(len(towers))]
    with tf.Graph().as_default() as graph, tf.device(task(job, worker)):
        manager = make_variable_mgr(mode.split()[0], place(towers, **at), distributed=True, staged=mode == STAGED)
        computed = dataclasses.replace(settings(model, precision), forward_only=forward_only)
        step = build_step_graph(computed, OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
    return Built(graph, manager, step)


def train_alone(
    model: str,
    optimizer: str,
    images: Sequence[Sequence[int]],
    num_steps: int = NUM_STEPS,
    precision: Precision = FP32,
) -> Weights:
    """What a checkpoint holds after the steps of one process, whose towers have the images of these numbers."""
    with tf.Graph().as_default(), open_session(len(images)) as session:
        manager = make_variable_mgr('parameter_server', place(cpus(len(images))))
        step = build_step_graph(settings(model, precision), OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
        session.run(step.initializers)
        for _ in range(num_steps):
            session.run(step.fetches)
        return session.run({name: part.variable.value for name, (part,) in step.slices.items()})


WHOLE_BATCH = [list(range(NUM_WORKERS * NUM_TOWERS))]


def assert_close(weights: Weights, expected: Weights, tolerance: float = 1e-5) -> None:
    """The largest difference of each counts, in terms of its largest magnitude."""
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)


# Where variables lie.


def masters_of(model: str, num_ps: int, mode: str = PS, worker: int = 0) -> Masters:
    """The masters of a network of the catalog, as a worker has them."""
    size, at = find_model(model).image_size, ParameterServers(servers(num_ps), worker, NUM_WORKERS, Packing())
    with tf.Graph().as_default():
        placement = place(cpus(1), server_devices=at.devices, worker=worker, num_workers=NUM_WORKERS)
        manager = make_variable_mgr(mode, placement, distributed=True)
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.placeholder(tf.float32, [1, size, size, 3])
            keeps = manager.keeps_statistics(0)
            build_network(model, images, 1000, variables, 'NHWC', is_training=True, keep_statistics=keeps)
    # Every mode that is tried here has parameter servers, which mypy cannot know.
    return manager.masters  # type: ignore[attr-defined]


def bytes_of(shape: Sequence[int]) -> int:
    return 4 * int(np.prod(shape, dtype=np.int64))


@pytest.mark.parametrize('num_ps', [1, 3])
@pytest.mark.parametrize('model', ['alexnet', 'resnet50', 'vgg16'])
def test_parameter_servers_hold_about_the_same_bytes(model: str, num_ps: int) -> None:
    masters = masters_of(model, num_ps)
    held: Counter[str] = Counter()
    for parts in masters.parts.values():
        for part in parts:
            held[part.variable.device] += bytes_of(part.variable.shape)
    assert masters.held_bytes == held
    assert len(held) == num_ps
    assert max(held.values()) - min(held.values()) < 4e6
    assert sum(held.values()) == sum(bytes_of(parts[0].full) for parts in masters.parts.values())
    if model == 'vgg16':
        # Simonyan & Zisserman 2014 (arXiv:1409.1556), table 2: 138 million weights.
        assert sum(held.values()) == 4 * 138_357_544


def test_the_parts_of_a_large_variable_tile_it() -> None:
    masters = masters_of('vgg16', 3)
    sliced = {name: parts for name, parts in masters.parts.items() if len(parts) > 1}
    assert bytes_of(sliced['fc1/kernel'][0].full) > 400e6
    for name, parts in masters.parts.items():
        assert (name in sliced) is (bytes_of(parts[0].full) > 4 << 20)
    for parts in sliced.values():
        assert [part.variable.device for part in parts] == servers(3)
        assert len({part.variable.name for part in parts}) == 3
        times_held = np.zeros(parts[0].full, np.int8)
        for part in parts:
            assert part.full == parts[0].full
            ends = np.add(part.offset, part.variable.shape)
            times_held[tuple(map(slice, part.offset, ends))] += 1
        assert times_held.min() == times_held.max() == 1


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_all_workers_look_for_a_variable_on_the_same_server(mode: str) -> None:
    """Also for what follows a moving average, which one worker keeps."""
    chief, other = (masters_of('densenet40_k12', 2, mode, worker) for worker in range(2))
    places = [
        {name: [(part.variable.device, part.offset) for part in parts] for name, parts in masters.parts.items()}
        for masters in (chief, other)
    ]
    assert places[0] == places[1]
    assert sum(name.endswith('/moving_mean') for name in places[0]) == 39
    assert chief.held_bytes == other.held_bytes


def test_a_small_variable_goes_to_the_server_that_holds_the_fewest_bytes() -> None:
    masters = Masters(ParameterServers(servers(3), 0, NUM_WORKERS, Packing()))
    shapes = {'a': [5, 20], 'b': [10], 'c': [4, 15], 'd': [30], 'e': [25], 'f': [20]}
    with tf.Graph().as_default():
        for name, shape in shapes.items():
            # mypy cannot infer a lambda whose default binds the loop's variable.
            masters.create(name, shape, True, lambda shape=shape: tf.zeros(shape))  # type: ignore[misc]
    # 100 | 10 | 60, then 30 and 25 to the second, and 20 to the third.
    placed = {name: servers(3).index(part.variable.device) for name, (part,) in masters.parts.items()}
    assert placed == {'a': 0, 'b': 1, 'c': 2, 'd': 1, 'e': 1, 'f': 2}


# What crosses between tasks.


def crossings(built: Built, wanted: str) -> list[tf.Tensor]:
    """The tensors, but scalars, that a step sends 'worker to ps' or 'ps to worker', once for each that gets them."""
    found: dict[tuple[str, int], tf.Tensor] = {}
    for op in needed_by(built.step.fetches['ops']):
        for value in op.inputs:
            if f'{job_of(value.op)} to {job_of(op)}' == wanted and value.shape.rank:
                found[value.name, tf.DeviceSpec.from_string(op.device).task] = value
    return list(found.values())


def needed_by(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    """These ops and all that run before them."""
    found, new = set(ops), list(ops)
    while new:
        op = new.pop()
        before = {*op.control_inputs, *(value.op for value in op.inputs)} - found
        found |= before
        new += before
    return found


def job_of(op: tf.Operation) -> str:
    job = tf.DeviceSpec.from_string(op.device).job
    assert job, op
    return job


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('worker', range(NUM_WORKERS))
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_one_value_and_one_gradient_of_each_variable_cross(mode: str, worker: int, transfer: Any) -> None:
    built = build(mode, worker, model='wide', transfer=transfer, devices=cpus(3))
    parts = [
        list(part.variable.shape)
        for variable in built.manager.trainable_variables_on_device(0)
        for part in built.manager.slices()[variable.name]
    ]
    # The largest weight is cut in two.
    assert len(parts) == 4 + 1
    for way in ('ps to worker', 'worker to ps'):
        crossed = crossings(built, way)
        assert sorted(value.shape.as_list() for value in crossed) == sorted(parts)
        assert {value.dtype for value in crossed} == {transfer or tf.float32}


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_travel_in_full_also_where_others_are_rounded(mode: str) -> None:
    # They change by less than 16 bits hold, and would never move.
    chief, other = (build(mode, worker, model='normalised', transfer=tf.bfloat16) for worker in range(NUM_WORKERS))
    for way in ('ps to worker', 'worker to ps'):
        dtypes = Counter(value.dtype for value in crossings(chief, way))
        assert dtypes == {tf.bfloat16: 5, tf.float32: 2}
        assert {value.dtype for value in crossings(other, way)} == {tf.bfloat16}


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_the_bytes_of_a_step_are_those_that_cross(mode: str, transfer: Any) -> None:
    workers = [build(mode, worker, model='wide', transfer=transfer) for worker in range(NUM_WORKERS)]
    moved = sum(
        value.shape.num_elements() * value.dtype.size
        for built in workers
        for way in ('ps to worker', 'worker to ps')
        for value in crossings(built, way)
    )
    assert [built.step.bytes_of_step for built in workers] == [moved] * NUM_WORKERS
    assert [built.step.bytes_of_servers for built in workers] == [workers[0].step.bytes_of_servers] * NUM_WORKERS
    held: Counter[str] = Counter()
    for part in (part for name, parts in workers[0].step.slices.items() for part in parts if name != 'global_step'):
        held[part.variable.device] += bytes_of(part.variable.shape)
    assert workers[0].step.bytes_of_servers == held


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_the_bytes_of_a_step_in_which_nobody_trains_are_those_that_cross(mode: str, transfer: Any) -> None:
    options = {'model': 'normalised', 'transfer': transfer, 'forward_only': True}
    workers = [build(mode, worker, **options) for worker in range(NUM_WORKERS)]
    crossed = [value for built in workers for value in crossings(built, 'ps to worker')]
    moved = sum(value.shape.num_elements() * value.dtype.size for value in crossed)
    assert moved > 0
    assert [built.step.bytes_of_step for built in workers] == [moved] * NUM_WORKERS


@pytest.mark.parametrize(
    ('packing', 'expected'),
    # The second server has one gradient besides its part of the large one, the first has two small ones.
    [(Packing(num_chunks=3), 3 * NUM_SERVERS), (Packing(max_bytes=1 << 20), 4)],
)
def test_gradients_cross_in_packets(packing: Packing, expected: int) -> None:
    crossed = crossings(build(PS, model='wide', packing=packing), 'worker to ps')
    unpacked = crossings(build(PS, model='wide'), 'worker to ps')
    assert len(unpacked) == 5
    assert len(crossed) == expected
    assert sum(value.shape.num_elements() for value in crossed) == sum(value.shape.num_elements() for value in unpacked)


def test_the_number_of_a_step_is_read_before_it_is_counted() -> None:
    for worker, sync in ((0, True), (0, False), (1, False)):
        built = build(PS, worker, sync=sync)
        read = built.step.fetches['global_step'].op.inputs[0].op
        [count] = built.ops('AssignAddVariableOp')
        assert read in needed_by([count])
    # One that waits for the chief has read it before the chief has all gradients.
    built = build(PS, 1)
    read = built.step.fetches['global_step'].op.inputs[0].op
    assert any(read in needed_by([push]) for push in built.ops('ResourceAccumulatorApplyGradient'))


# Steps, on servers of this process.


@pytest.fixture(scope='module', name='targets')
def running_servers() -> Iterator[list[str]]:
    """The servers of the workers, beside those of the parameter servers."""
    config = tf.ConfigProto(device_count={'CPU': NUM_TOWERS})
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with reserved_addresses(NUM_SERVERS + NUM_WORKERS) as addresses:
        hosts = {'ps': addresses[:NUM_SERVERS], 'worker': addresses[NUM_SERVERS:]}
        running = {
            job: [tf.train.Server(tf.train.ClusterSpec(hosts), job, index, config=config) for index in range(len(own))]
            for job, own in hosts.items()
        }
        yield [server.target for server in running['worker']]


@dataclass(frozen=True)
class Member:
    """A worker: its graph and a session on its server."""

    built: Built
    session: Any

    def start(self) -> None:
        self.session.run(self.built.step.initializers)

    def follow(self) -> None:
        """To be called when the chief has started."""
        if self.built.step.post_init is not None:
            self.session.run(self.built.step.post_init)

    @property
    def meeting(self) -> Meeting:
        """Where it meets the others."""
        assert self.built.step.meeting
        return self.built.step.meeting

    def take_step(self) -> None:
        self.session.run(self.built.step.fetches)

    def open_gate(self) -> None:
        """Lets one step of the network that waits go on."""
        with self.built.graph.as_default():
            for gate in self.built.ops('FIFOQueueV2'):
                with tf.device(gate.device):
                    opened = tf.raw_ops.QueueEnqueueV2(handle=gate.outputs[0], components=[tf.constant(0.0)])
                self.session.run(opened)

    def read(self) -> Weights:
        """What a checkpoint would hold; of variables in one part."""
        return self.session.run({name: part.variable.value for name, (part,) in self.built.step.slices.items()})

    def size_of(self, kind: str) -> list[int]:
        """How much there is in each queue or accumulator that this worker knows."""
        make = {
            'FIFOQueueV2': tf.raw_ops.QueueSizeV2,
            'ResourceConditionalAccumulator': tf.raw_ops.ResourceAccumulatorNumAccumulated,
        }[kind]
        with self.built.graph.as_default():
            sizes = []
            for op in self.built.ops(kind):
                with tf.device(op.device):
                    sizes.append(make(handle=op.outputs[0]))
        return [int(size) for size in self.session.run(sizes)]


class Cluster:
    """The workers, the chief first. All steps of theirs are over, or made to end, when it is closed."""

    def __init__(self, targets: list[str], mode: str, **options: Any) -> None:
        self.targets = targets
        self.members = []
        for worker, target in enumerate(targets):
            built = build(mode, worker, **options)
            self.members.append(Member(built, tf.Session(target, graph=built.graph)))
        self._threads = ThreadPoolExecutor()
        for member in self.members:
            member.start()
        for member in self.members:
            member.follow()

    def begin(self, *workers: int) -> list[Future[None]]:
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
        # Servers keep variables, queues and accumulators by their names.
        for target in self.targets:
            tf.Session.reset(target)


@pytest.fixture(name='start')
def starter(targets: list[str]) -> Iterator[Callable[..., Cluster]]:
    """Starts clusters, one at a time; see Cluster."""
    started: list[Cluster] = []

    def start(mode: str, **options: Any) -> Cluster:
        started.append(Cluster(targets, mode, **options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.close()


@pytest.mark.parametrize('mode', [PS, REPLICATED])
def test_moving_averages_are_those_of_the_chiefs_first_tower(mode: str, start: Callable[..., Cluster]) -> None:
    cluster = start(mode, model='normalised', optimizer='momentum')
    cluster.take_steps(NUM_STEPS)
    weights = cluster.members[0].read()
    # As many towers in one process, each of which normalises by its own images, too.
    assert_close(weights, train_alone('normalised', 'momentum', [[number] for number in WHOLE_BATCH[0]]))
    assert np.abs(weights['norm/moving_mean']).min() > 0
    # Not those of any other tower.
    other = train_alone('normalised', 'momentum', [[number] for number in reversed(WHOLE_BATCH[0])])
    assert np.abs(weights['norm/moving_mean'] - other['norm/moving_mean']).max() > 1e-3


def test_every_copy_is_that_of_the_parameter_servers_after_each_step(start: Callable[..., Cluster]) -> None:
    cluster = start(REPLICATED, optimizer='momentum')
    for num_steps in (1, 2):
        cluster.take_steps()
        masters = cluster.members[0].read()
        assert_close(masters, train_alone('plain', 'momentum', WHOLE_BATCH, num_steps))
        for member in cluster.members:
            for tower in member.built.manager.variables:
                for name, value in member.session.run({name: own.value for name, own in tower.items()}).items():
                    np.testing.assert_array_equal(value, masters[name])


@pytest.mark.parametrize('mode', [PS, STAGED, REPLICATED])
def test_a_step_with_an_overflow_is_skipped_by_all_workers(mode: str, start: Callable[..., Cluster]) -> None:
    """As by one process with all towers, whose steps tests/test_precision.py holds against the plain algorithm."""
    # The scale is too high for the first steps, then grows until it is again.
    precision = Precision('fp16', loss_scale=2.0**20, doubled_every=1)
    cluster = start(mode, model='normalised', optimizer='adam', precision=precision)
    skipped = []
    for num_steps in range(1, 8):
        cluster.take_steps()
        weights = cluster.members[0].read()
        skipped.append(int(weights['loss_scale/skipped_steps']))
        if mode != STAGED:
            towers = [[number] for number in WHOLE_BATCH[0]]
            expected = train_alone('normalised', 'adam', towers, num_steps, precision)
            for name in ('scale', 'good_steps', 'skipped_steps'):
                assert weights[f'loss_scale/{name}'] == expected[f'loss_scale/{name}']
            assert_close(weights, expected, 1e-2)
        assert weights['global_step'] == num_steps
        assert weights['loss_scale/scale'] == 2.0 ** (20 + num_steps - 2 * skipped[-1])
    assert 0 < skipped[0] < skipped[-1] < 7


@pytest.mark.parametrize('forward_only', [False, True])
def test_a_worker_that_does_not_wait_learns_what_was_counted_until_its_step_is_done(
    forward_only: bool, start: Callable[..., Cluster]
) -> None:
    cluster = start(PS, model='waiting', sync=False, forward_only=forward_only)
    slow, quick = cluster.members
    steppers = [
        Stepper(member.session, member.built.step.fetches, StepTracer(None, False, None, None), 0, None)
        for member in (slow, quick)
    ]
    with ThreadPoolExecutor() as threads:
        step = threads.submit(steppers[0].run, Phase.TIMED, 1)
        for number in range(1, 4):
            quick.open_gate()
            steppers[1].run(Phase.TIMED, number)
            assert steppers[1].steps_after == number
        slow.open_gate()
        step.result(DEADLINE_SECS)
    assert steppers[0].steps_after == 4


def test_workers_that_do_not_wait_skip_their_own_steps_and_share_the_scale(start: Callable[..., Cluster]) -> None:
    precision = Precision('fp16', loss_scale=2.0**20, doubled_every=2)
    cluster = start(PS, optimizer='momentum', precision=precision, sync=False)
    before = cluster.members[0].read()
    states = []
    for number in range(12):
        cluster.begin(number % NUM_WORKERS)[0].result(DEADLINE_SECS)
        after = cluster.members[0].read()
        is_skipped = bool(after['loss_scale/skipped_steps'] > before['loss_scale/skipped_steps'])
        assert np.array_equal(after['logits/kernel'], before['logits/kernel']) is is_skipped
        is_due = not is_skipped and before['loss_scale/good_steps'] == 1
        factor = 0.5 if is_skipped else 2 if is_due else 1
        assert after['loss_scale/scale'] == factor * before['loss_scale/scale']
        assert after['loss_scale/good_steps'] == (0 if is_skipped or is_due else before['loss_scale/good_steps'] + 1)
        states.append(is_skipped)
        before = after
    assert states[0]
    assert not states[-1]
    assert before['global_step'] == 12


@pytest.mark.parametrize('sync', [True, False])
def test_a_layer_on_several_servers_is_trusted_as_a_whole(sync: bool, start: Callable[..., Cluster]) -> None:
    cluster = start(PS, model='wide', optimizer='lars', sync=sync)
    if sync:
        cluster.take_steps(2)
        expected = train_alone('wide', 'lars', WHOLE_BATCH, num_steps=2)
    else:
        cluster.begin(0)[0].result(DEADLINE_SECS)
        expected = train_alone('wide', 'lars', [[0], [1]], num_steps=1)
    chief = cluster.members[0]
    assert len(chief.built.step.slices['hidden/kernel']) == NUM_SERVERS
    for name in ('hidden/kernel', 'hidden/kernel/momentum', 'logits/kernel'):
        parts = chief.session.run([part.variable.value for part in chief.built.step.slices[name]])
        axis = int(np.argmax(chief.built.step.slices[name][0].full))
        assert_close({name: np.concatenate(parts, axis)}, {name: expected[name]})


def test_nothing_of_a_step_is_done_before_all_gradients_are_there(start: Callable[..., Cluster]) -> None:
    cluster = start(PS, optimizer='momentum')
    chief, other = cluster.members
    cluster.take_steps()
    before, begun = chief.read(), chief.meeting.begun.value
    pushes = other.built.ops('ResourceAccumulatorApplyGradient')
    [step] = cluster.begin(0)
    for number, push in enumerate(pushes):
        # Where both have pushed, the chief has taken the sum already.
        await_accumulated(chief, len(pushes) - number)
        assert not step.done()
        np.testing.assert_equal(chief.read(), before)
        assert chief.session.run(begun) == before['global_step'] == 1
        other.session.run(push)
    step.result(DEADLINE_SECS)
    assert_close(chief.read(), train_alone('plain', 'momentum', WHOLE_BATCH, num_steps=2))
    assert chief.session.run(begun) == 2


def await_accumulated(member: Member, expected: int) -> None:
    """Waits until that many gradients of all workers lie in the accumulators."""
    deadline = time.monotonic() + DEADLINE_SECS
    while sum(member.size_of('ResourceConditionalAccumulator')) != expected:
        assert time.monotonic() < deadline


def test_what_a_lost_worker_had_pushed_is_cleared(start: Callable[..., Cluster]) -> None:
    cluster = start(PS, optimizer='adam')
    chief, other = cluster.members
    cluster.take_steps()
    # Lost before the chief has pushed anything: all its gradients are there, one of them even for two steps.
    pushes = other.built.ops('ResourceAccumulatorApplyGradient')
    other.session.run(pushes)
    other.session.run(pushes[0])
    assert sum(chief.size_of('ResourceConditionalAccumulator')) == len(pushes) + 1
    chief.meeting.clear(chief.session)
    assert sum(chief.size_of('ResourceConditionalAccumulator')) == 0
    cluster.take_steps(2)
    assert_close(chief.read(), train_alone('plain', 'adam', WHOLE_BATCH))


def test_the_word_that_a_lost_worker_never_heard_is_cleared(start: Callable[..., Cluster]) -> None:
    cluster = start(PS)
    chief, other = cluster.members
    # Lost after it has pushed its gradients, before the chief says that the step is over.
    [step] = cluster.begin(0)
    other.session.run(other.built.ops('ResourceAccumulatorApplyGradient'))
    step.result(DEADLINE_SECS)
    assert sum(chief.size_of('FIFOQueueV2')) == 1
    chief.meeting.clear(chief.session)
    assert sum(chief.size_of('FIFOQueueV2')) == 0
    [step] = cluster.begin(1)
    await_accumulated(chief, 4)
    # It waits for the chief, whose step is needed.
    assert not step.done()
    assert chief.read()['global_step'] == 1
    cluster.begin(0)[0].result(DEADLINE_SECS)
    step.result(DEADLINE_SECS)
    assert_close(chief.read(), train_alone('plain', 'sgd', WHOLE_BATCH, num_steps=2))


def test_a_worker_alone_with_parameter_servers_trains() -> None:
    with tf.Graph().as_default(), open_session() as session:
        placement = place(cpus(1), server_devices=cpus(1), num_workers=1)
        manager = make_variable_mgr(PS, placement, distributed=True)
        step = build_step_graph(settings('plain'), OPTIMIZERS['momentum'].ours, manager, FixedInput(WHOLE_BATCH))
        member = Member(Built(tf.get_default_graph(), manager, step), session)
        member.start()
        for _ in range(NUM_STEPS):
            member.take_step()
        assert_close(member.read(), train_alone('plain', 'momentum', WHOLE_BATCH))


@pytest.mark.parametrize('optimizer', OPTIMIZERS)
def test_staged_variables_give_gradients_of_one_step_before(optimizer: str) -> None:
    """v_k+1 = v_k - r g(v_k-1), with v_-1 = v_0, and the other optimizers with that gradient."""
    targets = np.random.default_rng(0).normal(size=(NUM_TOWERS, 3)).astype(np.float32)
    # Each step's gradient has a direction of its own, since lars takes nothing else of it.
    slopes = np.array([1, 1, 2], np.float32)
    with tf.Graph().as_default(), open_session(NUM_TOWERS) as session:
        manager = make_variable_mgr(PS, place(cpus(NUM_TOWERS)), staged=True)
        gradients = []
        for number, target in enumerate(targets):
            with manager.create_outer_variable_scope(number) as variables:
                value = variables.read('v', [1, 3], truncated_normal(1.0))
                gradients.append(tf.gradients(tf.nn.l2_loss((value - target) * slopes) / NUM_TOWERS, [value]))
        global_step = manager.create_global_step()
        step = OptimizerStep(OPTIMIZERS[optimizer].ours, tf.constant(LEARNING_RATE), global_step.value, None)
        update, _ = manager.build_update(step, global_step, gradients)
        session.run([*manager.initializers, *step.initializers, global_step.assign(tf.constant(0, tf.int64))])
        session.run(manager.get_post_init_ops(step.slots))
        master = manager.slices()['v'][0].variable
        now = tf.raw_ops.ReadVariableOp(resource=master.handle, dtype=tf.float32)
        seen = [session.run(now)]
        for _ in range(5):
            session.run(update)
            seen.append(session.run(now))

    history: list[np.ndarray] = []

    def gradients_at(weights: Weights, step: int) -> Weights:
        history.append(weights['v'])
        return {'v': (history[max(0, step - 1)] - targets.mean(0)) * slopes**2}

    for num_steps, value in enumerate(seen):
        history.clear()
        expected = OPTIMIZERS[optimizer].numpy.train({'v': seen[0]}, gradients_at, LEARNING_RATE, num_steps)
        assert_close({'v': value}, expected)
    # Not with the gradient of this step.
    fresh = OPTIMIZERS[optimizer].numpy.train(
        {'v': seen[0]}, lambda weights, _: {'v': (weights['v'] - targets.mean(0)) * slopes**2}, LEARNING_RATE, 5
    )
    assert np.abs(fresh['v'] - seen[-1]).max() > 1e-3


SIZE, NUM_THREADS, NUM_UPDATES = 1 << 18, 4, 20
ALL_UPDATES = NUM_WORKERS * NUM_THREADS * NUM_UPDATES


@pytest.mark.parametrize(
    ('optimizer', 'moved'),
    [
        (GradientDescent(), ALL_UPDATES),
        # Without decay the n-th update takes n from the variable.
        (Momentum(1.0), ALL_UPDATES * (ALL_UPDATES + 1) // 2),
    ],
)
def test_no_update_of_workers_that_do_not_wait_is_lost(targets: list[str], optimizer: Optimizer, moved: int) -> None:
    """All numbers are integers that float32 holds."""
    sessions, updates, values = [], [], {}
    for worker, target in enumerate(targets):
        at = place(cpus(1), server_devices=servers(1), worker=worker, num_workers=NUM_WORKERS, sync=False)
        with tf.Graph().as_default() as graph, tf.device(task('worker', worker)):
            manager = make_variable_mgr(PS, at, distributed=True)
            with manager.create_outer_variable_scope(0) as variables:
                variables.read('v', [SIZE], zeros)
                gradient = tf.ones([SIZE])
            global_step = manager.create_global_step()
            step = OptimizerStep(optimizer, tf.constant(1.0), global_step.value, None)
            updates.append(manager.build_update(step, global_step, [[gradient]])[0])
            initializers = [*manager.initializers, *step.initializers, global_step.assign(tf.constant(0, tf.int64))]
            values = {'v': manager.variables[0]['v'].value, 'global_step': global_step.value}
            values |= {name: slot.value for own in step.slots.values() for name, slot in own.items()}
            sessions.append(tf.Session(target, graph=graph))
        # Without a lock one is lost so rarely that no run would show it.
        [update] = [op for op in graph.get_operations() if op.type.startswith('ResourceApply')]
        assert update.get_attr('use_locking')
        if manager.initializes:
            sessions[0].run(initializers)

    def train(worker: int) -> None:
        for _ in range(NUM_UPDATES):
            sessions[worker].run(updates[worker])

    with ThreadPoolExecutor(NUM_WORKERS * NUM_THREADS) as threads:
        for done in [threads.submit(train, worker) for worker in range(NUM_WORKERS) for _ in range(NUM_THREADS)]:
            done.result(DEADLINE_SECS)
    final = sessions[-1].run(values)
    for session, target in zip(sessions, targets, strict=True):
        session.close()
        tf.Session.reset(target)
    assert final.pop('global_step') == ALL_UPDATES
    assert np.unique(final.pop('v')) == [-moved]
    for accumulated in final.values():
        assert np.unique(accumulated) == [ALL_UPDATES]


# Without parameter servers.


GPUS = [f'/gpu:{number}' for number in range(3)]


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
def test_on_gpus_every_tower_takes_part_in_each_sum(transfer: Any) -> None:
    built = build(COLLECTIVE, 1, server_devices=(), devices=GPUS, transfer=transfer)
    sums = built.ops('CollectiveReduce')
    by_key: dict[int, list[tf.Operation]] = {}
    for op in sums:
        by_key.setdefault(op.get_attr('instance_key'), []).append(op)
    assert len(by_key) == len(built.manager.trainable_variables_on_device(0)) == 4
    for own in by_key.values():
        devices = [tf.DeviceSpec.from_string(op.device) for op in own]
        assert [(device.job, device.task) for device in devices] == [('worker', 1)] * len(GPUS)
        assert [(device.device_type, device.device_index) for device in devices] == [
            ('GPU', n) for n in range(len(GPUS))
        ]
    assert {op.get_attr('group_size') for op in sums} == {NUM_WORKERS * len(GPUS)}
    assert {op.get_attr('communication_hint') for op in sums} == {b'nccl'}
    assert len({op.get_attr('group_key') for op in sums}) == 1
    assert {op.inputs[0].dtype for op in sums} == {transfer or tf.float32}


def test_on_cpus_each_worker_takes_part_once_in_each_sum_with_what_its_towers_have_summed() -> None:
    built = build(COLLECTIVE, 1, server_devices=())
    sums = built.ops('CollectiveReduce')
    assert len(sums) == len({op.get_attr('instance_key') for op in sums}) == 4
    for op in sums:
        assert op.get_attr('group_size') == NUM_WORKERS
        assert op.get_attr('communication_hint') == b'ring'
        added = op.inputs[0].op
        assert added.type == 'AddN'
        assert len(added.inputs) == NUM_TOWERS


@pytest.mark.parametrize('devices', [cpus(NUM_TOWERS), GPUS])
def test_all_workers_call_each_collective_op_by_the_same_numbers(devices: list[str]) -> None:
    def calls(worker: int) -> dict[tuple[int, int], tuple[str, int, list[int]]]:
        built = build(COLLECTIVE, worker, server_devices=(), devices=devices, root=1)
        kinds = {'CollectiveReduce': 'sum', 'CollectiveBcastSend': 'copy', 'CollectiveBcastRecv': 'copy'}
        found: dict[tuple[int, int], tuple[str, int, list[int]]] = {}
        for op in built.ops(*kinds):
            key = op.get_attr('group_key'), op.get_attr('instance_key')
            call = kinds[op.type], op.get_attr('group_size'), op.outputs[0].shape.as_list()
            assert found.setdefault(key, call) == call
        return found

    first, second = calls(0), calls(1)
    assert first == second
    # A sum of each gradient and a copy of each variable.
    assert Counter(kind for kind, _, _ in first.values()) == {'sum': 4, 'copy': 4}


def test_the_others_start_from_the_variables_of_the_root() -> None:
    for worker in range(NUM_WORKERS):
        built = build(COLLECTIVE, worker, optimizer='adam', server_devices=(), root=1)
        sent, received = built.ops('CollectiveBcastSend'), built.ops('CollectiveBcastRecv')
        # Each variable with its two slots.
        assert (len(sent), len(received)) == ((3 * 4, 0) if worker == 1 else (0, 3 * 4))
        assert {*sent, *received} < needed_by([built.step.post_init])


def test_nothing_changes_before_all_sums_are_there() -> None:
    built = build(COLLECTIVE, server_devices=())
    sums = {*built.ops('CollectiveReduce')}
    applied = built.ops('ResourceApplyGradientDescent')
    assert len(applied) == NUM_TOWERS * 4
    for op in applied:
        assert sums < needed_by([op])


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
def test_the_bytes_of_a_ring_are_those_that_all_its_workers_send(transfer: Any) -> None:
    num_workers = 3
    built = build(COLLECTIVE, server_devices=(), num_workers=num_workers, transfer=transfer)
    total = sum(variable.value.shape.num_elements() for variable in built.manager.trainable_variables_on_device(0))
    # Each sends W-1 of the W chunks to be summed, then W-1 sums.
    sent = [2 * (num_workers - 1) * total * (transfer or tf.float32).size / num_workers] * num_workers
    assert built.step.bytes_of_step == round(sum(sent))
    assert built.step.bytes_of_servers == {}


@pytest.mark.parametrize('transfer', [None, tf.bfloat16])
@pytest.mark.parametrize(
    ('spec', 'sent_per_byte'),
    [
        # Of each tower's 2 (N - 1) / N what the last of each worker sends, N towers in all.
        ('xring', NUM_WORKERS * 2 * (NUM_WORKERS * NUM_TOWERS - 1) / (NUM_WORKERS * NUM_TOWERS)),
        ('psgpu', 2 * NUM_TOWERS * (NUM_WORKERS - 1)),
        ('pscpu', 2 * NUM_TOWERS * NUM_WORKERS),
    ],
)
def test_the_bytes_of_a_controllers_step_are_those_of_its_algorithm(
    spec: str, sent_per_byte: float, transfer: Any
) -> None:
    towers = [f'{task("worker", worker)}{tower}' for worker in range(NUM_WORKERS) for tower in cpus(NUM_TOWERS)]
    algorithm = make_algorithm(spec, towers, f'{task("controller", 0)}/cpu:0')
    built = build(
        CONTROLLED,
        model='wide',
        job='controller',
        server_devices=(),
        devices=towers,
        algorithm=algorithm,
        transfer=transfer,
    )
    variables = built.manager.trainable_variables_on_device(0)
    total = sum(variable.value.shape.num_elements() for variable in variables) * (transfer or tf.float32).size
    assert built.step.bytes_of_step == pytest.approx(sent_per_byte * total, rel=1e-4)
    assert built.step.bytes_of_servers == {}
    # Every tower has its variables, and nothing of it is elsewhere.
    for tower, own in zip(towers, built.manager.variables, strict=True):
        assert {variable.handle.device for variable in own.values()} == {tf.DeviceSpec.from_string(tower).to_string()}
