"""Decides which steps this process takes.

Does not import TensorFlow.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The steps of this process.

    Attributes:
      start, end: the steps of all workers when this process starts, and when training ends.
      own_start: how many of the steps before `start` this process counts as its own; all of them in synchronous modes.
      num_warmup, num_timed: the steps that this process takes.
      is_fresh: True if training starts now, False if it continues after an interruption.
    """

    start: int
    end: int
    own_start: int
    num_warmup: int
    num_timed: int
    is_fresh: bool

    def is_over(self, steps_taken: int) -> bool:
        """Whether training has ended; steps_taken are the steps of all workers."""
        return steps_taken >= self.end


def make_schedule(start: int, end: int | None, num_warmup: int, num_timed: int, num_counting: int = 1) -> Schedule:
    """The remaining steps of this process.

    Args:
      start: the steps that all workers have taken so far.
      end: the step at which training ends, if it has begun before; None if it begins now.
      num_warmup, num_timed: the steps per worker in the settings.
      num_counting: how many workers increment the global step separately: 1 if they take their steps together.
    """
    num_steps = num_counting * (num_warmup + num_timed)
    end = start + num_steps if end is None else end
    first = end - num_steps
    own_warmup = (first + num_counting * num_warmup - start) // num_counting
    if start > first:
        # After an interruption each worker takes one warm-up step, if that leaves a step to time.
        own_warmup = max(own_warmup, min(1, end - start - num_counting), 0)
    return Schedule(start, end, start // num_counting, own_warmup, end - start - own_warmup, start == first)
