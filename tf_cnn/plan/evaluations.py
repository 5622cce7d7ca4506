"""How many images a run evaluates, and when. Does not import TensorFlow."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from tf_cnn.flags.spec import parse_numbers
from tf_cnn.plan.config import NUM_BATCHES
from tf_cnn.plan.params import Params
from tf_cnn.plan.workload import Context
from tf_cnn.system.errors import plural
from tf_cnn.training.schedules import epochs_to_steps


@dataclass(frozen=True)
class Evaluations:
    """The images of evaluations, and the global steps after which training waits for one.

    Attributes:
      every: the interval in steps; the first step that reaches a multiple counts.
      at: single steps.
      num_batches: global batches; None: until the last example.
      num_examples: examples that all processes evaluate together.
      num_passes: over the whole set; if num_examples is None too, each example is evaluated once.
      banner_batches: shown in the banner, with num_epochs; None: all batches.
    """

    every: Fraction | None = None
    at: frozenset[int] = frozenset()
    num_batches: int | None = None
    num_examples: int | None = None
    num_passes: float | None = None
    banner_batches: int | None = None
    num_epochs: float = 1.0

    def is_due(self, step: int, last_step: int) -> bool:
        """Whether an evaluation became due after `last_step`, and up to `step`."""
        if self.every is not None:
            return step // self.every > last_step // self.every
        return any(last_step < at <= step for at in self.at)

    def warning(self, start: int, end: int) -> str | None:
        """Returns a warning if training from step `start` to `end` misses evaluations."""
        if late := [str(at) for at in sorted(self.at) if at > end]:
            return (
                f'training ends after {plural(end, "step")}: there is no evaluation after '
                f'{", ".join(late)}'
            )
        if self.every is not None and not self.is_due(end, start):
            return (
                f'training goes from step {start} to {end}: there is no evaluation, the next one '
                f'is due after {math.ceil((end // self.every + 1) * self.every)}'
            )
        return None


def find_evaluations(params: Params, context: Context) -> Evaluations | None:
    """Returns the images and schedule of evaluations; None if the run evaluates nothing.

    params: with a resolved batch size.
    """
    if not params.evaluates:
        return None
    role, evaluation, data = context.cluster_role, params.evaluation, context.data
    # Without synchronous steps the chief evaluates alone.
    num_processes = role.num_training_tasks if role.is_synchronous else 1
    images_of_batch = evaluation.eval_batch_size * context.num_towers(params) * num_processes
    requested_batches, num_passes = evaluation.num_eval_batches, evaluation.num_eval_epochs
    if evaluation.eval and requested_batches is None and num_passes is None:
        requested_batches, num_passes = params.run.num_batches, params.run.num_epochs
    subset = 'validation' if evaluation.eval or data.validation else 'train'
    num_available = data.data_set.num_examples(subset)
    num_batches = num_examples = None
    if data.validation is None:
        if requested_batches is None and num_passes is not None:
            requested_batches = math.ceil(
                epochs_to_steps(num_passes, num_available, images_of_batch)
            )
        num_batches = requested_batches or params.run.num_batches or NUM_BATCHES
    elif requested_batches is not None:
        num_examples = requested_batches * images_of_batch
    shown_batches = num_batches or requested_batches
    return replace(
        _schedule(params, context),
        num_batches=num_batches,
        num_examples=num_examples,
        num_passes=num_passes if num_examples is None and num_batches is None else None,
        banner_batches=shown_batches,
        num_epochs=shown_batches * images_of_batch / (num_available or math.inf)
        if shown_batches
        else num_passes or 1.0,
    )


def _schedule(params: Params, context: Context) -> Evaluations:
    evaluation = params.evaluation
    per_epoch = Fraction(
        context.data.data_set.num_train_examples, context.images_per_global_step(params)
    )
    if evaluation.eval_during_training_every_n_steps is not None:
        return Evaluations(every=Fraction(evaluation.eval_during_training_every_n_steps))
    if evaluation.eval_during_training_every_n_epochs is not None:
        return Evaluations(
            every=Fraction(str(evaluation.eval_during_training_every_n_epochs)) * per_epoch
        )
    epochs = parse_numbers(evaluation.eval_during_training_at_specified_epochs, float)
    steps = parse_numbers(evaluation.eval_during_training_at_specified_steps, int)
    return Evaluations(
        at=frozenset([*steps, *(math.ceil(Fraction(str(epoch)) * per_epoch) for epoch in epochs)])
    )
