"""Runs the command as users do, in one process or as a cluster on this machine, and records the time of each line."""

import contextlib
import io
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.launcher import Command, launch
from commands import cluster as command

_PROGRAM = str(Path(__file__).resolve().parent.parent / 'tf_cnn_benchmarks.py')
_SAMPLE_SECS = 0.1
_STARTED = re.compile(r'(\w+ \d+) is process (\d+)')
_FIRST_TIMED_STEP = re.compile(r'1\timages/sec: ([0-9.]+) ')
_GLOBAL_BATCH = re.compile(r'Batch size: +([0-9]+) global')
_TOTAL = re.compile(r'total images/sec: ([0-9.]+)')
# Lines of /proc/PID/status: the peak of resident memory; the current memory without shared libraries.
_RESIDENT = re.compile(r'^VmHWM:\s+([0-9]+) kB', flags=re.MULTILINE)
_PRIVATE = re.compile(r'^RssAnon:\s+([0-9]+) kB', flags=re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Peak memory of one process in MiB: resident, and private (without shared libraries)."""

    resident: float
    private: float


@dataclass(frozen=True)
class Run:
    """One successful run.

    warm_up_secs: from the start to the end of the last warm-up step of the chief. seconds: until all processes had
    ended. images_per_second: the printed total. memory: of each process, by its name.
    """

    warm_up_secs: float
    seconds: float
    images_per_second: float
    memory: dict[str, Memory]


class RunFailedError(Exception):
    """A run ended with an exit code other than 0; the message is the end of its standard error."""


def run_cluster(num_ps: int, num_workers: int, flags: Sequence[str]) -> Run:
    """Runs the subcommand `cluster`; flags are those of the run.

    Raises:
      RunFailedError: the exit code was not 0.
    """
    return _run(lambda: command.main([f'--ps={num_ps}', f'--workers={num_workers}', '--verbose', '--', *flags]))


def run_alone(flags: Sequence[str]) -> Run:
    """Runs the command in one process.

    Raises:
      RunFailedError: the exit code was not 0.
    """
    argv = (sys.executable, _PROGRAM, *flags)
    return _run(lambda: launch([Command('process 0', argv, has_result=True)]))


class _TimedLines(io.TextIOBase):
    """A stream that keeps the lines written to it, each with the time."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        now = time.perf_counter()
        self.lines += [(now, line) for line in text.splitlines()]
        return len(text)

    def find(self, pattern: re.Pattern[str]) -> tuple[float, float]:
        """The time of the first line that starts with the pattern, and the number in it."""
        found = ((when, pattern.match(line)) for when, line in self.lines)
        return next((when, float(match[1])) for when, match in found if match)


def _run(start: Callable[[], int]) -> Run:
    out, err = _TimedLines(), _TimedLines()
    memory: dict[str, Memory] = {}
    over = threading.Event()
    sampler = threading.Thread(target=_sample, args=(err, memory, over))
    began = time.perf_counter()
    sampler.start()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            exit_code = start()
    finally:
        over.set()
        sampler.join()
    seconds = time.perf_counter() - began
    if exit_code:
        error_lines = [line for _, line in err.lines]
        raise RunFailedError('\n'.join([*error_lines[-40:], f'exit code {exit_code}']))
    _, global_batch = out.find(_GLOBAL_BATCH)
    # The first rate is printed after the first timed step, and is the rate of that step.
    timed_step_end, rate = out.find(_FIRST_TIMED_STEP)
    _, total = out.find(_TOTAL)
    return Run(timed_step_end - global_batch / rate - began, seconds, total, memory)


def _sample(err: _TimedLines, memory: dict[str, Memory], over: threading.Event) -> None:
    """Records the memory of each process that the launcher has reported, until `over` is set."""
    while not over.wait(_SAMPLE_SECS):
        for match in filter(None, (_STARTED.match(line) for _, line in list(err.lines))):
            name, process = match.groups()
            with contextlib.suppress(OSError):
                status = Path(f'/proc/{process}/status').read_text()
                resident, private = _RESIDENT.search(status), _PRIVATE.search(status)
                # A process that has ended, but was not yet reaped, has no memory.
                if resident and private:
                    before = memory.get(name, Memory(0, 0))
                    memory[name] = Memory(int(resident[1]) / 1024, max(before.private, int(private[1]) / 1024))


def load() -> str:
    """The cores and the load of the machine, to be printed with the results."""
    return f'{os.cpu_count()} cores, load {" ".join(f"{average:.1f}" for average in os.getloadavg())}'
