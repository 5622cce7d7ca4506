"""Decides which steps a process takes, takes them and measures their seconds; hooks do the work
between them.

Knows neither TensorFlow nor what a step does.
"""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic

from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, Values


@dataclass(frozen=True)
class Schedule:
    """The steps of this process. start_step and end_step count the steps of all workers.

    own_start_step: this process's share of the first start_step steps; in synchronous modes, all of
      them.
    """

    start_step: int
    end_step: int
    own_start_step: int
    num_warmup: int
    num_timed: int
    is_fresh: bool

    def is_over(self, steps_taken: int) -> bool:
        return steps_taken >= self.end_step


def make_schedule(
    start_step: int, end_step: int | None, num_warmup: int, num_timed: int, num_counters: int = 1
) -> Schedule:
    """Returns the remaining steps of this process.

    Args:
      end_step: None if training begins now.
      num_warmup, num_timed: steps of each worker.
      num_counters: how many workers increment the global step; 1 if they are synchronous.
    """
    num_steps = num_counters * (num_warmup + num_timed)
    end_step = start_step + num_steps if end_step is None else end_step
    first_step = end_step - num_steps
    own_warmup = (first_step + num_counters * num_warmup - start_step) // num_counters
    if start_step > first_step:
        # After an interruption each worker takes one warm-up step, if that leaves a step to time.
        own_warmup = max(own_warmup, min(1, end_step - start_step - num_counters), 0)
    return Schedule(
        start_step,
        end_step,
        start_step // num_counters,
        own_warmup,
        end_step - start_step - own_warmup,
        start_step == first_step,
    )


class Hook(Generic[Values]):
    """Work before a phase and between two session calls, which is not part of any step's seconds.

    begin and after return True if no further timed step shall be taken. The loop asks all hooks
    before it ends, and always completes the warm-up, unless a hook sets ends_warmup. The first hook
    is nearest to the steps: its begin comes last, its after comes first.
    """

    ends_warmup = False

    def begin(self, phase: Phase) -> bool:
        """Called once before the steps of each phase."""
        return False

    def after(self, steps: Sequence[Step[Values]]) -> bool:
        """Called after each session call, with the steps that it took."""
        return False


def run_steps(
    take_steps: Callable[[Phase, range], Sequence[Values]],
    hooks: Sequence[Hook[Values]],
    num_warmup: int,
    num_timed: int,
    steps_per_run: int = 1,
    in_step: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Step[Values], None, None]:
    """Takes num_warmup warm-up steps, then up to num_timed timed steps, and yields each of them.

    The steps of one session call share its time equally, since their ends are unknown.

    Args:
      take_steps: takes the steps with these indices within the phase, from 1, in one session call;
        returns the values of each.
      hooks: what happens between the steps, in this order.
      in_step: makes a context for each session call.
    """
    is_over = False
    for phase, count in ((Phase.WARMUP, num_warmup), (Phase.TIMED, num_timed)):
        ends = [hook.begin(phase) for hook in reversed(hooks)]
        is_over = is_over or any(ends)
        for first in range(1, count + 1, steps_per_run):
            if phase is Phase.TIMED and is_over:
                return
            indices = range(first, min(first + steps_per_run, count + 1))
            with in_step():
                start = clock()
                values = take_steps(phase, indices)
                seconds = (clock() - start) / len(indices)
            steps = [
                Step(phase, index, seconds, step_values, start + number * seconds)
                for number, (index, step_values) in enumerate(zip(indices, values, strict=True))
            ]
            ends = [hook.after(steps) for hook in hooks]
            is_over = is_over or any(ends)
            yield from steps
            if phase is Phase.WARMUP and any(hook.ends_warmup for hook in hooks):
                break


class TargetSeconds(Hook[Values]):
    """Ends the timed steps after `target` seconds.

    Processes that take steps together must take equally many. They agree on a number before the
    first timed step, from the time of their warm-up steps.

    Args:
      gather: returns the values that all these processes pass; None for a single process.
      gather_first: does the same after the first warm-up step: if that took longer than `target`,
        as over a slow link, it is the only one.
      excluded_seconds: returns the seconds since the first timed step that do not count.

    Attributes:
      num_timed: the number of timed steps that the processes have agreed on; None if the clock
        ends them.
    """

    def __init__(
        self,
        target: float,
        gather: Callable[[float], Sequence[float]] | None = None,
        gather_first: Callable[[float], Sequence[float]] | None = None,
        excluded_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.num_timed: int | None = None
        self._target = target
        self._gather, self._gather_first = gather, gather_first
        self._excluded_seconds = excluded_seconds
        self._clock = clock
        self._warmup_seconds: list[float] = []
        self._timed_start: float | None = None

    def begin(self, phase: Phase) -> bool:
        if phase is Phase.TIMED and self._gather and self._warmup_seconds:
            # The first steps allocate memory.
            later_steps = self._warmup_seconds[len(self._warmup_seconds) // 2 :]
            paces = self._gather(statistics.median(later_steps))
            self.num_timed = math.ceil(self._target / max(paces))
        return False

    def after(self, steps: Sequence[Step[Values]]) -> bool:
        if steps[0].phase is Phase.WARMUP:
            self._warmup_seconds += [step.seconds for step in steps]
            if self._gather_first and steps[0].index == 1:
                self.ends_warmup = max(self._gather_first(steps[0].seconds)) > self._target
            return False
        if self.num_timed is not None:
            return steps[-1].index >= self.num_timed
        if self._timed_start is None:
            self._timed_start = steps[0].start
        return self._clock() - self._timed_start - self._excluded_seconds() >= self._target
