"""The reference for distributed training: one tower of this process trains on all images of some
workers.
"""

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from models.model_spec import ModelSpec
from models.registry import MODELS
from preprocessing import ImageOptions
from tests.support.files import quoted
from tests.support.graphs import assert_close, cpus, open_session, training_step
from tests.support.oracles import (
    BETAS,
    EPSILON,
    ETA,
    MOMENTUM,
    OPTIMIZERS,
    WEIGHT_DECAY,
    Weights,
)
from tests.support.runs import run_benchmark
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.inputs.pipeline import Batch, InputConfig, InputPipeline
from tf_cnn.inputs.synthetic import SyntheticInput
from tf_cnn.managers.all_reduce import copy_algorithm
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.modes import MODES, Topology
from tf_cnn.step.step_graph import build_step_graph
from tf_cnn.training.checkpoint_files import latest_checkpoint
from tf_cnn.training.checkpoints import Checkpointer

BATCH, NUM_TOWERS, NUM_STEPS, NUM_EARLIER_STEPS = 8, 2, 3, 2
SEED, LEARNING_RATE = 7, 0.01
OPTIMIZER_FLAGS = {
    'sgd': '',
    'momentum': f'--momentum={MOMENTUM}',
    'adam': f'--adam_beta1={BETAS[0]} --adam_beta2={BETAS[1]} --adam_epsilon={EPSILON}',
    'lars': f'--momentum={MOMENTUM} --lars_eta={ETA}',
}


class Row(NamedTuple):
    """A mode with its flags, as two processes train in it.

    goes_on: the run continues from a checkpoint that replicated towers saved in NCHW.
    """

    flags: str
    num_ps: int
    optimizer: str
    goes_on: bool = False

    def train_flags(self, num_towers: int, train_dir: object) -> str:
        """Returns the flags of processes that train as one_tower does, with num_towers each."""
        return (
            f'--model=lenet --device=cpu --num_gpus={num_towers} --batch_size={BATCH} '
            f'--num_warmup_batches=0 --display_every=1 --train_dir={quoted(train_dir)} '
            f'--optimizer={self.optimizer} {OPTIMIZER_FLAGS[self.optimizer]} '
            f'--init_learning_rate={LEARNING_RATE} --weight_decay={WEIGHT_DECAY} '
            f'--tf_random_seed={SEED}'
        )

    def take_earlier_steps(self, train_dir: Path) -> str | None:
        """Takes NUM_EARLIER_STEPS in train_dir if the run goes on; returns a checkpoint like the
        one there, which the run will overwrite.
        """
        if not self.goes_on:
            return None
        folder = _earlier_steps(self.optimizer).name
        shutil.copytree(folder, train_dir)
        return latest_checkpoint(folder)


@functools.cache
def _earlier_steps(optimizer: str) -> 'tempfile.TemporaryDirectory[str]':
    """Trains replicated towers of this process; returns the folder with their checkpoint."""
    folder = tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-')
    flags = Row('', 0, optimizer).train_flags(NUM_TOWERS, folder.name)
    mode = '--variable_update=replicated --data_format=NCHW'
    run_benchmark(f'{flags} {mode} --num_batches={NUM_EARLIER_STEPS}')
    return folder


class WholeBatch(InputPipeline):
    """All images of workers that have num_towers towers of batch_size each, for one tower."""

    def __init__(
        self, model: ModelSpec, workers: tuple[int, ...], num_towers: int, batch_size: int
    ) -> None:
        super().__init__()
        data_set, size = DATA_SETS[model.data_set], model.image_size
        options = ImageOptions(size, size, data_set.channels, training=False)
        batches = []
        for worker in workers:
            seed = SEED + worker * num_towers
            images = SyntheticInput(
                InputConfig(None, cpus(num_towers), batch_size, data_set.num_classes, options, seed)
            )
            self.initializers += images.initializers
            batches += [images.tower_batch(tower) for tower in range(num_towers)]
        self._batch = Batch(
            tf.concat([b.images for b in batches], 0), tf.concat([b.labels for b in batches], 0)
        )

    def tower_batch(self, tower: int) -> Batch:
        assert tower == 0
        return self._batch


class Trained(NamedTuple):
    """The variables before and after the steps, and their losses."""

    before: Weights
    after: Weights
    losses: list[float]


@functools.cache
def one_tower(
    optimizer: str,
    *,
    model: tuple[str, str] = ('lenet', 'imagenet'),
    workers: tuple[int, ...] = (0, 1),
    num_towers: int = NUM_TOWERS,
    batch_size: int = BATCH,
    start: str | None = None,
    num_steps: int = NUM_STEPS,
    learning_rate: float = LEARNING_RATE,
) -> Trained:
    """Trains one tower on the images of these workers, from a checkpoint or the first values.

    optimizer: one of OPTIMIZER_FLAGS, or plain_momentum.
    model: its name, and its data set.
    """
    with tf.Graph().as_default(), open_session(NUM_TOWERS) as session:
        spec = MODELS.find_model(*model)
        settings = training_step(
            spec.network,
            num_classes=DATA_SETS[spec.data_set].num_classes,
            seed=SEED,
            learning_rate=learning_rate,
            weight_decay=WEIGHT_DECAY,
        )
        config = ManagerConfig(cpus(1), SEED, cpus(1), copy_algorithm(cpus(1)))
        manager = MODES['parameter_server'].load_manager(Topology.LOCAL)(config)
        images = WholeBatch(spec, workers, num_towers, batch_size)
        graph = build_step_graph(settings, OPTIMIZERS[optimizer].ours, manager, images)
        session.run(graph.initializers)
        if start:
            Checkpointer('', graph.slices, HOST_DEVICE, 1).restore(session, start)
        graph.prepare_first_step(session)
        values: dict[str, Any] = {
            name: tf.raw_ops.ReadVariableOp(
                resource=part.variable.handle, dtype=part.variable.value.dtype
            )
            for name, (part,) in graph.slices.items()
        }

        before = session.run(values)
        losses = [float(session.run(graph.fetches.as_dict())['loss']) for _ in range(num_steps)]
        return Trained(before, session.run(values), losses)


def model_names(weights: Weights) -> list[str]:
    """Returns the names of the model's own variables."""
    return [name for name in weights if name.endswith(('/kernel', '/bias'))]


def assert_trained_alike(after: Weights, expected: Trained) -> None:
    """Asserts that no variable differs from the expected value by more than 1e-5 of its largest
    magnitude, and no weight of the model by more than 1e-3 of the way (the Euclidean norm) that the
    steps moved it.
    """
    assert_close(after, expected.after)
    for name in model_names(after):
        value = expected.after[name]
        moved = np.linalg.norm(value - expected.before[name])
        assert np.linalg.norm(after[name] - value) < 1e-3 * moved, name
