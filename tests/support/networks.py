"""Small networks, their steps on one tower, and the variable managers of every mode."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, truncated_normal
from models.model_spec import Build
from tests.support.graphs import cpus, open_session, training_step
from tests.support.oracles import OPTIMIZERS, Weights
from tf_cnn.inputs.pipeline import Batch, InputPipeline
from tf_cnn.managers.all_reduce import Algorithm, compact_algorithm, copy_algorithm
from tf_cnn.managers.local import VariableMgrIndependent
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.modes import MODES, Topology
from tf_cnn.run.exchange import GradientsInMemory
from tf_cnn.run.step_config import StepConfig
from tf_cnn.run.step_graph import StepGraph, build_step_graph
from tf_cnn.training.precision import FP32, Precision
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
# The seconds that a test waits for another thread; only failing tests wait so long.
DEADLINE_SECS = 120.0


def task(job: str, index: int) -> str:
    return f'/job:{job}/task:{index}'


def servers(count: int) -> list[str]:
    return [f'{task("ps", index)}/cpu:0' for index in range(count)]


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 7, 'hidden')), num_classes, 'logits')


def convolved(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 4, 3, 'conv')), 2, 2)
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def transformer(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of ViT, with patches of 2x2 pixels."""
    normal = truncated_normal(0.3)
    x = cnn.tokens(cnn.conv(x, 8, 2, 'patches', strides=2, padding='VALID'))
    x = cnn.class_token(x, 'class_token', initializer=normal)
    x = cnn.position_embedding(x, 'positions', initializer=normal)
    x += cnn.self_attention(cnn.layer_norm(x, 'ln1'), 2, 'attention', initializer=normal)
    x += cnn.dense(x, 8, 'dense', activation=cnn.gelu)
    return cnn.dense(cnn.layer_norm(x[:, 0], 'ln2'), num_classes, 'logits')


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
        """Takes a list of image numbers for each tower; each number stands for BATCH images."""
        super().__init__()
        self._towers = towers

    def tower_batch(self, tower: int) -> Batch:
        randoms = [np.random.default_rng(number) for number in self._towers[tower]]
        images = [random.normal(size=(BATCH, *IMAGE_SHAPE)) for random in randoms]
        labels = [random.integers(NUM_CLASSES, size=BATCH) for random in randoms]
        return Batch(
            tf.constant(np.concatenate(images), tf.float32),
            tf.constant(np.concatenate(labels), tf.int32),
        )


def batch_of(num_towers: int) -> FixedInput:
    """8 images, the same in every step, divided among the towers."""
    return FixedInput(np.arange(4).reshape(num_towers, -1).tolist())


@dataclass(frozen=True)
class Built:
    """One worker's graph."""

    graph: tf.Graph
    manager: VariableMgr
    step: StepGraph

    def ops(self, *types: str) -> list[tf.Operation]:
        return [op for op in self.graph.get_operations() if op.type in types]


def settings(network: Build, precision: Precision = FP32, **more: Any) -> StepConfig:
    return training_step(
        network, NUM_CLASSES, seed=SEED, learning_rate=LEARNING_RATE, precision=precision, **more
    )


def manager_of(mode: str, devices: Sequence[str], **parts: Any) -> VariableMgr:
    """Makes the variable manager of a cluster mode. parts are arguments of make_manager."""
    row = MODES[mode.split()[0]]
    place = Topology.PEERS
    if row.needs_servers:
        place = Topology.PARAMETER_SERVERS
    elif row.has_controller:
        place = Topology.CONTROLLER
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
    exchanged: Sequence[tuple[str, Sequence[int]]] = (),
    **parts: Any,
) -> Built:
    """Builds the graph of a worker, or of the controller, in a mode. `parts` are arguments of
    make_manager.

    `exchanged` are the variables whose gradients are exchanged instead of those of the network;
    empty: the network's.
    """
    parts = {'server_devices': servers(NUM_SERVERS), 'num_workers': NUM_WORKERS, **parts}
    images = [[worker * len(devices) + tower] for tower in range(len(devices))]
    with tf.Graph().as_default() as graph, tf.device(task(job, worker)):
        manager = manager_of(mode, devices, worker=worker, **parts)
        computed = settings(network, precision, forward_only=forward_only)
        pipeline = (
            GradientsInMemory(exchanged, worker * len(devices)) if exchanged else FixedInput(images)
        )
        step = build_step_graph(computed, OPTIMIZERS[optimizer].ours, manager, pipeline)
    return Built(graph, manager, step)


def train_alone(
    network: Build,
    optimizer: str,
    images: Sequence[Sequence[int]],
    num_steps: int = NUM_STEPS,
    precision: Precision = FP32,
    *,
    staged: bool = False,
) -> Weights:
    """Returns the checkpoint values after training in one process; images has a list of numbers for
    each tower.
    """
    with tf.Graph().as_default(), open_session(len(images)) as session:
        manager = make_manager('parameter_server', cpus(len(images)), staged=staged, seed=SEED)
        step = build_step_graph(
            settings(network, precision), OPTIMIZERS[optimizer].ours, manager, FixedInput(images)
        )
        session.run(step.initializers)
        step.prepare_first_step(session)
        for _ in range(num_steps):
            session.run(step.fetches.as_dict())
        return session.run({name: part.variable.value for name, (part,) in step.slices.items()})


WHOLE_BATCH = [list(range(NUM_WORKERS * NUM_TOWERS))]


def assert_close(weights: Weights, expected: Weights, tolerance: float = 1e-5) -> None:
    """Asserts that no weight differs by more than this tolerance, relative to its largest
    magnitude.
    """
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            weights[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name
        )


def needed_by(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    """Returns these ops, and all that run before them in the same step."""
    found, new = set(ops), list(ops)
    while new:
        op = new.pop()
        before = {*op.control_inputs, *(value.op for value in op.inputs)} - found
        found |= before
        new += before
    return found


def random_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns weights that keep activations from vanishing or exploding, so that every layer
    affects the logits.
    """
    random = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith('kernel'):
        is_depthwise = len(shape) == 4 and shape[-1] == 1
        scale = np.sqrt(2 / np.prod(shape[: 2 if is_depthwise else -1]))
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if name.endswith(('gamma', 'moving_variance')):
        return random.uniform(0.5, 1.5, shape).astype(np.float32)
    return random.normal(0, 0.2, shape).astype(np.float32)


def random_images(shape: tuple[int, ...]) -> np.ndarray:
    """Returns images [BATCH, H, W, C] float32 of small patches: averaging networks cannot
    distinguish plain noise.
    """
    height, width, channels = shape
    patches = np.random.default_rng(0).normal(
        size=(BATCH, height // 14 + 1, width // 14 + 1, channels)
    )
    return patches.repeat(14, 1).repeat(14, 2)[:, :height, :width].astype(np.float32)


def evaluate(build: Callable[[], Any], **session_options: Any) -> Any:
    """Returns the values of the tensors that build() makes, in a graph of their own."""
    with tf.Graph().as_default(), open_session(**session_options) as session:
        return session.run(build())


def one_tower() -> VariableMgr:
    return VariableMgrIndependent(ManagerConfig(cpus(1), 1, cpus(1), copy_algorithm(cpus(1))))


def load(session: Any, manager: VariableMgr, weights: Weights) -> None:
    variables = manager.savable_variables()
    values = {
        name: tf.placeholder(tf.float32, variable.shape) for name, variable in variables.items()
    }
    assigned = [variable.assign(values[name]) for name, variable in variables.items()]
    session.run(assigned, {value: weights[name] for name, value in values.items()})


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max() / np.abs(expected).max())


# The arguments are the settings on which modes depend; tests give the few that they are about.
def make_manager(
    mode: str,
    devices: Sequence[str],
    *,
    place: Topology = Topology.LOCAL,
    staged: bool = False,
    relaxed: bool = False,
    algorithm: Algorithm | None = None,
    transfer: tf.DType | None = None,
    **parts: Any,
) -> VariableMgr:
    """Makes the variable manager of towers on these devices.

    Args:
      algorithm: how the towers of one process sum float32; by default on the first CPU.
      parts: further fields of ManagerConfig, instead of the defaults here.
    """
    algorithm = algorithm or copy_algorithm(cpus(1))
    common = ManagerConfig(
        devices=devices,
        seed=1,
        parameter_devices=cpus(1),
        algorithm=compact_algorithm(algorithm, devices, transfer) if transfer else algorithm,
        transfer=transfer,
        nccl_over_towers='gpu' in devices[0],
    )
    manager = MODES[mode].load_manager(place, staged=staged, relaxed=relaxed)
    made: VariableMgr = manager(replace(common, **parts))
    return made
