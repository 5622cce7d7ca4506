"""What a run measured: raw values and the numbers derived from them."""

import enum
import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from params import Params
from reporting.statistics import Rate, summarize, throughput

Values = TypeVar('Values')


class Phase(enum.Enum):
    """The phase of a step: WARMUP steps are kept, but do not count in any rate."""

    WARMUP = 'warmup'
    TIMED = 'timed'


@dataclass(frozen=True)
class Step(Generic[Values]):
    """One completed step.

    index counts from 1 within the phase, seconds are the wall seconds of the step alone, values are its results.
    """

    phase: Phase
    index: int
    seconds: float
    values: Values


@dataclass(frozen=True)
class StepValues:
    """The results of a step.

    loss: the loss of --loss_type_to_report. top_1, top_5: the fractions of images whose label is the best guess, or
    among the best five. learning_rate: the rate of its update.
    """

    loss: float
    top_1: float | None = None
    top_5: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class ClusterTotal:
    """The images of all workers from the start of the chief's first timed step to the end of its last.

    If the run ended early, the steps are those of the worker that reports the result.
    """

    images: int
    seconds: float


@dataclass(frozen=True)
class Accuracy:
    """The result of an evaluation, over all workers.

    step: the number of steps for which the model was trained. num_images: the number of evaluated images, of which
    num_top_1 had their label as the best guess, num_top_5 among the best five. seconds: wall seconds of the evaluation.
    """

    step: int
    num_images: int
    num_top_1: int
    num_top_5: int
    seconds: float

    @property
    def top_1(self) -> float:
        """The fraction of images whose label was the best guess; nan if there were no images."""
        return self.num_top_1 / self.num_images if self.num_images else math.nan

    @property
    def top_5(self) -> float:
        """The fraction of images whose label was among the best five guesses; nan if there were no images."""
        return self.num_top_5 / self.num_images if self.num_images else math.nan

    @property
    def images_per_second(self) -> float:
        """Images over wall seconds."""
        return throughput(self.num_images, self.seconds)


@dataclass(frozen=True)
class Result:
    """One run of the benchmark.

    batch_size is per device, with the default of the model in place of 0. devices are those of one worker, one for each
    tower. steps are all steps in order, including warm-up. complete is False if the run ended before its last step.
    takes_steps_together is False for workers of a cluster that do not wait for each other. num_missing_shards is the
    number of shards in their file names minus the number of files. evaluations are those that interrupted training.
    num_skipped_steps counts the steps that changed no variable because gradients overflowed, over all workers.
    """

    params: Params
    model: str
    data_set: str
    is_synthetic: bool
    data_format: str
    batch_size: int
    devices: tuple[str, ...]
    tensorflow_version: str
    steps: tuple[Step[StepValues], ...]
    complete: bool
    num_workers: int = 1
    takes_steps_together: bool = True
    cluster_total: ClusterTotal | None = None
    num_missing_shards: int = 0
    evaluations: tuple[Accuracy, ...] = ()
    precision: str = 'fp32'
    num_skipped_steps: int = 0

    @property
    def global_batch_size(self) -> int:
        """Images of one step, over all towers of all workers."""
        return self.batch_size * len(self.devices) * self.num_workers

    @property
    def _images_of_step(self) -> int:
        """Images of one step of this worker, or of all workers if they take steps together."""
        return self.batch_size * len(self.devices) * (self.num_workers if self.takes_steps_together else 1)

    @property
    def timed_steps(self) -> tuple[Step[StepValues], ...]:
        """The steps of the phase TIMED."""
        return tuple(step for step in self.steps if step.phase is Phase.TIMED)

    @property
    def wall_seconds(self) -> float:
        """The sum of the timed steps' seconds; in a cluster, the time by the clock of its chief."""
        if self.cluster_total:
            return self.cluster_total.seconds
        return math.fsum(step.seconds for step in self.timed_steps)

    @property
    def images(self) -> int:
        """Images of all timed steps, of all workers."""
        if self.cluster_total:
            return self.cluster_total.images
        return self._images_of_step * len(self.timed_steps)

    @property
    def images_per_second(self) -> float:
        """Images over wall seconds of the timed steps; nan if no step was timed."""
        return throughput(self.images, self.wall_seconds)

    @property
    def rate(self) -> Rate:
        """images_per_second with the spread of the timed steps' rates; requires a timed step."""
        return summarize(self._images_of_step, [step.seconds for step in self.timed_steps])
