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
            yield Step(phase, index, clock() - start, values)


class Window:
    """The steps of the whole cluster, and the seconds, between the start of this worker's first timed step and the end
    of its last."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start: float | None = None
        self._end = self._skipped = 0.0
        self._first = self._last = 0

    def note(self, seconds: float, steps_before: int, steps_after: int) -> None:
        """To be called after each timed step, with its seconds and the global step before and after it."""
        self._end = self._clock()
        if self._start is None:
            self._start, self._first = self._end - seconds, steps_before
        else:
            self._start += self._skipped
        self._skipped = 0.0
        self._last = steps_after

    def skip(self, seconds: float) -> None:
        """Excludes seconds that were not training, such as an evaluation. They only matter if another step follows."""
        self._skipped += seconds

    @property
    def seconds(self) -> float:
        return self._end - self._start if self._start is not None else 0.0

    @property
    def num_steps(self) -> int:
        return self._last - self._first
