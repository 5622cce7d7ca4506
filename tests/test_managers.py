"""Clusters in one process: where variables lie, what crosses between tasks, and that a step is taken as a whole."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from oracles import OPTIMIZERS, Weights
from sessions import cpus, open_session

from all_reduce import make_algorithm
from input_pipeline import Batch, InputPipeline
from managers.masters import Masters, ParameterServers
from models.catalog import find_model
from models.layers import LayerBuilder
from models.networks import NETWORKS, Network, build_network
from packing import Packing
from step_graph import StepGraph, StepSettings, build_step_graph
from variable_mgr import Placement, VariableMgr, make_variable_mgr

pytestmark = pytest.mark.graph

SEED, LEARNING_RATE, NUM_STEPS = 5, 0.1, 3
NUM_WORKERS, NUM_TOWERS, NUM_SERVERS, BATCH = 2, 2, 2, 2
IMAGE_SHAPE, NUM_CLASSES = (6, 6, 2), 5
PS, STAGED, REPLICATED, COLLECTIVE = (
    'parameter_server',
    'parameter_server --staged_vars',
    'distributed_replicated',
    'collective_all_reduce',
)
# For what waits for another thread. Only a fault makes it that long.
DEADLINE_SECS = 120.0


def task(job: str, index: int) -> str:
    return f'/job:{job}/task:{index}'


def servers(count: int) -> list[str]:
    return [f'{task("ps", index)}/cpu:0' for index in range(count)]


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 7, 'hidden')), num_classes, 'logits')


def normalised(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', use_bias=False), 'norm'))
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


@pytest.fixture(autouse=True)
def small_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NETWORKS, 'plain', Network(plain))
    monkeypatch.setitem(NETWORKS, 'normalised', Network(normalised))


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


@dataclass
class Built:
    """One worker's graph."""

    graph: tf.Graph
    manager: VariableMgr
    step: StepGraph

    def ops(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.graph.get_operations() if op.type in types]


def settings(model: str) -> StepSettings:
    return StepSettings(
        model=model,
        num_classes=NUM_CLASSES,
        data_format='NHWC',
        forward_only=False,
        with_accuracy=False,
        loss_type_to_report='total_loss',
        weight_decay=0.01,
        gradient_clip=None,
        learning_rate=LEARNING_RATE,
        seed=SEED,
    )


def place(towers: Sequence[str], **more: Any) -> Placement:
    algorithm = make_algorithm('pscpu', towers, cpus(1)[0])
    return Placement(
        **{**dict(devices=towers, seed=SEED, parameter_devices=cpus(1), algorithm=algorithm, packing=Packing()), **more}
    )


def build(mode: str, worker: int = 0, *, model: str = 'plain', optimizer: str = 'sgd', **placed: Any) -> Built:
    """A worker of a cluster in one of its modes. placed are further fields of its Placement."""
    at = {'server_devices': servers(NUM_SERVERS), 'worker': worker, 'num_workers': NUM_WORKERS, **placed}
    towers = at.pop('devices', cpus(NUM_TOWERS))
    images = [[worker * len(towers) + tower] for tower in range(len(towers))]
    with tf.Graph().as_default() as graph, tf.device(task('worker', worker)):
        manager = make_variable_mgr(mode.split()[0], place(towers, **at), distributed=True, staged=mode == STAGED)
        step = build_step_graph(settings(model), OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
    return Built(graph, manager, step)


def train_alone(model: str, optimizer: str, images: Sequence[Sequence[int]], num_steps: int = NUM_STEPS) -> Weights:
    """What a checkpoint holds after the steps of one process, whose towers have the images of these numbers."""
    with tf.Graph().as_default(), open_session(len(images)) as session:
        manager = make_variable_mgr('parameter_server', place(cpus(len(images))))
        step = build_step_graph(settings(model), OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
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


def masters_of(model: str, num_ps: int) -> Masters:
    """The masters of a network of the catalog."""
    size, at = find_model(model).image_size, ParameterServers(servers(num_ps), 0, NUM_WORKERS, Packing())
    with tf.Graph().as_default():
        manager = make_variable_mgr(
            PS, place(cpus(1), server_devices=at.devices, num_workers=NUM_WORKERS), distributed=True
        )
        with manager.create_outer_variable_scope(0) as variables:
            images = tf.placeholder(tf.float32, [1, size, size, 3])
            build_network(model, images, 1000, variables, 'NHWC', is_training=True)
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


def test_a_small_variable_goes_to_the_server_that_holds_the_fewest_bytes() -> None:
    masters = Masters(ParameterServers(servers(3), 0, NUM_WORKERS, Packing()))
    shapes = {'a': [5, 20], 'b': [10], 'c': [4, 15], 'd': [30], 'e': [25], 'f': [20]}
    with tf.Graph().as_default():
        for name, shape in shapes.items():
            masters.create(name, shape, True, lambda shape=shape: tf.zeros(shape))  # type: ignore[misc]
    # 100 | 10 | 60, then 30 and 25 to the second, and 20 to the third.
    placed = {name: servers(3).index(part.variable.device) for name, (part,) in masters.parts.items()}
    assert placed == {'a': 0, 'b': 1, 'c': 2, 'd': 1, 'e': 1, 'f': 2}


# What crosses between tasks.


def crossings(built: Built, wanted: str) -> list[tf.Tensor]:
    """The tensors but scalars that a step sends from one job to another, 'worker to ps' or 'ps to worker', each once."""
    found: dict[tuple[str, str], tf.Tensor] = {}
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
    built = build(mode, worker, model='lenet', transfer=transfer, devices=cpus(3))
    parts = [
        list(part.variable.shape)
        for variable in built.manager.trainable_variables_on_device(0)
        for part in built.manager.slices()[variable.name]
    ]
    # The largest weight is cut in two.
    assert len(parts) == 8 + 1
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
    workers = [build(mode, worker, model='lenet', transfer=transfer) for worker in range(NUM_WORKERS)]
    moved = sum(
        value.shape.num_elements() * value.dtype.size
        for built in workers
        for way in ('ps to worker', 'worker to ps')
        for value in crossings(built, way)
    )
    assert [built.step.bytes_of_step for built in workers] == [moved] * NUM_WORKERS
    assert [built.step.bytes_of_servers for built in workers] == [workers[0].step.bytes_of_servers] * NUM_WORKERS
    held = Counter()
    for part in (part for name, parts in workers[0].step.slices.items() for part in parts if name != 'global_step'):
        held[part.variable.device] += bytes_of(part.variable.shape)
    assert workers[0].step.bytes_of_servers == held


@pytest.mark.parametrize(
    ('packing', 'expected'),
    [(Packing(num_chunks=3), 3 * NUM_SERVERS), (Packing(max_bytes=1 << 20), 2 + 3 + 1)],
)
def test_gradients_cross_in_packets(packing: Packing, expected: int) -> None:
    crossed = crossings(build(PS, model='lenet', packing=packing), 'worker to ps')
    unpacked = crossings(build(PS, model='lenet'), 'worker to ps')
    print([v.shape for v in crossed], [(v.shape, v.device) for v in unpacked])
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
    assert any(read in needed_by([push]) for push in built.ops('AccumulatorApplyGradient'))
