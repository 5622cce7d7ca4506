"""Runs one command in a process of its own, within limits of time and memory. Linux only."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.tether import tethered
from errors import RunError, UsageError
from sweeps.memory_of_process import MemoryMeter, processes_of

_SECS_BETWEEN_READINGS = 0.1
# How long a run may take to end after SIGTERM. `cluster` gives its own processes 15 s.
_GRACE_SECS = 20.0
# Of a log; what a process says last says why it ended.
_END_BYTES = 65536

# A line of the program, or of a process of a cluster, whose name stands in front.
_ERROR = re.compile(r'^(?P<process>[\w ]+\| )?tf_cnn_benchmarks: error: (?P<text>.+)$', re.MULTILINE)
_OUT_OF_MEMORY = re.compile(r'ResourceExhausted|RESOURCE_EXHAUSTED|OOM when allocating|MemoryError|std::bad_alloc')

# Why a run failed, for programs.
TIMEOUT, MEMORY, ERROR = 'timeout', 'memory', 'error'


@dataclass(frozen=True)
class Limits:
    """What a run may take: seconds, and bytes of all its processes together, each with its flag as it was written."""

    timeout_secs: float | None = None
    memory_bytes: int | None = None
    memory_limit: str | None = None


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
      exit_code: 128 + n if signal n ended it. seconds: how long it ran.
      reason: why it failed, in one line; None if it did not. cause: TIMEOUT, MEMORY or ERROR, or None.
    """

    exit_code: int
    seconds: float
    reason: str | None = None
    cause: str | None = None


def run_process(
    argv: Sequence[str],
    log: Path,
    limits: Limits = Limits(),
    environment: Mapping[str, str] | None = None,
    grace_secs: float = _GRACE_SECS,
) -> Ended:
    """Runs a command to its end. Called from the main thread, since the command dies with the thread that started it.

    The command has a session of its own, so that the Ctrl-C of a terminal does not reach it. If something is raised
    here meanwhile, such as KeyboardInterrupt, the command is stopped first: SIGTERM, and SIGKILL after grace_secs.

    Args:
      log: the file that gets its standard output and standard error.
      environment: its whole environment; None is that of this process.

    Raises:
      RunError: the log cannot be written, or the command cannot be started.
      UsageError: this is not Linux.
    """
    if sys.platform != 'linux':
        raise UsageError(f'sweep: it needs Linux, and this is {sys.platform}; run each configuration by itself instead')
    started = time.monotonic()
    try:
        with log.open('wb') as file:
            process = subprocess.Popen(
                tethered(argv),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
    except OSError as error:
        raise RunError(f'{log}: the run cannot be started ({error.strerror})') from error
    try:
        with _exit_descriptor(process.pid) as ended:
            cause = _await_end(process.pid, ended, started, limits)
            if cause:
                _stop(process.pid, ended, 0.0 if cause == MEMORY else grace_secs)
    except BaseException:
        with _exit_descriptor(process.pid) as ended:
            _stop(process.pid, ended, grace_secs)
        raise
    finally:
        # What it left behind, before its number can be used again.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    seconds = time.monotonic() - started
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    if cause == TIMEOUT:
        return Ended(code, seconds, f'it ran longer than --timeout_secs={limits.timeout_secs:g}', cause)
    if cause == MEMORY:
        return Ended(code, seconds, f'it needed more memory than --memory_limit={limits.memory_limit}', cause)
    if not code:
        return Ended(code, seconds)
    reason, cause = explain(_end_of(log), process.returncode)
    return Ended(code, seconds, reason, cause)


def explain(output: str, return_code: int) -> tuple[str, str]:
    """Why a process failed, in one line, from its output and its code as subprocess gives it; and the cause."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    memory = next((line for line in reversed(lines) if _OUT_OF_MEMORY.search(line)), None)
    errors = list(_ERROR.finditer(output))
    # In a cluster the first failure is the cause of the others, and the launcher's own line comes last.
    first = next((error for error in errors if error['process']), errors[-1] if errors else None)
    # The kernel kills with this signal what takes the memory of the machine.
    is_killed = return_code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    cause = MEMORY if memory or is_killed else ERROR
    if first:
        who = (first['process'] or '').replace(' | ', ': ').replace('| ', ': ')
        return ' '.join(f'{who}{first["text"]}'.split()), cause
    if memory:
        return memory, cause
    if return_code < 0:
        return f'ended by signal {-return_code} ({signal.strsignal(-return_code)})', cause
    return f'it ended with exit code {return_code}{f": {lines[-1]}" if lines else ""}', cause


@contextlib.contextmanager
def _exit_descriptor(pid: int) -> Iterator[int]:
    """A descriptor that becomes readable when the process ends; so waiting needs no polling."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _await_end(pid: int, ended: int, started: float, limits: Limits) -> str | None:
    """Waits until the process has ended, and returns None; or until it has passed a limit, and returns which."""
    deadline = None if limits.timeout_secs is None else started + limits.timeout_secs
    meter = None if limits.memory_bytes is None else MemoryMeter(pid, limits.memory_bytes)
    while True:
        seconds = None if deadline is None else max(0.0, deadline - time.monotonic())
        if meter:
            seconds = _SECS_BETWEEN_READINGS if seconds is None else min(seconds, _SECS_BETWEEN_READINGS)
        if select.select([ended], [], [], seconds)[0]:
            return None
        if meter and meter.is_exceeded():
            return MEMORY
        if deadline is not None and time.monotonic() >= deadline:
            return TIMEOUT


def _stop(pid: int, ended: int, grace_secs: float) -> None:
    """Ends a process and its descendants: SIGTERM to its group, and SIGKILL to what still runs after grace_secs."""
    with contextlib.ExitStack() as stack:
        # Those in sessions of their own, which would not be found any more once their parent has ended.
        descendants = _open_all(processes_of(pid), stack)
        try:
            if grace_secs:
                os.killpg(pid, signal.SIGTERM)
                select.select([ended], [], [], grace_secs)
        finally:
            # Also if a second Ctrl-C ends the patience.
            for descriptor in (*_open_all(processes_of(pid), stack), *descendants):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([ended], [], [])


def _open_all(pids: Iterable[int], stack: contextlib.ExitStack) -> list[int]:
    """A descriptor of each process that still runs, which no later process of the same number can take."""
    descriptors = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            descriptors.append(os.pidfd_open(pid))
            stack.callback(os.close, descriptors[-1])
    return descriptors


def _end_of(log: Path) -> str:
    with log.open('rb') as file:
        file.seek(max(0, log.stat().st_size - _END_BYTES))
        return file.read().decode('utf-8', errors='replace')
