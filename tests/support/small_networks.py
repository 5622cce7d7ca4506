"""Small networks, and the graph that a worker of a cluster builds from one in each mode."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.pipeline import Batch, InputPipeline
from models.layers import LayerBuilder
from models.model_facts import Build
from params.modes import MODES, Place
from run.step_graph import StepGraph, StepSettings, build_step_graph
from tests.support.mode_managers import make_manager
from tests.support.oracles import OPTIMIZERS, Weights
from tests.support.sessions import cpus, open_session
from tests.support.step_settings import training_step
from training.precision import FP32, Precision
from variable_mgr import VariableMgr

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
# How long a test waits for another thread; reached only if the test fails.
DEADLINE_SECS = 120.0


def task(job: str, index: int) -> str:
    return f'/job:{job}/task:{index}'


def servers(count: int) -> list[str]:
    return [f'{task("ps", index)}/cpu:0' for index in range(count)]


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 7, 'hidden')), num_classes, 'logits')


def wide(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """A network with a weight of 5.8 MB, which is too large for one server."""
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 20_000, 'hidden')), num_classes, 'logits')


def normalised(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', use_bias=False), 'norm'))
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def waiting(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """A network whose steps each wait for a number in the queue of their worker."""
    gate = tf.raw_ops.FIFOQueueV2(component_types=[tf.float32], shapes=[[]], shared_name='gate')
    (number,) = tf.raw_ops.QueueDequeueV2(handle=gate, component_types=[tf.float32])
    return plain(cnn, x + tf.reshape(number, []), num_classes)


class FixedInput(InputPipeline):
    """The same images in each step, different for each tower of each worker."""

    def __init__(self, towers: Sequence[Sequence[int]]) -> None:
        """towers has a list of image numbers for each tower; each number stands for BATCH images."""
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


def settings(network: Build, precision: Precision = FP32, **more: Any) -> StepSettings:
    return training_step(network, NUM_CLASSES, seed=SEED, learning_rate=LEARNING_RATE, precision=precision, **more)


def manager_of(mode: str, devices: Sequence[str], **parts: Any) -> VariableMgr:
    """The variable manager of a cluster mode. parts are arguments of make_manager."""
    row = MODES[mode.split()[0]]
    place = Place.AS_PEERS
    if row.needs_servers:
        place = Place.WITH_SERVERS
    elif row.has_controller:
        place = Place.CONTROLLED
    return make_manager(row.name, devices, place=place, staged=mode == STAGED, seed=SEED, **parts)


def build(
    mode: str,
    worker: int = 0,
    *,
    network: Build = plain,
    optimizer: str = 'sgd',
    precision: Precision = FP32,
    forward_only: bool = False,
    job: str = 'worker',
    devices: Sequence[str] = tuple(cpus(NUM_TOWERS)),
    **parts: Any,
) -> Built:
    """Builds the graph of a worker, or of the controller, in a mode. parts are arguments of make_manager."""
    parts = {'server_devices': servers(NUM_SERVERS), 'num_workers': NUM_WORKERS, **parts}
    images = [[worker * len(devices) + tower] for tower in range(len(devices))]
    with tf.Graph().as_default() as graph, tf.device(task(job, worker)):
        manager = manager_of(mode, devices, worker=worker, **parts)
        computed = settings(network, precision, forward_only=forward_only)
        step = build_step_graph(computed, OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
    return Built(graph, manager, step)


def train_alone(
    network: Build,
    optimizer: str,
    images: Sequence[Sequence[int]],
    num_steps: int = NUM_STEPS,
    precision: Precision = FP32,
) -> Weights:
    """The checkpoint values after training in one process; images has a list of image numbers for each tower."""
    with tf.Graph().as_default(), open_session(len(images)) as session:
        manager = make_manager('parameter_server', cpus(len(images)), seed=SEED)
        step = build_step_graph(settings(network, precision), OPTIMIZERS[optimizer].ours, manager, FixedInput(images))
        session.run(step.initializers)
        for _ in range(num_steps):
            session.run(step.fetches.present())
        return session.run({name: part.variable.value for name, (part,) in step.slices.items()})


WHOLE_BATCH = [list(range(NUM_WORKERS * NUM_TOWERS))]


def assert_close(weights: Weights, expected: Weights, tolerance: float = 1e-5) -> None:
    """Asserts that no weight differs by more than this tolerance, relative to its largest magnitude."""
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name)


def bytes_of(shape: Sequence[int]) -> int:
    return 4 * int(np.prod(shape, dtype=np.int64))


def needed_by(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    """These ops and all ops that must run before them."""
    found, new = set(ops), list(ops)
    while new:
        op = new.pop()
        before = {*op.control_inputs, *(value.op for value in op.inputs)} - found
        found |= before
        new += before
    return found
