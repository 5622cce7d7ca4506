"""Runs the program and others: in processes of their own, on terminals, or in this process."""

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
from pathlib import Path
from typing import IO, NamedTuple, Self

import pyte

import tf_cnn_benchmarks
from tf_cnn.launch.hosts import Command
from tf_cnn.system.tether import die_with_parent

ROOT = Path(tf_cnn_benchmarks.__file__).parent
PROGRAM = (sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))
# Of one process on a loaded machine, or of a cluster of four, which takes 15 seconds.
DEADLINE_SECS = 240.0


def environment(**changes: str | None) -> dict[str, str]:
    """Returns what a process inherits, with these changes, and without variables that are None.

    It has no scikit-learn, like users. Where it is there, Keras imports it, and SciPy with it,
    which takes a fifth of the start of each process.
    """
    folders = [str(Path(__file__).parent / 'without_sklearn'), os.environ.get('PYTHONPATH')]
    merged = {**os.environ, 'PYTHONPATH': os.pathsep.join(filter(None, folders)), **changes}
    return {name: value for name, value in merged.items() if value is not None}


class Finished(NamedTuple):
    """The exit code of a process, and what it wrote to standard output and standard error."""

    code: int
    out: str
    err: str


def run_process(
    command: Sequence[object],
    cwd: Path | None = None,
    deadline_secs: float = DEADLINE_SECS,
    /,
    **environ: str | None,
) -> Finished:
    """Runs a command to its end. `environ` changes variables as in environment()."""
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        errors='backslashreplace',
        cwd=cwd,
        timeout=deadline_secs,
        stdin=subprocess.DEVNULL,
        env=environment(**environ),
    )
    assert 'Traceback' not in done.stderr, done.stderr
    return Finished(done.returncode, done.stdout, done.stderr)


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


def _fork(
    argv: Sequence[str], env: Mapping[str, str], cwd: Path, out: IO[bytes], err: IO[bytes]
) -> tuple[int, Callable[[], int]]:
    """Forks a process that runs a script in a session of its own, and dies with this process.

    Returns its id, and a function that waits for its exit code: -n after signal n.
    """
    request = json.dumps([argv, {**env}, str(cwd)]).encode()
    answers, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with server_end, open(os.devnull) as nothing:
        files = [file.fileno() for file in (nothing, out, err, server_end)]
        socket.send_fds(_fork_server(), [request], files)
    return int(answers.recv(32)), lambda: int(answers.recv(32))


class Task:
    """A process, with its logs in a folder. Started again, it appends to them.

    A script, such as the program, is forked from a process that has imported TensorFlow, which
    takes half a second of processor time instead of three, unless the task is fresh or in another
    network. Variables that Python or TensorFlow read when they start have no effect in a fork.

    Attributes:
      title: its name in messages, such as 'worker 0 (127.0.0.1:2222)'.
      argv: flags can be added before a start.
      exit_code: None while it runs, or before; -n if signal n ended it.
      ended_at: in seconds of time.monotonic().
      left_others: whether a process that it had started outlived it.
    """

    def __init__(
        self,
        command: Command,
        folder: Path,
        address: str = '',
        network: int | None = None,
        *,
        fresh: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self.name = command.name
        self.title = f'{command.name} ({address})'
        self.argv = [*command.argv]
        self.exit_code: int | None = None
        self.ended_at = 0.0
        self.left_others = False
        self._env = command.env or environment()
        self._network = network
        program, script, *_ = [*command.argv, '']
        is_script = program == sys.executable and not script.startswith('-')
        self._is_fresh = fresh or network is not None or not is_script
        self._cwd = cwd or Path.cwd()
        self.pid = 0
        self._waiter = threading.Thread()
        self.out_file = folder / f'{command.name.replace(" ", "-")}.out'
        self._err_file = self.out_file.with_suffix('.err')

    def start(self) -> None:
        """Call it on the main thread: the process dies with the thread that started it."""
        self.exit_code = None
        wait: Callable[[], int]
        with self.out_file.open('ab') as out, self._err_file.open('ab') as err:
            if self._is_fresh:
                process = subprocess.Popen(
                    die_with_parent(self.argv, network=self._network),
                    env=self._env,
                    cwd=self._cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
                self.pid, wait = process.pid, process.wait
            else:
                self.pid, wait = _fork(self.argv[1:], self._env, self._cwd, out, err)
        # A thread of its own, so that the moment of the end is known.
        self._waiter = threading.Thread(target=self._await_end, args=(wait,), daemon=True)
        self._waiter.start()

    def _await_end(self, wait: Callable[[], int]) -> None:
        exit_code = wait()
        self.ended_at = time.monotonic()
        # At once: later the number may be that of a stranger's group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
            self.left_others = True
        self.exit_code = exit_code

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
        """Ends it as kill -9 does, with all that it started; does nothing if it has ended."""
        if self.pid:
            self.send(signal.SIGKILL)
            self._waiter.join()


@contextlib.contextmanager
def launched(
    flags: str | Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    *,
    fresh: bool = False,
    cwd: Path | None = None,
) -> Iterator[Task]:
    """Starts the program with these flags, or another command, a list. Kills it after the block,
    and prints its logs.
    """
    argv = [*PROGRAM, *shlex.split(flags)] if isinstance(flags, str) else flags
    task = Task(Command('command', argv, env), folder, fresh=fresh, cwd=cwd)
    task.start()
    try:
        yield task
    finally:
        task.kill()
        print(task.logs)


def run(
    flags: str, cwd: Path | None = None, *, fresh: bool = False, **environ: str | None
) -> Finished:
    """Runs the program in a process of its own; `cluster --workers=2 -- FLAGS` as a cluster.

    It is forked unless it is fresh or `environ` changes variables, as in environment().
    """
    env, fresh = environment(**environ), fresh or bool(environ)
    with (
        tempfile.TemporaryDirectory() as folder,
        launched(flags, Path(folder), env, fresh=fresh, cwd=cwd) as task,
    ):
        assert task.has_ended(), task.logs
        assert 'Traceback' not in task.err, task.err
        return Finished(task.exit_code or 0, task.out, task.err)


def run_python(code: str, *words: str, **environ: str | None) -> Finished:
    """Runs Python code that finds the modules of the program, in a process that ends with 0."""
    done = run_process([sys.executable, '-c', code, *words], ROOT, **environ)
    assert done.code == 0, done.err
    return done


def run_main(*argv: object, code: int = 0) -> tuple[str, str]:
    """Runs the program in this process, which must end with this exit code; returns its standard
    output and its standard error.
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
    """Whether a process has a handler, as the program has once it runs: the masks of
    proc_pid_status(5).
    """
    caught = re.search(r'SigCgt:\s*(\w+)', Path(f'/proc/{pid}/status').read_text())
    return bool(caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


# ---- terminals -----------------------------------------------------------------------------------

_MAX_LINES = 200


class Terminal:
    """The controlling terminal of a process, with its standard streams; Ctrl-C reaches the process.

    `written` is everything that the process has written so far, with control sequences.
    """

    def __init__(self, command: Sequence[str], *, columns: int = 120, **environ: str) -> None:
        self.written = b''
        # The position from which read() searches next.
        self._start = 0
        self._columns = columns
        # While this process has both sides open, the last output of the other process is not lost.
        self._own, self._other = pty.openpty()
        termios.tcsetwinsize(self._other, (_MAX_LINES, columns))
        attributes = termios.tcgetattr(self._other)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._other, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            ['setsid', '--ctty', *command],
            stdin=self._other,
            stdout=self._other,
            stderr=self._other,
            cwd=ROOT,
            env=environment(**{'TERM': 'xterm', **environ}),
        )

    def read(self, until: str | None) -> None:
        """Reads until the process has written this text, after the text awaited before; None: until
        it has ended.
        """
        deadline = time.monotonic() + DEADLINE_SECS
        while until is None or (found := self.written.find(until.encode(), self._start)) < 0:
            if select.select([self._own], [], [], 0.02)[0]:
                self.written += os.read(self._own, 65536)
            elif until is None and self.process.poll() is not None:
                return
            else:
                assert self.process.poll() is None, f'it ended without {until}: {self.written!r}'
                assert time.monotonic() < deadline, f'it does not write {until}: {self.written!r}'
        self._start = found + len(until)

    def type(self, text: str) -> None:
        """Types keys; '\\x03' is Ctrl-C."""
        os.write(self._own, text.encode())

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
        os.close(self._own)
        os.close(self._other)
