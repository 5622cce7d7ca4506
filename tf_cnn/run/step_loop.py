"""Runs steps and measures their seconds. Independent of TensorFlow and of what a step does."""

import time
from collections.abc import Callable, Iterator, Sequence

from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, Values


def run_steps(
    take_steps: Callable[[Phase, range], Sequence[Values]],
    num_warmup: int,
    num_batches: int,
    steps_per_run: int = 1,
    clock: Callable[[], float] = time.perf_counter,
    is_over: Callable[[], bool] = lambda: False,
    begin_timed: Callable[[], None] = lambda: None,
) -> Iterator[list[Step[Values]]]:
    """Takes num_warmup warm-up steps, then num_batches timed steps, and yields the steps of each
    session call as soon as it is done.

    The consumer's work (printing, summaries, traces) happens between two session calls and is not
    timed. The steps of one session call share its time equally, since their ends are unknown.

    Args:
      take_steps: takes the steps with these indices within the phase (from 1); returns the values
        of each.
      is_over: called before each session call with timed steps; returns True to stop.
      begin_timed: called once between the warm-up and the timed steps.
    """
    for phase, count in ((Phase.WARMUP, num_warmup), (Phase.TIMED, num_batches)):
        if phase is Phase.TIMED:
            begin_timed()
        for first in range(1, count + 1, steps_per_run):
            if phase is Phase.TIMED and is_over():
                return
            indices = range(first, min(first + steps_per_run, count + 1))
            start = clock()
            values = take_steps(phase, indices)
            seconds = (clock() - start) / len(indices)
            yield [
                Step(phase, index, seconds, step_values, start + number * seconds)
                for number, (index, step_values) in enumerate(zip(indices, values, strict=True))
            ]
