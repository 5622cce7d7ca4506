"""How the process of a run was started. Does not import TensorFlow."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Invocation:
    """How and when a run was started.

    Attributes:
      argv: the command line without the program; empty if Python code started the run.
      start_time: when the time to the first step began, in seconds of time.perf_counter.
    """

    argv: tuple[str, ...] = ()
    start_time: float = field(default_factory=time.perf_counter)


def invocation_of_command(argv: Sequence[str]) -> Invocation:
    """Returns the invocation of a process that does nothing else.

    Its time to the first step began with the process.
    """
    return Invocation(tuple(argv), time.perf_counter() - _seconds_since_start())


def _seconds_since_start() -> float:
    """Returns the seconds since this process started, to a hundredth; 0 if unknown."""
    try:
        with open('/proc/self/stat', encoding='utf-8') as file:
            # starttime is field 22, counted from 1. Field 2, the program's name, may contain
            # blanks. See proc(5).
            ticks = int(file.read().rpartition(')')[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf('SC_CLK_TCK'))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
