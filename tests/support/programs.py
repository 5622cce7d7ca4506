"""Runs the program and other commands: as processes, on terminals, or in this process."""

import atexit
import contextlib
import functools
import io
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import pyte

import tf_cnn_benchmarks
from tf_cnn.launch.commands import make_commands
from tf_cnn.launch.hosts import ClusterTask, Command, reserve_addresses
from tf_cnn.results.document import Result, read_result
from tf_cnn.system.tether import die_with_parent

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
# Enough for a process on a loaded machine, and for a cluster of four, which takes 15 seconds.
DEADLINE_SECS = 300.0
_LOGS = tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-')


def environment(**changes: str | None) -> dict[str, str]:
    """Returns the environment of a process: ours with these changes; None removes a variable.

    It hides scikit-learn, which users need not have. Keras would import it, and SciPy with it, in a
    fifth of the time that a process takes to start.
    """
    folders = [str(Path(__file__).parent / 'without_sklearn'), os.environ.get('PYTHONPATH')]
    merged = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, folders)), **changes}
    return {name: value for name, value in merged.items() if value is not None}


# ---- processes with logs -------------------------------------------------------------------------


@functools.cache
def _fork_server() -> socket.socket:
    """Starts the server of this process; returns the socket for requests."""
    requests, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server_end:
        server = subprocess.Popen(
            die_with_parent([sys.executable, '-m', 'tests.support.fork_server']),
            stdin=server_end.fileno(),
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
            # NumPy would start threads.
            env=environment(OPENBLAS_NUM_THREADS='1'),
        )

    def end() -> None:
        requests.close()
        server.wait()

    atexit.register(end)
    return requests


@dataclass(eq=False)
class Task:
    """A process, with its logs in a folder. A second start appends to them.

    A script, such as the program, is forked from a process that has imported TensorFlow, unless the
    task is fresh. A fork takes half a second of processor time instead of three. Variables that
    Python or TensorFlow read when they start have no effect in a fork.

    Attributes:
      network: a process with the network to use; None for the network of this process.
      exit_code: None while it runs, or before; -n if signal n ended it.
      ended_at: in seconds of time.monotonic().
      left_others: whether a child process outlived it.
      title: its name in messages, such as 'worker 0 (127.0.0.1:2222)'.
      argv: flags can be added before a start.
    """

    command: Command
    folder: Path | None = None
    address: str = ''
    network: int | None = None
    fresh: bool = False
    cwd: Path | None = None
    pid: int = 0
    exit_code: int | None = None
    ended_at: float = 0.0
    left_others: bool = False

    def __post_init__(self) -> None:
        self.name = self.command.name
        self.title = f'{self.name} ({self.address})'
        self.argv = [*self.command.argv]
        self._env = self.command.env or environment()
        self._cwd = self.cwd or Path.cwd()
        program, script, *_ = [*self.argv, '']
        self._is_fresh = self.fresh or program != sys.executable or script.startswith('-')
        self._waiter = threading.Thread()
        folder = self.folder or Path(tempfile.mkdtemp(dir=_LOGS.name))
        self.out_file = folder / f'{self.name.replace(" ", "-")}.out'
        self._err_file = self.out_file.with_suffix('.err')

    def start(self) -> None:
        """Starts the process. Call it on the main thread: the process dies with its thread."""
        self.exit_code = None
        wait: Callable[[], int]
        with self.out_file.open('ab') as out, self._err_file.open('ab') as err:
            if self._is_fresh:
                process = subprocess.Popen(
                    die_with_parent(self.argv, network=self.network),
                    env=self._env,
                    cwd=self._cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                self.pid, wait = process.pid, process.wait
            else:
                self.pid, wait = self._fork(out, err)
        # A thread waits, so that ended_at is exact.
        self._waiter = threading.Thread(target=self._await_end, args=(wait,), daemon=True)
        self._waiter.start()

    def _fork(self, out: IO[bytes], err: IO[bytes]) -> tuple[int, Callable[[], int]]:
        """Forks a process that runs the script in a session of its own, and dies with this process.

        Returns its id, and a function that waits for its exit code: -n after signal n.
        """
        request = [self.argv[1:], {**self._env}, str(self._cwd), self.network]
        answers, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with server_end, open(os.devnull) as nothing:
            files = [file.fileno() for file in (nothing, out, err, server_end)]
            socket.send_fds(_fork_server(), [json.dumps(request).encode()], files)
        return int(answers.recv(32)), lambda: int(answers.recv(32))

    def _await_end(self, wait: Callable[[], int]) -> None:
        exit_code = wait()
        self.ended_at = time.monotonic()
        # Later another process group may have this number.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
            self.left_others = True
        self.exit_code = exit_code

    @property
    def out(self) -> str:
        """The standard output so far."""
        return self.out_file.read_text(errors='replace') if self.out_file.exists() else ''

    @property
    def err(self) -> str:
        return self._err_file.read_text(errors='replace') if self._err_file.exists() else ''

    @property
    def errors(self) -> list[str]:
        """The error lines without their fixed beginning."""
        return self.lines(r'^tf_cnn_benchmarks: error: (.*)$')

    def lines(self, pattern: str) -> list:
        return re.findall(pattern, self.out + self.err, re.MULTILINE)

    @property
    def results(self) -> list[Result]:
        """The contents of its --result_file, or of a file for each repetition."""
        # The tasks that write none have the flag once more, without a file.
        files = [word.partition('=')[2] for word in self.argv if word.startswith('--result_file=')]
        path = self._cwd / files[-1]
        records = [read_result(file) for file in path.parent.glob(f'{path.stem}.*')]
        return [record for record in records if isinstance(record, Result)]

    @property
    def logs(self) -> str:
        return (
            f'===== {self.name}: exit code {self.exit_code}\n{self.out}\n----- stderr\n{self.err}'
        )

    def await_line(self, pattern: str, times: int = 1) -> None:
        deadline = time.monotonic() + DEADLINE_SECS
        while len(self.lines(pattern)) < times:
            assert not self.has_ended(0.02), f'{self.name} ended without a line {pattern}'
            assert time.monotonic() < deadline, f'{self.name} writes no line {pattern}'

    def has_ended(self, timeout_secs: float = DEADLINE_SECS) -> bool:
        self._waiter.join(max(0.0, timeout_secs))
        return self.exit_code is not None

    def send(self, number: signal.Signals) -> None:
        if self.pid and self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills the process and its children; does nothing if it has ended."""
        if self.pid:
            self.send(signal.SIGKILL)
            self._waiter.join()


class Tasks(dict[str, Task]):
    """Tasks by name; of a cluster, parameter servers, workers, then the controller."""

    def of(self, *jobs: str) -> list[Task]:
        return [task for name, task in self.items() if name.startswith(jobs)]

    def all_but(self, name: str) -> list[Task]:
        return [task for task in self.values() if task.name != name]

    @property
    def trainers(self) -> list[Task]:
        """The tasks that take steps, the chief first."""
        return self.of('controller') or self.of('worker') or [*self.values()]

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

    def assert_end(self, exit_code: int, exceptions: Mapping[str, int] | None = None) -> None:
        """Asserts that all end in time and leave no process and no open port.

        exceptions: the tasks with another exit code, such as {'ps 0': 1}.
        """
        assert not self.still_running()
        exit_codes = {name: task.exit_code for name, task in self.items()}
        assert exit_codes == dict.fromkeys(self, exit_code) | {**(exceptions or {})}
        assert not [task.name for task in self.values() if task.left_others]
        for address in re.findall(r'127\.0\.0\.1:(\d+)', ' '.join(t.title for t in self.values())):
            with socket.socket() as probe:
                assert probe.connect_ex(('127.0.0.1', int(address))), f'{address} still listens'

    def logs(self) -> str:
        return '\n'.join(task.logs for task in self.values())


@contextlib.contextmanager
def processes(*tasks: Task) -> Iterator[Tasks]:
    """Yields the tasks without starting them. Kills them after the block, and prints their logs."""
    tasks_by_name = Tasks({task.name: task for task in tasks})
    try:
        yield tasks_by_name
    finally:
        for task in tasks:
            task.kill()
        print(tasks_by_name.logs())


@contextlib.contextmanager
def launched(
    flags: str | Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
    cwd: Path | None = None,
) -> Iterator[Task]:
    """Starts the program with these flags, or another command (a list), as in processes()."""
    argv = [*PROGRAM, *shlex.split(flags)] if isinstance(flags, str) else flags
    task = Task(Command('command', argv, env), folder, fresh=fresh, cwd=cwd)
    with processes(task):
        task.start()
        yield task


@contextlib.contextmanager
def cluster(
    flags: str,
    folder: Path | None,
    *,
    ps: int = 0,
    workers: int = 2,
    controllers: int = 0,
    places: Sequence[tuple[str, int | None]] = (),
    fresh: Sequence[str] = (),
) -> Iterator[Tasks]:
    """Yields the tasks of a cluster, as in processes().

    places: an address for each task, and a process in its network; default: this machine.
    fresh: the tasks that start Python anew, so that the order of their sets differs.
    """
    jobs = ['ps'] * ps + ['worker'] * workers + ['controller'] * controllers
    with contextlib.ExitStack() as stack:
        if not places:
            addresses = stack.enter_context(reserve_addresses(len(jobs)))
            places = [(address, None) for address in addresses]
        cluster_tasks = [
            ClusterTask(job, number - jobs.index(job), places[number][0])
            for number, job in enumerate(jobs)
        ]
        commands = make_commands(shlex.split(flags), cluster_tasks, environment())
        tasks = [
            Task(command, folder, *place, fresh=command.name in fresh)
            for command, place in zip(commands, places, strict=False)
        ]
        yield stack.enter_context(processes(*tasks))


class Finished(NamedTuple('Finished', [('code', int), ('out', str), ('err', str)])):
    """The exit code of a process, and what it wrote to standard output and standard error.

    Attributes:
      tasks: this process, or all tasks of a cluster if it was the chief.
    """

    tasks: Tasks

    @property
    def results(self) -> list[Result]:
        return self.tasks.trainers[0].results


def run(
    flags: str,
    cwd: Path | None = None,
    *,
    fresh: bool = False,
    jobs: Mapping[str, Any] | None = None,
    **environ: str | None,
) -> Finished:
    """Runs the program to its end: as a process, or as the tasks of a cluster.

    A process is forked unless it is fresh or `environ` changes variables, as in environment().

    jobs: the numbers of tasks, as in cluster(). All must end with the same exit code.
    """
    if jobs is not None:
        return _finish(cluster(flags, None, **jobs))
    argv, env = [*PROGRAM, *shlex.split(flags)], environment(**environ)
    task = Task(Command('command', argv, env), fresh=fresh or bool(environ), cwd=cwd)
    return _finish(processes(task))


def run_process(
    command: Sequence[object],
    cwd: Path | None = None,
    /,
    **environ: str | None,
) -> Finished:
    """Runs a command to its end. `environ` changes variables as in environment()."""
    words = Command('command', [*map(str, command)], environment(**environ))
    return _finish(processes(Task(words, fresh=True, cwd=cwd)))


def _finish(run_tasks: AbstractContextManager[Tasks]) -> Finished:
    with run_tasks as tasks:
        tasks.start()
        assert not tasks.still_running()
        assert not any('Traceback' in task.err for task in tasks.values())
        chief = tasks.trainers[0]
        code = chief.exit_code or 0
        if len(tasks) > 1:
            tasks.assert_end(code)
        finished = Finished(code, chief.out, chief.err)
        finished.tasks = tasks
        return finished


def run_python(code: str, *words: str, **environ: str | None) -> Finished:
    """Runs Python code with the program's modules, in a process that must end with 0."""
    process = run_process([sys.executable, '-c', code, *words], ROOT, **environ)
    assert process.code == 0, process.err
    return process


def run_in_fork(code: str, folder: Path, *words: str, **environ: str | None) -> str:
    """Runs Python code in a fork of a process that has imported TensorFlow and not used it, with
    the modules of a folder before all others; returns its standard output.
    """
    script = folder / 'script.py'
    script.write_text(f'import sys; sys.path.insert(0, {str(folder)!r})\n{code}')
    env = environment(**environ)
    with launched([sys.executable, str(script), *words], folder, env) as process:
        assert process.has_ended(), process.logs
        assert process.exit_code == 0, process.err
    return process.out


def run_main(*argv: object, code: int = 0) -> tuple[str, str]:
    """Runs the program in this process; returns its standard output and standard error.

    Fails unless it ends with this exit code.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exit_code = tf_cnn_benchmarks.main([*map(str, argv)])
    assert exit_code == code, err.getvalue()
    assert 'Traceback' not in err.getvalue() or '--verbose' in argv, err.getvalue()
    return out.getvalue(), err.getvalue()


def assert_ended(pids: list[int]) -> None:
    """Waits until these processes, which need not be children of this one, have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                assert select.select([descriptor], [], [], DEADLINE_SECS)[0], pid
            finally:
                os.close(descriptor)


def catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler, as the running program has: see proc_pid_status(5)."""
    caught = re.search(r'SigCgt:\s*(\w+)', Path(f'/proc/{pid}/status').read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


# ---- terminals -----------------------------------------------------------------------------------

_MAX_LINES = 200


class Terminal:
    """The controlling terminal of a process and its standard streams; Ctrl-C reaches the process.

    `written` is the whole output so far, with control sequences.
    """

    def __init__(self, command: Sequence[str], *, columns: int = 120, **environ: str) -> None:
        self.written = b''
        # read() searches from this position.
        self._start = 0
        self._columns = columns
        # The last output would be lost if this process did not hold both ends open.
        self._our_end, self._process_end = pty.openpty()
        termios.tcsetwinsize(self._process_end, (_MAX_LINES, columns))
        attributes = termios.tcgetattr(self._process_end)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._process_end, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            ['setsid', '--ctty', *command],
            stdin=self._process_end,
            stdout=self._process_end,
            stderr=self._process_end,
            cwd=ROOT,
            env=environment(**{'TERM': 'xterm', **environ}),
        )

    def read(self, until: str | None) -> None:
        """Reads up to this text, which must follow the text read before; None: to the end."""
        deadline = time.monotonic() + DEADLINE_SECS
        while until is None or (position := self.written.find(until.encode(), self._start)) < 0:
            if select.select([self._our_end], [], [], 0.02)[0]:
                self.written += os.read(self._our_end, 65536)
            elif until is None and self.process.poll() is not None:
                return
            else:
                assert self.process.poll() is None, f'it ended without {until}: {self.written!r}'
                assert time.monotonic() < deadline, f'it does not write {until}: {self.written!r}'
        self._start = position + len(until)

    def type(self, text: str) -> None:
        """Types keys; '\\x03' is Ctrl-C."""
        os.write(self._our_end, text.encode())

    @property
    def screen(self) -> pyte.Screen:
        screen = pyte.Screen(self._columns, _MAX_LINES)
        pyte.ByteStream(screen).feed(self.written)
        return screen

    @property
    def lines(self) -> list[str]:
        """Returns the lines on the screen, up to the last one that is not empty."""
        return '\n'.join(line.rstrip() for line in self.screen.display).rstrip('\n').split('\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._our_end)
        os.close(self._process_end)
