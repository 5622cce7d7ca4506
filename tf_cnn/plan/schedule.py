"""Decides which steps this process takes. Does not import TensorFlow."""

from dataclasses import dataclass


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
