"""Small graphs: their networks, input, variable managers and steps, and random values for them."""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.layers import LayerBuilder, truncated_normal
from models.model_spec import Build, Network
from models.networks import NetworkValues, build_network
from tests.support.oracles import Weights
from tf_cnn.inputs.pipeline import Batch, InputPipeline
from tf_cnn.managers.all_reduce import Algorithm, compact_algorithm, copy_algorithm
from tf_cnn.managers.local import VariableMgrIndependent
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.modes import MODES, Topology
from tf_cnn.plan.params import Params
from tf_cnn.step.step_graph import StepConfig, build_step_graph
from tf_cnn.training.optimizers import Optimizer
from tf_cnn.training.precision import FP32, Precision
from tf_cnn.training.schedules import LearningRate
from variable_mgr import VariableMgr

DATA_FORMATS = ('NHWC', 'NCHW')
SEED, LEARNING_RATE, BATCH, IMAGE_SHAPE, NUM_CLASSES = 5, 0.1, 2, (6, 6, 2), 5

# ---- sessions ------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_session(num_cpus: int = 1, *, has_nchw: bool = False) -> Iterator[Any]:
    """Opens a session of the current graph, with the devices /device:CPU:0 ... of one CPU.

    Graph passes are off, since they take longer than the tests. has_nchw enables only the layout
    pass, for ops without a CPU kernel for NCHW.
    """
    config = tf.ConfigProto(device_count={'CPU': num_cpus})
    rewrites = config.graph_options.rewrite_options
    if has_nchw:
        rewrites.optimizers.append('layout')
        rewrites.cpu_layout_conversion = rewrites.NCHW_TO_NHWC
    else:
        rewrites.disable_meta_optimizer = True
    with tf.Session(config=config) as session:
        yield session


def cpus(count: int) -> list[str]:
    return [f'/device:CPU:{number}' for number in range(count)]


def evaluate(build: Callable[[], Any], **session_options: Any) -> Any:
    """Returns the values of the tensors that build() makes, in a graph of their own."""
    with tf.Graph().as_default(), open_session(**session_options) as session:
        return session.run(build())


def needed_by(ops: Sequence[tf.Operation]) -> set[tf.Operation]:
    """Returns these ops, and all that run before them in the same step."""
    needed, new = set(ops), list(ops)
    while new:
        op = new.pop()
        before = {*op.control_inputs, *(value.op for value in op.inputs)} - needed
        needed |= before
        new += before
    return needed


# ---- networks and their input --------------------------------------------------------------------


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.relu(cnn.dense(cnn.flatten(x), 7, 'hidden')), num_classes, 'logits')


def linear(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def normalised(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 3, 'conv', use_bias=False), 'norm'))
    return linear(cnn, x, num_classes)


def convolved(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 4, 3, 'conv')), 2, 2)
    return linear(cnn, x, num_classes)


def transformer(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of ViT, with patches of 2x2 pixels."""
    normal = truncated_normal(0.3)
    x = cnn.tokens(cnn.conv(x, 8, 2, 'patches', strides=2, padding='VALID'))
    x = cnn.class_token(x, 'class_token', initializer=normal)
    x = cnn.position_embedding(x, 'positions', initializer=normal)
    x += cnn.self_attention(cnn.layer_norm(x, 'ln1'), 2, 'attention', initializer=normal)
    x += cnn.dense(x, 8, 'dense', activation=cnn.gelu)
    return cnn.dense(cnn.layer_norm(x[:, 0], 'ln2'), num_classes, 'logits')


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


# ---- training ------------------------------------------------------------------------------------


def training_step(
    network: Network | Build,
    precision: Precision = FP32,
    *,
    num_classes: int = NUM_CLASSES,
    seed: int = SEED,
    learning_rate: float = LEARNING_RATE,
    **flags: Any,
) -> StepConfig:
    """Returns the settings of a step that trains a network, or a network's build function."""
    defaults = {'device': 'cpu', 'data_format': 'NHWC', 'weight_decay': 0.01}
    if not isinstance(network, Network):
        network = Network(network)
    params, rate = Params().with_values(**{**defaults, **flags}), LearningRate((learning_rate,))
    return StepConfig(params, network, num_classes, rate, seed, precision)


# Modes depend on these settings; a test gives those that it is about.
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
        seed=SEED,
        parameter_devices=cpus(1),
        algorithm=compact_algorithm(algorithm, devices, transfer) if transfer else algorithm,
        transfer=transfer,
        nccl_over_towers='gpu' in devices[0],
    )
    manager = MODES[mode].load_manager(place, staged=staged, relaxed=relaxed)
    variable_mgr: VariableMgr = manager(replace(common, **parts))
    return variable_mgr


def one_tower() -> VariableMgr:
    return VariableMgrIndependent(ManagerConfig(cpus(1), 1, cpus(1), copy_algorithm(cpus(1))))


def train_towers(
    config: StepConfig,
    optimizer: Optimizer,
    manager: VariableMgr,
    pipeline: InputPipeline,
    num_steps: int,
) -> list[list[Weights]]:
    """Returns the values of each tower's variables, before the first step and after each step.

    The first tower has everything that a checkpoint stores. Towers that share variables count as
    one.
    """
    with tf.Graph().as_default(), open_session(4) as session:
        step = build_step_graph(config, optimizer, manager, pipeline)
        session.run(step.initializers)
        step.prepare_first_step(session)
        towers = [{name: part.variable.value for name, (part,) in step.slices.items()}]
        if manager.each_tower_has_variables():
            for variables in manager.variables[1:]:
                towers.append({name: variable.value for name, variable in variables.items()})
        values = [session.run(towers)]
        for _ in range(num_steps):
            session.run(step.fetches.as_dict())
            values.append(session.run(towers))
        return values


def plain_gradients(
    session: Any,
    network: Build,
    batches: Sequence[Batch],
    *,
    weight_decay: float = 0.01,
    dtype: tf.DType = tf.float32,
    transfer: tf.DType = tf.float32,
) -> Callable[[Weights, float], Weights]:
    """Returns a function of weights and a loss scale: the sum of the scaled gradients of towers
    with these batches, which are added in the dtype `transfer`.
    """
    fed, scale, of_towers = NetworkValues(), tf.placeholder(tf.float32, []), []
    for tower, batch in enumerate(batches):
        logits = build_network(
            Network(network), batch.images, NUM_CLASSES, fed, 'NHWC', is_training=True, dtype=dtype
        ).logits
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=batch.labels)
        objective = tf.reduce_mean(losses) / len(batches)
        if tower == 0:
            kernels = [value for name, value in fed.values.items() if name.endswith('kernel')]
            objective += weight_decay * tf.add_n([tf.nn.l2_loss(kernel) for kernel in kernels])
        gradients = tf.gradients(scale * objective, [*fed.values.values()])
        of_towers.append([tf.cast(gradient, transfer) for gradient in gradients])
    sums = dict(zip(fed.values, map(tf.add_n, zip(*of_towers, strict=True)), strict=True))

    def gradients_at(weights: Weights, loss_scale: float) -> Weights:
        values = {fed.values[name]: value for name, value in weights.items()}
        totals = session.run(sums, {scale: loss_scale, **values})
        return {name: total.astype(np.float32) for name, total in totals.items()}

    return gradients_at


def assert_close(weights: Weights, expected: Weights, tolerance: float = 1e-5) -> None:
    """Asserts that no weight differs by more than this tolerance, relative to its largest
    magnitude.
    """
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            weights[name], value, rtol=0, atol=tolerance * np.abs(value).max(), err_msg=name
        )


def relative_error(values: np.ndarray, expected: np.ndarray) -> float:
    assert values.shape == expected.shape
    return float(np.abs(values - expected).max() / np.abs(expected).max())
