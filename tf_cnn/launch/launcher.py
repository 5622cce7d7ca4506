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

from tf_cnn.launch.hosts import Command, Host, LocalProcess
from tf_cnn.results.live import LiveLine
from tf_cnn.system.errors import RunError, UsageError, format_error, format_warning, plural
from tf_cnn.system.signals import SIGNALS, Stopped

# Hidden lines kept for each process, to show if a process fails.
_MAX_HIDDEN_LINES = 40
_WARNING, _ERROR = format_warning(''), format_error('')


def launch(
    commands: Sequence[Command],
    *,
    out: TextIO | None = None,
    err: TextIO | None = None,
    quiet: bool = False,
    num_restarts: int = 0,
    grace_secs: float = 60.0,
    servers_end_secs: float = 30.0,
) -> int:
    """Runs the commands in parallel until all have ended. Call it from the main thread.

    A process fails if it ends by itself with an exit code other than 0, or if it has_result and
    printed nothing. The first failure stops the others: SIGTERM, then SIGKILL after grace_secs.
    Servers are stopped last, since a worker that saves a checkpoint on SIGTERM reads the variables
    from them. A signal to this process stops all processes in the same way. A second signal sends
    them another SIGTERM. If SIGKILL ends this process, the kernel kills the others.

    Returns 0 if no process failed, else the exit code of the first failure, since it mostly causes
    the others; 1 without a result; 128 + n if signal n ended the process, or if this process
    received signal n before any failure. Raises BrokenPipeError if the reader of out or err has
    closed it.

    Args:
      out: receives the standard output of commands with has_result, unchanged; by default standard
        output.
      err: receives all other lines, each prefixed with the name of its process; by default standard
        error.
      quiet: show only warnings and errors; if a process fails, also the last hidden lines.
      num_restarts: how often all processes are started again after a failure, except after a usage
        error.
      grace_secs: how long a process may take to end, which includes its current step and a
        checkpoint.
      servers_end_secs: how long servers may run after the others; then they are stopped, which is a
        failure with exit code 1.
    """
    lines = _OutputLines(
        out or sys.stdout, err or sys.stderr, [command.name for command in commands], quiet=quiet
    )
    with contextlib.closing(lines):
        for number in range(num_restarts + 1):
            cluster = _Cluster(lines, grace_secs, servers_end_secs)
            with SIGNALS.storing(on_signal=cluster.queue_signal):
                cluster.run(commands)
                stop = SIGNALS.take_stop()
            if number == num_restarts or not cluster.may_restart:
                break
            again = f'starting all processes again ({number + 1} of {plural(num_restarts, "time")})'
            lines.write_message(format_warning(again))
        # Last, since the processes that were stopped have their own last lines.
        if stop and cluster.exit_code == stop.exit_code:
            lines.write_message(format_error(stop.reason))
    # After a signal the terminal may be gone, so an output error is expected.
    error = None if stop else lines.error
    if isinstance(error, BrokenPipeError):
        raise error
    if error:
        raise RunError(f'the output of the cluster cannot be written: {error}')
    return cluster.exit_code


class _Cluster:
    """The running processes. Other threads queue events; the main thread handles them."""

    def __init__(self, lines: '_OutputLines', grace_secs: float, servers_end_secs: float) -> None:
        self.exit_code = 0
        self._is_permanent = self._has_output = self._has_result = False
        self._lines = lines
        self._grace_secs = grace_secs
        self._servers_end_secs = servers_end_secs
        self._running: list[LocalProcess] = []
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_stopping = False
        # Until when stopped processes, or the remaining servers, may run (time.monotonic).
        self._deadline: float | None = None

    @property
    def may_restart(self) -> bool:
        """Whether a restart may succeed after this failure."""
        return (
            self.exit_code not in (0, UsageError.exit_code)
            and not self._is_permanent
            and not self._has_result
        )

    def queue_signal(self, stop: Stopped, count: int) -> None:
        """Queues a signal to this process; may be called on any thread."""
        self._events.put(functools.partial(self._handle_signal, stop, count))

    def run(self, commands: Sequence[Command]) -> None:
        try:
            for command in commands:
                self._start(command)
            while self._running:
                self._next_event()()
        finally:
            # Processes remain only after an exception.
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
        write_line = functools.partial(
            self._lines.write_process_line, command.name, is_chief=command.has_result
        )
        host = command.host or Host()

        def report_start(pid: int) -> None:
            if not self._lines.is_quiet:
                self._lines.write_message(f'{command.name} is process {pid} of {host.name}')

        try:
            process = host.start(command)
            self._running.append(process)
            show_output = self._write_result_line if command.has_result else write_line
            process.listen(
                functools.partial(self._show, show_output),
                functools.partial(self._show, write_line),
                report_start,
                lambda process: self._events.put(functools.partial(self._handle_exit, process)),
            )
        # RuntimeError: no more threads can be started.
        except (OSError, RuntimeError) as error:
            raise RunError(
                f'{command.name} cannot be started: {getattr(error, "strerror", error)}; start '
                'fewer processes, or raise the limit (ulimit -n, ulimit -u)'
            ) from error

    def _write_result_line(self, line: str) -> None:
        self._has_output = True
        self._lines.write_result_line(line)

    def _show(self, write: Callable[[str], None], line: str) -> None:
        write(line)
        if self._lines.error:
            self._events.put(self._stop)

    def _handle_exit(self, process: LocalProcess) -> None:
        code = process.reap()
        self._running.remove(process)
        has_succeeded = code == 0 and (self._has_output or not process.command.has_result)
        # The result is complete, whatever fails later.
        self._has_result |= process.command.has_result and has_succeeded
        if self._is_stopping:
            self._stop()
            return
        if not has_succeeded:
            self._handle_failure(process, code)
        if self._deadline is None and all(other.command.is_server for other in self._running):
            self._deadline = time.monotonic() + self._servers_end_secs

    def _handle_failure(self, process: LocalProcess, code: int) -> None:
        name, exit_code = process.command.name, code or 1
        if process.lost_reason:
            reason = f'{name} is lost: {process.lost_reason}'
        elif code > 0:
            reason = f'{name} ended with exit code {code}'
        elif code == 0:
            reason = f'{name} ended with exit code 0, but printed no result'
        else:
            exit_code = 128 - code
            reason = f'{name} was ended by signal {-code} ({signal.strsignal(-code)})'
        # The host of a lost process may stay away.
        self._is_permanent |= bool(process.lost_reason)
        self._stop_because(reason, exit_code, causes=[name])

    def _stop_servers(self) -> None:
        reason = (
            f'{self._running_names()} did not end within {self._servers_end_secs:g} s of the '
            'last worker'
        )
        self._stop_because(
            reason, exit_code=1, causes=[process.command.name for process in self._running]
        )

    def _handle_signal(self, stop: Stopped, count: int) -> None:
        self._is_permanent = True
        self.exit_code = self.exit_code or stop.exit_code
        if not self._is_stopping:
            self._stop()
            self._lines.write_message(
                format_warning(f'{stop.reason}; stopping {self._running_names()}')
            )
        elif count > 1:
            for process in self._running:
                process.end(signal.SIGTERM)

    def _stop_because(self, reason: str, exit_code: int, causes: Sequence[str] = ()) -> None:
        self.exit_code = self.exit_code or exit_code
        # Stop first: the reader of standard error may delay the message.
        self._stop()
        if causes:
            running_names = (process.command.name for process in self._running)
            self._lines.show_hidden_lines(
                dict.fromkeys([*(name for name in running_names if name not in causes), *causes])
            )
        self._lines.write_message(
            format_error(
                f'{reason}; stopping {names}' if (names := self._running_names()) else reason
            )
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
                self._lines.write_message(
                    format_warning(
                        f'{process.command.name} did not end within {self._grace_secs:g} s; '
                        'killing it'
                    )
                )

    def _running_names(self) -> str:
        return ', '.join(process.command.name for process in self._running)


class _OutputLines:
    """Writes whole lines, from any thread. After the first error it stores the error and stops.

    out receives the result. err receives all other lines; a process's lines begin with its name.

    With quiet, err receives only warnings, errors and the chief's summary, and the last hidden
    lines are kept for show_hidden_lines(). On a terminal, a live line then shows the chief's last
    line until the chief prints a result.
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
        self._hidden_lines: dict[str, deque[str]] = {
            name: deque(maxlen=_MAX_HIDDEN_LINES) for name in names
        }
        # The process that first printed each warning.
        self._first_warned: dict[str, str] = {}
        self._live = LiveLine(err)

    def write_result_line(self, line: str) -> None:
        self._write(self._out, line)
        self.close()

    def write_process_line(self, name: str, line: str, *, is_chief: bool = False) -> None:
        """Writes or hides a line of a process; is_chief: the process prints the result."""
        if not self.is_quiet or self._is_important(name, line, is_chief=is_chief):
            self._write(self._err, self._prefixes[name] + line)
        else:
            self._hidden_lines[name].append(line)
            if is_chief:
                self._live.phase(line)

    def _is_important(self, name: str, line: str, *, is_chief: bool) -> bool:
        # Imported here for NumPy's 12 MB: `cluster --each --command` has a launcher for each host.
        from tf_cnn.results.summary import is_summary_line

        # If several processes print the same warning, it is shown once.
        if line.startswith(_WARNING) and self._first_warned.setdefault(line, name) == name:
            return True
        return line.startswith(_ERROR) or (is_chief and is_summary_line(line))

    def show_hidden_lines(self, names: Iterable[str]) -> None:
        for name in names:
            lines = self._hidden_lines[name]
            while lines:
                self._write(self._err, self._prefixes[name] + lines.popleft())

    def write_message(self, line: str) -> None:
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
