"""Runs programs as users do: in processes of their own, on terminals, over slow networks, or many in one process."""

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyte

import tf_cnn_benchmarks
from cluster.hosts import Command, Member
from cluster.launcher import launch
from tests.support.outputs import check_line

# ---- programs --------------------------------------------------------------------------------------------------------
# Runs small programs as the processes of a cluster, and returns what the launcher prints.

PREAMBLE = """
import json, os, signal, subprocess, sys, threading
def on_sigterm(function):
    def handle(number, frame):
        function()
    signal.signal(signal.SIGTERM, handle)
def wait():
    while True:
        signal.pause()
"""
CORES = sorted(os.sched_getaffinity(0))


def program(name: str, code: str, **more: Any) -> Command:
    """Returns the command of a process that runs Python code after PREAMBLE."""
    return Command(name, (sys.executable, '-I', '-S', '-c', PREAMBLE + code), **more)


def members(
    ps_hosts: Sequence[str],
    worker_hosts: Sequence[str],
    controller_hosts: Sequence[str] = (),
    *,
    cores: Sequence[tuple[int, ...] | None] | None = None,
    gpus: Sequence[str] | None = None,
) -> list[Member]:
    """Returns the processes of a cluster at these addresses of this machine.

    `cores` and `gpus`, the CUDA_VISIBLE_DEVICES, are those of each worker; parameter servers then see no GPUs.
    """
    servers = [Member('ps', number, host, gpus=None if gpus is None else '') for number, host in enumerate(ps_hosts)]
    workers = [
        Member('worker', number, host, cores=cores[number] if cores else None, gpus=gpus[number] if gpus else None)
        for number, host in enumerate(worker_hosts)
    ]
    return servers + workers + [Member('controller', number, host) for number, host in enumerate(controller_hosts)]


# A part of the lines on standard error in which the launcher reports a started process.
STARTED = ' is process '


def without_starts(err: str) -> list[str]:
    return [line for line in err.splitlines() if STARTED not in line]


def run(*commands: Command, **options: Any) -> tuple[int, list[str], list[str]]:
    """Calls launch; returns its exit code, the lines of standard output, and those of standard error without_starts."""
    out, err = io.StringIO(), io.StringIO()
    code = launch(commands, out=out, err=err, **options)
    return code, out.getvalue().splitlines(), without_starts(err.getvalue())


class Watched:
    """Processes for whose end a test waits, even if they are not its children."""

    def __init__(self, stack: contextlib.ExitStack, pids: list[int]) -> None:
        self._descriptors = []
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            self._descriptors.append(descriptor)

    def assert_all_end(self) -> None:
        for descriptor in self._descriptors:
            assert select.select([descriptor], [], [], 30)[0], 'a process was left behind'


def check_error(line: str, *facts: object) -> None:
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: error: ')


def check_warning(line: str, *facts: object) -> None:
    check_line(line, *facts)
    assert line.startswith('tf_cnn_benchmarks: warning: ')


# ---- terminals -------------------------------------------------------------------------------------------------------
# Runs processes on a pseudo-terminal, and says what its user sees.

DEADLINE_SECS = 120.0
_MAX_LINES = 200


class Terminal:
    """The controlling terminal of a process, with its standard streams; Ctrl-C reaches the process.

    `written` is everything that the process has written so far, with control sequences.
    """

    def __init__(self, command: Sequence[str], *, columns: int, cwd: Path | None, environ: dict[str, str]) -> None:
        self.written = b''
        # The position from which read() searches next.
        self._start = 0
        self._screen = pyte.Screen(columns, _MAX_LINES)
        self._interpreter = pyte.ByteStream(self._screen)
        # While this process has both sides open, the last output of the other process is not lost.
        self._own, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack('4H', _MAX_LINES, columns, 0, 0))
        attributes = termios.tcgetattr(self._other)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(self._other, termios.TCSANOW, attributes)
        self.process = subprocess.Popen(
            # The first terminal that a session leader opens becomes its controlling terminal.
            ['sh', '-c', 'exec "$0" "$@" <"$TERMINAL" >"$TERMINAL" 2>&1', *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, 'TERM': 'xterm', 'TERMINAL': os.ttyname(self._other), **environ},
        )

    def read(self, until: str | None) -> None:
        """Reads until the process has written this text, after the text awaited before; None: until it has ended."""
        deadline = time.monotonic() + DEADLINE_SECS
        while until is None or (found := self.written.find(until.encode(), self._start)) < 0:
            if not select.select([self._own], [], [], 0.02)[0]:
                if until is None and self.process.poll() is not None:
                    return
                assert self.process.poll() is None, f'it ended without {until}: {self.written!r}'
                assert time.monotonic() < deadline, f'it does not write {until}: {self.written!r}'
                continue
            data = os.read(self._own, 65536)
            self.written += data
            self._interpreter.feed(data)
        self._start = found + len(until)

    def type(self, text: str) -> None:
        """Types keys; '\\x03' is Ctrl-C."""
        os.write(self._own, text.encode())

    @property
    def lines(self) -> list[str]:
        """Returns the lines on the screen, up to the last one that is not empty."""
        return '\n'.join(line.rstrip() for line in self._screen.display).rstrip('\n').split('\n')

    @property
    def column(self) -> int:
        return int(self._screen.cursor.x)

    @property
    def is_cursor_visible(self) -> bool:
        return not self._screen.cursor.hidden

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)
        os.close(self._other)


@contextlib.contextmanager
def terminal(
    command: Sequence[str], *, columns: int = 120, cwd: Path | None = None, **environ: str
) -> Iterator[Terminal]:
    """Runs a command on a terminal; kills it after the block if it still runs."""
    made = Terminal(command, columns=columns, cwd=cwd, environ=environ)
    try:
        yield made
    finally:
        made.close()


# ---- relay -----------------------------------------------------------------------------------------------------------
# A fixed address that passes connections to changing servers, like that of a task that is killed and restarted.


class Relay:
    """Passes connections at HOST:PORT on to a server, or closes them if there is none, until the process ends."""

    def __init__(self) -> None:
        self._listener = socket.create_server(('127.0.0.1', 0))
        self.address = f'127.0.0.1:{self._listener.getsockname()[1]}'
        self._lock = threading.Lock()
        self._server: str | None = None
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lead_to(self, server: str | None) -> None:
        """Passes new connections to the server at this HOST:PORT, or to none. Closes all present connections."""
        with self._lock:
            self._server = server
            for end in self._open:
                _shut(end)
            self._open.clear()

    def _accept(self) -> None:
        while True:
            self._connect(self._listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            try:
                if self._server is None:
                    raise ConnectionRefusedError
                host, port = self._server.split(':')
                server = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                return
            self._open += [client, server]
        for source, sink in (client, server), (server, client):
            threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


# ---- several commands in one process ---------------------------------------------------------------------------------
# One after another, since importing TensorFlow takes longest.

# The descriptors 1 and 2, to which native code writes too, are files during each command.
_SCRIPT = """\
import json, os, sys
import tf_cnn_benchmarks

answers = os.dup(1)
for line in sys.stdin:
    argv, *paths = json.loads(line)
    for descriptor, path in enumerate(paths, start=1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, descriptor)
        os.close(file)
    os.write(answers, b'%d\\n' % tf_cnn_benchmarks.main(argv))
"""


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, standard output and standard error."""

    exit_code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The only error, which is the last line."""
        lines = [line for line in self.err.splitlines() if line.startswith('tf_cnn_benchmarks: error: ')]
        assert len(lines) == 1, self.err
        assert 'Traceback' not in self.err
        assert self.err.splitlines()[-1] == lines[0]
        return lines[0]


class Commands:
    """Runs commands in a process whose files are in `folder`; starts a new one after a command that did not end."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2', **environ}
        self._process: subprocess.Popen[str] | None = None
        self._count = 0

    def _open(self) -> 'subprocess.Popen[str]':
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, '-c', _SCRIPT],
                cwd=Path(tf_cnn_benchmarks.__file__).parent,
                env=self._environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        return self._process

    def run(self, *argv: str, at: str = '', during: Callable[[], object] | None = None) -> Ended:
        """Runs a command for at most DEADLINE_SECS; calls `during` once a line begins with the pattern `at`."""
        process = self._open()
        assert process.stdin
        assert process.stdout
        self._count += 1
        out, err = (self._folder / f'{self._count}.{kind}' for kind in ('out', 'err'))
        deadline = threading.Timer(DEADLINE_SECS, process.kill)
        deadline.start()
        try:
            print(json.dumps([argv, str(out), str(err)]), file=process.stdin, flush=True)
            if during:
                while not (out.exists() and re.search(f'^{at}', out.read_text(), re.MULTILINE)):
                    ended, _, _ = select.select([process.stdout], [], [], 0.01)
                    assert not ended, f'no line {at}: {err.read_text()}'
                during()
            code = process.stdout.readline()
        except BaseException:
            self.close()
            raise
        finally:
            deadline.cancel()
        said = out.read_text(), err.read_text()
        print(*said, sep='\n')
        assert code, f'the process ended: {process.wait()}'
        return Ended(int(code), *said)

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def running(folder: Path, **environ: str) -> Iterator[Commands]:
    """Starts the process, with these variables besides those of this one. It ends with the block."""
    folder.mkdir(exist_ok=True)
    with contextlib.closing(Commands(folder, environ)) as commands:
        yield commands
