"""Starts the processes of a cluster, prints their output, and ends them all. Linux only."""

import contextlib
import functools
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO

from tf_cnn.launch.hosts import Command, Host, HostProcess
from tf_cnn.results.live import LiveLine
from tf_cnn.results.summary import is_summary
from tf_cnn.system.errors import RunError, UsageError, format_error, format_warning, plural
from tf_cnn.system.signals import SIGNALS, Stopped

# How many hidden lines of each process are kept, to be shown if one fails.
_MAX_KEPT = 40
_WARNING, _ERROR = format_warning(''), format_error('')


def launch(
    commands: Sequence[Command],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    quiet: bool = False,
    num_restarts: int = 0,
    grace_secs: float = 15.0,
    servers_end_secs: float = 30.0,
) -> int:
    """Runs the commands in parallel until all have ended. Call it from the main thread.

    A process fails if it ends by itself with an exit code other than 0. The first failure stops the
    others: SIGTERM, and SIGKILL after grace_secs. Servers are stopped after the others have ended,
    since a worker that saves a checkpoint on SIGTERM reads the variables from them. A signal to
    this process stops all processes in the same way, and a second one is passed on, as another
    SIGTERM. If SIGKILL ends this process, the kernel kills the others.

    Returns 0 if no process failed. Else the exit code of the first failure, since that mostly
    causes the others; 128 + n if signal n ended the process. Also 128 + n if this process received
    signal n before any failure. Raises BrokenPipeError if the reader of out or err has closed it.

    Args:
      out: receives the standard output of commands with has_result, unchanged; by default standard
        output.
      err: receives all other lines, each prefixed with the name of its process; by default standard
        error.
      quiet: show only warnings and errors of these lines, and the last other lines of processes
        that fail.
      num_restarts: how often all are started again when they have ended after a failure, except one
        of wrong use.
      servers_end_secs: how long servers may run after the others; then they are stopped, and failed
        with exit code 1.
    """
    lines = _Lines(
        out or sys.stdout, err or sys.stderr, [command.name for command in commands], quiet=quiet
    )
    with contextlib.closing(lines):
        for number in range(num_restarts + 1):
            cluster = _Cluster(lines, grace_secs, servers_end_secs)
            with SIGNALS.storing(tell=cluster.tell):
                cluster.run(commands)
                stop = SIGNALS.take()
            if number == num_restarts or not cluster.may_restart:
                break
            again = f'starting all processes again ({number + 1} of {plural(num_restarts, "time")})'
            lines.message(format_warning(again))
    # A signal may come because the terminal is gone.
    error = None if stop else lines.error
    if isinstance(error, BrokenPipeError):
        raise error
    if error:
        raise RunError(f'the output of the cluster cannot be written: {error}')
    return cluster.exit_code


class _Cluster:
    """The running processes. Other threads queue events, which the main thread handles."""

    def __init__(self, lines: '_Lines', grace_secs: float, servers_end_secs: float) -> None:
        self.exit_code = 0
        self._is_lasting = self._has_result = False
        self._lines = lines
        self._grace_secs = grace_secs
        self._servers_end_secs = servers_end_secs
        self._running: list[HostProcess] = []
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopping = False
        # The time (time.monotonic) until which stopped processes, or the remaining servers, may
        # run.
        self._deadline: float | None = None

    @property
    def may_restart(self) -> bool:
        """Whether the processes failed for a reason that may be gone when they are started
        again.
        """
        return (
            self.exit_code not in (0, UsageError.exit_code)
            and not self._is_lasting
            and not self._has_result
        )

    def tell(self, stop: Stopped, count: int) -> None:
        """Takes a signal to this process, on any thread."""
        self._events.put(functools.partial(self._interrupted, stop, count))

    def run(self, commands: Sequence[Command]) -> None:
        try:
            for command in commands:
                self._start(command)
            while self._running:
                self._next_event()()
        finally:
            # Processes remain only if something was raised.
            for process in self._running:
                process.end(signal.SIGKILL)
            for process in self._running:
                process.reap()

    def _next_event(self) -> Callable[[], None]:
        seconds = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            self._deadline = None
            return self._kill_slow if self._is_stopping else self._stop_servers

    def _start(self, command: Command) -> None:
        of_process = functools.partial(
            self._lines.of_process, command.name, is_chief=command.has_result
        )
        host = command.host or Host()
        try:
            process = host.start(
                command,
                show=functools.partial(
                    self._show, self._lines.result if command.has_result else of_process
                ),
                show_error=functools.partial(self._show, of_process),
                ended=lambda process: self._events.put(functools.partial(self._ended, process)),
            )
        except (
            OSError,
            RuntimeError,
            RunError,
        ) as error:  # RuntimeError: no more threads can be started
            reason = getattr(error, 'strerror', error)
            raise RunError(
                f'{command.name} cannot be started: {reason}; start fewer processes'
            ) from error
        self._running.append(process)
        if not self._lines.is_quiet:
            self._lines.message(f'{command.name} is process {process.pid} of {host.name}')

    def _show(self, write: Callable[[str], None], line: str) -> None:
        write(line)
        if self._lines.error:
            self._events.put(self._stop)

    def _ended(self, process: HostProcess) -> None:
        code = process.reap()
        self._running.remove(process)
        # All steps are taken, whatever fails later.
        self._has_result |= process.command.has_result and code == 0
        if self._is_stopping:
            self._stop()
            return
        if code:
            self._failed(process, code)
        if self._deadline is None and all(other.command.is_server for other in self._running):
            self._deadline = time.monotonic() + self._servers_end_secs

    def _failed(self, process: HostProcess, code: int) -> None:
        name, exit_code = process.command.name, code if code > 0 else 128 - code
        if process.lost:
            what = f'{name} is lost: {process.lost}'
        elif code > 0:
            what = f'{name} ended with exit code {code}'
        else:
            what = f'{name} was ended by signal {-code} ({signal.strsignal(-code)})'
        # The host of a lost process may not come back.
        self._is_lasting |= bool(process.lost)
        self._stop_for(what, exit_code, because_of=[name])

    def _stop_servers(self) -> None:
        what = f'{self._names()} did not end within {self._servers_end_secs:g} s of the last worker'
        self._stop_for(
            what, exit_code=1, because_of=[process.command.name for process in self._running]
        )

    def _interrupted(self, stop: Stopped, count: int) -> None:
        self._is_lasting = True
        self.exit_code = self.exit_code or stop.exit_code
        if not self._is_stopping:
            self._stop_for(stop.reason, stop.exit_code)
        elif count > 1:
            for process in self._running:
                process.end(signal.SIGTERM)

    def _stop_for(self, what: str, exit_code: int, because_of: Sequence[str] = ()) -> None:
        self.exit_code = self.exit_code or exit_code
        # Stop first, since the reader of standard error may delay the message.
        self._stop()
        if because_of:
            others = (process.command.name for process in self._running)
            self._lines.show_kept(
                dict.fromkeys([*(name for name in others if name not in because_of), *because_of])
            )
        self._lines.message(
            format_error(f'{what}; stopping {names}' if (names := self._names()) else what)
        )

    def _stop(self) -> None:
        """Sends SIGTERM to the workers, or to the servers if no worker is left."""
        self._is_stopping = True
        workers = [process for process in self._running if not process.command.is_server]
        for process in workers or self._running:
            if not process.is_stopped:
                process.end(signal.SIGTERM)
                self._deadline = time.monotonic() + self._grace_secs

    def _kill_slow(self) -> None:
        for process in self._running:
            if process.is_stopped:
                process.end(signal.SIGKILL)
                self._lines.message(
                    format_warning(
                        f'{process.command.name} did not end within {self._grace_secs:g} s; '
                        'killing it'
                    )
                )

    def _names(self) -> str:
        return ', '.join(process.command.name for process in self._running)


class _Lines:
    """Writes whole lines, from any thread. Stops writing at the first error, which it keeps.

    out receives the result, err all other lines, those of a process after its name. quiet shows
    only warnings, errors and the summary of the chief of these, and keeps the last others for
    show_kept(). On a terminal, the chief's last line then stands in a live line until it prints a
    result.
    """

    def __init__(
        self, out: TextIO, err: TextIO, names: Sequence[str], *, quiet: bool = False
    ) -> None:
        self.error: OSError | ValueError | None = None
        self.is_quiet = quiet
        self._out = out
        self._err = err
        width = max(map(len, names), default=0)
        self._prefixes = {name: f'{name:<{width}} | ' for name in names}
        self._lock = threading.Lock()
        self._kept: dict[str, deque[str]] = {name: deque(maxlen=_MAX_KEPT) for name in names}
        # The process that first printed each warning.
        self._warned: dict[str, str] = {}
        self._live = LiveLine(err)

    def result(self, line: str) -> None:
        self._write(self._out, line)
        self.close()

    def of_process(self, name: str, line: str, *, is_chief: bool = False) -> None:
        """Writes or keeps another line of a process; is_chief: it is the process with the
        result.
        """
        # A warning of several processes is shown once.
        is_shown = line.startswith(_WARNING) and self._warned.setdefault(line, name) == name
        is_shown |= line.startswith(_ERROR) or (is_chief and is_summary(line))
        if is_shown or not self.is_quiet:
            self._write(self._err, self._prefixes[name] + line)
        else:
            self._kept[name].append(line)
            if is_chief:
                self._live.phase(line)

    def show_kept(self, names: Iterable[str]) -> None:
        for name in names:
            lines = self._kept[name]
            while lines:
                self._write(self._err, self._prefixes[name] + lines.popleft())

    def message(self, line: str) -> None:
        self._write(self._err, line)

    def close(self) -> None:
        self._live.close()

    def _write(self, stream: TextIO, line: str) -> None:
        with self._lock, self._live.hidden():
            if self.error:
                return
            try:
                stream.write(f'{line}\n')
                stream.flush()
            except (
                OSError,
                ValueError,
            ) as error:  # ValueError: the stream's encoding lacks a character
                self.error = error
