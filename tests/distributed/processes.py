"""Clusters of real processes on free loopback ports. Each has a deadline, and a failed test shows
the logs of all.
"""

import contextlib
import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.programs import members
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import Command, reserve_addresses
from tf_cnn.system.tether import die_with_parent

# Of a loaded machine; a cluster of four processes takes 15 seconds.
DEADLINE_SECS = 240.0
ROOT = Path(__file__).resolve().parent.parent.parent
_WITHOUT_SKLEARN = Path(__file__).parent / 'without_sklearn'


def environment() -> dict[str, str]:
    """What a process of a cluster inherits: that of a user, who has no scikit-learn.

    Where it is there, Keras imports it, and SciPy with it, which takes a fifth of the start of each
    process.
    """
    folders = filter(None, [str(_WITHOUT_SKLEARN), os.environ.get('PYTHONPATH')])
    return {**os.environ, 'PYTHONPATH': os.pathsep.join(folders)}


class Process:
    """A task of a cluster, named as 'worker 0'. Started anew, it writes on where it stopped.

    network: the process whose network it uses; None for this machine's.

    Attributes:
      exit_code: how it ended; -n if by signal n. None while it runs, or before.
      ended_at: when it ended, in seconds of time.monotonic().
      left_others: whether a process that it had started was still there when it had ended.
    """

    def __init__(self, command: Command, folder: Path, network: int | None = None) -> None:
        self.name = command.name
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.left_others = False
        self._command = command
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self._waiter = threading.Thread()
        self._streams = {
            kind: folder / f'{command.name.replace(" ", "-")}.{kind}' for kind in ('out', 'err')
        }

    def add_flags(self, *flags: str) -> None:
        """From its next start on it has these flags as well."""
        self._command = dataclasses.replace(self._command, argv=(*self._command.argv, *flags))

    def start(self) -> None:
        """Starts it, or starts it again. Only the main thread can: the process dies with the thread
        that started it.
        """
        self.exit_code = None
        with self._streams['out'].open('ab') as out, self._streams['err'].open('ab') as err:
            self._process = subprocess.Popen(
                die_with_parent(self._command.argv, network=self._network),
                env=self._command.env,
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

    def has_ended(self, timeout_secs: float) -> bool:
        self._waiter.join(max(0.0, timeout_secs))
        return self.exit_code is not None

    def send(self, number: signal.Signals) -> None:
        """Sends it a signal, unless it has ended."""
        if self._process and self.exit_code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it as kill -9 does, with all that it started, and waits for the end. Does nothing if
        it has ended.
        """
        if self._process:
            self.send(signal.SIGKILL)
            self._waiter.join()

    @property
    def out(self) -> str:
        """Its standard output so far."""
        return self._read('out')

    @property
    def err(self) -> str:
        return self._read('err')

    def _read(self, kind: str) -> str:
        stream = self._streams[kind]
        return stream.read_text(errors='replace') if stream.exists() else ''

    @property
    def log(self) -> str:
        """All that it has written, for a test that fails."""
        return (
            f'===== {self.name}: exit code {self.exit_code}\n{self.out}----- standard '
            f'error\n{self.err}'
        )


def await_line(task: Process, pattern: str, times: int = 1) -> None:
    """Returns once the task has written so many lines that match."""
    deadline = time.monotonic() + DEADLINE_SECS
    while len(re.findall(pattern, task.out + task.err, re.MULTILINE)) < times:
        assert not task.has_ended(0.02), f'{task.name} ended without a line {pattern}'
        assert time.monotonic() < deadline, f'{task.name} writes no line {pattern}'


@contextlib.contextmanager
def launched(command: Command, folder: Path) -> Iterator[Process]:
    """A process that is started, and killed at the end of the block if it still runs. Its log is
    that of the test.
    """
    process = Process(command, folder)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        print(process.log)


def cluster_command(*words: str) -> Command:
    """The command that starts a whole cluster."""
    command = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), 'cluster', *words)
    return Command('cluster', command, env={**environment(), 'PYTHONUNBUFFERED': '1'})


class Processes:
    """The tasks of a cluster by their names, servers first."""

    def __init__(
        self,
        commands: Sequence[Command],
        addresses: Sequence[str],
        folder: Path,
        network: int | None = None,
    ) -> None:
        self.tasks = {command.name: Process(command, folder, network) for command in commands}
        self._addresses = addresses

    def of(self, job: str) -> list[Process]:
        """The tasks of a job, in order."""
        return [task for name, task in self.tasks.items() if name.startswith(job)]

    @property
    def trainers(self) -> list[Process]:
        """The tasks that take steps, the chief first."""
        return self.of('controller') or self.of('worker')

    @property
    def servers(self) -> list[Process]:
        """The tasks that serve them."""
        trainers = self.trainers
        return [task for task in self.tasks.values() if task not in trainers]

    def start(self) -> None:
        for task in self.tasks.values():
            task.start()

    def run(self, exit_code: int = 0) -> None:
        """Starts all, and waits until they have ended, all in this way."""
        self.start()
        assert not self.still_running(DEADLINE_SECS)
        assert {*self.exit_codes().values()} == {exit_code}, self.exit_codes()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Kills those that are left at the end of the block. pytest shows their logs if the test
        fails.
        """
        try:
            yield
        finally:
            for task in self.tasks.values():
                task.kill()
            print(self.logs())

    def exit_codes(self) -> dict[str, int | None]:
        return {name: task.exit_code for name, task in self.tasks.items()}

    def still_running(self, deadline_secs: float) -> list[str]:
        """Waits for all to end. The names of those that do not in that time."""
        deadline = time.monotonic() + deadline_secs
        return [
            name
            for name, task in self.tasks.items()
            if not task.has_ended(deadline - time.monotonic())
        ]

    def listening(self) -> list[str]:
        """The addresses of the cluster at which something listens."""
        found = []
        for address in self._addresses:
            host, port = address.split(':')
            with socket.socket() as probe:
                if probe.connect_ex((host, int(port))) == 0:
                    found.append(address)
        return found

    def logs(self) -> str:
        return '\n'.join(task.log for task in self.tasks.values())

    def described(self, name: str) -> str:
        """How messages call the task of that name: 'worker 0 (127.0.0.1:2222)'."""
        return f'{name} ({self._addresses[list(self.tasks).index(name)]})'


@contextlib.contextmanager
def make_cluster(
    run_flags: Sequence[str],
    folder: Path,
    *,
    num_ps: int,
    num_workers: int = 2,
    num_controllers: int = 0,
    network: int | None = None,
) -> Iterator[Processes]:
    """The tasks of a cluster, none of which is started yet. At the end of the block none is left.

    All get run_flags, besides what they are and where the others are. Their logs go to the folder.
    network: a process in a private network, in which they run.
    """
    count = num_ps + num_workers + num_controllers
    with contextlib.ExitStack() as stack:
        if network is None:
            addresses = stack.enter_context(reserve_addresses(count))
        else:
            addresses = [f'127.0.0.1:{2222 + number}' for number in range(count)]
        end = num_ps + num_workers
        found = members(addresses[:num_ps], addresses[num_ps:end], addresses[end:])
        commands = make_commands(run_flags, found, environment())
        processes = Processes(commands, addresses, folder, network)
        with processes.ending():
            yield processes
