"""Runs steps and measures their seconds. Independent of TensorFlow and of what a step does."""

import time
from collections.abc import Callable, Iterator

from reporting.result import Phase, Step, Values


def run_steps(
    run_step: Callable[[Phase, int], Values],
    num_warmup: int,
    num_batches: int,
    clock: Callable[[], float] = time.perf_counter,
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[Step[Values]]:
    """Runs num_warmup warm-up steps, then num_batches timed ones, and yields each as soon as it is done.

    The work of the consumer (printing, summaries, traces) happens between two steps and is not timed.

    Args:
      run_step: runs the step with this phase and index within the phase (from 1); returns when the step is done.
      clock: returns the seconds since any fixed moment.
      is_over: called before each timed step; returns True to stop.
    """
    for phase, count in ((Phase.WARMUP, num_warmup), (Phase.TIMED, num_batches)):
        for index in range(1, count + 1):
            if phase is Phase.TIMED and is_over():
                return
            start = clock()
            values = run_step(phase, index)
            yield Step(phase, index, clock() - start, values, start)
