"""Plans batch sizes, numbers of steps, and evaluations. Does not import TensorFlow."""

import math
from fractions import Fraction

from tf_cnn.flags.spec import parse_numbers
from tf_cnn.inputs.data_sets import DataSet
from tf_cnn.planning.plan import ClusterRole, Counts, Data, EvalSchedule, Evaluations, Workload
from tf_cnn.run.config import NUM_BATCHES
from tf_cnn.run.params import Params
from tf_cnn.training.schedules import epochs_to_steps

# With --target_seconds: more steps than a run can take.
_MOST_BATCHES = 2**31 - 1


def count_steps(
    params: Params, cluster_role: ClusterRole, workload: Workload, data: Data
) -> Counts:
    # An exchange has no images: each device counts one for a step.
    batch_size = (
        1 if params.run.exchange_only else params.run.batch_size or workload.model.batch_size
    )
    images_of_task = batch_size * cluster_role.num_hosts * params.devices.num_gpus
    global_batch_size = images_of_task * cluster_role.num_training_tasks
    # An epoch is one pass over the images that this run reads; with synthetic images, it has as
    # many images as the data set.
    validates = params.evaluation.eval or (
        data.images is not None and data.images.subset == 'validation'
    )
    num_examples = (
        data.data_set.num_validation_examples if validates else data.data_set.num_train_examples
    )
    if params.run.num_epochs is not None:
        num_timed = math.ceil(
            epochs_to_steps(params.run.num_epochs, num_examples, global_batch_size)
        )
    elif params.results.target_seconds is not None and not params.evaluation.eval:
        num_timed = _MOST_BATCHES
    else:
        num_timed = NUM_BATCHES if params.run.num_batches is None else params.run.num_batches
    return Counts(
        batch_size=batch_size,
        global_batch_size=global_batch_size,
        images_per_global_step=global_batch_size if cluster_role.is_synchronous else images_of_task,
        num_warmup=params.run.num_warmup_batches,
        num_timed=num_timed,
        num_epochs=num_timed * global_batch_size / (num_examples or math.inf),
        display_every=params.run.display_every,
        ewma_weight=params.run.display_perf_ewma,
        target_secs=None if params.evaluation.eval else params.results.target_seconds,
        steps_per_run=params.run.steps_per_run,
    )


def find_evaluations(
    params: Params, cluster_role: ClusterRole, data: Data, counts: Counts
) -> Evaluations | None:
    """Plans evaluations: their images and schedule. None if the run evaluates nothing."""
    if not params.evaluates:
        return None
    batch_size = params.evaluation.eval_batch_size or counts.batch_size
    # Without synchronous steps the chief evaluates alone.
    num_processes = cluster_role.num_training_tasks if cluster_role.is_synchronous else 1
    images_of_batch = batch_size * cluster_role.num_hosts * params.devices.num_gpus * num_processes
    requested_batches, num_passes = (
        params.evaluation.num_eval_batches,
        params.evaluation.num_eval_epochs,
    )
    if params.evaluation.eval and requested_batches is None and num_passes is None:
        requested_batches, num_passes = params.run.num_batches, params.run.num_epochs
    validates = params.evaluation.eval or data.validation is not None
    num_available = (
        data.data_set.num_validation_examples if validates else data.data_set.num_train_examples
    )
    num_batches = num_examples = None
    if data.validation is None:
        if requested_batches is None and num_passes is not None:
            requested_batches = math.ceil(
                epochs_to_steps(num_passes, num_available, images_of_batch)
            )
        num_batches = requested_batches or (
            NUM_BATCHES if params.evaluation.eval or counts.target_secs else counts.num_timed
        )
    elif requested_batches is not None:
        num_examples = requested_batches * images_of_batch
    shown_batches = num_batches or requested_batches
    return Evaluations(
        batch_size=batch_size,
        num_batches=num_batches,
        num_examples=num_examples,
        num_passes=num_passes if num_examples is None and num_batches is None else None,
        banner_batches=shown_batches,
        num_epochs=shown_batches * images_of_batch / (num_available or math.inf)
        if shown_batches
        else num_passes or 1.0,
        schedule=_eval_schedule(params, data.data_set, counts.images_per_global_step),
        goal=params.evaluation.stop_at_top_1_accuracy,
        interval_secs=params.evaluation.eval_interval_secs,
        summary_folder=params.evaluation.eval_dir if cluster_role.is_chief else None,
    )


def _eval_schedule(params: Params, data_set: DataSet, images_of_step: int) -> EvalSchedule:
    per_epoch = Fraction(data_set.num_train_examples, images_of_step)
    if params.evaluation.eval_during_training_every_n_steps is not None:
        return EvalSchedule(every=Fraction(params.evaluation.eval_during_training_every_n_steps))
    if params.evaluation.eval_during_training_every_n_epochs is not None:
        return EvalSchedule(
            every=Fraction(str(params.evaluation.eval_during_training_every_n_epochs)) * per_epoch
        )
    epochs = parse_numbers(params.evaluation.eval_during_training_at_specified_epochs, float)
    steps = parse_numbers(params.evaluation.eval_during_training_at_specified_steps, int)
    return EvalSchedule(
        at=frozenset([*steps, *(math.ceil(Fraction(str(epoch)) * per_epoch) for epoch in epochs)])
    )
