"""Steps, evaluations, and the sections of a result that follow from them. Does not import
TensorFlow.
"""

import enum
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tf_cnn.results.sections import (
    EvaluationRow,
    Phase,
    RunSection,
    StepsSection,
    ThroughputSection,
)
from tf_cnn.results.statistics import summarize, throughput

Values = TypeVar('Values')


# Steps and their values are not frozen, since each step makes them, and a frozen object takes three
# times as long.
@dataclass
class Step(Generic[Values]):
    """One completed step.

    Attributes:
      index: its number within the phase, from 1.
      seconds: the wall seconds of the step, without pauses.
      start: when it began, in seconds of the clock that measured it.
    """

    phase: Phase
    index: int
    seconds: float
    values: Values
    start: float = 0.0

    @property
    def end(self) -> float:
        """The end of the step, by the same clock."""
        return self.start + self.seconds


@dataclass
class StepValues:
    """The results of a step.

    Attributes:
      loss: the loss of --loss_type_to_report.
      top_1: the fraction of images with their label as the best guess.
      top_5: the fraction of images with their label among the best five guesses.
      learning_rate: the learning rate of its update.
      input_wait: the seconds at the end of the step when only the input pipeline was working, or
        before the step when Python prepared its feed; None for images that stay on the device.
      steps_before: the global step before it, including the steps of other workers.
      steps_after: the global step after it, including the steps of other workers.
      num_skipped: how many steps the loss scale had skipped before it; None if it never does.
    """

    loss: float
    top_1: float | None = None
    top_5: float | None = None
    learning_rate: float | None = None
    input_wait: float | None = None
    steps_before: int = 0
    steps_after: int = 0
    num_skipped: int | None = None


class PauseCause(enum.Enum):
    """The activities of a process between two steps. The time of EVALUATION does not count in the
    total.
    """

    PRINTING = 'printing'
    SUMMARY = 'summary'
    CHECKPOINT = 'checkpoint'
    EVALUATION = 'evaluation'
    OTHER = 'other'


# The seconds between the end of one step and the start of the next, by cause. Causes that took no
# time may be missing.
PauseSeconds = Mapping[PauseCause, float]


@dataclass(frozen=True)
class Accuracy:
    """The result of an evaluation, over all workers. Without images its accuracies are nan.

    Attributes:
      step: the number of steps that trained the model.
      num_images: the number of evaluated images.
      num_top_1: how many images had their label as the best guess.
      num_top_5: how many images had their label among the best five guesses.
      seconds: wall seconds from the first batch to the last.
      prepare_seconds: the time to prepare it; None if it was not part of a run.
      end: when all workers knew its result, by the clock of the steps; None if it was not part of a
        run.
    """

    step: int
    num_images: int
    num_top_1: int
    num_top_5: int
    seconds: float
    prepare_seconds: float | None = None
    end: float | None = None

    @property
    def top_1(self) -> float:
        return self.num_top_1 / self.num_images if self.num_images else math.nan

    @property
    def top_5(self) -> float:
        return self.num_top_5 / self.num_images if self.num_images else math.nan

    @property
    def images_per_second(self) -> float:
        return throughput(self.num_images, self.seconds)

    def as_row(self, unix_at_zero: float) -> EvaluationRow:
        """Returns the evaluation as a row of a document.

        Args:
          unix_at_zero: the Unix time when the clock of the steps was at 0.
        """
        return EvaluationRow(
            step=self.step,
            num_images=self.num_images,
            top_1=self.top_1,
            top_5=self.top_5,
            seconds=self.seconds,
            prepare_seconds=self.prepare_seconds,
            end=None if self.end is None else unix_at_zero + self.end,
            images_per_second=self.images_per_second,
        )


@dataclass(frozen=True)
class StepLog:
    """The steps of a process, and the sections of a result that follow from them.

    Attributes:
      run: the resolved flags.
      steps: all steps in order, including warm-up.
      between: for each step, the seconds between its end and the next step, by cause.
      num_workers: the number of processes that took steps.
      cluster_total: the images of all workers, and the seconds from the start of the chief's first
        timed step to the end of its last; of another worker if the chief is lost or timed no step;
        None for a run of one process.
    """

    run: RunSection
    steps: tuple[Step[StepValues], ...]
    between: tuple[PauseSeconds, ...] = ()
    num_workers: int = 1
    cluster_total: tuple[int, float] | None = None

    @functools.cached_property
    def timed_steps(self) -> tuple[Step[StepValues], ...]:
        """The timed steps, without the warm-up."""
        return tuple(step for step in self.steps if step.phase is Phase.TIMED)

    @property
    def between_seconds(self) -> dict[PauseCause, float]:
        """The seconds between the timed steps of this process, by cause."""
        totals: dict[PauseCause, float] = {}
        timed = self.timed_steps
        for gap in (
            self.between[len(self.steps) - len(timed) : len(self.steps) - 1] if timed else ()
        ):
            for cause, seconds in gap.items():
                totals[cause] = totals.get(cause, 0.0) + seconds
        return totals

    @property
    def process_wall_seconds(self) -> float:
        """Seconds from the start of this process's first timed step to the end of its last, by its
        own clock.

        Excludes evaluations during which all workers wait; in asynchronous modes the others go on
        training.
        """
        if not (timed := self.timed_steps):
            return 0.0
        waited = (
            self.between_seconds.get(PauseCause.EVALUATION, 0.0)
            if self.run.has_synchronous_workers
            else 0.0
        )
        return timed[-1].end - timed[0].start - waited

    @property
    def process_images(self) -> int:
        """Images of the global steps between the start of this process's first timed step and the
        end of its last.
        """
        timed = self.timed_steps
        if self.num_workers == 1 or not timed:
            return self.run.images_per_step * len(timed)
        return self.run.images_per_step * (
            timed[-1].values.steps_after - timed[0].values.steps_before
        )

    @functools.cached_property
    def throughput(self) -> ThroughputSection:
        """The throughput and its spread: the images of all workers over the chief's wall
        seconds.
        """
        images, wall_seconds = self.cluster_total or (
            self.process_images,
            self.process_wall_seconds,
        )
        rate = throughput(images, wall_seconds)
        seconds = [step.seconds for step in self.timed_steps]
        of_steps = summarize(self.run.images_per_step, seconds) if seconds else None
        return ThroughputSection(
            images_per_second=rate,
            images_per_second_of_steps=throughput(images, math.fsum(seconds)),
            images=images,
            wall_seconds=wall_seconds,
            step_seconds=math.fsum(seconds),
            between_seconds={cause.value: pause for cause, pause in self.between_seconds.items()},
            standard_error=of_steps.standard_error if of_steps else None,
            jitter=of_steps.jitter if of_steps else None,
            images_per_second_per_device=rate / (len(self.run.devices) * self.num_workers),
        )

    def steps_section(self, unix_at_zero: float = 0.0) -> StepsSection:
        """Returns the steps as a section of a document.

        Args:
          unix_at_zero: the Unix time when the clock of the steps was at 0.
        """
        # Another thread may have ended the run while a step was stored.
        steps, between = self.steps, self.between[: len(self.steps)]

        def values(name: str) -> list[float | None] | None:
            column = [getattr(step.values, name) for step in steps]
            return None if all(value is None for value in column) else column

        return StepsSection(
            phase=[step.phase for step in steps],
            index=[step.index for step in steps],
            global_step=[step.values.steps_after for step in steps],
            start=[unix_at_zero + step.start for step in steps],
            seconds=[step.seconds for step in steps],
            loss=[step.values.loss for step in steps],
            top_1=values('top_1'),
            top_5=values('top_5'),
            learning_rate=values('learning_rate'),
            input_wait=values('input_wait'),
            between={
                cause.value: [gap.get(cause, 0.0) for gap in between]
                for cause in PauseCause
                if any(gap.get(cause) for gap in between)
            },
        )
