"""How the process of a run was started. Does not import TensorFlow."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Invocation:
    """How a run was asked for.

    Attributes:
      argv: the command line without the program; empty if Python code asked.
      begun: when the time to the first step began, in seconds of time.perf_counter.
    """

    argv: tuple[str, ...] = ()
    begun: float = field(default_factory=time.perf_counter)


def of_this_process(argv: Sequence[str]) -> Invocation:
    """A run that is all this process does: its time to the first step began with the process."""
    return Invocation(tuple(argv), time.perf_counter() - _seconds_since_start())


def _seconds_since_start() -> float:
    """How long this process has been running, 0 where the system does not tell; Linux rounds to hundredths."""
    try:
        with open('/proc/self/stat', encoding='utf-8') as file:
            # Field 22, counted from 1; the name of the program, field 2, may contain blanks: proc(5).
            ticks = int(file.read().rpartition(')')[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf('SC_CLK_TCK'))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0
