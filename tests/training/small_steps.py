"""Trains small networks in any precision, mode and number of towers, and returns the values of a checkpoint."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from inputs.pipeline import Batch, InputPipeline
from managers.all_reduce import make_algorithm
from models.layers import LayerBuilder
from models.model_facts import Build
from params.all_reduce_spec import parse_spec
from run.step_graph import build_step_graph
from tests.support.graphs import cpus, open_session, training_step
from tests.support.networks import make_manager
from tests.support.oracles import OPTIMIZERS, Weights
from training.precision import Precision

FP16, BF16 = Precision('fp16'), Precision('bf16')
# The largest relative rounding error.
UNIT = {'fp16': 2.0**-11, 'bf16': 2.0**-8}
NUM_CLASSES, BATCH, LEARNING_RATE, SEED = 5, 8, 0.1, 3
IMAGES = np.random.default_rng(2).normal(size=(BATCH, 6, 6, 2)).astype(np.float32)
LABELS = np.random.default_rng(3).integers(NUM_CLASSES, size=BATCH).astype(np.int32)
# The state of a loss scale: the scale, good steps since its last change, skipped steps.
State = tuple[float, int, int]


def plain(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    x = cnn.max_pool(cnn.relu(cnn.conv(x, 4, 3, 'conv')), 2, 2)
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


def scaled(factor: float) -> Build:
    """Returns a network whose logits are multiplied by this."""
    return lambda cnn, x, num_classes: cnn.dense(cnn.flatten(x), num_classes, 'logits') * factor


def residual(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of residual networks and of those with many branches."""
    x = cnn.relu(cnn.batch_norm(cnn.conv(x, 8, 3, 'conv1', strides=2, padding=1, use_bias=False), 'conv1/bn'))
    x = cnn.max_pool(x, 3, 2, padding=1)
    y = cnn.relu(cnn.batch_norm(cnn.conv(x, 4, 1, 'conv2', use_bias=False), 'conv2/bn'))
    y = cnn.batch_norm(cnn.conv(y, 8, 3, 'conv3', use_bias=False), 'conv3/bn')
    x = cnn.concat([cnn.relu(x + y), cnn.avg_pool(x, 3, 1, 'SAME')])
    x = cnn.conv(x, 8, 2, 'conv4', padding='VALID')
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


def modern(cnn: LayerBuilder, x: Any, num_classes: int) -> Any:
    """The layers of mobile networks and of ConvNeXt."""
    x = cnn.swish(cnn.conv(x, 8, 4, 'stem', strides=4, padding='VALID'))
    y = cnn.gelu(cnn.layer_norm(cnn.depthwise_conv(x, 5, 'depthwise'), 'norm'))
    x = x + cnn.layer_scale(cnn.relu6(cnn.conv(y, 8, 1, 'conv')), 'scale', 0.5)
    x = cnn.gate(x, cnn.dense(cnn.global_avg_pool(x), 8, 'gate'))
    return cnn.dense(cnn.global_avg_pool(x), num_classes, 'logits')


class FixedInput(InputPipeline):
    """The same images in every step, divided among the towers."""

    def __init__(self, num_towers: int, images: np.ndarray = IMAGES, labels: np.ndarray = LABELS) -> None:
        super().__init__()
        self._parts = list(zip(np.split(images, num_towers), np.split(labels, num_towers), strict=True))

    def tower_batch(self, tower: int) -> Batch:
        images, labels = self._parts[tower]
        return Batch(tf.constant(images), tf.constant(labels))


@dataclass(frozen=True)
class Way:
    """The settings of the steps to take."""

    mode: str = 'parameter_server'
    num_towers: int = 1
    network: Build = plain
    optimizer: str = 'sgd'
    clip: float | None = None
    transfer: tf.DType | None = None
    weight_decay: float = 0.01
    staged: bool = False


def train(precision: Precision, way: Way, num_steps: int) -> list[Weights]:
    """Returns the checkpoint values and the other towers' variables, before the first step and after each step."""
    towers = cpus(way.num_towers)
    settings = training_step(
        way.network,
        NUM_CLASSES,
        seed=SEED,
        learning_rate=LEARNING_RATE,
        weight_decay=way.weight_decay,
        gradient_clip=way.clip,
        precision=precision,
    )
    with tf.Graph().as_default(), open_session(way.num_towers) as session:
        manager = make_manager(
            way.mode,
            towers,
            staged=way.staged,
            seed=SEED,
            variable_dtype=precision.variables,
            algorithm=make_algorithm(parse_spec('xring'), towers, cpus(1)[0]),
            transfer=way.transfer,
        )
        graph = build_step_graph(settings, OPTIMIZERS[way.optimizer].ours, manager, FixedInput(way.num_towers))
        session.run(graph.initializers)
        graph.start(session)
        values = {name: part.variable.value for name, (part,) in graph.slices.items()}
        if manager.each_tower_has_variables():
            for number, own in enumerate(manager.variables[1:], start=1):
                values |= {f'tower {number}: {name}': variable.value for name, variable in own.items()}
        seen = [session.run(values)]
        for _ in range(num_steps):
            session.run(graph.fetches.present())
            seen.append(session.run(values))
        return seen


def state_of(weights: Weights) -> State:
    scale, good_steps, skipped_steps = (
        weights[f'loss_scale/{name}'] for name in ('scale', 'good_steps', 'skipped_steps')
    )
    return float(scale), int(good_steps), int(skipped_steps)
