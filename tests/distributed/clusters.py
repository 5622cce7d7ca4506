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
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tests.support.programs import PROGRAM, environment
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import ClusterTask, Command, reserve_addresses
from tf_cnn.system.tether import die_with_parent

# Of a loaded machine; a cluster of four processes takes 15 seconds.
DEADLINE_SECS = 240.0
# More steps than there is time for.
ENDLESS = '--num_batches=1000000'

# Two workers that train LeNet with a learning rate and an optimizer with which rounding, other in
# each mode, does not grow.
TRAIN = (
    '--model=lenet --device=cpu --batch_size=4 --num_warmup_batches=2 --display_every=10 '
    '--connect_timeout_secs=120 --optimizer=momentum --nonesterov --momentum=0.9 '
    '--init_learning_rate=0.002 --weight_decay=0.01 --tf_random_seed=7'
)
# The flags and the numbers of tasks of ways to train.
MODES: dict[str, tuple[str, dict[str, int]]] = {
    'parameter_server': ('--variable_update=parameter_server', {'ps': 1}),
    'two_servers': ('--variable_update=parameter_server', {'ps': 2}),
    'asynchronous': ('--variable_update=parameter_server --nocross_replica_sync', {'ps': 1}),
    'staged': ('--variable_update=parameter_server --staged_vars', {'ps': 1}),
    'distributed_replicated': ('--variable_update=distributed_replicated', {'ps': 2}),
    'collective_all_reduce': ('--variable_update=collective_all_reduce', {}),
    'distributed_all_reduce': ('--variable_update=distributed_all_reduce', {'controllers': 1}),
}

# ---- lines that tests wait for or read: who rewords one does so here, too ------------------------

STEP_LINE = r'(\d+)\timages/sec: (\d+\.\d) \+/- \d+\.\d \(jitter = \d+\.\d\)\t(\d+\.\d{3})\n'
TOTAL_LINE = r'^total images/sec: (\d+\.\d\d)$'
# A worker has taken its first timed step, or enough of them that all workers have begun.
FIRST_STEP = r'^1\timages/sec'
UNDER_WAY = r'^20\timages/sec'
# Steps were skipped because their gradients overflowed; their number.
SKIPPED = r'^tf_cnn_benchmarks: warning: (\d+) steps?, .* changed no variable'


def all_modes(*rows: tuple) -> list:
    """Rows of a parametrized test that only --all_modes runs."""
    return [pytest.param(*row, marks=pytest.mark.all_modes) for row in rows]


class Task:
    """A process, with its logs in a folder. Started again, it appends to them.

    Attributes:
      title: its name in messages, such as 'worker 0 (127.0.0.1:2222)'.
      argv: flags can be added before a start.
      exit_code: None while it runs, or before; -n if signal n ended it.
      ended_at: in seconds of time.monotonic().
      left_others: whether a process that it had started outlived it.
    """

    def __init__(
        self, command: Command, folder: Path, address: str = '', network: int | None = None
    ) -> None:
        self.name = command.name
        self.title = f'{command.name} ({address})'
        self.argv = [*command.argv]
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.left_others = False
        self._env = command.env
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter = threading.Thread()
        self.out_file = folder / f'{command.name.replace(" ", "-")}.out'
        self._err_file = self.out_file.with_suffix('.err')

    def start(self) -> None:
        """Call it on the main thread: the process dies with the thread that started it."""
        self.exit_code = None
        with self.out_file.open('ab') as out, self._err_file.open('ab') as err:
            self._process = subprocess.Popen(
                die_with_parent(self.argv, network=self._network),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        # A thread of its own, so that the moment of the end is known.
        self._waiter = threading.Thread(target=self._await_end, args=(self._process,), daemon=True)
        self._waiter.start()

    def _await_end(self, process: 'subprocess.Popen[bytes]') -> None:
        exit_code = process.wait()
        self.ended_at = time.monotonic()
        # At once: later the number may be that of a stranger's group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
            self.left_others = True
        self.exit_code = exit_code

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self.out_file.read_text(errors='replace') if self.out_file.exists() else ''

    @property
    def err(self) -> str:
        return self._err_file.read_text(errors='replace') if self._err_file.exists() else ''

    @property
    def errors(self) -> list[str]:
        """Its error lines without their start."""
        return self.lines(r'^tf_cnn_benchmarks: error: (.*)$')

    def lines(self, pattern: str) -> list:
        return re.findall(pattern, self.out + self.err, re.MULTILINE)

    def await_line(self, pattern: str, times: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE_SECS
        while len(self.lines(pattern)) < times:
            assert not self.has_ended(0.02), f'{self.name} ended without a line {pattern}'
            assert time.monotonic() < deadline, f'{self.name} writes no line {pattern}'

    def has_ended(self, timeout_secs: float = DEADLINE_SECS) -> bool:
        self._waiter.join(max(0.0, timeout_secs))
        return self.exit_code is not None

    def send(self, number: signal.Signals) -> None:
        if self._process and self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it as kill -9 does, with all that it started; does nothing if it has ended."""
        if self._process:
            self.send(signal.SIGKILL)
            self._waiter.join()


class Tasks(dict[str, Task]):
    """The tasks of a cluster by name: parameter servers, workers, then the controller."""

    def of(self, *jobs: str) -> list[Task]:
        return [task for name, task in self.items() if name.startswith(jobs)]

    def others(self, name: str) -> list[Task]:
        return [task for task in self.values() if task.name != name]

    @property
    def trainers(self) -> list[Task]:
        """The tasks that take steps, the chief first."""
        return self.of('controller') or self.of('worker')

    def start(self, until: str = '') -> None:
        """Starts all; waits until those that train have written a line that matches, if given."""
        for task in self.values():
            task.start()
        for task in self.trainers if until else []:
            task.await_line(until)

    def still_running(self, secs: float = DEADLINE_SECS) -> list[str]:
        """Waits for all to end; returns the names of those that do not in that time."""
        deadline = time.monotonic() + secs
        return [
            task.name for task in self.values() if not task.has_ended(deadline - time.monotonic())
        ]

    def assert_end(
        self,
        exit_code: int,
        others: Mapping[str, int] | None = None,
        secs: float = DEADLINE_SECS,
    ) -> None:
        """Asserts that all end in time, all with this exit code but for others={'ps 0': 1}, and
        leave nothing.
        """
        assert not self.still_running(secs)
        exit_codes = {name: task.exit_code for name, task in self.items()}
        assert exit_codes == dict.fromkeys(self, exit_code) | {**(others or {})}
        assert not [task.name for task in self.values() if task.left_others]
        for address in re.findall(r'127\.0\.0\.1:(\d+)', ' '.join(t.title for t in self.values())):
            with socket.socket() as probe:
                assert probe.connect_ex(('127.0.0.1', int(address))), f'{address} still listens'

    def logs(self) -> str:
        return '\n'.join(
            f'===== {task.name}: exit code {task.exit_code}\n{task.out}\n----- stderr\n{task.err}'
            for task in self.values()
        )


def assert_each_names(tasks: Sequence[Task], *facts: object) -> None:
    """Asserts that each task wrote one error, which names all of these facts."""
    for task in tasks:
        assert len(task.errors) == 1, task.name
        check_line(task.errors[0], *facts)


@contextlib.contextmanager
def processes(tasks: Sequence[Task]) -> Iterator[Tasks]:
    """Tasks that are not started yet. Kills them after the block, and prints their logs."""
    found = Tasks({task.name: task for task in tasks})
    try:
        yield found
    finally:
        for task in tasks:
            task.kill()
        print(found.logs())


@contextlib.contextmanager
def cluster(
    flags: str,
    folder: Path,
    *,
    ps: int = 0,
    controllers: int = 0,
    network: int | None = None,
) -> Iterator[Tasks]:
    """The tasks of a cluster with two workers, none of which is started yet.

    network: a process in a private network, in which they run.
    """
    counts = {'ps': ps, 'worker': 2, 'controller': controllers}
    ids = [(job, index) for job, count in counts.items() for index in range(count)]
    with contextlib.ExitStack() as stack:
        if network is None:
            addresses = stack.enter_context(reserve_addresses(len(ids)))
        else:
            addresses = [f'127.0.0.1:{2222 + number}' for number in range(len(ids))]
        places = [ClusterTask(*own, address) for own, address in zip(ids, addresses, strict=True)]
        commands = make_commands(flags.split(), places, environment())
        tasks = [Task(c, folder, a, network) for c, a in zip(commands, addresses, strict=True)]
        yield stack.enter_context(processes(tasks))


def training(
    mode: str, flags: str, folder: Path, network: int | None = None
) -> contextlib.AbstractContextManager[Tasks]:
    """A cluster of MODES, none of whose tasks is started yet."""
    mode_flags, jobs = MODES[mode]
    return cluster(f'{TRAIN} {mode_flags} {flags}', folder, network=network, **jobs)


def run(flags: str, folder: Path, exit_code: int = 0, **jobs: int) -> Tasks:
    """Runs a cluster to its end; jobs: as in cluster()."""
    with cluster(flags, folder, **jobs) as tasks:
        tasks.start()
        tasks.assert_end(exit_code)
    return tasks


@contextlib.contextmanager
def launched(
    argv: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
) -> Iterator[Task]:
    """One process that was started."""
    with processes([Task(Command('command', argv, env or environment()), folder)]) as tasks:
        tasks.start()
        yield tasks['command']


def cluster_command(words: str) -> list[str]:
    """The command line of `cluster`, which starts a whole cluster."""
    return ['env', 'PYTHONUNBUFFERED=1', *PROGRAM, 'cluster', *words.split()]
