"""Runs one command in a separate process with a time limit. Linux only."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_cnn.system.child_process import ChildProcess, read_log_tail
from tf_cnn.system.errors import RunError, UsageError

# How long a run may take to exit after SIGTERM. Nothing of it is kept.
_GRACE_SECS = 20.0

# An error line of the program. In the output of a cluster, the process's name precedes it.
_ERROR = re.compile(
    r'^(?P<process>[\w ]+\| )?tf_cnn_benchmarks: error: (?P<text>.+)$', re.MULTILINE
)
_OUT_OF_MEMORY = re.compile(
    r'ResourceExhausted|RESOURCE_EXHAUSTED|OOM when allocating|MemoryError|std::bad_alloc'
)

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
    """Runs a command as a ChildProcess, with its output in a log. Call it from the main thread.

    Raises:
      Stopped: a signal arrived. The command was stopped with SIGTERM, and SIGKILL after grace_secs.
      RunError: the command cannot be started.
      UsageError: this is not Linux.
    """
    if sys.platform != 'linux':
        raise UsageError(
            f'sweep: it needs Linux, and this is {sys.platform}; run each configuration separately'
        )
    started_at = time.monotonic()
    try:
        with log.open('wb') as file:
            child = ChildProcess(
                argv, stdout=file, stderr=subprocess.STDOUT, env=environment, grace_secs=grace_secs
            )
    except OSError as error:
        raise RunError(f'{log}: the run cannot be started ({error.strerror})') from error
    with child:
        is_in_time = child.wait_or_stop(timeout_secs)
    seconds = time.monotonic() - started_at
    code = child.exit_code() if child.exit_code() >= 0 else 128 - child.exit_code()
    if not is_in_time:
        return ProcessExit(
            code, seconds, f'it ran longer than --timeout_secs={timeout_secs:g}', TIMEOUT
        )
    if not code:
        return ProcessExit(code, seconds)
    with log.open('rb') as output:
        reason, cause = explain_exit(read_log_tail(output), child.exit_code())
    return ProcessExit(code, seconds, reason, cause)


def explain_exit(output: str, return_code: int) -> tuple[str, str]:
    """Returns (reason in one line, cause) of a failed process.

    return_code is -n if signal n ended it, as in subprocess.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
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
    return f'it ended with exit code {return_code}{f": {lines[-1]}" if lines else ""}', cause
