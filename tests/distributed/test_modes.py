"""Two workers with two towers each, real processes, take the steps of one tower with all their images.

Some of the clusters go on from a checkpoint that a mode of one process wrote in the other data format, and one tower of
this process goes on from theirs. What modes of one process make of each other's checkpoints is in test_run_state.py.
"""

import functools
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmark_cnn import BenchmarkCNN
from params import parse_argv
from tests.distributed.milestones import GOING_ON
from tests.distributed.processes import DEADLINE_SECS, Process, Processes, make_cluster
from tests.distributed.whole_batch import (
    NUM_STEPS,
    NUM_TOWERS,
    NUM_WORKERS,
    STEP_LINE,
    TOTAL_LINE,
    Trained,
    assert_equal_weights,
    one_tower,
    train_flags,
)
from tests.support.oracles import Weights
from tests.support.outputs import read_output
from training.checkpoint_files import latest_checkpoint

pytestmark = pytest.mark.distributed

NUM_EARLIER_STEPS = 2
PS, REPLICATED, COLLECTIVE, CONTROLLED = (
    f'--variable_update={mode}'
    for mode in ('parameter_server', 'distributed_replicated', 'collective_all_reduce', 'distributed_all_reduce')
)
COMPACT, REPACKED, GROUPED = (
    '--compact_gradient_transfer',
    '--gradient_repacking=3',
    '--agg_small_grads_max_bytes=100000',
)
SUMMARIES = ('--save_summaries_steps=1', '--summary_verbosity=1')


@dataclass(frozen=True)
class Row:
    """A way for processes to train together. tolerance is relative to the largest magnitude of each weight.

    goes_on: from what replicated towers of one process saved in NCHW.
    """

    flags: tuple[str, ...]
    num_ps: int
    optimizer: str
    tolerance: float = 1e-5
    goes_on: bool = False

    @property
    def num_servers(self) -> int:
        """The tasks that are there until those that take steps are done."""
        return NUM_WORKERS if CONTROLLED in self.flags else self.num_ps

    @property
    def start(self) -> int:
        """The steps that were taken before."""
        return NUM_EARLIER_STEPS if self.goes_on else 0

    def train_flags(self, train_dir: Path) -> list[str]:
        """The flags of all processes that train it, in this mode or another."""
        return train_flags(self.optimizer, NUM_TOWERS, train_dir)

    @property
    def is_staged(self) -> bool:
        return '--staged_vars' in self.flags

    @property
    def is_compact(self) -> bool:
        return COMPACT in self.flags


SYNCHRONOUS = {
    'ps-1': Row((PS,), 1, 'sgd'),
    'ps-2': Row((PS, *SUMMARIES), 2, 'momentum', goes_on=True),
    'ps-1-repacked': Row((PS, REPACKED), 1, 'adam', goes_on=True),
    'ps-2-grouped': Row((PS, GROUPED), 2, 'rmsprop'),
    'ps-2-compact': Row((PS, COMPACT), 2, 'momentum', 1e-2),
    'ps-2-staged': Row((PS, '--staged_vars'), 2, 'sgd'),
    'replicated-1': Row((REPLICATED,), 1, 'momentum'),
    'replicated-2': Row((REPLICATED,), 2, 'lars', goes_on=True),
    'replicated-2-compact': Row((REPLICATED, COMPACT), 2, 'sgd', 1e-2),
    'collective': Row((COLLECTIVE,), 0, 'adam', goes_on=True),
    'collective-repacked': Row((COLLECTIVE, REPACKED), 0, 'rmsprop'),
    'collective-compact': Row((COLLECTIVE, COMPACT), 0, 'momentum', 1e-2),
    'controlled': Row((CONTROLLED,), 0, 'adam', goes_on=True),
    'controlled-copies': Row((CONTROLLED, '--all_reduce_spec=pscpu:32k:psgpu'), 0, 'momentum'),
}
ASYNCHRONOUS = {'ps-1-async': Row((PS, '--nocross_replica_sync'), 1, 'sgd')}
ROWS = SYNCHRONOUS | ASYNCHRONOUS
# tests/managers/ holds these ways of sending gradients in one process, in every run. One server is in ASYNCHRONOUS.
OTHERS = (
    'ps-1',
    'ps-2-compact',
    'ps-1-repacked',
    'ps-2-grouped',
    'ps-2-staged',
    'replicated-1',
    'replicated-2-compact',
    'collective-repacked',
    'collective-compact',
    'controlled-copies',
)


def names_of(rows: Iterable[str]) -> list[Any]:
    """The names of rows as parameters of a test; those of OTHERS run with --all_modes."""
    return [pytest.param(name, marks=pytest.mark.all_modes) if name in OTHERS else name for name in rows]


LABELS = (
    'TensorFlow|Model|Dataset|Mode|SingleSess|Batch size|Num batches|Num epochs|Devices|NUMA bind|Data format'
    r'|Optimizer|Variables|AllReduce|Sync|Workers|On ps \d+|Step moves|Machine|GPUs'
)
OUTPUT = re.compile(
    rf'(({LABELS}): +\S.*\n( +\d+ per device\n)?)+==========\n'
    rf'Step\tImg/sec\ttotal_loss\n({STEP_LINE})+-{{64}}\n{TOTAL_LINE}\n-{{64}}\n',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Finished:
    """A run that is over.

    graph is that of the chief's step, start the checkpoint from which it went on. overdue are the tasks that had to be
    killed; listening the addresses at which something listened after the end.
    """

    row: Row
    processes: Processes
    graph: tf.GraphDef
    train_dir: Path
    start: str | None
    overdue: list[str]
    listening: list[str]

    @property
    def trainers(self) -> list[Process]:
        """The workers, or the controller that has their devices."""
        return self.processes.trainers

    def step_lines(self) -> list[list[tuple[int, float, float]]]:
        """Of each trainer the number, rate and loss that it printed of each of its steps."""
        return [
            [(int(number), float(rate), float(loss)) for number, rate, loss in re.findall(STEP_LINE, trainer.out)]
            for trainer in self.trainers
        ]

    def totals(self) -> list[list[str]]:
        """The images per second of the cluster as each trainer printed it, which it does once."""
        return [re.findall(TOTAL_LINE, trainer.out, re.MULTILINE) for trainer in self.trainers]

    def checkpoint(self, step: int | None = None) -> Weights:
        """What the chief saved, by default at the end."""
        prefix = (
            tf.train.latest_checkpoint(str(self.train_dir)) if step is None else self.train_dir / f'model.ckpt-{step}'
        )
        reader = tf.train.load_checkpoint(str(prefix))
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def run(row: Row, folder: Path) -> Finished:
    train_dir, start = folder / 'train', None
    train_flags = row.train_flags(train_dir)
    if row.goes_on:
        others = ['--variable_update=replicated', '--data_format=NCHW', f'--num_batches={NUM_EARLIER_STEPS}']
        BenchmarkCNN(parse_argv([*train_flags, *others]).params).run()
        # A copy: the cluster saves its first step once more.
        start = latest_checkpoint(str(shutil.copytree(train_dir, folder / 'earlier')))
    flags = [*row.flags, *train_flags, f'--num_batches={NUM_STEPS}']
    num_controllers = int(CONTROLLED in row.flags)
    with make_cluster(
        flags, folder, num_ps=row.num_ps, num_workers=NUM_WORKERS, num_controllers=num_controllers
    ) as processes:
        processes.trainers[0].add_flags(f'--graph_file={folder / "graph.pb"}')
        processes.start()
        overdue = processes.still_running(DEADLINE_SECS)
        graph = tf.GraphDef.FromString((folder / 'graph.pb').read_bytes())
        return Finished(row, processes, graph, train_dir, start, overdue, processes.listening())


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


def expected_of(finished: Finished, workers: tuple[int, ...] = tuple(range(NUM_WORKERS))) -> Trained:
    """What one tower makes of the images of these workers from where the run began."""
    row = finished.row
    return one_tower(row.optimizer, staged=row.is_staged, workers=workers, start=finished.start)


def model_names(row: Row) -> set[str]:
    """The names of the model's own variables, in a checkpoint that also has the optimizer's."""
    return {name for name in one_tower('sgd', staged=row.is_staged).after if name != 'global_step'}


@pytest.mark.parametrize('name', names_of(SYNCHRONOUS))
def test_the_weights_are_those_of_one_tower_with_the_whole_batch(finished: Finished) -> None:
    """Of each weight the largest difference counts, in terms of its largest magnitude.

    That says something since the steps moved each weight as a whole (its Euclidean norm counts) much further, and would
    have moved it elsewhere without the images of the second worker.

    Where 16 bits travel, some units of ReLU are on instead of off, and then a gradient lacks the whole part of an
    image. Biases are what gradients made of zeros, so it is the magnitude of the layer's kernel that counts for them.
    """
    row = finished.row
    expected, partial = expected_of(finished), expected_of(finished, workers=(0,))
    assert_equal_weights(finished.checkpoint(row.start), expected.before)
    after = finished.checkpoint()
    assert after.keys() == expected.after.keys()
    assert after['global_step'] == row.start + NUM_STEPS
    for name in model_names(row):
        value = expected.after[name]
        measure = expected.after[name.replace('bias', 'kernel')] if row.is_compact else value
        assert np.abs(after[name] - value).max() <= row.tolerance * np.abs(measure).max(), name
        moved = np.linalg.norm(value - expected.before[name])
        assert np.linalg.norm(after[name] - value) < (0.15 if row.is_compact else 1e-3) * moved, name
        assert np.linalg.norm(partial.after[name] - value) > 0.5 * moved, name


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if row.num_ps))
def test_a_worker_reads_each_variable_from_its_server_and_pushes_its_gradient_there(finished: Finished) -> None:
    """Also where all processes are on one host: whoever compares the modes there compares what their names say."""
    nodes = {node.name: node for node in finished.graph.node}
    assert 'PyFunc' not in {node.op for node in nodes.values()}
    reads: dict[str, int] = {}
    for node in nodes.values():
        for source in (nodes[name.lstrip('^').partition(':')[0]] for name in node.input if '^' not in name):
            if source.op == 'ReadVariableOp' and '/job:ps' in source.device and '/job:worker' in node.device:
                reads[source.name] = num_elements(source.attr['_output_shapes'].list.shape[0])
    pushed = [node for node in nodes.values() if node.op == 'ResourceAccumulatorApplyGradient']
    into = [nodes[node.input[0]] for node in pushed]
    assert {node.op for node in into} == {'ResourceConditionalAccumulator'}
    assert all('/job:ps' in node.device for node in (*pushed, *into))
    num_weights = sum(map(np.size, (one_tower('sgd', staged=False).after[name] for name in model_names(finished.row))))
    assert sum(num_elements(node.attr['shape'].shape) for node in into) == num_weights
    assert sum(reads.values()) >= num_weights


def num_elements(shape: Any) -> int:
    return int(np.prod([dimension.size for dimension in shape.dim], dtype=int))


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if not row.is_compact))
def test_the_optimizers_variables_are_those_of_one_tower(finished: Finished) -> None:
    expected = expected_of(finished).after
    after = finished.checkpoint()
    for name in expected.keys() - model_names(finished.row):
        assert np.abs(after[name] - expected[name]).max() <= 1e-5 * np.abs(expected[name]).max(), name


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if row.is_compact))
def test_16_bits_do_travel(finished: Finished) -> None:
    expected = expected_of(finished).after
    after = finished.checkpoint()
    assert any(
        np.abs(after[name] - expected[name]).max() > 1e-4 * np.abs(expected[name]).max()
        for name in model_names(finished.row)
    )


@pytest.mark.parametrize('name', names_of(SYNCHRONOUS))
def test_workers_see_other_images_whose_losses_are_those_of_one_tower_on_average(finished: Finished) -> None:
    row = finished.row
    losses = [[loss for _, _, loss in lines] for lines in finished.step_lines()]
    assert {len(own) for own in losses} == {NUM_STEPS}
    # A controller shows the loss of all.
    assert len({own[0] for own in losses}) == len(losses) == (1 if CONTROLLED in row.flags else NUM_WORKERS)
    expected = expected_of(finished).losses
    # They are printed with three decimals.
    assert np.mean(losses, 0) == pytest.approx(expected, rel=row.tolerance, abs=1e-3)


@pytest.mark.parametrize('name', names_of(name for name, row in SYNCHRONOUS.items() if row.goes_on))
def test_one_tower_goes_on_from_what_the_cluster_saved_as_if_it_had_taken_all_steps(finished: Finished) -> None:
    saved = latest_checkpoint(str(finished.train_dir))
    assert saved
    start = finished.train_dir / f'model.ckpt-{finished.row.start}'
    assert re.findall(GOING_ON, finished.processes.logs(), re.MULTILINE) == [str(start)]
    own = one_tower(finished.row.optimizer, staged=False, start=saved)
    assert own.losses == pytest.approx(expected_of(finished).later_losses, rel=1e-5)
    # That says something, since each step makes a difference.
    assert min(np.abs(np.diff(own.losses))) > 1e-3 * own.losses[0]


@pytest.mark.parametrize(
    'name', names_of(name for name, row in SYNCHRONOUS.items() if set(SUMMARIES) <= set(row.flags))
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
def test_every_process_ends_by_itself_with_exit_code_0_and_leaves_nothing(finished: Finished) -> None:
    assert not finished.overdue
    assert {name: task.exit_code for name, task in finished.processes.tasks.items()} == dict.fromkeys(
        finished.processes.tasks, 0
    )
    assert not [name for name, task in finished.processes.tasks.items() if task.left_others]
    assert not finished.listening


@pytest.mark.parametrize('name', names_of(name for name, row in ROWS.items() if row.num_servers))
def test_servers_end_within_5_seconds_of_the_last_that_trains(finished: Finished) -> None:
    last = max(trainer.ended_at for trainer in finished.trainers)
    servers = finished.processes.servers
    assert len(servers) == finished.row.num_servers
    for server in servers:
        assert server.ended_at - last < 5


@pytest.mark.parametrize('name', names_of(ROWS))
def test_workers_print_what_scripts_read_with_one_total_and_nothing_else(finished: Finished) -> None:
    for trainer in finished.trainers:
        assert OUTPUT.fullmatch(trainer.out), trainer.name
        read_output(trainer.out)
    for lines in finished.step_lines():
        assert [number for number, _, _ in lines] == list(range(1, len(lines) + 1))
    first, *others = finished.totals()
    assert len(first) == 1
    assert all(other == first for other in others)
    assert not any(server.out for server in finished.processes.servers)


@pytest.mark.parametrize('name', names_of(ASYNCHRONOUS))
def test_no_step_of_workers_that_do_not_wait_is_lost(finished: Finished) -> None:
    """Training ends after W * N steps, and a worker learns the count of all when it ends a step.

    When the last of these ends, each other worker may be within a step: W - 1 too many.
    """
    end = NUM_WORKERS * NUM_STEPS
    saved = finished.checkpoint()['global_step']
    taken = sum(map(len, finished.step_lines()))
    # The chief saves when it is done itself, others may still be at it.
    assert end <= saved <= taken <= end + NUM_WORKERS - 1


@pytest.mark.parametrize('name', names_of(ASYNCHRONOUS))
def test_workers_that_do_not_wait_train_the_weights(finished: Finished) -> None:
    start, after = finished.checkpoint(0), finished.checkpoint()
    alone = one_tower('sgd', staged=False, workers=(0,))
    assert_equal_weights(start, alone.before)
    for name in model_names(finished.row):
        moved = np.abs(after[name] - start[name]).max()
        assert moved > 1e-3 * np.abs(after[name]).max(), name
        assert np.isfinite(after[name]).all(), name


@pytest.mark.parametrize('name', names_of(ASYNCHRONOUS))
def test_the_total_of_workers_that_do_not_wait_counts_the_steps_of_all(finished: Finished) -> None:
    [total] = finished.totals()[0]
    _, rate, _ = finished.step_lines()[0][-1]
    # A worker shows its own rate, and the time between its steps is in the total only.
    assert float(total) > 0.8 * rate
