"""Sessions, settings and inputs of small graphs, and the contents of checkpoints."""

import contextlib
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from models.model_spec import Build, Network
from tf_cnn.graph.variables import create_variable
from tf_cnn.inputs.pipeline import InputPipeline
from tf_cnn.run.params import Params
from tf_cnn.run.step_config import StepConfig
from tf_cnn.training.checkpoint_files import latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer, Slice, full_slice
from tf_cnn.training.precision import FP32, Precision
from tf_cnn.training.schedules import LearningRate

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


# ---- saved numbers -------------------------------------------------------------------------------
# A small model whose variables all hold the same number, for tests of checkpoints, and faults of
# checkpoint files.

DATA = 'data-00000-of-00001'


class Model:
    """Variables on some devices in the current graph; all of their values are the same number.

    kernel and bias are whole; table [6, 4] has two rows on the first device and four on the last.
    """

    def __init__(
        self, folder: Path, devices: Sequence[str], writer: str = '/cpu:0', max_to_keep: int = 5
    ) -> None:
        first, last = devices[0], devices[-1]
        step = create_variable('global_step', [], scope='v', device=first, dtype=tf.int64)
        kernel = create_variable('kernel', [50, 40], scope='v', device=last)
        bias = create_variable('bias', [3], scope='v', device=first, dtype=tf.float16)
        top = create_variable('table', [2, 4], scope='top', device=first)
        bottom = create_variable('table', [4, 4], scope='bottom', device=last)
        self.slices = {
            'global_step': [full_slice(step)],
            'net/kernel': [full_slice(kernel)],
            'net/bias': [full_slice(bias)],
            'net/table': [Slice(top, (0, 0), (6, 4)), Slice(bottom, (2, 0), (6, 4))],
        }
        self.variables = [step, kernel, bias, top, bottom]
        self.number = tf.placeholder(tf.int64, [])
        self.set = tf.group(
            *(
                v.assign(tf.fill(v.shape, tf.cast(self.number, v.value.dtype)))
                for v in self.variables
            )
        )
        self.add = tf.group(
            *(v.assign(v.value + tf.cast(1, v.value.dtype)) for v in self.variables)
        )
        self.checkpointer = Checkpointer(str(folder), self.slices, writer, max_to_keep)

    def save(self, session: tf.Session, number: int, step: int) -> str:
        session.run(self.set, {self.number: number})
        return self.checkpointer.save(session, step)

    def number_in(self, session: tf.Session) -> int:
        values = session.run([variable.value for variable in self.variables])
        (number,) = {int(number) for value in values for number in np.unique(np.float64(value))}
        return number


def restored(folder: Path) -> int:
    """Returns the number in the latest checkpoint, restored into uninitialised variables on another
    device.
    """
    latest = latest_checkpoint(str(folder))
    assert latest is not None
    with tf.Graph().as_default(), open_session() as session:
        model = Model(folder, cpus(1))
        model.checkpointer.restore(session, latest)
        return model.number_in(session)


def files_of(*names: str) -> set[str]:
    return {'checkpoint', *(f'{name}.{suffix}' for name in names for suffix in ('index', DATA))}


@contextlib.contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limits the size of files to `size` bytes in the block, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
