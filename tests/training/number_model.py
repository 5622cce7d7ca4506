"""A small model for tests of checkpoints: all its variables hold the same number."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

from tests.support.graphs import cpus, open_session
from tf_cnn.graph.variables import create_variable
from tf_cnn.training.checkpoint_files import latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer, Slice, full_slice

DATA = 'data-00000-of-00001'


class NumberModel:
    """Variables on some devices in the current graph; all of their values are the same number.

    kernel and bias are whole; table [6, 4] has two rows on the first device and four on the last.
    """

    def __init__(
        self,
        session: tf.Session,
        folder: Path,
        devices: Sequence[str],
        writer: str = '/cpu:0',
        max_to_keep: int = 5,
    ) -> None:
        first, last = devices[0], devices[-1]
        step = create_variable('global_step', [], scope='v', device=first, dtype=tf.int64)
        kernel = create_variable('kernel', [50, 40], scope='v', device=last)
        bias = create_variable('bias', [3], scope='v', device=first, dtype=tf.float16)
        top = create_variable('table', [2, 4], scope='top', device=first)
        bottom = create_variable('table', [4, 4], scope='bottom', device=last)
        slices = {
            'global_step': [full_slice(step)],
            'net/kernel': [full_slice(kernel)],
            'net/bias': [full_slice(bias)],
            'net/table': [Slice(top, (0, 0), (6, 4)), Slice(bottom, (2, 0), (6, 4))],
        }
        self.session = session
        self.variables = [step, kernel, bias, top, bottom]
        self.checkpointer = Checkpointer(str(folder), slices, writer, max_to_keep)
        self._number = tf.placeholder(tf.int64, [])
        self._set = [
            v.assign(tf.fill(v.shape, tf.cast(self._number, v.value.dtype))) for v in self.variables
        ]
        self._add_one = [v.assign(v.value + tf.cast(1, v.value.dtype)) for v in self.variables]

    def set_number(self, number: int) -> None:
        self.session.run(self._set, {self._number: number})

    def add_one(self) -> None:
        self.session.run(self._add_one)

    def number(self) -> int:
        values = self.session.run([variable.value for variable in self.variables])
        (number,) = {int(number) for value in values for number in np.unique(np.float64(value))}
        return number

    def save(self, number: int, step: int) -> str:
        self.set_number(number)
        return self.checkpointer.save(self.session, step)


@contextlib.contextmanager
def open_model(folder: Path, num_devices: int = 1, max_to_keep: int = 5) -> Iterator[NumberModel]:
    """Opens a model on CPUs that keeps its checkpoints in a folder."""
    with tf.Graph().as_default() as graph, open_session(num_devices) as session:
        model = NumberModel(session, folder, cpus(num_devices), max_to_keep=max_to_keep)
        graph.finalize()
        yield model


def restored(folder: Path) -> int:
    """Returns the number in the latest checkpoint, restored into uninitialised variables on another
    device.
    """
    latest = latest_checkpoint(str(folder))
    assert latest is not None
    with open_model(folder) as model:
        model.checkpointer.restore(model.session, latest)
        return model.number()


def files_of(*names: str) -> set[str]:
    return {'checkpoint', *(f'{name}.{suffix}' for name in names for suffix in ('index', DATA))}
