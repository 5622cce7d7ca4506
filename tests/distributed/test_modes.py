"""Two workers with two towers each, as real processes, take the same steps as one tower with all
images.

Some clusters continue from a checkpoint that replicated towers of one process wrote in the other
data format, and one tower continues from the checkpoint of the cluster. test_run_state.py holds
checkpoints between the modes of one process.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.clusters import STEP_LINE, TOTAL_LINE
from tests.distributed.whole_batch import (
    NUM_EARLIER_STEPS,
    NUM_STEPS,
    NUM_TOWERS,
    Row,
    Trained,
    assert_trained_alike,
    model_names,
    one_tower,
)
from tests.support.outputs import read_output
from tests.support.programs import Tasks, cluster
from tests.support.runs import values_in
from tf_cnn.training.checkpoint_files import latest_checkpoint

pytestmark = pytest.mark.distributed

PS, REPLICATED = '--variable_update=parameter_server', '--variable_update=distributed_replicated'
COLLECTIVE, CONTROLLED = (
    '--variable_update=collective_all_reduce',
    '--variable_update=distributed_all_reduce',
)
SUMMARIES = '--save_summaries_steps=1 --summary_verbosity=1'
# Exact rows with momentum go on from a checkpoint. From the first values, the third step has two
# pixels of conv2's channel 8 in one window of the max pooling that are equal up to rounding. The
# batch size of a tower decides which pixel gets the gradient, and that moves conv1/bias by 4e-5.
# tests/managers/ tests the other ways to send gradients, in one process.
SYNCHRONOUS = {
    'ps-2': Row(f'{PS} {SUMMARIES}', 2, 'momentum', goes_on=True),
    'replicated-2': Row(REPLICATED, 2, 'lars', goes_on=True),
    'collective': Row(COLLECTIVE, 0, 'adam', goes_on=True),
    'controlled': Row(CONTROLLED, 0, 'adam', goes_on=True),
}
ROWS = {**SYNCHRONOUS, 'ps-1-async': Row(f'{PS} --nocross_replica_sync', 1, 'sgd')}
# Each worker of these modes builds a graph, and these must agree. One starts Python anew, so that
# the order of its sets differs.
FRESH = {'replicated-2': ['worker 1'], 'collective': ['worker 1']}


@dataclass(frozen=True)
class Finished:
    """A finished run; `start` is the checkpoint that it continued from."""

    row: Row
    tasks: Tasks
    train_dir: Path
    start: str | None

    @property
    def step_lines(self) -> list[list[tuple[int, float, float]]]:
        """Returns the (number, rate, loss) of each step line, a list for each trainer."""
        return [
            [(int(a), float(b), float(c)) for a, b, c in trainer.lines(STEP_LINE)]
            for trainer in self.tasks.trainers
        ]

    def expected(self) -> Trained:
        """Trains one tower on the images of all workers, from the run's start."""
        return one_tower(self.row.optimizer, start=self.start)


@pytest.fixture(scope='module')
def finish(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Runs a row once for all tests."""

    @functools.cache
    def run(name: str) -> Finished:
        row, folder = ROWS[name], tmp_path_factory.mktemp(name)
        start = row.take_earlier_steps(folder / 'train')
        flags = f'{row.train_flags(NUM_TOWERS, folder / "train")} {row.flags}'
        controllers = int(CONTROLLED in row.flags)
        with cluster(
            f'{flags} --num_batches={NUM_STEPS}',
            folder,
            ps=row.num_ps,
            controllers=controllers,
            fresh=FRESH.get(name, ()),
        ) as tasks:
            tasks.start()
            tasks.assert_end(0)
        return Finished(row, tasks, folder / 'train', start)

    return run


@pytest.fixture
def finished(name: str, finish: Callable[[str], Finished]) -> Finished:
    """Returns the run of the row called name, and prints its logs."""
    run = finish(name)
    print(run.tasks.logs())
    return run


@pytest.mark.parametrize('name', SYNCHRONOUS)
def test_the_steps_equal_the_steps_of_one_tower_with_the_whole_batch(finished):
    row, after = finished.row, values_in(finished.train_dir)
    expected = finished.expected()
    first = NUM_EARLIER_STEPS
    np.testing.assert_equal(values_in(finished.train_dir / f'model.ckpt-{first}'), expected.before)
    assert after['global_step'] == first + NUM_STEPS
    assert_trained_alike(after, expected)
    # Workers see different images; the mean of their losses is the loss of one tower. A controller
    # prints the loss over all images.
    losses = [[loss for _, _, loss in lines] for lines in finished.step_lines]
    assert {len(trainer_losses) for trainer_losses in losses} == {NUM_STEPS}
    num_trainers = 1 if CONTROLLED in row.flags else 2
    assert len({first_loss for first_loss, *_ in losses}) == len(losses) == num_trainers
    # Losses are printed with three decimals.
    assert np.mean(losses, 0) == pytest.approx(expected.losses, abs=1e-3)
    # The chief names the checkpoint that it continues from.
    lines = re.findall(r'^Continuing from (.*)$', finished.tasks.logs(), re.MULTILINE)
    assert lines == [f'{finished.train_dir}/model.ckpt-{first}']


def test_without_the_images_of_the_second_worker_the_steps_differ():
    """The other tests rely on this."""
    expected, partial = one_tower('sgd'), one_tower('sgd', workers=(0,))
    for name in model_names(expected.after):
        value = expected.after[name]
        moved = np.linalg.norm(value - expected.before[name])
        assert np.linalg.norm(partial.after[name] - value) > 0.5 * moved, name


@pytest.mark.parametrize('name', ['ps-2'])
def test_one_tower_continues_from_the_clusters_checkpoint_as_if_it_had_taken_all_steps(finished):
    checkpoint = latest_checkpoint(str(finished.train_dir))
    losses = one_tower(finished.row.optimizer, start=checkpoint).losses
    expected = one_tower(finished.row.optimizer, start=finished.start, num_steps=2 * NUM_STEPS)
    assert losses == pytest.approx(expected.losses[NUM_STEPS:], rel=1e-5)
    # Each step changes the loss, so the comparison means something.
    assert min(np.abs(np.diff(losses))) > 1e-3 * losses[0]


@pytest.mark.parametrize('name', ['ps-2'])
def test_the_chief_alone_writes_summaries_which_agree_with_its_step_lines(finished):
    [file] = finished.train_dir.glob('events.*')
    summaries: dict[str, list[float]] = {}
    for event in tf.train.summary_iterator(str(file)):
        for value in event.summary.value:
            summaries.setdefault(value.tag, []).append(value.simple_value)
    lines = finished.step_lines[0]
    assert summaries['total_loss'] == pytest.approx([loss for _, _, loss in lines], abs=1e-3)
    # A step line has the mean throughput so far.
    assert summaries['images_per_second'][0] == pytest.approx(lines[0][1], abs=0.06)


@pytest.mark.parametrize('name', ROWS)
def test_servers_end_within_5_seconds_and_workers_print_what_scripts_read(finished):
    trainers = finished.tasks.trainers
    servers = [task for task in finished.tasks.values() if task not in trainers]
    last = max(trainer.ended_at for trainer in trainers)
    assert all(server.ended_at - last < 5 for server in servers)
    assert not any(server.out for server in servers)
    for trainer, lines in zip(trainers, finished.step_lines, strict=True):
        read_output(trainer.out)
        assert [number for number, _, _ in lines] == list(range(1, len(lines) + 1))
    # Workers that wait for each other take steps alone, too.
    alone = trainers[0].lines(r'^alone: .*\(median of (\d)')
    assert alone == (['2'] if finished.row in SYNCHRONOUS.values() else [])
    # All print the total of the cluster, once.
    totals = [trainer.lines(TOTAL_LINE) for trainer in trainers]
    assert len(totals[0]) == 1
    assert all(total == totals[0] for total in totals)


@pytest.mark.parametrize('name', ['ps-1-async'])
def test_asynchronous_workers_lose_no_step_and_the_total_counts_all_steps(finished):
    """Training ends after 2 * N steps, and a worker reads the count at the end of each step.

    At the end of the last step, the other worker may have begun one more.
    """
    start, after = (values_in(finished.train_dir / name) for name in ('model.ckpt-0', ''))
    # The chief saves at its own end, while the other worker may still train.
    num_steps = sum(map(len, finished.step_lines))
    assert 2 * NUM_STEPS <= after['global_step'] <= num_steps <= 2 * NUM_STEPS + 1
    np.testing.assert_equal(start, one_tower('sgd', workers=(0,)).before)
    for name in model_names(after):
        assert np.abs(after[name] - start[name]).max() > 1e-3 * np.abs(after[name]).max(), name
        assert np.isfinite(after[name]).all(), name
    [total] = finished.tasks.trainers[0].lines(TOTAL_LINE)
    # A step line has the throughput of one worker; only the total includes time between steps.
    assert float(total) > 0.8 * finished.step_lines[0][-1][1]
