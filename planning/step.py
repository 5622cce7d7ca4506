"""Plans a step: what it computes, how gradients are summed, and the optimizer."""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tensorflow.compat.v1 as tf

from hardware.processors import processor_facts
from models.model_facts import ModelFacts, RateSchedule
from models.network_check import check_network
from models.zoo import RESNET_CIFAR_SCHEDULE, RESNET_SCHEDULE
from params import Params
from params.all_reduce_spec import NCCL_TRANSFER_DTYPES, parse_spec
from params.modes import Mode, Place
from params.optimizer_table import OPTIMIZERS
from params.variable_flags import sums_by_halves
from planning.machine import Machine
from planning.plan import Counts, Data, OptimizerFacts, Processes, VariableFacts
from run.step_graph import StepSettings
from training.kernel_gradients import have_faster_products
from training.precision import DEFAULT_FP16_SCALE, Precision
from training.schedules import LearningRate, parse_piecewise, whole_steps_of

# The factor of RateSchedule.decay_epochs.
_DEFAULT_DECAY = 0.1

# See _leaders_of_halves.
_LINKS_OF_GCP = ((0, 5), (2, 7))


def describe_step(
    params: Params,
    mode: Mode,
    model: ModelFacts,
    data: Data,
    machine: Machine,
    counts: Counts,
    processes: Processes,
) -> StepSettings:
    """What a step computes.

    Raises:
      UsageError: the network of a user's model cannot be built or trained.
    """
    precision = _find_precision(params)
    if not model.network.is_builtin:
        # Every way in which the run builds the network: steps, evaluations, export.
        builds: list[tuple[str, tf.DType, int | None, bool]] = []
        if not params.eval:
            builds.append((machine.data_format, precision.compute, counts.batch_size, params.trains))
        if params.evaluates:
            builds.append((machine.data_format, precision.compute, params.eval_batch_size or counts.batch_size, False))
        if params.export_saved_model:
            builds.append(('NHWC', Precision().compute, None, False))
        for data_format, dtype, batch_size, is_training in builds:
            check_network(
                model.network,
                model.name,
                data.image_shape,
                data.data_set.num_classes,
                data_format,
                dtype,
                batch_size=batch_size,
                trains=is_training,
            )
    return StepSettings(
        network=model.network,
        num_classes=data.data_set.num_classes,
        data_format=machine.data_format,
        forward_only=params.forward_only,
        with_accuracy=params.forward_only or params.print_training_accuracy,
        loss_type_to_report=params.loss_type_to_report,
        weight_decay=params.weight_decay,
        single_l2_loss_op=params.single_l2_loss_op,
        label_smoothing=params.label_smoothing,
        deterministic=params.deterministic,
        gradient_clip=params.gradient_clip,
        learning_rate=_make_learning_rate(params, mode, model, data, counts),
        seed=params.tf_random_seed,
        first_tower=processes.index * len(machine.towers),
        precision=precision,
        kernels_by_products=_prefers_products(params, machine, precision),
    )


def _prefers_products(params: Params, machine: Machine, precision: Precision) -> bool:
    """Whether the towers are on CPUs where products of matrices can be faster than oneDNN's gradients of kernels."""
    if not params.trains or machine.kind != 'cpu' or not machine.is_here or params.xla:
        return False
    return have_faster_products(processor_facts(Path('/'))['cpu_features'], precision.compute)


def _find_precision(params: Params) -> Precision:
    if params.precision != 'fp16' or not params.trains:
        return Precision(params.precision, params.fp16_vars)
    return Precision(
        'fp16',
        params.fp16_vars,
        params.fp16_loss_scale or DEFAULT_FP16_SCALE,
        params.fp16_inc_loss_scale_every_n if params.fp16_enable_auto_loss_scale else None,
    )


def _make_learning_rate(params: Params, mode: Mode, model: ModelFacts, data: Data, counts: Counts) -> LearningRate:
    """What the flags say, or without any of them the model's own schedule."""
    num_examples = data.data_set.num_train_examples
    steps = functools.partial(whole_steps_of, num_examples=num_examples, images_per_step=counts.images_of_step)
    warmup_epochs = params.num_learning_rate_warmup_epochs
    if params.piecewise_learning_rate_schedule is not None:
        rates, epochs = parse_piecewise(params.piecewise_learning_rate_schedule)
        return LearningRate(rates, tuple(map(steps, epochs)), warmup_steps=steps(warmup_epochs))
    schedule, first = model.schedule, model.learning_rate
    if model.residual and params.resnet_base_lr is not None:
        schedule, first = _resnet_schedule(model, data.data_set.name), params.resnet_base_lr
    if schedule.per_images:
        first *= (counts.images_of_step if mode.shares_model else counts.batch_size) / schedule.per_images
    if params.init_learning_rate is not None or params.num_epochs_per_decay:
        return LearningRate(
            (first if params.init_learning_rate is None else params.init_learning_rate,),
            decay_steps=max(1, steps(params.num_epochs_per_decay)) if params.num_epochs_per_decay else 0,
            decay_factor=params.learning_rate_decay_factor,
            minimum=params.minimum_learning_rate,
            warmup_steps=steps(warmup_epochs),
        )
    if schedule.whole_steps:
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


def _resnet_schedule(model: ModelFacts, data_set: str) -> RateSchedule:
    """The schedule of --resnet_base_lr: always in proportion to the images of an update, and with a warm-up.

    The epochs are the model's own, or for a user's model those of its data set.
    """
    schedule = model.schedule
    if not schedule.factors:
        schedule = RESNET_CIFAR_SCHEDULE if data_set == 'cifar10' else RESNET_SCHEDULE
    return replace(schedule, per_images=RESNET_SCHEDULE.per_images, warmup_epochs=RESNET_SCHEDULE.warmup_epochs)


def find_optimizer(params: Params) -> OptimizerFacts:
    """The update rule that --optimizer names."""
    row = OPTIMIZERS[params.optimizer]
    return OptimizerFacts(row.name, row.rule, tuple(getattr(params, name) for name in row.arguments))


def place_variables(
    params: Params, mode: Mode, place: Place, machine: Machine, precision: Precision, *, shown_sync: bool
) -> VariableFacts:
    """Where variables live and how gradients are summed."""
    num_towers = len(machine.towers)
    sums_towers = num_towers > 1 and params.trains
    by_halves = sums_by_halves(params)
    leaders = _leaders_of_halves(params, num_towers) if by_halves else ()
    sums = None if by_halves else parse_spec(machine.all_reduce_spec or f'ps{machine.parameter_device_kind}')
    by_nccl = sums_towers and any('nccl' in part.names for part in sums or ())
    if place is Place.AS_PEERS:
        by_nccl = mode.nccl_between_gpus and machine.kind == 'gpu'
    return VariableFacts(
        variable_update=mode.name,
        manager=None
        if params.eval
        else mode.manager(
            place,
            staged=params.staged_vars and params.trains,
            relaxed=params.variable_consistency == 'relaxed' and params.trains,
        ),
        shown_sync=shown_sync,
        sums=sums,
        leaders=leaders,
        shown_spec=machine.all_reduce_spec if mode.takes_all_reduce_spec and sums_towers else None,
        num_packets=params.gradient_repacking,
        small_max_bytes=params.agg_small_grads_max_bytes,
        small_max_group=params.agg_small_grads_max_group,
        transfer=_find_transfer(params, NCCL_TRANSFER_DTYPES if by_nccl else mode.transfer_dtypes, precision),
        shares_memory=_shares_memory(params, mode, place),
        horovod_device=None if machine.kind == 'cpu' else params.horovod_device,
        by_nccl=by_nccl,
    )


def _shares_memory(params: Params, mode: Mode, place: Place) -> bool:
    """Whether workers sum gradients in shared memory if they are on one host. Those that are to be packed are sent."""
    packs = params.gradient_repacking or params.agg_small_grads_max_bytes
    may = params.shared_memory == 'auto' and params.trains and not packs and place is not Place.ALONE
    return may and mode.can_share_memory


def _leaders_of_halves(params: Params, num_towers: int) -> tuple[tuple[int, int], ...]:
    """The pairs of linked GPUs, one of each half, through which the halves exchange their sums;
    params.variable_flags checks that there are as many towers as they need.

    In the hybrid cube mesh of the DGX-1, GPUs 0-3 and 4-7 are two cliques of NVLinks and GPU i is linked to GPU i + 4
    (NVIDIA DGX-1 System Architecture, WP-08437-002, figure 4). Of eight V100 of the Google Cloud, 0 is linked to 5 and
    2 to 7 (`nvidia-smi topo -m` there).
    """
    if params.network_topology == 'dgx1':
        half = num_towers // 2
        return tuple((tower, half + tower) for tower in range(half))
    return _LINKS_OF_GCP


def _find_transfer(params: Params, dtypes: Sequence[str], precision: Precision) -> str | None:
    """The one of these dtypes in which gradients are sent; None: their own dtype."""
    fits = precision.compute.name in dtypes
    compacts = fits if params.compact_gradient_transfer is None else params.compact_gradient_transfer
    if not compacts:
        return None
    return precision.compute.name if fits else dtypes[-1]
