"""Starts clusters of real processes on free loopback ports.

    tasks = run('--model=lenet --num_batches=5', tmp_path, ps=1)
    assert 'total images/sec' in tasks['worker 0'].out

    with cluster('--model=lenet', tmp_path, ps=1) as tasks:
        tasks.start()
        tasks['worker 0'].await_line(UNDER_WAY)
        tasks['worker 1'].kill()
        tasks.assert_end(1, {'worker 1': -9})

Nothing outlives its test, and a test that fails shows the logs of all.
"""

import contextlib
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_line
from tests.support.programs import DEADLINE_SECS, PROGRAM, Task, environment
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import ClusterTask, reserve_addresses

# More steps than there is time for.
ENDLESS = '--num_batches=1000000'

# Two workers train a network with cheap steps. Modes round differently; with this learning rate and
# optimizer the differences stay small.
TRAIN = (
    '--model=trivial --data_name=cifar10 --device=cpu --batch_size=4 --num_warmup_batches=2 '
    '--display_every=10 --connect_timeout_secs=120 --optimizer=momentum --nonesterov '
    '--momentum=0.9 --init_learning_rate=0.002 --weight_decay=0.01 --tf_random_seed=7'
)
# The flags of each mode, and how many tasks it has besides the workers.
MODES: dict[str, tuple[str, dict[str, Any]]] = {
    'parameter_server': ('--variable_update=parameter_server', {'ps': 1}),
    'two_servers': ('--variable_update=parameter_server', {'ps': 2}),
    'asynchronous': ('--variable_update=parameter_server --nocross_replica_sync', {'ps': 1}),
    'staged': ('--variable_update=parameter_server --staged_vars', {'ps': 1}),
    'distributed_replicated': ('--variable_update=distributed_replicated', {'ps': 2}),
    'collective_all_reduce': ('--variable_update=collective_all_reduce', {}),
    'distributed_all_reduce': ('--variable_update=distributed_all_reduce', {'controllers': 1}),
}

# ---- lines of the program that tests wait for or read -------------------------------------------

STEP_LINE = r'(\d+)\timages/sec: (\d+\.\d) \+/- \d+\.\d \(jitter = \d+\.\d\)\t(\d+\.\d{3})\n'
TOTAL_LINE = r'^total images/sec: (\d+\.\d\d)$'
# A worker's first timed step, and a step that it reaches after all workers have begun.
FIRST_STEP = r'^1\timages/sec'
UNDER_WAY = r'^20\timages/sec'
# The warning about steps with overflowed gradients, with the number of these steps.
SKIPPED = r'^tf_cnn_benchmarks: warning: (\d+) steps?, .* changed no variable'


def all_modes(*rows: tuple) -> list:
    """Returns rows of a parametrized test that only --all_modes runs."""
    return [pytest.param(*row, marks=pytest.mark.all_modes) for row in rows]


class Tasks(dict[str, Task]):
    """The tasks of a cluster by name: parameter servers, workers, then the controller."""

    def of(self, *jobs: str) -> list[Task]:
        return [task for name, task in self.items() if name.startswith(jobs)]

    def all_but(self, name: str) -> list[Task]:
        return [task for task in self.values() if task.name != name]

    @property
    def trainers(self) -> list[Task]:
        """The tasks that take steps, the chief first."""
        return self.of('controller') or self.of('worker')

    def start(self, until: str = '') -> None:
        """Starts all, and waits until each trainer has written a line that matches `until`."""
        for task in self.values():
            task.start()
        for task in self.trainers if until else []:
            task.await_line(until)

    def still_running(self, secs: float = DEADLINE_SECS) -> list[str]:
        """Waits for all to end; returns the names of the tasks that still run after this time."""
        deadline = time.monotonic() + secs
        return [
            task.name for task in self.values() if not task.has_ended(deadline - time.monotonic())
        ]

    def assert_end(
        self,
        exit_code: int,
        exceptions: Mapping[str, int] | None = None,
        secs: float = DEADLINE_SECS,
    ) -> None:
        """Asserts that all end in time and leave no process and no open port.

        exceptions: the tasks with another exit code, such as {'ps 0': 1}.
        """
        assert not self.still_running(secs)
        exit_codes = {name: task.exit_code for name, task in self.items()}
        assert exit_codes == dict.fromkeys(self, exit_code) | {**(exceptions or {})}
        assert not [task.name for task in self.values() if task.left_others]
        for address in re.findall(r'127\.0\.0\.1:(\d+)', ' '.join(t.title for t in self.values())):
            with socket.socket() as probe:
                assert probe.connect_ex(('127.0.0.1', int(address))), f'{address} still listens'

    def logs(self) -> str:
        return '\n'.join(task.logs for task in self.values())


def assert_each_names(tasks: Sequence[Task], *facts: object) -> None:
    """Asserts that each task wrote one error, which names all of these facts."""
    for task in tasks:
        assert len(task.errors) == 1, task.name
        check_line(task.errors[0], *facts)


@contextlib.contextmanager
def processes(tasks: Sequence[Task]) -> Iterator[Tasks]:
    """Yields the tasks without starting them. Kills them after the block, and prints their logs."""
    tasks_by_name = Tasks({task.name: task for task in tasks})
    try:
        yield tasks_by_name
    finally:
        for task in tasks:
            task.kill()
        print(tasks_by_name.logs())


@contextlib.contextmanager
def cluster(
    flags: str,
    folder: Path,
    *,
    ps: int = 0,
    controllers: int = 0,
    places: Sequence[tuple[str, int]] = (),
    fresh: Sequence[str] = (),
) -> Iterator[Tasks]:
    """Yields the tasks of a cluster with two workers without starting them.

    places: the IP address of each task, and a process in its network; default: this machine.
    fresh: the tasks that start Python anew, so that the order of their sets differs.
    """
    counts = {'ps': ps, 'worker': 2, 'controller': controllers}
    ids = [(job, index) for job, count in counts.items() for index in range(count)]
    with contextlib.ExitStack() as stack:
        if places:
            addresses = [f'{ip}:{2222 + number}' for number, (ip, _) in enumerate(places)]
        else:
            addresses = stack.enter_context(reserve_addresses(len(ids)))
        cluster_tasks = [
            ClusterTask(job, index, address)
            for (job, index), address in zip(ids, addresses, strict=True)
        ]
        networks = [network for _, network in places] or [None] * len(ids)
        commands = make_commands(flags.split(), cluster_tasks, environment())
        tasks = [
            Task(command, folder, address, network, fresh=command.name in fresh)
            for command, address, network in zip(commands, addresses, networks, strict=True)
        ]
        yield stack.enter_context(processes(tasks))


def training(
    mode: str, flags: str, folder: Path, network: int | None = None
) -> contextlib.AbstractContextManager[Tasks]:
    """Yields the tasks of a cluster of MODES without starting them."""
    mode_flags, jobs = MODES[mode]
    places = [] if network is None else [('127.0.0.1', network)] * (2 + sum(jobs.values()))
    return cluster(f'{TRAIN} {mode_flags} {flags}', folder, places=places, **jobs)


def run(flags: str, folder: Path, exit_code: int = 0, **jobs: Any) -> Tasks:
    """Runs a cluster to its end; jobs: as in cluster()."""
    with cluster(flags, folder, **jobs) as tasks:
        tasks.start()
        tasks.assert_end(exit_code)
    return tasks


def cluster_command(words: str) -> list[str]:
    """Returns the command line of `cluster`, which starts a whole cluster."""
    return ['env', 'PYTHONUNBUFFERED=1', *PROGRAM, 'cluster', *words.split()]
