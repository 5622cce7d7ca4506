"""What a run measured: raw values, from which everything else is derived."""

import math
from dataclasses import dataclass

from params import Params
from reporting.statistics import Rate, summarize, throughput
from training.step_loop import Phase, Step


@dataclass(frozen=True)
class StepValues:
    """What a step computed: the loss, and the fractions of images whose label is the best or among the best five.

    learning_rate is that of its update.
    """

    loss: float
    top_1: float | None = None
    top_5: float | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class ClusterTotal:
    """The images of all workers between the start of the chief's first timed step and the end of its last.

    Where the run ended early, between those of the worker whose result it is.
    """

    images: int
    seconds: float


@dataclass(frozen=True)
class Accuracy:
    """What an evaluation found, over all workers.

    step: the steps that the model was trained for. num_images: those looked at, of which num_top_1 had their label as
    the best guess, num_top_5 among the best five. seconds: wall seconds that took.
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

    batch_size is per device and as used, not 0. devices are those of one worker, one tower each. steps are all steps in
    their order, warm-ups included. complete is False if the run ended before its last step.
    takes_steps_together is False for workers of a cluster that do not wait for each other.
    num_missing_shards counts those that the names of the others promise and that were not there. evaluations are those
    for which training waited. num_skipped_steps are those whose gradients overflowed, so that they changed no variable;
    in a cluster whoever took them.
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
        """Images of one step over all towers of all workers."""
        return self.batch_size * len(self.devices) * self.num_workers

    @property
    def _images_of_step(self) -> int:
        """Images of one step of this worker; those of all workers if they take it together."""
        return self.batch_size * len(self.devices) * (self.num_workers if self.takes_steps_together else 1)

    @property
    def timed_steps(self) -> tuple[Step[StepValues], ...]:
        """The steps that count."""
        return tuple(step for step in self.steps if step.phase is Phase.TIMED)

    @property
    def wall_seconds(self) -> float:
        """The sum of the timed steps' seconds; of a cluster, what its chief measured by one clock."""
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
        """images_per_second with the spread of the timed steps' rates; there must be a timed step."""
        return summarize(self._images_of_step, [step.seconds for step in self.timed_steps])
