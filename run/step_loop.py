"""Runs steps and measures their seconds. Knows neither TensorFlow nor what a step does."""

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

    What the consumer does with a step (printing, summaries, traces) lies between two steps, outside their seconds.

    Args:
      run_step: gets the phase and the index within the phase (from 1); returns when the step is done.
      clock: seconds since any fixed moment.
      is_over: asked before each timed step whether there are enough already.
    """
    for phase, count in ((Phase.WARMUP, num_warmup), (Phase.TIMED, num_batches)):
        for index in range(1, count + 1):
            if phase is Phase.TIMED and is_over():
                return
            start = clock()
            values = run_step(phase, index)
            yield Step(phase, index, clock() - start, values)


class Window:
    """What a cluster did between the start of this worker's first timed step and the end of its last, by one clock."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start: float | None = None
        self._end = self._skipped = 0.0
        self._first = self._last = 0

    def note(self, seconds: float, steps_before: int, steps_after: int) -> None:
        """After each timed step: its seconds, and the steps of the cluster before and after it."""
        self._end = self._clock()
        if self._start is None:
            self._start, self._first = self._end - seconds, steps_before
        else:
            self._start += self._skipped
        self._skipped = 0.0
        self._last = steps_after

    def skip(self, seconds: float) -> None:
        """After what is no part of training, such as an evaluation, and took so many seconds. It lies within the window
        once another step follows."""
        self._skipped += seconds

    @property
    def seconds(self) -> float:
        return self._end - self._start if self._start is not None else 0.0

    @property
    def num_steps(self) -> int:
        return self._last - self._first
