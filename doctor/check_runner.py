"""Runs checks in processes of their own: a crash or a hang is a verdict about one check. Linux only."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cluster.child_process import ChildProcess, end_of
from cluster.environments import without_clusters
from doctor.check_table import Check
from doctor.verdicts import Finding, Outcome, Verdict, verdict_of, wrong
from errors import RunError

_PROCESS = str(Path(__file__).resolve().parent / 'one_process.py')
# Of standard error, for a verdict that is not ok.
_NUM_LOG_LINES = 40
# How long a process may take to print where it waits, to end after its last verdict, and to die.
_ABORT_SECS, _END_SECS, _KILL_SECS = 5.0, 30.0, 10.0
_REPORT = 'report it with the output of doctor --json, whose log has the stacks of all threads'
_ADVICE_FOR_SIGNALS: Mapping[int, str] = {
    signal.SIGILL: 'this TensorFlow was compiled for a processor with more instructions; install a build for this one',
    signal.SIGKILL: 'the kernel kills what takes the last memory: look at dmesg, and free memory',
}


def run_checks(
    checks: Sequence[Check],
    num_gpus: int = 0,
    *,
    hides_gpus: bool = False,
    time_limit: float = 1.0,
    patience: float = 1.0,
    show: Callable[[str, str], None] = lambda name, doing: None,
) -> Iterator[Finding]:
    """Runs checks one after the other, and yields what each has found.

    Successive checks with the same `shares` run in one process until one of them is wrong; the others then get a new
    process. To be called from the main thread, since the kernel kills a process when the thread that started it ends.

    Args:
      num_gpus: how many GPUs compute. hides_gpus: whether the processes shall see none.
      time_limit: a factor for all time limits, of the user. patience: one more, which the GPUs call for.
      show: called with the name of a check, and with what it is doing.

    Raises:
      RunError: no process can be started.
    """
    remaining = list(checks)
    while remaining:
        first = remaining[0]
        count = 1
        while first.shares and count < len(remaining) and remaining[count].shares == first.shares:
            count += 1
        request = {'num_gpus': num_gpus, 'time_limit': time_limit * patience}
        slower = f'if this machine is slow, write --time_limit={time_limit * 4:g}'
        with _started(remaining[:count], request, slower, _environment(hides_gpus), show) as process:
            for finding in process.findings():
                remaining.pop(0)
                yield finding


@contextlib.contextmanager
def _started(
    checks: Sequence[Check],
    request: Mapping[str, Any],
    slower: str,
    environment: Mapping[str, str],
    show: Callable[[str, str], None],
) -> Iterator['_Process']:
    """The process of successive checks; it and what it started have ended when the block does."""
    listed = [{'name': check.name, 'run': check.run, 'arguments': dict(check.arguments)} for check in checks]
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(tempfile.TemporaryFile())
            # Of a process that is killed, too, no file is left behind.
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-doctor-', ignore_cleanup_errors=True)
            )
            child = ChildProcess(
                [sys.executable, _PROCESS, json.dumps({**request, 'checks': listed})],
                stdout=subprocess.PIPE,
                stderr=log,
                env={**environment, 'TMPDIR': folder},
                kill_secs=_KILL_SECS,
            )
        except OSError as error:
            raise RunError(f'{checks[0].name}: its process cannot be started ({error.strerror})') from error
        with child:
            yield _Process(checks, request['time_limit'], slower, show, child, log)


class _Process:
    """A process that examines successive checks.

    Args:
      time_limit: the factor of all limits. slower: what to do if they are too short. show: see run_checks.
      child: the process. log: its standard error.
    """

    def __init__(
        self,
        checks: Sequence[Check],
        time_limit: float,
        slower: str,
        show: Callable[[str, str], None],
        child: ChildProcess,
        log: IO[bytes],
    ) -> None:
        self._checks = checks
        self._time_limit = time_limit
        self._slower = slower
        self._show = show
        self._child = child
        self._log = log
        # Where the lines of the check that runs now begin.
        self._log_end = 0
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        child.read_lines(self._read, closed=lambda: self._messages.put(None))

    def findings(self) -> Iterator[Finding]:
        """What the checks find, in their order, up to the first that is wrong: it is the last of this process."""
        for check in self._checks:
            started, log_start = time.monotonic(), self._log_end
            self._show(check.name, '')
            verdict = self._verdict(check, started + check.limit_secs * self._time_limit)
            if check is self._checks[-1] or verdict.outcome is Outcome.WRONG:
                verdict = self._end(check, verdict)
            log = () if verdict.outcome is Outcome.OK else self._log_lines(log_start)
            yield Finding(check.name, check.asks, verdict, time.monotonic() - started, log)
            if verdict.outcome is Outcome.WRONG:
                return

    def _verdict(self, check: Check, deadline: float) -> Verdict:
        """Waits for the verdict of a check, or for the end of the process or of its time."""
        doing = ''
        while True:
            try:
                message = self._messages.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                self._child.abort(_ABORT_SECS)
                secs = check.limit_secs * self._time_limit
                found = f'no answer within {secs:g} s{_while(doing)}'
                if not self._child.stop(grace_secs=0.0):
                    found += '; its process cannot even be killed, as when a driver does not answer'
                advice = check.remedy or _REPORT
                return wrong(found, f'{advice}; {self._slower}')
            if message is None:
                return self._crashed(check, 'its process', _while(doing))
            if 'doing' in message:
                doing = message['doing']
                self._show(check.name, doing)
            if message.get('end') == check.name:
                self._log_end = message['log_end']
                return verdict_of(message['verdict'])

    def _end(self, check: Check, verdict: Verdict) -> Verdict:
        """Waits for the end of the process; returns the verdict, or a wrong one if it crashes or hangs at its end."""
        if verdict.outcome is Outcome.WRONG:
            return verdict
        if not self._child.wait(_END_SECS * self._time_limit):
            self._child.abort(_ABORT_SECS)
            return wrong(f'{verdict.found}; but its process did not end', check.remedy or _REPORT, **verdict.figures)
        if self._child.exit_code():
            return self._crashed(check, f'{verdict.found}; but then its process', figures=verdict.figures)
        return verdict

    def _crashed(self, check: Check, before: str, after: str = '', figures: Mapping[str, Any] = {}) -> Verdict:
        """The verdict about a process that has closed its output, or ended; before and after stand around how."""
        if not self._child.wait(_END_SECS):
            return wrong(f'{before} closed its output and did not end{after}', _REPORT, **figures)
        code = self._child.exit_code()
        how = (
            f'ended with exit code {code}' if code >= 0 else f'was ended by signal {-code} ({signal.strsignal(-code)})'
        )
        advice = _ADVICE_FOR_SIGNALS.get(-code) or check.remedy or _REPORT
        return wrong(f'{before} {how}{after}', advice, **figures)

    def _read(self, line: str) -> None:
        # A process that is killed may have written half a line.
        with contextlib.suppress(json.JSONDecodeError):
            self._messages.put(json.loads(line))

    def _log_lines(self, start: int) -> Sequence[str]:
        """The last lines that the process has written to standard error since it had written `start` bytes."""
        return tuple(end_of(self._log, start).splitlines()[-_NUM_LOG_LINES:])


def _environment(hides_gpus: bool) -> dict[str, str]:
    environment = {
        'TF_CPP_MIN_LOG_LEVEL': '1',
        # NCCL says why it fails only if it is asked.
        'NCCL_DEBUG': 'WARN',
        # 4 GiB, the most: each check finds the kernels that the driver has compiled for those before it.
        'CUDA_CACHE_MAXSIZE': '4294967296',
        **without_clusters(os.environ),
        # Stacks of all threads for every signal that ends a process.
        'PYTHONFAULTHANDLER': '1',
    }
    return {**environment, 'CUDA_VISIBLE_DEVICES': ''} if hides_gpus else environment


def _while(doing: str) -> str:
    return f', while it was {doing}' if doing else ''
