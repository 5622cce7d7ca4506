"""Plans the computation of a step."""

import functools
import math
from dataclasses import dataclass, replace

from models.model_spec import ModelSpec, Network, RateSchedule
from models.network_check import check_network
from models.zoo import RESNET_CIFAR_SCHEDULE, RESNET_SCHEDULE
from tf_cnn.planning.plan import ClusterRole, Counts, Data, Machine, Workload
from tf_cnn.run.params import Params
from tf_cnn.training.precision import DEFAULT_FP16_SCALE, FP32, Precision
from tf_cnn.training.schedules import LearningRate, epochs_to_whole_steps, parse_piecewise

# The factor of RateSchedule.decay_epochs.
_DEFAULT_DECAY = 0.1


@dataclass(frozen=True)
class StepConfig:
    """The settings of a step; most names are names of flags."""

    network: Network
    num_classes: int
    data_format: str
    forward_only: bool
    with_accuracy: bool
    loss_type_to_report: str
    weight_decay: float
    gradient_clip: float | None
    learning_rate: LearningRate
    seed: int
    first_tower: int = 0  # index of this process's first tower among the towers of all processes
    precision: Precision = FP32
    single_l2_loss_op: bool = False
    label_smoothing: float = 0.0
    deterministic: bool = False  # whether ops must repeat their results, so none may read the clock
    freezes: bool = False  # whether constants replace the variables of the network
    exchange_only: bool = False
    exchange_bytes: int | None = (
        None  # size of the exchanged tensor; None: exchange the network's gradients
    )


def describe_step(
    params: Params,
    cluster_role: ClusterRole,
    workload: Workload,
    data: Data,
    machine: Machine,
    counts: Counts,
) -> StepConfig:
    model, precision = workload.model, _find_precision(params)
    if not model.network.is_builtin:
        _check_builds(params, model, data, machine, counts, precision)
    return StepConfig(
        network=model.network,
        num_classes=data.data_set.num_classes,
        data_format=machine.data_format,
        forward_only=params.run.forward_only,
        with_accuracy=params.run.forward_only
        or (params.run.print_training_accuracy and not params.run.exchange_only),
        loss_type_to_report=params.run.loss_type_to_report,
        weight_decay=params.optimizer.weight_decay,
        single_l2_loss_op=params.optimizer.single_l2_loss_op,
        label_smoothing=params.optimizer.label_smoothing,
        deterministic=params.run.deterministic,
        gradient_clip=params.optimizer.gradient_clip,
        learning_rate=_make_learning_rate(params, model, data, counts),
        seed=params.run.tf_random_seed,
        first_tower=cluster_role.index * len(machine.towers),
        precision=precision,
        freezes=params.run.forward_only and params.run.freeze_when_forward_only,
        exchange_only=params.run.exchange_only,
        exchange_bytes=params.run.exchange_bytes if params.run.exchange_only else None,
    )


def _check_builds(
    params: Params,
    model: ModelSpec,
    data: Data,
    machine: Machine,
    counts: Counts,
    precision: Precision,
) -> None:
    """Builds the network of a user's model for each use in the run: steps, evaluations, export."""
    check = functools.partial(
        check_network, model.network, model.name, data.image_shape, data.data_set.num_classes
    )
    if not params.evaluation.eval:
        check(
            machine.data_format,
            precision.compute_dtype,
            batch_size=counts.batch_size,
            trains=params.trains,
        )
    if params.evaluates:
        batch_size = params.evaluation.eval_batch_size or counts.batch_size
        check(machine.data_format, precision.compute_dtype, batch_size=batch_size, trains=False)
    if params.checkpoints.export_saved_model:
        check('NHWC', FP32.compute_dtype, batch_size=None, trains=False)


def _find_precision(params: Params) -> Precision:
    if params.precision.precision != 'fp16' or not params.trains or params.run.exchange_only:
        return Precision(params.precision.precision, params.precision.fp16_vars)
    return Precision(
        'fp16',
        params.precision.fp16_vars,
        params.precision.fp16_loss_scale or DEFAULT_FP16_SCALE,
        params.precision.fp16_inc_loss_scale_every_n
        if params.precision.fp16_enable_auto_loss_scale
        else None,
    )


def _make_learning_rate(
    params: Params, model: ModelSpec, data: Data, counts: Counts
) -> LearningRate:
    """Returns the learning rate of the flags; without such flags, the model's schedule."""
    num_examples = data.data_set.num_train_examples
    steps = functools.partial(
        epochs_to_whole_steps,
        num_examples=num_examples,
        images_per_step=counts.images_per_global_step,
    )
    warmup_epochs = params.optimizer.num_learning_rate_warmup_epochs
    if params.optimizer.piecewise_learning_rate_schedule is not None:
        rates, epochs = parse_piecewise(params.optimizer.piecewise_learning_rate_schedule)
        return LearningRate(rates, tuple(map(steps, epochs)), warmup_steps=steps(warmup_epochs))
    schedule, first = model.schedule, model.learning_rate
    if model.is_residual and params.optimizer.resnet_base_lr is not None:
        schedule, first = (
            _resnet_schedule(model, data.data_set.name),
            params.optimizer.resnet_base_lr,
        )
    if schedule.reference_batch_size:
        images = (
            counts.images_per_global_step
            if params.variables.mode.shares_model
            else counts.batch_size
        )
        first *= images / schedule.reference_batch_size
    if params.optimizer.init_learning_rate is not None or params.optimizer.num_epochs_per_decay:
        return LearningRate(
            (
                first
                if params.optimizer.init_learning_rate is None
                else params.optimizer.init_learning_rate,
            ),
            decay_steps=max(1, steps(params.optimizer.num_epochs_per_decay))
            if params.optimizer.num_epochs_per_decay
            else 0,
            decay_factor=params.optimizer.learning_rate_decay_factor,
            minimum=params.optimizer.minimum_learning_rate,
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
