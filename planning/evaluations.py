"""Plans the evaluations of a run. Does not import TensorFlow."""

import math
from fractions import Fraction

from inputs.data_sets import DataSet
from params import Params
from params.spec import numbers_of
from planning.counts import NUM_BATCHES
from planning.found import Found
from planning.plan import Counts, Data, EvalSchedule, Evaluations, Processes


def find_evaluations(params: Params, processes: Processes, data: Data, counts: Counts) -> Found[Evaluations | None]:
    """Which images are evaluated, and when; None if the run evaluates none."""
    if not params.evaluates:
        return Found(None)
    batch_size = params.eval_batch_size or counts.batch_size
    # Without synchronous steps the chief evaluates alone.
    num_processes = processes.num_trainers if processes.together else 1
    images_of_batch = batch_size * processes.num_hosts * params.num_gpus * num_processes
    num_batches = num_examples = None
    if data.validation is None:
        num_batches = params.num_eval_batches or (NUM_BATCHES if counts.target_secs else counts.num_timed)
    elif params.num_eval_batches is not None:
        num_examples = params.num_eval_batches * images_of_batch
    shown_batches = num_batches or params.num_eval_batches
    known = data.data_set.num_validation_examples if data.validation is not None else data.data_set.num_train_examples
    evaluations = Evaluations(
        batch_size=batch_size,
        num_batches=num_batches,
        num_examples=num_examples,
        num_passes=params.num_eval_epochs if num_examples is None and num_batches is None else None,
        shown_batches=shown_batches,
        num_epochs=shown_batches * images_of_batch / (known or math.inf)
        if shown_batches
        else params.num_eval_epochs or 1.0,
        schedule=_eval_schedule(params, data.data_set, counts.images_of_step),
        goal=params.stop_at_top_1_accuracy,
        interval_secs=params.eval_interval_secs,
        summary_folder=params.eval_dir if processes.is_chief else None,
    )
    return Found(evaluations)


def _eval_schedule(params: Params, data_set: DataSet, images_of_step: int) -> EvalSchedule:
    per_epoch = Fraction(data_set.num_train_examples, images_of_step)
    if params.eval_during_training_every_n_steps is not None:
        return EvalSchedule(every=Fraction(params.eval_during_training_every_n_steps))
    if params.eval_during_training_every_n_epochs is not None:
        return EvalSchedule(every=Fraction(str(params.eval_during_training_every_n_epochs)) * per_epoch)
    epochs = numbers_of(params.eval_during_training_at_specified_epochs, float)
    steps = numbers_of(params.eval_during_training_at_specified_steps, int)
    return EvalSchedule(at=frozenset([*steps, *(math.ceil(Fraction(str(epoch)) * per_epoch) for epoch in epochs)]))
