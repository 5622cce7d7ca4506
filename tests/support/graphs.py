"""Sessions, settings and inputs of small graphs, and the contents of checkpoints."""

import contextlib
import resource
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.model_spec import Build, Network
from tests.support.oracles import Weights
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.run.params import Params
from tf_cnn.run.step_config import StepConfig
from tf_cnn.run.step_graph import build_step_graph
from tf_cnn.training.optimizers import Optimizer
from tf_cnn.training.precision import FP32, Precision
from tf_cnn.training.schedules import LearningRate
from variable_mgr import VariableMgr

# ---- sessions ------------------------------------------------------------------------------------
# Sessions for small graphs.

DATA_FORMATS = ('NHWC', 'NCHW')


@contextlib.contextmanager
def open_session(num_cpus: int = 1, *, has_nchw: bool = False) -> Iterator[Any]:
    """Opens a session of the current graph, with the devices /device:CPU:0 ... of one CPU.

    Graph passes are off, since they take longer than the tests. has_nchw enables only the layout
    pass, for ops whose CPU kernels support only NHWC.
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


# ---- step settings -------------------------------------------------------------------------------
# The settings of a small training step.


def training_step(
    network: Network | Build,
    num_classes: int,
    *,
    seed: int,
    learning_rate: float,
    precision: Precision = FP32,
    **flags: Any,
) -> StepConfig:
    """Returns the settings of a step that trains a network, or a network's build function."""
    params = Params().replace(
        **{
            'device': 'cpu',
            'data_format': 'NHWC',
            'weight_decay': 0.01,
            **flags,
        }
    )
    if not isinstance(network, Network):
        network = Network(network)
    rate = LearningRate((learning_rate,))
    return StepConfig(params, network, num_classes, rate, seed, precision)


def train_towers(
    config: StepConfig,
    optimizer: Optimizer,
    manager: VariableMgr,
    pipeline: InputPipeline,
    num_steps: int,
) -> list[list[Weights]]:
    """Returns the values of each tower's variables, before the first step and after each step.

    Those of the first tower are all that a checkpoint stores. If towers share variables, there is
    one tower.
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


# ---- input steps ---------------------------------------------------------------------------------
# The images and labels that an input pipeline gives the model in a step.


def step(
    session: Any, pipeline: InputPipeline, towers: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Runs a step, and returns the images and labels of each tower in `towers`."""
    batches = [pipeline.tower_batch(tower) for tower in towers]
    fetched = [[(batch.images, batch.labels) for batch in batches], pipeline.per_step_ops]
    return session.run(
        fetched, dict(zip(pipeline.feed_placeholders, pipeline.next_feed_values(), strict=True))
    )[0]


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files to `size` bytes in the block, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
