"""Chooses the checks that apply to this machine, and runs them. Linux only.

They run in processes of their own: a crash or a hang is a verdict about one check.
"""

import contextlib
import fnmatch
import functools
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
from doctor.check_table import ARCHITECTURE, CHECKS, DEVICES, Check, Needs
from doctor.verdicts import NO_GPU, Finding, Outcome, Verdict, skipped, verdict_of, wrong
from errors import RunError
from machine.gpus import has_nvidia_gpu

# The driver needs half an hour, on one core, to compile all kernels. The shortest limit of a check that uses a GPU is
# one minute; most have two to five.
_PATIENCE = 8.0
_PROCESS = str(Path(__file__).resolve().parent / 'one_process.py')
# How many lines of standard error are kept for a verdict that is not ok.
_NUM_LOG_LINES = 40
# How long a process may take to print its stacks, to end after its last verdict, and to die after SIGKILL.
_ABORT_SECS, _END_SECS, _KILL_SECS = 5.0, 30.0, 10.0
_REPORT = 'report it with the output of doctor --json, whose log has the stacks of all threads'
_ADVICE_FOR_SIGNALS: Mapping[int, str] = {
    signal.SIGILL: 'this TensorFlow was compiled for a processor with more instructions; install a build for this one',
    signal.SIGKILL: 'the kernel kills what takes the last memory: look at dmesg, and free memory',
}


def matching(pattern: str | None, *, with_long: bool) -> list[Check]:
    """Returns the checks whose names match one of the patterns, in the order of the table.

    Args:
      pattern: shell wildcards, separated by commas. A family ('host') stands for all checks in it, None for all checks.
      with_long: whether to include checks that take long.
    """
    words = _words(pattern)
    return [check for check in CHECKS if _fits(check, words) and (with_long or not check.is_long)]


def unknown_names(pattern: str | None) -> list[str]:
    """Returns the patterns that match no check at all."""
    return [word for word in _words(pattern) if not any(_fits(check, [word]) for check in CHECKS)]


def _words(pattern: str | None) -> list[str]:
    return [word.strip() for word in ('*' if pattern is None else pattern).split(',')]


def _fits(check: Check, words: Sequence[str]) -> bool:
    return any(
        fnmatch.fnmatchcase(check.name, word) or fnmatch.fnmatchcase(check.name, f'{word.rstrip("/")}/*')
        for word in words
    )


def examine(
    checks: Sequence[Check],
    device: str | None = None,
    time_limit: float = 1.0,
    show: Callable[[str, str], None] = lambda name, doing: None,
) -> Iterator[Finding]:
    """Runs the checks that apply, and yields the finding of each; for the others, why they do not apply.

    On a machine with GPUs, it always runs the check of TensorFlow's devices, since the others depend on it.

    Args:
      checks: the checks, in the order of the table.
      device: what computes, cpu or gpu; None for gpu where there is one.
      time_limit: as for run_checks.
      show: as for run_checks.

    Raises:
      RunError: no process can be started.
    """
    run = functools.partial(
        run_checks, hides_gpus=device == 'cpu', expects_gpu=device == 'gpu', time_limit=time_limit, show=show
    )
    num_gpus, waiting = 0, list(checks)
    if device == 'gpu' or (device is None and has_nvidia_gpu()):
        names = {check.name for check in checks} | {DEVICES}
        in_order = [check for check in CHECKS if check.name in names]
        count = next(index for index, check in enumerate(in_order) if check.name == DEVICES)
        yield from _skipped(in_order[:count], device, num_gpus)
        yield from run(_applying(in_order[:count], device, num_gpus))
        run = functools.partial(run, patience=find_patience(time_limit, show))
        (finding,) = run([in_order[count]])
        yield finding
        num_gpus, waiting = finding.verdict.figures.get('num_gpus', 0), in_order[count + 1 :]
    yield from _skipped(waiting, device, num_gpus)
    yield from run(_applying(waiting, device, num_gpus), num_gpus)


def find_patience(time_limit: float = 1.0, show: Callable[[str, str], None] = lambda name, doing: None) -> float:
    """Returns the factor of all time limits for these GPUs: large if the driver must compile kernels for one of them.

    Any check may be the first to use a kernel. A check in a process of its own finds this out, since this process must
    not wait for a driver.

    Args:
      time_limit: as for run_checks.
      show: as for run_checks.
    """
    asks_driver = next(check for check in CHECKS if check.name == ARCHITECTURE)
    (finding,) = run_checks([asks_driver], time_limit=time_limit, show=show)
    return _PATIENCE if finding.verdict.outcome is Outcome.WARNING else 1.0


def _applying(checks: Sequence[Check], device: str | None, num_gpus: int) -> list[Check]:
    return [check for check in checks if why_not(check.needs, device, num_gpus) is None]


def _skipped(checks: Sequence[Check], device: str | None, num_gpus: int) -> Iterator[Finding]:
    for check in checks:
        if why := why_not(check.needs, device, num_gpus):
            yield Finding(check.name, check.asks, skipped(why))


def why_not(needs: Needs, device: str | None, num_gpus: int) -> str | None:
    """Returns why a check that needs this does not apply; None if it does.

    Args:
      needs: what the check needs.
      device: what computes, cpu or gpu; None for gpu where there is one.
      num_gpus: how many GPUs TensorFlow sees.
    """
    if needs is Needs.NOTHING:
        return None
    if needs is Needs.CPU:
        return 'the GPUs compute here; doctor --device=cpu checks the CPU' if num_gpus else None
    if device == 'cpu':
        return '--device=cpu'
    if needs is Needs.DRIVER and not has_nvidia_gpu():
        return NO_GPU if not has_nvidia_gpu({}) else 'CUDA_VISIBLE_DEVICES hides the GPUs'
    if needs in (Needs.GPU, Needs.TWO_GPUS) and not num_gpus:
        return 'TensorFlow sees no GPU'
    if needs is Needs.TWO_GPUS and num_gpus < 2:
        return 'TensorFlow sees one GPU only'
    return None


def run_checks(
    checks: Sequence[Check],
    num_gpus: int = 0,
    *,
    hides_gpus: bool = False,
    expects_gpu: bool = False,
    time_limit: float = 1.0,
    patience: float = 1.0,
    show: Callable[[str, str], None] = lambda name, doing: None,
) -> Iterator[Finding]:
    """Runs checks one after the other, and yields the finding of each.

    Successive checks with the same `shares` run in one process until one of them is wrong; the others then get a new
    process. Call it from the main thread, since the kernel kills a process when the thread that started it ends.

    Args:
      checks: the checks, in order.
      num_gpus: how many GPUs compute.
      hides_gpus: whether GPUs are hidden from the processes.
      expects_gpu: whether --device=gpu was written.
      time_limit: the user's factor for all time limits.
      patience: another factor for all time limits, for GPUs whose kernels must be compiled first.
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
        request = {'num_gpus': num_gpus, 'expects_gpu': expects_gpu, 'time_limit': time_limit * patience}
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
    """Starts the process of successive checks. It and its descendants have ended when the block ends."""
    names = [check.name for check in checks]
    with contextlib.ExitStack() as stack:
        try:
            log = stack.enter_context(tempfile.TemporaryFile())
            # A folder of its own for temporary files, so that even a killed process leaves none behind.
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks-doctor-', ignore_cleanup_errors=True)
            )
            child = ChildProcess(
                [sys.executable, _PROCESS, json.dumps({**request, 'checks': names})],
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
    """A process that runs successive checks.

    Args:
      checks: the checks, in order.
      time_limit: the factor for all time limits.
      slower: the advice for a machine on which the limits are too short.
      show: as for run_checks.
      child: the process.
      log: its standard error.
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
        # Where in the log the lines of the current check begin.
        self._log_end = 0
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        child.read_lines(self._read, closed=lambda: self._messages.put(None))

    def findings(self) -> Iterator[Finding]:
        """Yields the findings in order, up to the first that is wrong, after which the process ends."""
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
        """Waits for the verdict of a check, until its time is over or the process has ended."""
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
        """Waits for the end of the process. Returns the verdict, or a wrong one if the process crashes or hangs."""
        if verdict.outcome is Outcome.WRONG:
            return verdict
        if not self._child.wait(_END_SECS * self._time_limit):
            self._child.abort(_ABORT_SECS)
            return wrong(f'{verdict.found}; but its process did not end', check.remedy or _REPORT, **verdict.figures)
        if self._child.exit_code():
            return self._crashed(check, f'{verdict.found}; but then its process', figures=verdict.figures)
        return verdict

    def _crashed(self, check: Check, before: str, after: str = '', figures: Mapping[str, Any] = {}) -> Verdict:
        """Returns the verdict on a process that has closed its output or ended: `before`, how it ended, `after`."""
        if not self._child.wait(_END_SECS):
            return wrong(f'{before} closed its output and did not end{after}', _REPORT, **figures)
        code = self._child.exit_code()
        how = (
            f'ended with exit code {code}' if code >= 0 else f'was ended by signal {-code} ({signal.strsignal(-code)})'
        )
        advice = _ADVICE_FOR_SIGNALS.get(-code) or check.remedy or _REPORT
        return wrong(f'{before} {how}{after}', advice, **figures)

    def _read(self, line: str) -> None:
        # A process that was killed may have written an incomplete line.
        with contextlib.suppress(json.JSONDecodeError):
            self._messages.put(json.loads(line))

    def _log_lines(self, start: int) -> Sequence[str]:
        """Returns the last lines of standard error after its byte `start`."""
        return tuple(end_of(self._log, start).splitlines()[-_NUM_LOG_LINES:])


def _environment(hides_gpus: bool) -> dict[str, str]:
    environment = {
        'TF_CPP_MIN_LOG_LEVEL': '1',
        # Without this NCCL does not say why it fails.
        'NCCL_DEBUG': 'WARN',
        # 4 GiB, the maximum: the driver keeps the kernels that it compiled for earlier checks.
        'CUDA_CACHE_MAXSIZE': '4294967296',
        **without_clusters(os.environ),
        # Prints the stacks of all threads if a signal ends the process.
        'PYTHONFAULTHANDLER': '1',
    }
    return {**environment, 'CUDA_VISIBLE_DEVICES': ''} if hides_gpus else environment


def _while(doing: str) -> str:
    return f', while it was {doing}' if doing else ''
