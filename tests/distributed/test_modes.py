"""Two workers with two towers each, real processes, take the steps of one tower with all their
images.

Some of the clusters go on from a checkpoint that a mode of one process wrote in the other data
format, and one tower of this process goes on from theirs. What modes of one process make of each
other's checkpoints is in test_run_state.py.
"""

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.milestones import GOING_ON
from tests.distributed.processes import Process, Processes, make_cluster
from tests.distributed.whole_batch import (
    NUM_STEPS,
    NUM_TOWERS,
    NUM_WORKERS,
    STEP_LINE,
    TOTAL_LINE,
    Row,
    Trained,
    assert_equal_weights,
    assert_trained_alike,
    one_tower,
    take_earlier_steps,
    train_flags,
)
from tests.support.oracles import Weights
from tests.support.outputs import read_output
from tests.support.runs import values_in
from tf_cnn.training.checkpoint_files import latest_checkpoint

pytestmark = pytest.mark.distributed

PS, REPLICATED, COLLECTIVE, CONTROLLED = (
    f'--variable_update={mode}'
    for mode in (
        'parameter_server',
        'distributed_replicated',
        'collective_all_reduce',
        'distributed_all_reduce',
    )
)
COMPACT, REPACKED = '--compact_gradient_transfer', '--gradient_repacking=3'
SUMMARIES = ('--save_summaries_steps=1', '--summary_verbosity=1')

# From the first values, the third step with momentum meets two pixels of conv2's channel 8 that are
# equal up to rounding, in one window of the max pooling. Which of them gets the gradient depends on
# the batch size of a tower, and moves conv1/bias by 4e-5: so exact rows with momentum go on from a
# checkpoint, whose values have no such window.
SYNCHRONOUS = {
    'ps-1': Row((PS,), 1, 'sgd'),
    'ps-2': Row((PS, *SUMMARIES), 2, 'momentum', goes_on=True),
    'ps-1-repacked': Row((PS, REPACKED), 1, 'adam', goes_on=True),
    'ps-2-grouped': Row((PS, '--agg_small_grads_max_bytes=100000'), 2, 'rmsprop'),
    'ps-2-compact': Row((PS, COMPACT), 2, 'momentum', 1e-2),
    'ps-2-staged': Row((PS, '--staged_vars'), 2, 'sgd'),
    'replicated-1': Row((REPLICATED,), 1, 'momentum', goes_on=True),
    'replicated-2': Row((REPLICATED,), 2, 'lars', goes_on=True),
    'replicated-2-compact': Row((REPLICATED, COMPACT), 2, 'sgd', 1e-2),
    'collective': Row((COLLECTIVE,), 0, 'adam', goes_on=True),
    'collective-repacked': Row((COLLECTIVE, REPACKED), 0, 'rmsprop'),
    'collective-compact': Row((COLLECTIVE, COMPACT), 0, 'momentum', 1e-2),
    'controlled': Row((CONTROLLED,), 0, 'adam', goes_on=True),
    'controlled-copies': Row(
        (CONTROLLED, '--all_reduce_spec=pscpu:32k:psgpu'), 0, 'momentum', goes_on=True
    ),
}
ASYNCHRONOUS = {'ps-1-async': Row((PS, '--nocross_replica_sync'), 1, 'sgd')}
ROWS = SYNCHRONOUS | ASYNCHRONOUS
# tests/managers/ holds these ways of sending gradients in one process, in every run. One server is
# in ASYNCHRONOUS.
OTHERS = (
    *('ps-1', 'ps-2-compact', 'ps-1-repacked', 'ps-2-grouped', 'ps-2-staged', 'replicated-1'),
    *('replicated-2-compact', 'collective-repacked', 'collective-compact', 'controlled-copies'),
)


def names_of(rows: Iterable[str]) -> list[Any]:
    """The names of rows as parameters of a test; those of OTHERS run with --all_modes."""
    return [
        pytest.param(name, marks=pytest.mark.all_modes) if name in OTHERS else name for name in rows
    ]


@dataclass(frozen=True)
class Finished:
    """A run that is over.

    graph is that of the chief's step, start the checkpoint from which it went on.
    """

    row: Row
    processes: Processes
    graph: tf.GraphDef
    train_dir: Path
    start: str | None

    @property
    def trainers(self) -> list[Process]:
        """The workers, or the controller that has their devices."""
        return self.processes.trainers

    def step_lines(self) -> list[list[tuple[int, float, float]]]:
        """Of each trainer the number, rate and loss that it printed of each of its steps."""
        return [
            [
                (int(number), float(rate), float(loss))
                for number, rate, loss in re.findall(STEP_LINE, trainer.out)
            ]
            for trainer in self.trainers
        ]

    def totals(self) -> list[list[str]]:
        """The images per second of the cluster as each trainer printed it, which it does once."""
        return [re.findall(TOTAL_LINE, trainer.out, re.MULTILINE) for trainer in self.trainers]

    def checkpoint(self, step: int | None = None) -> Weights:
        """What the chief saved, by default at the end."""
        return values_in(self.train_dir if step is None else self.train_dir / f'model.ckpt-{step}')


def run(row: Row, folder: Path) -> Finished:
    train_dir, start = folder / 'train', None
    flags = train_flags(row.optimizer, NUM_TOWERS, train_dir)
    if row.goes_on:
        start = take_earlier_steps(flags, train_dir)
    flags += [*row.flags, f'--num_batches={NUM_STEPS}']
    with make_cluster(
        flags, folder, num_ps=row.num_ps, num_controllers=row.has(CONTROLLED)
    ) as processes:
        processes.trainers[0].add_flags(f'--graph_file={folder / "graph.pb"}')
        processes.run()
        assert not processes.listening()
        graph = tf.GraphDef.FromString((folder / 'graph.pb').read_bytes())
        return Finished(row, processes, graph, train_dir, start)


@pytest.fixture(scope='module', name='finish')
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Runs a row once for all tests."""
    return functools.cache(lambda name: run(ROWS[name], tmp_path_factory.mktemp(name)))


@pytest.fixture(name='finished')
def finished_run(name: str, finish: Callable[[str], Finished]) -> Finished:
    """The run of the row called name. Its logs are shown with each test that fails."""
    finished = finish(name)
    print(finished.processes.logs())
    return finished


def expected_of(
    finished: Finished, workers: tuple[int, ...] = tuple(range(NUM_WORKERS))
) -> Trained:
    """What one tower makes of the images of these workers from where the run began."""
    row = finished.row
    return one_tower(
        row.optimizer, staged=row.has('--staged_vars'), workers=workers, start=finished.start
    )


def model_names(row: Row) -> set[str]:
    """The names of the model's own variables, in a checkpoint that also has the optimizer's."""
    return {
        name
        for name in one_tower('sgd', staged=row.has('--staged_vars')).after
        if name != 'global_step'
    }


@pytest.mark.parametrize('name', names_of(SYNCHRONOUS))
def test_the_steps_are_those_of_one_tower_with_the_whole_batch(finished: Finished) -> None:
    row, after = finished.row, finished.checkpoint()
    expected, partial = expected_of(finished), expected_of(finished, workers=(0,))
    assert_equal_weights(finished.checkpoint(row.start), expected.before)
    assert after['global_step'] == row.start + NUM_STEPS
    assert_trained_alike(
        after, expected, partial, model_names(row), row.tolerance, is_compact=row.has(COMPACT)
    )
    # Workers see other images, and their losses are those of one tower on average. A controller
    # shows the loss of all.
    losses = [[loss for _, _, loss in lines] for lines in finished.step_lines()]
    assert {len(own) for own in losses} == {NUM_STEPS}
    assert (
        len({own[0] for own in losses})
        == len(losses)
        == (1 if row.has(CONTROLLED) else NUM_WORKERS)
    )
    # They are printed with three decimals.
    assert np.mean(losses, 0) == pytest.approx(expected.losses, rel=row.tolerance, abs=1e-3)


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if row.num_ps))
def test_a_worker_reads_each_variable_from_its_server_and_pushes_its_gradient_there(
    finished: Finished,
) -> None:
    """Also where all processes are on one host: whoever compares the modes there compares what
    their names say.
    """
    nodes = {node.name: node for node in finished.graph.node}
    assert 'PyFunc' not in {node.op for node in nodes.values()}
    reads: dict[str, int] = {}
    for node in nodes.values():
        for source in (
            nodes[name.lstrip('^').partition(':')[0]] for name in node.input if '^' not in name
        ):
            if (
                source.op == 'ReadVariableOp'
                and '/job:ps' in source.device
                and '/job:worker' in node.device
            ):
                reads[source.name] = num_elements(source.attr['_output_shapes'].list.shape[0])
    pushed = [node for node in nodes.values() if node.op == 'ResourceAccumulatorApplyGradient']
    into = [nodes[node.input[0]] for node in pushed]
    assert {node.op for node in into} == {'ResourceConditionalAccumulator'}
    assert all('/job:ps' in node.device for node in (*pushed, *into))
    num_weights = sum(
        map(
            np.size,
            (one_tower('sgd', staged=False).after[name] for name in model_names(finished.row)),
        )
    )
    assert sum(num_elements(node.attr['shape'].shape) for node in into) == num_weights
    assert sum(reads.values()) >= num_weights


def num_elements(shape: Any) -> int:
    return int(np.prod([dimension.size for dimension in shape.dim], dtype=int))


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if row.goes_on))
def test_one_tower_goes_on_from_what_the_cluster_saved_as_if_it_had_taken_all_steps(
    finished: Finished,
) -> None:
    saved = latest_checkpoint(str(finished.train_dir))
    assert saved
    start = finished.train_dir / f'model.ckpt-{finished.row.start}'
    assert re.findall(GOING_ON, finished.processes.logs(), re.MULTILINE) == [str(start)]
    own = one_tower(finished.row.optimizer, staged=False, start=saved)
    assert own.losses == pytest.approx(expected_of(finished).later_losses, rel=1e-5)
    # That says something, since each step makes a difference.
    assert min(np.abs(np.diff(own.losses))) > 1e-3 * own.losses[0]


@pytest.mark.parametrize(
    'name', names_of(name for name, row in SYNCHRONOUS.items() if row.has(SUMMARIES[0]))
)
def test_summaries_are_the_chiefs_and_have_the_numbers_of_its_lines(finished: Finished) -> None:
    [file] = finished.train_dir.glob('events.*')
    found: dict[str, list[float]] = {}
    for event in tf.train.summary_iterator(str(file)):
        for value in event.summary.value:
            found.setdefault(value.tag, []).append(value.simple_value)
    lines = finished.step_lines()[0]
    assert found['total_loss'] == pytest.approx([loss for _, _, loss in lines], abs=1e-3)
    # A line has the rate of all steps until then.
    assert found['images_per_second'][0] == pytest.approx(lines[0][1], abs=0.06)


@pytest.mark.parametrize('name', names_of(ROWS))
def test_servers_end_within_5_seconds_nothing_is_left_and_workers_print_what_scripts_read(
    finished: Finished,
) -> None:
    assert not [name for name, task in finished.processes.tasks.items() if task.left_others]
    last = max(trainer.ended_at for trainer in finished.trainers)
    assert all(server.ended_at - last < 5 for server in finished.processes.servers)
    # Workers print what scripts read, with one total, and nothing else.
    for trainer in finished.trainers:
        read_output(trainer.out)
    for lines in finished.step_lines():
        assert [number for number, _, _ in lines] == list(range(1, len(lines) + 1))
    first, *others = finished.totals()
    assert len(first) == 1
    assert all(other == first for other in others)
    assert not any(server.out for server in finished.processes.servers)


@pytest.mark.parametrize('name', names_of(ASYNCHRONOUS))
def test_workers_that_do_not_wait_lose_no_step_and_the_total_counts_all(finished: Finished) -> None:
    """Training ends after W * N steps, and a worker learns the count of all when it ends a step.

    When the last of these ends, each other worker may be within a step: W - 1 too many.
    """
    end = NUM_WORKERS * NUM_STEPS
    start, after = finished.checkpoint(0), finished.checkpoint()
    # The chief saves when it is done itself, others may still be at it.
    taken = sum(map(len, finished.step_lines()))
    assert end <= after['global_step'] <= taken <= end + NUM_WORKERS - 1
    assert_equal_weights(start, one_tower('sgd', staged=False, workers=(0,)).before)
    for name in model_names(finished.row):
        assert np.abs(after[name] - start[name]).max() > 1e-3 * np.abs(after[name]).max(), name
        assert np.isfinite(after[name]).all(), name
    [total] = finished.totals()[0]
    # A worker shows its own rate, and the time between its steps is in the total only.
    assert float(total) > 0.8 * finished.step_lines()[0][-1][1]
