"""The learning rate of a run: of its flags, or of its model."""

import functools
import math
from dataclasses import replace

from models.model_spec import RESNET_CIFAR_SCHEDULE, RESNET_SCHEDULE, ModelSpec, RateSchedule
from tf_cnn.plan.params import Params
from tf_cnn.plan.workload import Context
from tf_cnn.training.schedules import LearningRate, epochs_to_whole_steps, parse_piecewise

# The factor of RateSchedule.decay_epochs.
_DEFAULT_DECAY = 0.1


def make_learning_rate(params: Params, context: Context) -> LearningRate:
    """Returns the learning rate of the flags; without such flags, the model's schedule."""
    model, data_set = context.model, context.data.data_set
    images_per_step = context.images_per_global_step(params)
    steps = functools.partial(
        epochs_to_whole_steps,
        num_examples=data_set.num_train_examples,
        images_per_step=images_per_step,
    )
    flags = params.training
    warmup_epochs = flags.num_learning_rate_warmup_epochs
    if flags.piecewise_learning_rate_schedule is not None:
        rates, epochs = parse_piecewise(flags.piecewise_learning_rate_schedule)
        return LearningRate(rates, tuple(map(steps, epochs)), warmup_steps=steps(warmup_epochs))
    schedule, first = model.schedule, model.learning_rate
    if model.is_residual and flags.resnet_base_lr is not None:
        schedule, first = _resnet_schedule(model, data_set.name), flags.resnet_base_lr
    if schedule.reference_batch_size:
        images = images_per_step
        if not params.variables.mode.shares_model:
            images = params.run.batch_size
        first *= images / schedule.reference_batch_size
    if flags.init_learning_rate is not None or flags.num_epochs_per_decay:
        return LearningRate(
            (first if flags.init_learning_rate is None else flags.init_learning_rate,),
            decay_steps=max(1, steps(flags.num_epochs_per_decay))
            if flags.num_epochs_per_decay
            else 0,
            decay_factor=flags.learning_rate_decay_factor,
            minimum=flags.minimum_learning_rate,
            warmup_steps=steps(warmup_epochs),
        )
    if schedule.rounds_epochs_down:
        boundaries = [math.floor(epochs * steps(1)) for epochs, _ in schedule.factors]
    else:
        boundaries = [steps(epochs) for epochs, _ in schedule.factors]
    return LearningRate(
        (first, *(first * factor for _, factor in schedule.factors)),
        tuple(boundaries),
        decay_steps=max(1, steps(schedule.decay_epochs)) if schedule.decay_epochs else 0,
        decay_factor=_DEFAULT_DECAY,
        warmup_steps=steps(warmup_epochs or schedule.warmup_epochs),
    )


def _resnet_schedule(model: ModelSpec, data_set: str) -> RateSchedule:
    """Returns the schedule of --resnet_base_lr: proportional to the images of an update, with a
    warm-up.
    """
    schedule = model.schedule
    if not schedule.factors:
        # A user's model gets the epochs for its data set.
        schedule = RESNET_CIFAR_SCHEDULE if data_set == 'cifar10' else RESNET_SCHEDULE
    return replace(
        schedule,
        reference_batch_size=RESNET_SCHEDULE.reference_batch_size,
        warmup_epochs=RESNET_SCHEDULE.warmup_epochs,
    )
