"""Decides which steps this process takes. Does not import TensorFlow."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """The steps of this process; start and end count those of all workers.

    own_start: how many of the steps before `start` this process counts as its own; in synchronous
      modes, all of them.
    """

    start: int
    end: int
    own_start: int
    num_warmup: int
    num_timed: int
    is_fresh: bool

    def is_over(self, steps_taken: int) -> bool:
        return steps_taken >= self.end


def make_schedule(
    start: int, end: int | None, num_warmup: int, num_timed: int, num_counting: int = 1
) -> Schedule:
    """Returns the remaining steps of this process; num_warmup and num_timed are those of each
    worker.

    num_counting is how many workers increment the global step separately: 1 if they take their
    steps together. end is None if training begins now.
    """
    num_steps = num_counting * (num_warmup + num_timed)
    end = start + num_steps if end is None else end
    first = end - num_steps
    own_warmup = (first + num_counting * num_warmup - start) // num_counting
    if start > first:
        # After an interruption each worker takes one warm-up step, if that leaves a step to time.
        own_warmup = max(own_warmup, min(1, end - start - num_counting), 0)
    return Schedule(
        start, end, start // num_counting, own_warmup, end - start - own_warmup, start == first
    )
