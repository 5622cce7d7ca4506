"""Runs the command as a user does, in one process or as a cluster on this machine, and notes what came when."""

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
# Of /proc/PID/status: resident at most until now; now without what it shares with others, the libraries.
_RESIDENT = re.compile(r'^VmHWM:\s+([0-9]+) kB', flags=re.MULTILINE)
_OWN = re.compile(r'^RssAnon:\s+([0-9]+) kB', flags=re.MULTILINE)


@dataclass(frozen=True)
class Memory:
    """Of one process at most, in units of 2^20 bytes: resident, and without what processes share, the libraries."""

    resident: float
    own: float


@dataclass(frozen=True)
class Run:
    """One run that ended well.

    warm_up_secs: from the start to the end of the last warm-up step on the chief. seconds: until all processes had
    ended. images_per_second: the total that was printed. memory: of each process, by its name.
    """

    warm_up_secs: float
    seconds: float
    images_per_second: float
    memory: dict[str, Memory]


class RunFailedError(Exception):
    """A run that ended with another exit code than 0; its text is what was said last."""


def run_cluster(num_ps: int, num_workers: int, flags: Sequence[str]) -> Run:
    """Runs `cluster` with that many processes; flags are those of the run.

    Raises:
      RunFailedError: it did not end well.
    """
    return _run(lambda: command.main([f'--ps={num_ps}', f'--workers={num_workers}', '--', *flags]))


def run_alone(flags: Sequence[str]) -> Run:
    """Runs the command in one process.

    Raises:
      RunFailedError: it did not end well.
    """
    argv = (sys.executable, _PROGRAM, *flags)
    return _run(lambda: launch([Command('process 0', argv, has_result=True)]))


class _Notes(io.TextIOBase):
    """A stream that keeps the lines written to it, each with the time."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []

    def write(self, text: str) -> int:
        now = time.perf_counter()
        self.lines += [(now, line) for line in text.splitlines()]
        return len(text)

    def find(self, pattern: re.Pattern[str]) -> tuple[float, float]:
        """When the first line came that begins so, and the number in it."""
        found = ((when, pattern.match(line)) for when, line in self.lines)
        return next((when, float(match[1])) for when, match in found if match)


def _run(start: Callable[[], int]) -> Run:
    out, err = _Notes(), _Notes()
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
        said = [line for _, line in err.lines]
        raise RunFailedError('\n'.join([*said[-40:], f'exit code {exit_code}']))
    _, global_batch = out.find(_GLOBAL_BATCH)
    # The first line of a rate comes after the first timed step, whose rate it is.
    timed_step_end, rate = out.find(_FIRST_TIMED_STEP)
    _, total = out.find(_TOTAL)
    return Run(timed_step_end - global_batch / rate - began, seconds, total, memory)


def _sample(err: _Notes, memory: dict[str, Memory], over: threading.Event) -> None:
    """Looks at the memory of each process that the launcher tells of, as long as it is there."""
    while not over.wait(_SAMPLE_SECS):
        for match in filter(None, (_STARTED.match(line) for _, line in list(err.lines))):
            name, process = match.groups()
            with contextlib.suppress(OSError):
                status = Path(f'/proc/{process}/status').read_text()
                resident, own = _RESIDENT.search(status), _OWN.search(status)
                # A process that has ended, and was not yet waited for, has no memory.
                if resident and own:
                    before = memory.get(name, Memory(0, 0))
                    memory[name] = Memory(int(resident[1]) / 1024, max(before.own, int(own[1]) / 1024))


def load() -> str:
    """How busy the machine is, to be told with what is measured on it."""
    return f'{os.cpu_count()} cores, load {" ".join(f"{average:.1f}" for average in os.getloadavg())}'
