"""Runs commands in separate processes with a time limit. Linux only."""

import contextlib
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.system.child_process import ChildProcess, read_log_tail
from tf_cnn.system.errors import RunError, UsageError
from tf_cnn.system.signals import SIGNALS

# How long a run may take to exit after SIGTERM. Nothing of it is kept.
_GRACE_SECS = 20.0
# Open files beside one of each process.
_OTHER_FILES = 32

# An error line of the program. In the output of a cluster, the process's name precedes it.
_ERROR = re.compile(
    r'^(?P<process>[\w .@:-]+\| )?tf_cnn_benchmarks: error: (?P<text>.+)$', re.MULTILINE
)
_OUT_OF_MEMORY = re.compile(
    r'ResourceExhausted|RESOURCE_EXHAUSTED|OOM when allocating|MemoryError|std::bad_alloc'
    '|CUDA out of memory'
)
# PyTorch's exceptions of a rank, the cause first; torchrun then prints a box without it.
_RANK_ERROR = re.compile(r'\[rank\d+\]: [\w.]*(Error|Exception): .')

# The causes of failed runs, as other programs read them.
TIMEOUT, MEMORY, ERROR = 'timeout', 'memory', 'error'


@dataclass(frozen=True)
class ProcessExit:
    """How a process exited.

    Attributes:
      exit_code: 128 + n if signal n ended it.
      reason: why it failed, in one line; None if it succeeded.
      cause: TIMEOUT, MEMORY or ERROR; None if it succeeded.
    """

    exit_code: int
    seconds: float
    reason: str | None = None
    cause: str | None = None


def run_process(
    argv: Sequence[str],
    log: Path,
    timeout_secs: float | None = None,
    environment: Mapping[str, str] | None = None,
    grace_secs: float = _GRACE_SECS,
) -> ProcessExit:
    """Runs one command, as run_processes() does."""
    [process_exit] = run_processes({log: argv}, timeout_secs, environment, grace_secs)
    return process_exit


def run_processes(
    commands: Mapping[Path, Sequence[str]],
    timeout_secs: float | None = None,
    environment: Mapping[str, str] | None = None,
    grace_secs: float = _GRACE_SECS,
) -> list[ProcessExit]:
    """Runs commands at the same time, each as a ChildProcess. Call it from the main thread.

    Args:
      commands: the command of each log, which gets its output.

    Raises:
      Stopped: a signal arrived. All were stopped with SIGTERM, and SIGKILL after grace_secs.
      RunError: a command cannot be started.
      UsageError: this is not Linux, or its limit of open files is too low.
    """
    if sys.platform != 'linux':
        raise UsageError(
            f'it needs Linux to end processes, and this is {sys.platform}; start each run yourself'
        )
    num_files = len(commands) + _OTHER_FILES
    if (limit := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < num_files:
        raise UsageError(
            f'{len(commands)} processes at once need {num_files} open files, above the limit of '
            f'{limit}; run: ulimit -n {num_files}'
        )
    started_at = time.monotonic()
    children: dict[int, ChildProcess] = {}
    seconds: dict[int, float] = {}
    with contextlib.ExitStack() as stack:
        try:
            for log, argv in commands.items():
                child = stack.enter_context(_start(log, argv, environment, grace_secs))
                children[child.descriptor] = child
            while running := children.keys() - seconds.keys():
                elapsed = time.monotonic() - started_at
                remaining = None if timeout_secs is None else max(0.0, timeout_secs - elapsed)
                if not (exited := SIGNALS.wait(remaining, *running)):
                    break
                seconds |= dict.fromkeys(exited, time.monotonic() - started_at)
        finally:
            # All at once: the stack stops one after the other, and waits for each.
            for child in [*children.values()][:-1]:
                if not child.wait(0.0):
                    child.signal(signal.SIGTERM)
    ended_at = time.monotonic()
    return [
        _describe_exit(
            log,
            child.exit_code(),
            seconds.get(number, ended_at - started_at),
            None if number in seconds else timeout_secs,
        )
        for log, (number, child) in zip(commands, children.items(), strict=True)
    ]


def _start(
    log: Path, argv: Sequence[str], environment: Mapping[str, str] | None, grace_secs: float
) -> ChildProcess:
    try:
        with log.open('wb') as file:
            return ChildProcess(
                argv, stdout=file, stderr=subprocess.STDOUT, env=environment, grace_secs=grace_secs
            )
    except OSError as error:
        raise RunError(f'{log}: the run cannot be started ({error.strerror})') from error


def _describe_exit(
    log: Path, exit_code: int, seconds: float, exceeded_secs: float | None
) -> ProcessExit:
    code = exit_code if exit_code >= 0 else 128 - exit_code
    if exceeded_secs is not None:
        return ProcessExit(
            code, seconds, f'it ran longer than --timeout_secs={exceeded_secs:g}', TIMEOUT
        )
    if not code:
        return ProcessExit(code, seconds)
    with log.open('rb') as output:
        reason, cause = explain_exit(read_log_tail(output), exit_code)
    return ProcessExit(code, seconds, reason, cause)


def explain_exit(output: str, return_code: int) -> tuple[str, str]:
    """Returns (reason in one line, cause) of a failed process.

    return_code is -n if signal n ended it, as in subprocess.
    """
    lines = [line.strip() for line in output.splitlines() if re.search(r'\w', line)]
    memory = next((line for line in reversed(lines) if _OUT_OF_MEMORY.search(line)), None)
    errors = list(_ERROR.finditer(output))
    # In a cluster the first failure causes the others, and the launcher's line comes last.
    first = next((error for error in errors if error['process']), errors[-1] if errors else None)
    # The kernel kills processes with SIGKILL when memory runs out.
    is_killed = return_code in (-signal.SIGKILL, 128 + signal.SIGKILL)
    cause = MEMORY if memory or is_killed else ERROR
    if first:
        who = (first['process'] or '').replace(' | ', ': ').replace('| ', ': ')
        return ' '.join(f'{who}{first["text"]}'.split()), cause
    if memory:
        return memory, cause
    if return_code < 0:
        return f'ended by signal {-return_code} ({signal.strsignal(-return_code)})', cause
    line = next(filter(_RANK_ERROR.match, lines), lines[-1] if lines else '')
    return f'it ended with exit code {return_code}{line and f": {line}"}', cause
