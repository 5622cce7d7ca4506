"""Collects and prints what a run measures."""

import tensorflow.compat.v1 as tf

from reporting import console as lines
from reporting.console import Console
from reporting.result import Accuracy, ClusterTotal, Phase, Result, Step, StepValues
from run.plan import Plan, Role


class Measurement:
    """Collects steps and evaluations, and prints them as they come.

    Attributes:
      cluster_total: the images and seconds of all workers, as far as this one knows; None for one process.
      num_skipped: how many steps the loss scale skipped.
    """

    def __init__(self, plan: Plan, console: Console) -> None:
        self.cluster_total: ClusterTotal | None = None
        self.num_skipped = 0
        self._plan = plan
        self._console = console
        self._steps: list[Step[StepValues]] = []
        self._evaluations: list[Accuracy] = []

    def add_step(self, step: Step[StepValues]) -> None:
        """Stores a step, and prints its line if one is due."""
        self._steps.append(step)
        if step.phase is not Phase.TIMED:
            return
        if step.index == 1:
            with_accuracy = step.values.top_1 is not None
            self._console.result(lines.format_step_header(self._plan.losses.name, with_accuracy=with_accuracy))
        if step.index == 1 or step.index % self._plan.counts.display_every == 0:
            self._console.result(lines.format_step(step.index, self.result().rate, step.values))

    def add_evaluation(self, found: Accuracy) -> None:
        """Stores an evaluation and prints it."""
        self._evaluations.append(found)
        self._console.result(lines.format_accuracy(found))

    def conclude(self, is_complete: bool) -> Result:
        """Prints the total and warnings about skipped or missing steps, and returns the result."""
        result = self.result(is_complete)
        # In asynchronous modes a worker may still be warming up when the others have taken all timed steps.
        if result.images:
            self._console.result(lines.format_total(result.images_per_second))
        if result.num_skipped_steps:
            self._console.warning(lines.format_skipped(result.num_skipped_steps))
        if not is_complete and self._plan.role is not Role.EVALUATION:
            self._console.warning(lines.format_incomplete(len(result.timed_steps), self._plan.counts.num_timed))
        return result

    def result(self, is_complete: bool = False) -> Result:
        """The result so far."""
        plan = self._plan
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
            num_missing_shards=plan.data.shards.num_missing if plan.data.shards else 0,
            complete=is_complete,
            num_workers=plan.processes.num_trainers,
            takes_steps_together=plan.processes.together,
            cluster_total=self.cluster_total,
            evaluations=tuple(self._evaluations),
            precision=plan.step.precision.name,
            num_skipped_steps=self.num_skipped,
        )
