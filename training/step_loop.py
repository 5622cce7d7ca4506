"""Runs steps and takes their time. Knows neither TensorFlow nor what a step does."""

import enum
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Values = TypeVar('Values')


class Phase(enum.Enum):
    """What a step is for: WARMUP steps are kept, but do not count in any rate."""

    WARMUP = 'warmup'
    TIMED = 'timed'


@dataclass(frozen=True)
class Step(Generic[Values]):
    """One step that was run.

    index counts from 1 within the phase, seconds are the wall seconds of the step alone, values are what it returned.
    """

    phase: Phase
    index: int
    seconds: float
    values: Values


def steps(
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
