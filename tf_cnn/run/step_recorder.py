"""Records the steps of a run, the time between them, and its evaluations."""

import array
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tf_cnn.cluster.worker import Worker
from tf_cnn.plan.plan import Plan
from tf_cnn.results.sections import Phase
from tf_cnn.results.statistics import Rate, summarize
from tf_cnn.results.steps import Accuracy, PauseCause, PauseSeconds, Step, StepLog, StepValues
from tf_cnn.run.result_builder import run_section
from tf_cnn.run.step_loop import Hook
from tf_cnn.system.errors import RunError


class StepRecorder(Hook[StepValues]):
    """Records what happens in a run.

    Attributes:
      evaluations: in their order.
      evaluation_seconds: the time of the evaluations since the first timed step.
      timed_start: when the first timed step began, by the clock; 0 before.
    """

    def __init__(self, plan: Plan, clock: Callable[[], float] = time.perf_counter) -> None:
        self.evaluations: list[Accuracy] = []
        self.evaluation_seconds = 0.0
        self.timed_start = 0.0
        self._plan = plan
        self._clock = clock
        self._steps: list[Step[StepValues]] = []
        # The seconds after each step that have a known cause, by the number of the step.
        self._pauses: dict[int, dict[PauseCause, float]] = {}
        self._pause_start = clock()
        # The mean seconds and the number of the timed steps of each session call. Arrays, so that
        # long runs can print the rate often.
        self._seconds, self._num_steps = array.array('d'), array.array('q')
        self._num_skipped_at_end: int | None = None
        self._cluster_total: tuple[int, float] | None = None

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        self._steps += steps
        if steps[0].phase is Phase.TIMED:
            self._seconds.append(steps[0].seconds)
            self._num_steps.append(len(steps))
            if steps[0].index == 1:
                self.timed_start = steps[0].start
        return False

    def rate(self) -> Rate:
        """Returns the rate over the timed steps so far, see --display_perf_ewma."""
        # Copies, since an array cannot grow while a view of it exists.
        return summarize(
            self._plan.images_per_global_step,
            np.array(self._seconds),
            self._plan.params.run.display_perf_ewma,
            np.array(self._num_steps),
        )

    @contextlib.contextmanager
    def pause(self, cause: PauseCause) -> Iterator[None]:
        """Records the seconds of the block as time between two steps, with this cause."""
        self._pause_start = start = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - start
            if self._steps:
                pauses = self._pauses.setdefault(len(self._steps) - 1, {})
                pauses[cause] = pauses.get(cause, 0.0) + seconds
                if cause is PauseCause.EVALUATION and self._steps[-1].phase is Phase.TIMED:
                    self.evaluation_seconds += seconds

    def add_evaluation(self, accuracy: Accuracy) -> None:
        """Records an evaluation. Call it within pause(PauseCause.EVALUATION), for the whole
        evaluation.
        """
        now = self._clock()
        prepare_seconds = max(0.0, now - self._pause_start - accuracy.seconds)
        self.evaluations.append(replace(accuracy, end=now, prepare_seconds=prepare_seconds))

    def record_end(self, num_skipped: int | None, worker: Worker) -> None:
        """Completes the record of a run that has taken all its steps.

        All workers of a cluster take over the images and seconds of one of them, so that they
        print the same rate.

        num_skipped: how many steps the loss scale has skipped since training began, if it can.
        """
        self._num_skipped_at_end = num_skipped
        if worker.cluster:
            log = self.log()
            self._cluster_total = worker.share_total(log.process_images, log.process_wall_seconds)

    def check_total(self) -> None:
        """Raises RunError if workers of a cluster took steps and timed none, for a total."""
        if self._steps and self._cluster_total and not self._cluster_total[0]:
            flags = self._plan.params.run
            raise RunError(
                f'no worker timed a step: the --num_warmup_batches={flags.num_warmup_batches} of '
                'each took until the steps of all workers were over; use a larger --num_batches'
            )

    @property
    def num_skipped(self) -> int:
        """Returns how many steps of this run the loss scale skipped; the last step of a run that
        was interrupted may be missing.
        """
        if not self._steps or (at_start := self._steps[0].values.num_skipped) is None:
            return 0
        return (self._num_skipped_at_end or self._steps[-1].values.num_skipped or 0) - at_start

    def describe_last_step(self, global_step: int) -> str:
        """Describes the last step, as the step lines count it and as checkpoints do."""
        if not self._steps:
            return f'global step {global_step}'
        last = self._steps[-1]
        phase = 'warm-up step' if last.phase is Phase.WARMUP else 'step'
        return f'{phase} {last.index} (global step {global_step})'

    def log(self) -> StepLog:
        return StepLog(
            run_section(self._plan, self.num_skipped),
            tuple(self._steps),
            tuple(self._seconds_between()),
            self._plan.cluster_role.num_training_tasks,
            self._cluster_total,
        )

    def _seconds_between(self) -> Iterator[PauseSeconds]:
        """Yields the seconds after each step, by cause; PauseCause.OTHER has the remaining time."""
        for number, (step, following) in enumerate(
            itertools.zip_longest(self._steps, self._steps[1:])
        ):
            pauses = self._pauses.get(number, {})
            if following is None:
                yield pauses
            else:
                other = following.start - step.end - sum(pauses.values())
                yield {**pauses, PauseCause.OTHER: max(0.0, other)}
