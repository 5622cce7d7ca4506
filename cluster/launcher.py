"""Starts the processes of a cluster on this machine, shows their lines, and ends them all. Linux only."""

import contextlib
import functools
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TextIO

from errors import RunError
from reporting.console import format_error, format_warning

_TETHER = str(Path(__file__).with_name('tether.py'))
# What would end this process. SIGHUP comes when its terminal is closed.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# No red, which looks like an error.
_COLOURS = ('cyan', 'green', 'magenta', 'yellow', 'blue')
# For the lines of a process that has ended. They end at once, unless a process that left its session holds the pipe.
_LAST_LINES_SECS = 5.0


@dataclass(frozen=True)
class Command:
    """One process of a cluster.

    name: stands in front of its lines; no two have the same. argv: the program and its arguments. env: its whole
    environment; None is that of this process. cores: those it may run on; None is all that this process may use.
    is_server: it ends by itself when all processes that are no servers have ended. has_result: its standard output is
    the result of the cluster.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    cores: tuple[int, ...] | None = None
    is_server: bool = False
    has_result: bool = False


def launch(
    commands: Sequence[Command],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    keep_going: bool = False,
    num_restarts: int = 0,
    grace_secs: float = 15.0,
    servers_end_secs: float = 30.0,
) -> int:
    """Runs the commands side by side until all have ended; to be called from the main thread.

    A process fails if it ends by itself with an exit code other than 0. The first failure stops the others: SIGTERM,
    and SIGKILL when grace_secs are over. Servers are stopped after the others have ended, since a worker that saves a
    checkpoint on SIGTERM reads the variables from them. SIGINT, SIGTERM and SIGHUP to this process stop all in the same
    way. If this process is killed by SIGKILL, the kernel kills the others.

    Args:
      out: where the standard output of commands that have_result goes, as it is; by default standard output.
      err: where all other lines go, each with the name of its process in front; by default standard error.
      keep_going: a failure does not stop the others.
      num_restarts: how often each process that fails is started again before that counts as a failure.
      grace_secs: the time from SIGTERM to SIGKILL, in seconds.
      servers_end_secs: how long servers may stay when the others have ended, in seconds; those that are still there
        are stopped, and have failed with exit code 1.

    Returns:
      0 if no process failed. Else the exit code of the first failure, as those after it are mostly its consequences;
      128 + n if signal n ended the process. 128 + n also if signal n to this process came before any failure.

    Raises:
      RunError: a process cannot be started, or the lines cannot be written.
      BrokenPipeError: the reader of out or err has left.
    """
    lines = _Lines(out or sys.stdout, err or sys.stderr, [command.name for command in commands])
    cluster = _Cluster(lines, keep_going, num_restarts, grace_secs, servers_end_secs)
    with cluster.signals_as_events():
        cluster.run(commands)
    if isinstance(lines.error, BrokenPipeError):
        raise lines.error
    if lines.error:
        raise RunError(f'the lines of the cluster cannot be written: {lines.error}')
    return cluster.exit_code


class _Lines:
    """Writes whole lines, from any thread. After the first error, which it keeps, it writes no more."""

    def __init__(self, out: TextIO, err: TextIO, names: Sequence[str]) -> None:
        self._out = out
        self._err = err
        self._prefixes = _prefixes(names, err)
        self._lock = threading.Lock()
        self.error: OSError | ValueError | None = None

    def result(self, line: str) -> None:
        self._write(self._out, line)

    def of_process(self, name: str, line: str) -> None:
        self._write(self._err, self._prefixes[name] + line)

    def message(self, line: str) -> None:
        self._write(self._err, line)

    def _write(self, stream: TextIO, line: str) -> None:
        with self._lock:
            if self.error:
                return
            try:
                stream.write(f'{line}\n')
                stream.flush()
            except (OSError, ValueError) as error:  # the latter for what has no place in the stream's encoding
                self.error = error


def _prefixes(names: Sequence[str], stream: TextIO) -> dict[str, str]:
    """What stands in front of the lines of each process, all equally wide; in colour on a terminal."""
    width = max(map(len, names), default=0)
    prefixes = {name: f'{name:<{width}} | ' for name in names}
    if stream.isatty():
        # Rich knows what the terminal can do, and what its user wants of colours.
        from rich.console import Console
        from rich.text import Text

        console = Console(file=stream)
        for (name, prefix), colour in zip(prefixes.items(), itertools.cycle(_COLOURS), strict=False):
            with console.capture() as capture:
                console.print(Text(prefix, colour), end='', soft_wrap=True)
            prefixes[name] = capture.get()
    return prefixes


class _Process:
    """A started process. It leads a session of its own, so that the Ctrl-C of a terminal does not reach it."""

    def __init__(self, command: Command) -> None:
        self.command = command
        # Whether it was told to end.
        self.is_stopped = False
        cores = ','.join(map(str, command.cores or ()))
        self._popen = subprocess.Popen(
            [sys.executable, '-I', '-S', _TETHER, str(os.getpid()), cores, *command.argv],
            env=command.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors='backslashreplace',
        )
        self.pid = self._popen.pid
        self._readers: list[threading.Thread] = []

    def watch(self, show: Callable[[str], None], show_error: Callable[[str], None], ended: Callable[[], None]) -> None:
        """Calls these from other threads: with each line of its two streams, and when it has ended."""
        for stream, receiver in ((self._popen.stdout, show), (self._popen.stderr, show_error)):
            assert stream is not None
            reader = threading.Thread(target=_read, args=(stream, receiver), daemon=True)
            reader.start()
            self._readers.append(reader)

        def wait() -> None:
            # Where not all could be started, those that were are reaped unasked.
            with contextlib.suppress(ChildProcessError):
                self._wait()
                ended()

        threading.Thread(target=wait, daemon=True).start()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal that ends it, to whatever it started too."""
        self.is_stopped = True
        os.killpg(self.pid, number)

    def reap(self) -> int:
        """Waits for its end, ends what it left behind, and waits for its last lines; returns the exit code."""
        self._wait()
        os.killpg(self.pid, signal.SIGKILL)
        code = self._popen.wait()
        deadline = time.monotonic() + _LAST_LINES_SECS
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        return code

    def _wait(self) -> None:
        # It stays a zombie, so that its number is not given to others before its group is ended.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def _read(stream: IO[str], receiver: Callable[[str], None]) -> None:
    with stream:
        for line in stream:
            receiver(line.removesuffix('\n'))


class _Cluster:
    """The processes under way. Other threads and signals put what is to be done in a queue, the main thread does it."""

    def __init__(
        self, lines: _Lines, keep_going: bool, num_restarts: int, grace_secs: float, servers_end_secs: float
    ) -> None:
        self.exit_code = 0
        self._lines = lines
        self._keep_going = keep_going
        self._num_restarts = num_restarts
        self._grace_secs = grace_secs
        self._servers_end_secs = servers_end_secs
        self._running: list[_Process] = []
        self._restarts: Counter[str] = Counter()
        # Of all queues, signal handlers may use only this one.
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopping = False
        # Of the processes that are stopped, or of the servers that are left.
        self._deadline: float | None = None

    @contextlib.contextmanager
    def signals_as_events(self) -> Iterator[None]:
        """Takes the signals that end a process, apart from those that the caller ignores, as nohup does SIGHUP."""

        def handle(number: int, _frame: object) -> None:
            self._events.put(functools.partial(self._interrupted, number))

        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, commands: Sequence[Command]) -> None:
        """Starts the commands, and sees to them until none is left."""
        try:
            for command in commands:
                self._start(command)
            while self._running:
                self._next_event()()
        finally:
            # None, unless something was raised.
            for process in self._running:
                process.signal(signal.SIGKILL)
            for process in self._running:
                process.reap()

    def _next_event(self) -> Callable[[], None]:
        seconds = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            self._deadline = None
            return self._stopped_too_slowly if self._is_stopping else self._servers_stayed

    def _start(self, command: Command) -> None:
        show_error = functools.partial(self._show, functools.partial(self._lines.of_process, command.name))
        try:
            process = _Process(command)
            self._running.append(process)
            process.watch(
                show=functools.partial(self._show, self._lines.result) if command.has_result else show_error,
                show_error=show_error,
                ended=lambda: self._events.put(functools.partial(self._ended, process)),
            )
        except (OSError, RuntimeError) as error:  # the latter where there can be no more threads
            reason = getattr(error, 'strerror', error)
            raise RunError(f'{command.name} cannot be started: {reason}; start fewer processes') from error
        cores = '' if command.cores is None else f' on cores {",".join(map(str, command.cores))}'
        self._lines.message(f'{command.name} is process {process.pid}{cores}')

    def _show(self, write: Callable[[str], None], line: str) -> None:
        write(line)
        if self._lines.error:
            self._events.put(self._stop)

    def _ended(self, process: _Process) -> None:
        code = process.reap()
        self._running.remove(process)
        if self._is_stopping:
            self._stop()
            return
        if code:
            self._failed(process.command, code)
        if self._deadline is None and all(other.command.is_server for other in self._running):
            self._deadline = time.monotonic() + self._servers_end_secs

    def _failed(self, command: Command, code: int) -> None:
        name = command.name
        if code > 0:
            what, exit_code = f'{name} ended with exit code {code}', code
        else:
            what, exit_code = f'{name} was ended by signal {-code} ({signal.strsignal(-code)})', 128 - code
        if self._restarts[name] < self._num_restarts:
            self._restarts[name] += 1
            again = f'it is started again ({self._restarts[name]} of {self._num_restarts} times)'
            self._lines.message(format_warning(f'{what}; {again}'))
            self._start(command)
        elif self._keep_going:
            self.exit_code = self.exit_code or exit_code
            self._lines.message(format_error(f'{what}; the others go on'))
        else:
            self._stop_for(what, exit_code)

    def _servers_stayed(self) -> None:
        what = f'{self._names()} did not end within {self._servers_end_secs:g} s of the last worker'
        self._stop_for(what, exit_code=1)

    def _interrupted(self, number: int) -> None:
        if not self._is_stopping:
            self._stop_for(f'interrupted by {signal.Signals(number).name}', 128 + number)

    def _stop_for(self, what: str, exit_code: int) -> None:
        self.exit_code = self.exit_code or exit_code
        # First, since telling takes as long as the reader of standard error likes.
        self._stop()
        self._lines.message(format_error(f'{what}; stopping {names}' if (names := self._names()) else what))

    def _stop(self) -> None:
        """Tells the workers to end; if none is left, the servers."""
        self._is_stopping = True
        workers = [process for process in self._running if not process.command.is_server]
        for process in workers or self._running:
            if not process.is_stopped:
                process.signal(signal.SIGTERM)
                self._deadline = time.monotonic() + self._grace_secs

    def _stopped_too_slowly(self) -> None:
        for process in self._running:
            if process.is_stopped:
                process.signal(signal.SIGKILL)
                self._lines.message(
                    format_warning(f'{process.command.name} did not end within {self._grace_secs:g} s, it is killed')
                )

    def _names(self) -> str:
        return ', '.join(process.command.name for process in self._running)
