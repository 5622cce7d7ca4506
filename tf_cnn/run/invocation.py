"""How the process of a run was started, and the wait before it. Does not import TensorFlow."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tf_cnn.machine.meters import IdleWait, wait_for_idle
from tf_cnn.results.advice import LOADED_SHARE
from tf_cnn.results.console import Console


@dataclass(frozen=True)
class Invocation:
    """How and when a run was started.

    Attributes:
      argv: the command line without the program; empty if Python code started the run.
      start_time: when the time to the first step began, after the wait, in seconds of
        time.perf_counter.
    """

    argv: tuple[str, ...] = ()
    start_time: float = field(default_factory=time.perf_counter)
    idle_wait: IdleWait | None = None

    @property
    def wait_metrics(self) -> dict[str, float | None]:
        """The wait of --wait_for_idle, for the section "noise" of the result; empty if there was
        none.
        """
        if self.idle_wait is None:
            return {}
        return {
            'waited_seconds': self.idle_wait.seconds,
            'other_cpu_share_before': self.idle_wait.other_cpu_share,
        }


def invocation_of_command(argv: Sequence[str]) -> Invocation:
    """Returns the invocation of a process that does nothing else.

    Its time to the first step began with the process.
    """
    return Invocation(tuple(argv), time.perf_counter() - _seconds_since_start())


def wait_until_idle(invocation: Invocation, max_secs: float | None, console: Console) -> Invocation:
    """Waits for idle cores for at most max_secs (--wait_for_idle); None: does not wait.

    The time to the first step begins afterwards.
    """
    if max_secs is None:
        return invocation
    console.progress('Waiting for idle cores')
    wait = wait_for_idle(
        max_secs,
        LOADED_SHARE,
        lambda share: console.progress(
            f'Waiting for idle cores: other processes use {share:.0%} of them'
        ),
    )
    flag_text = f'--wait_for_idle={max_secs:g}'
    if wait.other_cpu_share is None:
        console.warning(
            f'{flag_text}: this system does not report what other processes use, so the run starts '
            'at once'
        )
    elif wait.other_cpu_share > LOADED_SHARE:
        console.warning(
            f'{flag_text}: after {wait.seconds:.0f} s other processes still use '
            f'{wait.other_cpu_share:.0%} of the cores; the run starts anyway'
        )
    return replace(invocation, start_time=invocation.start_time + wait.seconds, idle_wait=wait)


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
