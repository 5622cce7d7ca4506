"""Collects and prints what a run measures."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import tensorflow.compat.v1 as tf

from reporting import console as lines
from reporting.console import Console
from reporting.result import Accuracy, Between, Cause, ClusterTotal, Ending, Phase, Result, Step, StepValues
from reporting.statistics import RunningRate
from run.plan import Plan, Role


class Measurement:
    """Collects steps, what lies between them, and evaluations; prints them as they come.

    Args:
      clock: the clock of the steps, in seconds.

    Attributes:
      cluster_total: the images and seconds of all workers, as far as this one knows; None for one process.
      generation: how often this process has joined its cluster.
      num_skipped: how many steps the loss scale skipped.
    """

    def __init__(self, plan: Plan, console: Console, clock: Callable[[], float] = time.perf_counter) -> None:
        self.cluster_total: ClusterTotal | None = None
        self.generation = 1
        self.num_skipped = 0
        self._plan = plan
        self._console = console
        self._clock = clock
        self._steps: list[Step[StepValues]] = []
        self._between: list[dict[Cause, float]] = []
        self._rate = RunningRate()
        self._num_shown = 0
        self._evaluations: list[Accuracy] = []

    # ---- steps ----------------------------------------------------------------------------------------------------

    def add_step(self, step: Step[StepValues]) -> None:
        """Stores a step, as soon as it is done."""
        if self._steps:
            self._close_gap(step.start)
        self._steps.append(replace(step, generation=self.generation))
        self._between.append({})
        if step.phase is Phase.TIMED:
            self._rate.add(step.seconds)

    @contextlib.contextmanager
    def doing(self, cause: Cause) -> Iterator[None]:
        """Counts the seconds of the block as time between two steps, with this cause."""
        start = self._clock()
        try:
            yield
        finally:
            if self._between:
                gap = self._between[-1]
                gap[cause] = gap.get(cause, 0.0) + self._clock() - start

    def _close_gap(self, end: float) -> None:
        """Gives what is left of the time after the last step to the cause OTHER."""
        gap = self._between[-1]
        gap[Cause.OTHER] = max(0.0, end - self._steps[-1].end - sum(gap.values()))

    def name_step(self, global_step: int) -> str:
        """The last step in words, as the step lines count it and as checkpoints do."""
        if not self._steps:
            return f'global step {global_step}'
        last = self._steps[-1]
        phase = 'warm-up step' if last.phase is Phase.WARMUP else 'step'
        return f'{phase} {last.index} (global step {global_step})'

    def show_step(self) -> None:
        """Prints the line of the last step, if one is due."""
        step = self._steps[-1]
        if step.phase is not Phase.TIMED:
            return
        if step.index == 1 or step.index % self._plan.counts.display_every == 0:
            with self.doing(Cause.PRINTING):
                self._print_step(step)

    def _print_step(self, step: Step[StepValues]) -> None:
        if not self._num_shown:
            with_accuracy = step.values.top_1 is not None
            self._console.result(lines.format_step_header(self._plan.losses.name, with_accuracy=with_accuracy))
        self._num_shown = step.index
        rate = self._rate.over(self._plan.counts.images_of_step)
        self._console.result(lines.format_step(step.index, rate, step.values))

    # ---- evaluations ----------------------------------------------------------------------------------------------

    def add_evaluation(self, found: Accuracy) -> None:
        """Stores an evaluation and prints it."""
        self._evaluations.append(found)
        is_asked_for = self._plan.role is Role.EVALUATION
        self._console.result((lines.format_accuracy if is_asked_for else lines.format_interim_accuracy)(found))

    # ---- the end --------------------------------------------------------------------------------------------------

    def conclude(self, ending: Ending) -> Result:
        """Prints the total and warnings about skipped or missing steps, and returns the result."""
        result = self.result(is_complete=ending.is_complete)
        timed = result.timed_steps
        # The line of the last step, where --display_every does not divide their number, or the run ended early.
        if timed and timed[-1].index != self._num_shown:
            self._print_step(timed[-1])
        # In asynchronous modes a worker may still be warming up when the others have taken all timed steps.
        if result.images:
            self._console.result(lines.format_total(result.images_per_second))
        if result.num_skipped_steps:
            self._console.warning(lines.format_skipped(result.num_skipped_steps))
        if not ending.is_complete and self._plan.role is not Role.EVALUATION:
            self._console.warning(lines.format_incomplete(len(timed), self._plan.counts.num_timed))
        return result

    def own_total(self) -> ClusterTotal:
        """The images of all workers in the time of this process's timed steps, by its own clock."""
        result = self.result()
        return ClusterTotal(result.own_images, result.own_wall_seconds)

    def result(self, is_complete: bool = False) -> Result:
        """The result so far."""
        plan = self._plan
        between: tuple[Between, ...] = tuple(self._between)
        return Result(
            params=plan.params,
            model=plan.model.name,
            data_set=plan.data.data_set.name,
            is_synthetic=plan.data.folder is None,
            data_format=plan.machine.data_format,
            batch_size=plan.counts.batch_size,
            devices=plan.machine.towers,
            tensorflow_version=tf.__version__,
            steps=tuple(self._steps),
            between=between,
            num_missing_shards=plan.data.shards.num_missing if plan.data.shards else 0,
            complete=is_complete,
            num_workers=plan.processes.num_trainers,
            takes_steps_together=plan.processes.together,
            cluster_total=self.cluster_total,
            evaluations=tuple(self._evaluations),
            precision=plan.step.precision.name,
            num_skipped_steps=self.num_skipped,
        )
