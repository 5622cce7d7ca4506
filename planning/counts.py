"""Plans how much a run does: batch sizes, numbers of steps, evaluations, input stages. Does not import TensorFlow."""

import math
from fractions import Fraction

from errors import UsageError, spelled
from inputs.catalog import input_for
from inputs.data_sets import DataSet
from inputs.stages import stages_up_to
from models.model_facts import ModelFacts
from params import Params
from params.spec import numbers_of
from planning.plan import Counts, Data, Evaluations, Processes
from run.schedule import EvalSchedule
from training.schedules import steps_of

# The default number of timed steps.
_NUM_BATCHES = 100
# With --target_seconds, more steps than there will be.
_MOST_BATCHES = 2**31 - 1


def count_steps(params: Params, model: ModelFacts, data: Data, processes: Processes, num_towers: int) -> Counts:
    """The batch sizes and numbers of steps."""
    batch_size = params.batch_size or model.batch_size
    own = batch_size * num_towers
    global_batch_size = own * processes.num_trainers
    # An epoch is one pass over the images that this run reads; for synthetic images, as many as training images.
    source = data.validation if params.eval else data.images
    validates = source is not None and source.subset == 'validation'
    num_examples = data.data_set.num_validation_examples if validates else data.data_set.num_train_examples
    if params.num_epochs is not None:
        num_timed = math.ceil(steps_of(params.num_epochs, num_examples, global_batch_size))
    elif params.target_seconds is not None and not params.eval:
        num_timed = _MOST_BATCHES
    else:
        num_timed = _NUM_BATCHES if params.num_batches is None else params.num_batches
    return Counts(
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        images_of_step=global_batch_size if processes.together else own,
        num_warmup=params.num_warmup_batches,
        num_timed=num_timed,
        num_epochs=num_timed * global_batch_size / (num_examples or math.inf),
        display_every=params.display_every,
        newest_weight=params.display_perf_ewma,
        target_secs=None if params.eval else params.target_seconds,
        steps_per_run=params.steps_per_run,
    )


def find_evaluations(params: Params, data: Data, counts: Counts, processes: Processes, num_towers: int) -> Evaluations:
    """Which images are evaluated, and when."""
    batch_size = params.eval_batch_size or counts.batch_size
    # Without synchronous steps the chief evaluates alone.
    num_processes = processes.num_trainers if processes.together else 1
    images_of_batch = batch_size * num_towers * num_processes
    num_batches = num_examples = None
    if data.validation is None:
        num_batches = params.num_eval_batches or (_NUM_BATCHES if counts.target_secs else counts.num_timed)
    elif params.num_eval_batches is not None:
        num_examples = params.num_eval_batches * images_of_batch
    shown_batches = num_batches or params.num_eval_batches
    known = data.data_set.num_validation_examples if data.validation is not None else data.data_set.num_train_examples
    return Evaluations(
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


def find_input_stages(params: Params, data: Data, warnings: list[str]) -> tuple[str, ...]:
    """The stages of the input pipeline that --input_only measures. Appends to the warnings.

    Raises:
      UsageError: the pipeline has no stage as early as that.
    """
    if params.input_only is None:
        return ()
    row = input_for(data.images, data.pipeline)
    if found := stages_up_to(params.input_only, row.stages):
        if found[-1] != params.input_only:
            written = spelled('input_only', params.input_only)
            warnings.append(f'{written}: the input pipeline {row.name} has no such stage; it runs up to {found[-1]}')
        return found
    raise UsageError(
        f'{spelled("input_only", params.input_only)}: the stages of the input pipeline {row.name} begin with '
        f'{row.stages[0]}; write --input_only={row.stages[0]}'
    )


def _eval_schedule(params: Params, data_set: DataSet, images_of_step: int) -> EvalSchedule:
    per_epoch = Fraction(data_set.num_train_examples, images_of_step)
    if params.eval_during_training_every_n_steps is not None:
        return EvalSchedule(every=Fraction(params.eval_during_training_every_n_steps))
    if params.eval_during_training_every_n_epochs is not None:
        return EvalSchedule(every=Fraction(str(params.eval_during_training_every_n_epochs)) * per_epoch)
    epochs = numbers_of(params.eval_during_training_at_specified_epochs, float)
    steps = numbers_of(params.eval_during_training_at_specified_steps, int)
    return EvalSchedule(at=frozenset([*steps, *(math.ceil(Fraction(str(epoch)) * per_epoch) for epoch in epochs)]))
