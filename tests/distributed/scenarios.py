"""Clusters of real processes that lose a task or get a signal, and what one tower trains without
either.
"""

import contextlib
import functools
import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.distributed.milestones import UNDER_WAY
from tests.distributed.processes import DEADLINE_SECS, Process, Processes, await_line, make_cluster
from tests.distributed.whole_batch import SEED, WholeBatch, one_tower_graph, values_of
from tests.support.graphs import open_session
from tests.support.oracles import MOMENTUM, Weights
from tests.support.outputs import check_line
from tf_cnn.training.optimizers import Momentum

# NUM_STEPS are all steps of a run, warm-up included. Where workers do not wait for each other there
# are more, so that one that starts late takes some, too.
NUM_WORKERS, BATCH, NUM_WARMUP, NUM_STEPS = 2, 4, 2, 100
NUM_STEPS_APART = 300
# A learning rate and an optimizer with which rounding, other in each mode, does not grow: 1e-6
# after all steps, relative to the largest magnitude of each weight. Even the last step moves all by
# 2e-5 and more.
LEARNING_RATE, WEIGHT_DECAY = 0.002, 0.01
TOLERANCE = 1e-5
FLAGS = (
    *(
        '--model=lenet',
        '--device=cpu',
        f'--batch_size={BATCH}',
        f'--num_warmup_batches={NUM_WARMUP}',
    ),
    *('--display_every=10', '--connect_timeout_secs=120'),
    *(
        '--optimizer=momentum',
        '--nonesterov',
        f'--momentum={MOMENTUM}',
        f'--init_learning_rate={LEARNING_RATE}',
    ),
    *(f'--weight_decay={WEIGHT_DECAY}', f'--tf_random_seed={SEED}'),
)
# More steps than there is time for.
ENDLESS = '--num_batches=1000000'
# How long the others take to end after a loss, and how much longer a loaded machine may take.
LOSS_SECS = 15.0
MARGIN_SECS = 30.0
KILLED, FAILED = -int(signal.SIGKILL), 1


@dataclass(frozen=True)
class Mode:
    """A way to train.

    together: the workers wait for each other. is_exact: a run that lost a task ends with the same
      weights as any other.
    """

    flags: tuple[str, ...]
    num_ps: int = 1
    num_controllers: int = 0
    together: bool = True
    is_exact: bool = True

    @property
    def num_steps(self) -> int:
        """Those of each worker, in a run that ends."""
        return NUM_STEPS if self.together else NUM_STEPS_APART

    @property
    def limited(self) -> str:
        """The flag that lets a run end."""
        return f'--num_batches={self.num_steps - NUM_WARMUP}'


MODES = {
    'parameter_server': Mode(('--variable_update=parameter_server',)),
    'two_servers': Mode(('--variable_update=parameter_server',), num_ps=2),
    'asynchronous': Mode(
        ('--variable_update=parameter_server', '--nocross_replica_sync'),
        together=False,
        is_exact=False,
    ),
    # The first step after an interruption computes with variables that lack no update.
    'staged': Mode(('--variable_update=parameter_server', '--staged_vars'), is_exact=False),
    'distributed_replicated': Mode(('--variable_update=distributed_replicated',), num_ps=2),
    'collective_all_reduce': Mode(('--variable_update=collective_all_reduce',), num_ps=0),
    'distributed_all_reduce': Mode(
        ('--variable_update=distributed_all_reduce',), num_ps=0, num_controllers=1
    ),
}


def scenarios(usual: Iterable[str], others: Iterable[str]) -> Sequence[object]:
    """Pairs of parameters, written 'mode: task': those of every test run, and those of
    --all_modes.
    """
    return [pytest.param(*text.split(': '), id=text) for text in usual] + [
        pytest.param(*text.split(': '), id=text, marks=pytest.mark.all_modes) for text in others
    ]


@contextlib.contextmanager
def cluster_of(
    mode: str, folder: Path, *flags: str, network: int | None = None
) -> Iterator[Processes]:
    """A cluster, none of whose tasks is started yet; network: as in make_cluster."""
    kind = MODES[mode]
    run_flags = [*FLAGS, *kind.flags, *flags]
    with make_cluster(
        run_flags, folder, num_ps=kind.num_ps, num_controllers=kind.num_controllers, network=network
    ) as processes:
        yield processes


def start_under_way(processes: Processes) -> None:
    """Starts all, and returns when all that train have taken steps."""
    processes.start()
    for trainer in processes.trainers:
        await_line(trainer, UNDER_WAY)


def kill_under_way(processes: Processes, name: str) -> float:
    """Starts all and kills one as kill -9 does when all have taken steps. Returns when that was."""
    start_under_way(processes)
    lost = processes.tasks[name]
    lost.kill()
    assert lost.exit_code == KILLED
    return lost.ended_at


def assert_all_end(
    processes: Processes, exit_code: int, deadline_secs: float = DEADLINE_SECS, **others: int
) -> None:
    """Asserts that all tasks end in time, all with the same exit code but for others={'ps 0': 1},
    and leave nothing.
    """
    assert not processes.still_running(deadline_secs)
    assert processes.exit_codes() == dict.fromkeys(processes.tasks, exit_code) | others
    assert not [name for name, task in processes.tasks.items() if task.left_others]
    assert not processes.listening()


def errors_of(task: Process) -> list[str]:
    """Its errors without their start."""
    return re.findall(r'^tf_cnn_benchmarks: error: (.*)$', task.err, re.MULTILINE)


def others_of(processes: Processes, name: str) -> list[Process]:
    return [task for other, task in processes.tasks.items() if other != name]


def assert_each_names(tasks: Iterable[Process], *facts: object) -> None:
    """Asserts that each of them has said why it ended, in one error that names all of these
    facts.
    """
    for task in tasks:
        assert len(errors_of(task)) == 1, task.name
        check_line(errors_of(task)[0], *facts)


@functools.cache
def undisturbed(num_steps: int) -> Weights:
    """What a checkpoint holds when one tower of this process has taken so many steps with the
    images of all workers.
    """
    with tf.Graph().as_default(), open_session() as session:
        images = WholeBatch(tuple(range(NUM_WORKERS)), 1, BATCH)
        graph = one_tower_graph(images, Momentum(MOMENTUM), LEARNING_RATE, WEIGHT_DECAY)
        session.run([graph.initializers, graph.step_input.initializers])
        for _ in range(num_steps):
            session.run(graph.fetches.as_dict())
        return session.run(values_of(graph))


def differences(weights: Weights, expected: Weights) -> dict[str, float]:
    """Of each weight the largest difference, relative to its largest magnitude."""
    assert weights.keys() == expected.keys()
    # The optimizer's variables shrink, and with them what theirs would be relative to.
    return {
        name: float(np.abs(weights[name] - value).max() / np.abs(value).max())
        for name, value in expected.items()
        if name.endswith(('/kernel', '/bias'))
    }


def assert_trained(weights: Weights, num_steps: int) -> None:
    """Asserts that they are those of so many steps, none of which was lost or taken twice."""
    assert weights['global_step'] == num_steps
    for name, difference in differences(weights, undisturbed(num_steps)).items():
        assert difference < TOLERANCE, name
