"""Training resumes in any mode and data format from a checkpoint of any other as if it had not been
interrupted.
"""

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from models.registry import MODELS, register_model
from tests.support.graphs import DATA_FORMATS
from tests.support.images import write_mnist
from tests.support.oracles import Weights
from tests.support.outputs import failed, refused
from tests.support.runs import made, plan_of, values_in
from tf_cnn.cluster.topology import Cluster
from tf_cnn.cluster.worker import Worker
from tf_cnn.managers.all_reduce import copy_algorithm
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.synchronous_step import SynchronousStep
from tf_cnn.run.build import build_step
from tf_cnn.run.plan import Plan
from tf_cnn.run.state import RunState, find_resume_point
from tf_cnn.run.step_graph import StepGraph
from tf_cnn.training.checkpoint_files import (
    clear_training_begun,
    latest_checkpoint,
    mark_training_begun,
)

pytestmark = [pytest.mark.graph, pytest.mark.long]

# The images of a step are all there are, on every tower, so that batch norm and independent towers
# see the same in every mode. Their order differs, and with it the rounding: 1e-6 of a loss. A step
# changes it by a hundredth and more.
NUM_IMAGES, NUM_EARLIER, NUM_STEPS = 12, 2, 3
TOLERANCE = 2e-5
MODES = {
    f'{name}-{data_format}': f'{flags} --data_format={data_format}'
    for name, flags in {
        'parameter_server': '--num_gpus=1',
        'parameter_server-2': '--num_gpus=2',
        'replicated': '--num_gpus=1 --variable_update=replicated',
        'replicated-2': '--num_gpus=2 --variable_update=replicated',
        'collective-2': '--num_gpus=2 --variable_update=collective_all_reduce',
        'independent-2': '--num_gpus=2 --variable_update=independent',
    }.items()
    for data_format in DATA_FORMATS
}
STAGED = {
    f'staged-{data_format}': f'--num_gpus=2 --staged_vars --data_format={data_format}'
    for data_format in DATA_FORMATS
}
MODEL = 'small_network_with_batch_norm'


def small_network(cnn: Any, images: Any, num_classes: int) -> Any:
    x = cnn.max_pool(
        cnn.relu(cnn.batch_norm(cnn.conv(images, 4, 3, 'conv', strides=4), 'bn')), 2, 2
    )
    return cnn.dense(cnn.flatten(x), num_classes, 'logits')


@dataclass(frozen=True)
class Outcome:
    """The losses of some steps, and what a checkpoint holds after them."""

    losses: list[float]
    after: Weights


def state_of(plan: Plan, built: StepGraph, resume_from: str | None = None) -> RunState:
    """The state of a run in one process that goes on from a checkpoint, or starts."""
    worker = Worker(plan.session.config)
    worker.join({'step': None, 'end': None})
    return RunState(
        dataclasses.replace(plan, resume_from=resume_from), built, worker, warn=print, note=print
    )


class Trainer:
    """One mode's graph, built as BenchmarkCNN does, that can train several times."""

    def __init__(self, data_dir: Path, folder: Path, mode: str) -> None:
        self.folder = folder
        steps = f'--batch_size={NUM_IMAGES} --num_batches={NUM_STEPS} --num_warmup_batches=0'
        optimizer = '--optimizer=adam --init_learning_rate=0.02 --adam_epsilon=0.01'
        flags = f'--model={MODEL} {steps} {optimizer} --weight_decay=0.01 {mode}'
        self._plan = plan_of(flags, data_dir=data_dir, train_dir=folder)
        with tf.Graph().as_default() as graph:
            self._built: StepGraph = build_step(self._plan)
            self._fresh = state_of(self._plan, self._built)
            self._resumed = state_of(
                self._plan, self._built, str(folder / f'model.ckpt-{NUM_EARLIER}')
            )
        self._open = lambda: tf.Session(graph=graph, config=self._plan.session.config)
        # One that stays open saves time. But what is staged would stay there for the next run.
        self._session = None if '--staged_vars' in mode else self._open()

    def run(self, start: Path | None, num_steps: int = NUM_STEPS) -> Outcome:
        """Trains from the checkpoint of step NUM_EARLIER in a folder, or from the beginning."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if start:
            shutil.copytree(start, self.folder)
        else:
            self.folder.mkdir()
        # A session draws other initial values at a second time.
        session = (start and self._session) or self._open()
        state = self._resumed if start else self._fresh
        state.prepare(session)
        self._built.prepare_first_step(session)
        losses = [
            float(session.run(self._built.fetches.as_dict())['loss']) for _ in range(num_steps)
        ]
        state.finish(session)
        if session is not self._session:
            session.close()
        return Outcome(losses, values_in(self.folder))

    def close(self) -> None:
        if self._session:
            self._session.close()


@pytest.fixture(scope='module')
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Trainer]]:
    """A trainer of every mode, the staged ones included."""
    folder, random = tmp_path_factory.mktemp('modes'), np.random.default_rng(8)
    images = random.integers(0, 256, [NUM_IMAGES, 28, 28], np.uint8)
    write_mnist(folder / 'data', images, random.integers(0, 10, NUM_IMAGES))
    register_model(MODEL, small_network, data_set='mnist', image_size=28)
    made = {
        name: Trainer(folder / 'data', folder / name, mode)
        for name, mode in (MODES | STAGED).items()
    }
    yield made
    for trainer in made.values():
        trainer.close()
    MODELS.unregister(MODEL)


@pytest.fixture(scope='module')
def saved(
    trainers: dict[str, Trainer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """For each mode, the folder in which it saved after its first steps."""
    folders = {}
    for name, trainer in trainers.items():
        trainer.run(None, NUM_EARLIER)
        folders[name] = Path(
            shutil.copytree(trainer.folder, tmp_path_factory.mktemp('saved') / name)
        )
    return folders


@pytest.fixture(scope='module')
def uninterrupted(trainers: dict[str, Trainer]) -> Outcome:
    """A run of all steps at once, with the losses of the last ones."""
    whole = trainers['parameter_server-NHWC'].run(None, NUM_EARLIER + NUM_STEPS)
    return Outcome(whole.losses[NUM_EARLIER:], whole.after)


def difference(weights: Weights, expected: Weights) -> float:
    """The largest difference of a value, relative to the largest magnitude in its variable."""
    assert weights.keys() == expected.keys()
    return max(
        float(np.abs(weights[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
        # The convolution's bias does nothing before batch norm: what it has beside it is rounding.
        if not name.startswith('conv/bias')
    )


@pytest.mark.parametrize('reader', MODES)
def test_every_mode_resumes_from_what_any_mode_saved(
    reader: str, trainers: dict[str, Trainer], saved: dict[str, Path], uninterrupted: Outcome
) -> None:
    for writer in MODES:
        found = trainers[reader].run(saved[writer])
        assert found.losses == pytest.approx(uninterrupted.losses, rel=TOLERANCE), writer
        assert difference(found.after, uninterrupted.after) < TOLERANCE, writer
        assert found.after['global_step'] == NUM_EARLIER + NUM_STEPS


@pytest.mark.parametrize('reader', STAGED)
def test_staged_variables_resume_from_what_was_saved(
    reader: str, trainers: dict[str, Trainer], saved: dict[str, Path], uninterrupted: Outcome
) -> None:
    """The first step applies gradients that were computed with what was saved, as in any mode."""
    first, second, third = uninterrupted.losses
    # Of the other data format; the modes themselves write the same.
    for writer in [name for name in MODES if name[-4:] != reader[-4:]]:
        found = trainers[reader].run(saved[writer])
        assert found.losses[:2] == pytest.approx([first, second], rel=TOLERANCE), writer
        # The second step's gradients were computed before the first update.
        assert found.losses[2] != pytest.approx(third, rel=TOLERANCE)


@pytest.mark.parametrize('writer', STAGED)
def test_every_mode_resumes_from_what_staged_variables_saved(
    writer: str, trainers: dict[str, Trainer], saved: dict[str, Path]
) -> None:
    """After k steps, the variables saved are those with which step k + 1 of an uninterrupted run
    computes.
    """
    whole = trainers[writer].run(None, NUM_EARLIER + NUM_STEPS)
    expected = trainers['parameter_server-NHWC'].run(saved[writer])
    assert expected.losses[0] == pytest.approx(whole.losses[NUM_EARLIER], rel=TOLERANCE)
    for reader in MODES:
        found = trainers[reader].run(saved[writer])
        assert found.losses == pytest.approx(expected.losses, rel=TOLERANCE), reader
        assert difference(found.after, expected.after) < TOLERANCE, reader


def test_each_step_changes_the_loss_by_far_more_than_the_tolerance(uninterrupted: Outcome) -> None:
    for before, after in itertools.pairwise(uninterrupted.losses):
        assert abs(before - after) / before > 100 * TOLERANCE


class Stepping:
    """A session in which a step is taken while a checkpoint is written."""

    def __init__(self, session: tf.Session, step: Any) -> None:
        self._session, self._step = session, step

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        values = self._session.run(fetches, feed_dict)
        if isinstance(fetches, tf.Operation) and fetches.type == 'SaveV2':
            self._session.run(self._step)
        return values


def test_a_checkpoint_saved_during_a_step_is_of_one_step_or_refused(tmp_path: Path) -> None:
    plan = plan_of(f'--model=trivial --batch_size=2 --num_batches={NUM_STEPS}', train_dir=tmp_path)
    with tf.Graph().as_default() as graph:
        built = build_step(plan)
        cpu = ['/cpu:0']
        together = SynchronousStep(
            ManagerConfig(cpu, 1, cpu, copy_algorithm(cpu), server_devices=cpu), refresh=dict
        )
        [begun] = together.begun.values()
        state = state_of(
            plan, dataclasses.replace(built, synchronous_step=together, begun_steps=[begun])
        )
        begin = [begun.assign(tf.constant(step, tf.int64)) for step in range(3)]
    with tf.Session(graph=graph, config=plan.session.config) as session:
        session.run(begin[0])
        state.prepare(session)
        session.run(built.step_input.initializers)
        session.run(begin[1])
        with failed():
            state.save_early(session, is_in_step=True)
        session.run(built.fetches.as_dict())
        state.save_early(session, is_in_step=True)
        assert values_in(tmp_path)['global_step'] == 1
        with failed('model.ckpt-1'):
            state.save_early(
                Stepping(session, [begin[2], built.fetches.as_dict()]), is_in_step=True
            )
        assert values_in(tmp_path)['global_step'] == 1
        state.save_early(session, is_in_step=True)
        assert values_in(tmp_path)['global_step'] == 2


def test_a_folder_is_kept_for_one_run_until_it_ends(tmp_path: Path) -> None:
    def run() -> BenchmarkCNN:
        return made('--num_batches=2', train_dir=tmp_path)

    with contextlib.closing(run().steps()) as steps:
        next(steps)
        before = sorted(tmp_path.iterdir())
        with failed(f'--train_dir={tmp_path}', 'another run'):
            run().run()
        assert sorted(tmp_path.iterdir()) == before
    planned = run()
    assert run().run().is_complete
    # A run that was planned before another one saved does not go back.
    with failed(f'--train_dir={tmp_path}', 'model.ckpt-4', 'start it again'):
        planned.run()
    assert str(latest_checkpoint(str(tmp_path))).endswith('model.ckpt-4')


def test_a_cluster_goes_on_to_the_end_that_an_earlier_one_of_the_same_length_did_not_reach(
    tmp_path: Path,
) -> None:
    plan = plan_of(f'--model=trivial --num_batches={NUM_STEPS}', train_dir=tmp_path)
    length = [plan.params.run.num_warmup_batches, plan.params.run.num_timed, 1]
    cluster = Cluster(('a:1',), ('a:2', 'a:3'), 'worker', 0, 'the flags')
    processes = dataclasses.replace(plan.cluster_role, cluster=cluster)
    alone = dataclasses.replace(plan, resume_from=f'{tmp_path}/model.ckpt-3')
    in_cluster = dataclasses.replace(alone, cluster_role=processes)
    fresh = dataclasses.replace(plan, cluster_role=processes)
    for mark, end in (
        (lambda: mark_training_begun(str(tmp_path), length, 9), 9),
        (lambda: mark_training_begun(str(tmp_path), [*length[:2], 2], 9), None),
        # Asynchronous workers may take more.
        (lambda: mark_training_begun(str(tmp_path), length, 2), 3),
        (lambda: mark_training_begun(str(tmp_path), None, 9), None),
        (lambda: clear_training_begun(str(tmp_path)), None),
    ):
        mark()
        assert find_resume_point(in_cluster) == {'step': 3, 'end': end}
        assert find_resume_point(alone) == {'step': 3, 'end': None}
        assert find_resume_point(fresh) == {'step': None, 'end': None}
    (tmp_path / 'training-begun').write_text('{"length": [1, 2, 3], "end": Infinity}')
    with refused(tmp_path / 'training-begun', 'remove the file'):
        find_resume_point(in_cluster)
