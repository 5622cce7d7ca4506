"""Training in any mode and data format resumes from a checkpoint of any other, as if it had never
stopped; a checkpoint is used only with the number of classes of its training.
"""

import contextlib
import itertools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from tests.support.images import write_mnist
from tests.support.outputs import check_line, failed, refused, warnings_in
from tests.support.runs import (
    losses,
    make_benchmark,
    plan_of,
    run_benchmark,
    values_in,
)
from tf_cnn.cluster.topology import Cluster
from tf_cnn.cluster.worker import Worker
from tf_cnn.managers.all_reduce import copy_algorithm
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.synchronous_step import SynchronousStep
from tf_cnn.results.console import Console
from tf_cnn.run.state import RunState, find_resume_point
from tf_cnn.step.build import build_step
from tf_cnn.training.checkpoint_files import (
    clear_training_begun,
    latest_checkpoint,
    mark_training_begun,
)

pytestmark = [pytest.mark.graph, pytest.mark.long]


# Each step of each tower takes all images, so batch norm and independent towers compute the same in
# every mode. The order of the images differs, and with it the rounding, by 1e-6 of a loss. A step
# changes the loss by a hundredth or more.
NUM_IMAGES, TOLERANCE = 12, 2e-5
MODES = [
    '--num_gpus=1',
    '--num_gpus=2',
    '--num_gpus=1 --variable_update=replicated',
    '--num_gpus=2 --variable_update=replicated',
    '--num_gpus=2 --variable_update=collective_all_reduce',
    '--num_gpus=2 --variable_update=independent',
]
# The fixtures train in NHWC.
NCHW = '--data_format=NCHW'


@pytest.fixture(scope='module')
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp('data'), np.random.default_rng(8)
    images = random.integers(0, 256, [NUM_IMAGES, 28, 28], np.uint8)
    write_mnist(folder, images, random.integers(0, 10, NUM_IMAGES))
    return folder


@dataclass(frozen=True)
class Outcome:
    """The losses of some steps, and a folder with the checkpoint after the last one."""

    losses: list[float]
    folder: Path


def train(
    data_dir: Path, folder: Path, flags: str, num_steps: int, start: Outcome | None = None
) -> Outcome:
    """Trains in a new folder, from the checkpoint of an earlier training if there is one."""
    if start:
        shutil.copytree(start.folder, folder)
    steps = f'--batch_size={NUM_IMAGES} --num_batches={num_steps} --num_warmup_batches=0'
    optimizer = '--optimizer=adam --init_learning_rate=0.02 --adam_epsilon=0.01'
    flags = f'--model=normalised {steps} {optimizer} --weight_decay=0.01 {flags}'
    return Outcome(losses(flags, data_dir=data_dir, train_dir=folder), folder)


@pytest.fixture(scope='module')
def saved(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Takes the first two steps of a training."""
    return train(data_dir, tmp_path_factory.mktemp('saved'), '', 2)


@pytest.fixture(scope='module')
def uninterrupted(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Takes five steps in one run."""
    return train(data_dir, tmp_path_factory.mktemp('whole'), '', 5)


@pytest.mark.parametrize('mode', MODES)
def test_any_mode_goes_on_from_a_checkpoint_of_the_first_mode_and_saves_the_same(
    mode, data_dir, saved, uninterrupted, tmp_path
):
    outcome = train(data_dir, tmp_path / 'mode', f'{mode} {NCHW}', 3, saved)
    assert outcome.losses == pytest.approx(uninterrupted.losses[-3:], rel=TOLERANCE)
    weights, expected_weights = values_in(outcome.folder), values_in(uninterrupted.folder)
    assert weights.keys() == expected_weights.keys()
    for name, value in expected_weights.items():
        assert (weights[name].dtype, weights[name].shape) == (value.dtype, value.shape)
        assert np.abs(weights[name] - value).max() < TOLERANCE * np.abs(value).max(), name


@pytest.mark.parametrize(
    ('flags', 'warns'),
    [
        ('--batch_size=4 --num_gpus=2 --piecewise_learning_rate_schedule=0.1;2;0.01', True),
        ('--batch_size=8 --eval_during_training_at_specified_epochs=9', True),
        ('--batch_size=12 --piecewise_learning_rate_schedule=0.1;2;0.01', False),
    ],
)
def test_a_schedule_in_epochs_that_goes_on_with_other_batches_is_warned_of(
    flags, warns, data_dir, saved, tmp_path
):
    folder = shutil.copytree(saved.folder, tmp_path / 'run')
    data = shutil.copytree(data_dir, tmp_path / 'data')
    write_mnist(data, np.zeros([8, 28, 28], np.uint8), np.zeros(8), 'validation')
    steps = '--model=normalised --optimizer=adam --num_batches=1 --num_warmup_batches=0'
    err = run_benchmark(f'{steps} {flags}', data_dir=data, train_dir=folder).err
    lines = [line for line in warnings_in(err) if 'images per step' in line]
    assert len(lines) == warns
    for line in lines:
        check_line(line, f'{folder}/model.ckpt-2', NUM_IMAGES, 8, 'from epoch 2.0 to 1.3')


STAGED = f'--num_gpus=2 --staged_vars {NCHW}'


def test_staged_variables_resume_from_a_checkpoint(data_dir, saved, uninterrupted, tmp_path):
    """The first step applies gradients of the saved variables, as in any mode."""
    first, second, third = train(data_dir, tmp_path / 'staged', STAGED, 3, saved).losses
    expected = uninterrupted.losses[2:]
    assert [first, second] == pytest.approx(expected[:2], rel=TOLERANCE)
    # The second step's gradients were computed before the first update.
    assert third != pytest.approx(expected[2], rel=TOLERANCE)


def test_a_checkpoint_of_staged_variables_has_the_variables_of_the_next_step(
    data_dir, saved, tmp_path
):
    whole = train(data_dir, tmp_path / 'whole', STAGED, 3)
    begun = train(data_dir, tmp_path / 'begun', STAGED, 2)
    resumed = train(data_dir, tmp_path / 'first', '', 1, begun)
    assert resumed.losses == pytest.approx(whole.losses[2:], rel=TOLERANCE)
    # Every mode can read it.
    assert values_in(begun.folder).keys() == values_in(saved.folder).keys()


def test_each_step_changes_the_loss_by_far_more_than_the_tolerance(uninterrupted):
    for before, after in itertools.pairwise(uninterrupted.losses):
        assert abs(before - after) / before > 100 * TOLERANCE


class Stepping:
    """A session that takes a step while it writes a checkpoint."""

    def __init__(self, session: tf.Session, step: Any) -> None:
        self._session, self._step = session, step

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        values = self._session.run(fetches, feed_dict)
        if isinstance(fetches, tf.Operation) and fetches.type == 'SaveV2':
            self._session.run(self._step)
        return values


def test_a_checkpoint_saved_during_a_step_is_of_one_step_or_refused(tmp_path):
    plan = plan_of('--model=trivial --batch_size=2 --num_batches=3', train_dir=tmp_path)
    cpu = ['/cpu:0']
    worker = Worker(plan.session.config)
    worker.join({'step': None, 'end': None})
    with tf.Graph().as_default() as graph:
        config = ManagerConfig(cpu, 1, cpu, copy_algorithm(cpu), server_devices=cpu)
        synchronous_step = SynchronousStep(config, refresh=dict)
        [begun] = synchronous_step.begun.values()
        graph_of_step = replace(
            build_step(plan), synchronous_step=synchronous_step, begun_steps=[begun]
        )
        state = RunState(plan, graph_of_step, worker, Console())
        begin = [begun.assign(tf.constant(step, tf.int64)) for step in range(3)]
    with tf.Session(graph=graph, config=plan.session.config) as session:
        session.run(begin[0])
        state.prepare(session)
        session.run(graph_of_step.step_input.initializers)
        session.run(begin[1])
        with failed():
            state.save_early(session, is_in_step=True)
        session.run(graph_of_step.fetches.as_dict())
        state.save_early(session, is_in_step=True)
        assert values_in(tmp_path)['global_step'] == 1
        with failed('model.ckpt-1'):
            state.save_early(
                Stepping(session, [begin[2], graph_of_step.fetches.as_dict()]), is_in_step=True
            )
        assert values_in(tmp_path)['global_step'] == 1
        state.save_early(session, is_in_step=True)
        assert values_in(tmp_path)['global_step'] == 2


def test_a_train_dir_belongs_to_one_run_until_it_ends(tmp_path):
    def run() -> BenchmarkCNN:
        return make_benchmark('--num_batches=2', train_dir=tmp_path)

    with contextlib.closing(run().steps()) as steps:
        next(steps)
        before = sorted(tmp_path.iterdir())
        with failed(f'--train_dir={tmp_path}', 'another run'):
            run().run()
        assert sorted(tmp_path.iterdir()) == before
    planned = run()
    run().run()
    # A run that was planned before another run saved must not go back.
    with failed(f'--train_dir={tmp_path}', 'model.ckpt-4', 'start it again'):
        planned.run()
    assert str(latest_checkpoint(str(tmp_path))).endswith('model.ckpt-4')


def test_a_restarted_cluster_of_the_same_length_goes_on_to_its_first_end(tmp_path):
    plan = plan_of('--model=trivial --num_batches=3', train_dir=tmp_path)
    length = [plan.params.run.num_warmup_batches, plan.params.run.num_timed, 1]
    cluster = Cluster(('a:1',), ('a:2', 'a:3'), 'worker', 0, 'the flags')
    processes = replace(plan.cluster_role, cluster=cluster)
    alone = replace(plan, resume_from=f'{tmp_path}/model.ckpt-3')
    in_cluster = replace(alone, cluster_role=processes)
    fresh = replace(plan, cluster_role=processes)
    for mark, end in (
        (lambda: mark_training_begun(str(tmp_path), length, 9), 9),
        (lambda: mark_training_begun(str(tmp_path), [*length[:2], 2], 9), None),
        # Asynchronous workers may take more steps.
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


# ---- classes -------------------------------------------------------------------------------------


CLASSES = '--model=linear_on_records --noenable_optimizations'


@pytest.fixture(scope='module')
def trained(noise: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with shards of eight classes, and checkpoints of a training on them."""
    folder = shutil.copytree(noise, tmp_path_factory.mktemp('classes') / 'data')
    (folder / 'labels.txt').write_text('\n'.join('abcdefgh'))
    run_benchmark(f'{CLASSES} --num_batches=1', data_dir=folder, train_dir=folder / 'train')
    return folder


def test_another_number_of_classes_is_refused(trained, tmp_path):
    more, train_dir = shutil.copytree(trained, tmp_path / 'more'), trained / 'train'
    (more / 'labels.txt').write_text('\n'.join('abcdefghi'))
    before = sorted(train_dir.iterdir())
    for role in ('--eval', '--num_batches=1'):
        with failed(train_dir / 'model.ckpt-2', 'number of classes', 'logits/bias', '[8]', '[9]'):
            run_benchmark(f'{CLASSES} {role}', data_dir=more, train_dir=train_dir)
    assert sorted(train_dir.iterdir()) == before


def test_the_names_of_earlier_versions_in_a_checkpoint_are_no_variable(trained, tmp_path):
    checkpoint = {**values_in(trained / 'train'), 'class_names': [b'cat']}
    names, values = zip(*checkpoint.items(), strict=True)
    tf.raw_ops.SaveV2(
        prefix=f'{tmp_path}/model.ckpt-2',
        tensor_names=names,
        shape_and_slices=[''] * len(names),
        tensors=[*map(tf.constant, values)],
    )
    run = run_benchmark(f'{CLASSES} --num_batches=1', data_dir=trained, train_dir=tmp_path)
    assert 'Continuing from' in run.err
