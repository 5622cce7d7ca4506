"""The graph of one step: losses and gradients of the towers, and the update of the variables."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow.compat.v1 as tf

from models.layers import VariableSource
from models.model_spec import Network
from models.networks import build_network, label_ranks
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.graph.variables import Variable
from tf_cnn.inputs.pipeline import Batch, InputPipeline, RunOp, StepInput
from tf_cnn.managers.synchronous_step import SynchronousStep
from tf_cnn.plan.params import Params
from tf_cnn.results.sections import TransferSection
from tf_cnn.step.constant_weights import FrozenNetwork
from tf_cnn.step.exchange import GradientsInMemory
from tf_cnn.training.checkpoints import Slice, full_slice
from tf_cnn.training.optimizers import Optimizer, OptimizerStep, Slots
from tf_cnn.training.precision import FP32, LossScale, Precision, make_loss_scale
from tf_cnn.training.schedules import LearningRate
from variable_mgr import VariableMgr


@dataclass(frozen=True)
class StepConfig:
    """What a step computes.

    Attributes:
      params: the resolved flags.
      seed: of dropout.
      first_tower: the index of this process's first tower among the towers of all processes.
    """

    params: Params
    network: Network
    num_classes: int
    learning_rate: LearningRate
    seed: int
    precision: Precision = FP32
    first_tower: int = 0


Tensor = Any

# The weight of an auxiliary head's loss: Szegedy et al. 2015 (arXiv:1512.00567) give no value;
# published code uses 0.4.
_AUXILIARY_WEIGHT = 0.4
# More than any network has dropout layers, so that seeds of towers never overlap.
_SEEDS_PER_TOWER = 1000


@dataclass(frozen=True)
class Fetches:
    """The fetches of every step: ops, and scalars (float32 unless stated; None if not computed).

    Attributes:
      global_step: int64, before this step.
      steps_after: int64, after this step, if other workers may increment it meanwhile.
      updated_at: float64, the Unix time in seconds when the update was done and the step waited
        only for the input; None in deterministic runs, and if the input does no work.
      num_skipped: int64, how many steps the loss scale had skipped before this one.
    """

    loss: Tensor
    global_step: Tensor
    ops: Sequence[tf.Operation | tf.Tensor]
    steps_after: Tensor | None = None
    updated_at: Tensor | None = None
    learning_rate: Tensor | None = None
    top_1: Tensor | None = None
    top_5: Tensor | None = None
    num_skipped: Tensor | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the tensors by name, without None, which a session cannot fetch."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class StepGraph:
    """The ops and variables of a step.

    Attributes:
      initializers: set the initial values; prepare_first_step() follows.
      post_init: gives all towers the same values; None if they have them already.
      prologue: computes, from the first batch, the input that the first step needs from a previous
        step; None if it needs none.
      variables: the trainable variables of the first model; gradients has (variable, gradient)
        pairs for them.
      tower_gradients: T x V, of the losses without weight decay, which one worker computes for all;
        tower_values: what the towers compute them from, besides the batches: the loss scale, then
        variables.
      slices: the slices of each variable in a checkpoint, by name; model_slices has only the
        variables of the model.
      begun_steps: see VariableMgr.
      num_skipped: how many steps the loss scale has skipped so far; None if it never skips steps.
      before_evaluation: makes the slices of all workers equal; None if they always are.
    """

    step_input: StepInput
    initializers: tf.Operation
    post_init: tf.Operation | None
    prologue: tf.Operation | None
    fetches: Fetches
    variables: list[Variable]
    gradients: list[tuple[Variable, Tensor]]
    tower_gradients: list[list[Tensor]]
    tower_values: list[Tensor]
    global_step: Variable
    synchronous_step: SynchronousStep | None
    begun_steps: list[Variable]
    transfer: TransferSection
    slices: dict[str, list[Slice]]
    model_slices: dict[str, list[Slice]]
    num_skipped: Tensor | None
    before_evaluation: tf.Operation | None

    @property
    def stateful_ops(self) -> list[tf.Operation]:
        """The ops of prepare_first_step() that keep state in kernels: readers, random numbers."""
        return [
            *self.step_input.warm_up_ops,
            *([self.prologue] if self.prologue is not None else []),
        ]

    def prepare_first_step(
        self, session: tf.Session, steps_before: int = 0, run_op: RunOp | None = None
    ) -> None:
        """Prepares the first step, once the variables have their values.

        steps_before includes the steps before a restored checkpoint. run_op, if given, runs each of
        stateful_ops, without feeds.
        """
        session.run(self.step_input.initializers)
        if self.post_init is not None:
            session.run(self.post_init)
        self.step_input.warm_up(session, steps_before, run_op)
        if self.prologue is not None:
            if run_op:
                run_op(self.prologue)
            else:
                session.run(
                    self.prologue,
                    dict(
                        zip(
                            self.step_input.feed_placeholders,
                            self.step_input.next_feed_values(),
                            strict=True,
                        )
                    ),
                )


@dataclass(frozen=True)
class _Tower:
    """The tensors of one tower.

    penalty, the model's weight decay, is None on towers that do not compute it. gradients_of_loss
    are without it.
    """

    base_loss: Tensor
    penalty: Tensor | None
    top_k: tuple[Tensor, Tensor] | None
    gradients: list[Tensor]
    gradients_of_loss: list[Tensor]


# Long, to show a whole step in order, from the batch to the update.
def build_step_graph(
    config: StepConfig,
    optimizer: Optimizer,
    manager: VariableMgr,
    step_input: InputPipeline | GradientsInMemory,
    frozen_network: FrozenNetwork | None = None,
) -> StepGraph:
    """Adds a step to the current graph; a forward-only one may compute with frozen constants.

    Raises ValueError if the network has no trainable variable.
    """
    with tf.device(manager.scalar_device):
        loss_scale = make_loss_scale(config.precision, manager.create_scalar)
    towers = _build_towers(config, optimizer, manager, loss_scale, step_input, frozen_network)
    ops = list(step_input.per_step_ops)
    gradients: list[tuple[Variable, Tensor]] = []
    slots: Slots = {}
    with tf.device(manager.scalar_device):
        global_step = manager.create_global_step()
        model_slices = manager.slices()
        slices = {'global_step': [full_slice(global_step)], **model_slices}
        initializers = list(manager.initializers)
        if manager.initializes:
            initializers.append(global_step.assign(tf.constant(0, tf.int64)))
        loss = _reported_loss(config, towers)
        learning_rate = None
        if not config.params.run.forward_only:
            # On a server, so that no update waits for a rate that crosses a link after gradients.
            with tf.device(global_step.device):
                learning_rate = config.learning_rate.rate_at(global_step.value)
            step = OptimizerStep(
                optimizer,
                learning_rate,
                global_step.value,
                config.params.training.gradient_clip,
                loss_scale,
                [tower.base_loss for tower in towers],
            )
            train_op, pairs = manager.build_update(
                step, global_step, [tower.gradients for tower in towers]
            )
            gradients = [(variable, loss_scale.unscale(gradient)) for gradient, variable in pairs]
            step_op = train_op
            if manager.initializes:
                initializers += [*step.initializers, *loss_scale.initializers]
            slots = step.slots
            slices |= _slot_slices(slices, slots)
            slices |= {name: [full_slice(variable)] for name, variable in loss_scale.state.items()}
        else:
            # In forward-only runs the workers share nothing but this counter.
            step_op = manager.count_step(global_step, [loss.op])
        # A user's manager may return anything.
        ops.append(tf.get_default_graph().as_graph_element(step_op))
        steps_after = updated_at = top_1 = top_5 = None
        if config.params.run.forward_only or manager.synchronous_step is None:
            with tf.device(global_step.device), tf.control_dependencies([step_op]):
                steps_after = tf.raw_ops.ReadVariableOp(resource=global_step.handle, dtype=tf.int64)
        if step_input.per_step_ops and not config.params.run.deterministic:
            # GPUs have no clock.
            with tf.device(HOST_DEVICE), tf.control_dependencies([step_op]):
                updated_at = tf.timestamp()
        fractions = [tower.top_k for tower in towers if tower.top_k]
        if fractions:
            top_1, top_5 = (_mean(tower_values) for tower_values in zip(*fractions, strict=True))
        fetches = Fetches(
            loss=loss,
            global_step=tf.identity(global_step.value),
            ops=ops,
            steps_after=steps_after,
            updated_at=updated_at,
            learning_rate=learning_rate,
            top_1=top_1,
            top_5=top_5,
            num_skipped=None
            if loss_scale.num_skipped is None
            else tf.identity(loss_scale.num_skipped),
        )
        post_init = manager.get_post_init_ops(slots)
        before_evaluation = manager.get_before_evaluation_ops()
        return StepGraph(
            step_input=step_input,
            initializers=tf.group(*initializers),
            post_init=tf.group(*post_init) if post_init else None,
            prologue=tf.group(*manager.prologue, *step_input.per_step_ops)
            if manager.prologue
            else None,
            fetches=fetches,
            variables=[
                variable for variable in manager.savable_variables().values() if variable.trainable
            ],
            gradients=gradients,
            tower_gradients=[tower.gradients_of_loss for tower in towers],
            tower_values=[
                loss_scale.value,
                *(
                    variable.value
                    for number in range(len(towers))
                    for variable in manager.trainable_variables_on_device(number)
                ),
            ],
            global_step=global_step,
            synchronous_step=manager.synchronous_step,
            begun_steps=manager.begun,
            transfer=TransferSection(
                tuple(manager.bytes_of_servers.values()),
                int(manager.bytes_of_step(forward_only=config.params.run.forward_only)),
            ),
            slices=slices,
            model_slices=model_slices,
            before_evaluation=tf.group(*before_evaluation) if before_evaluation else None,
            num_skipped=loss_scale.num_skipped,
        )


def _slot_slices(slices: dict[str, list[Slice]], slots: Slots) -> dict[str, list[Slice]]:
    """Returns the slices of the optimizer's slots, by variable name/slot name."""
    slot_slices: dict[str, list[Slice]] = {}
    for name, variable_slices in slices.items():
        for variable_slice in variable_slices:
            for slot_name, slot in slots.get(variable_slice.variable.handle.ref(), {}).items():
                slot_slices.setdefault(f'{name}/{slot_name}', []).append(
                    replace(variable_slice, variable=slot)
                )
    return slot_slices


def _build_towers(
    config: StepConfig,
    optimizer: Optimizer,
    manager: VariableMgr,
    loss_scale: LossScale,
    step_input: InputPipeline | GradientsInMemory,
    frozen_network: FrozenNetwork | None,
) -> list[_Tower]:
    towers: list[_Tower] = []
    devices = manager.get_devices()
    if isinstance(step_input, GradientsInMemory):
        not_a_number = tf.constant(float('nan'))
        return [
            _Tower(not_a_number, None, None, step_input.add_tower_gradients(manager, number), [])
            for number in range(len(devices))
        ]
    for number, device in enumerate(devices):
        batch = step_input.tower_batch(number)
        with manager.create_outer_variable_scope(number) as variables:
            source = frozen_network.constants_for(device) if frozen_network else variables
            towers.append(
                _build_tower(config, optimizer, manager, loss_scale, number, batch, source)
            )
    return towers


def _build_tower(
    config: StepConfig,
    optimizer: Optimizer,
    manager: VariableMgr,
    loss_scale: LossScale,
    number: int,
    batch: Batch,
    source: VariableSource,
) -> _Tower:
    params = config.params
    # Each tower uses different dropout seeds.
    seed = config.seed + _SEEDS_PER_TOWER * (config.first_tower + number)
    logits, auxiliary = build_network(
        config.network,
        batch.images,
        config.num_classes,
        source,
        params.devices.layout,
        is_training=not params.run.forward_only,
        keep_statistics=manager.keeps_statistics(number),
        fused_batch_norm=params.devices.fused_batch_norm,
        seed=seed,
        dtype=config.precision.compute_dtype,
    )
    smoothing = 0.0 if params.run.forward_only else params.training.label_smoothing
    base_loss = _cross_entropy(logits, batch.labels, smoothing)
    if auxiliary is not None:
        base_loss += _AUXILIARY_WEIGHT * _cross_entropy(auxiliary, batch.labels, smoothing)
    top_k = _top_k_accuracy(logits, batch.labels) if params.run.computes_accuracy else None
    if params.run.forward_only:
        return _Tower(base_loss, None, top_k, [], [])
    # The objectives of all towers of a model add up to its loss.
    objective = base_loss / manager.num_averaged_towers
    trainable = manager.trainable_variables_on_device(number)
    if not trainable:
        raise ValueError('the network has no trainable variable')
    penalty = None
    trains_with_penalty = manager.leads(number) and not optimizer.decays_weights
    reports_penalty = params.run.loss_type_to_report == 'total_loss' and (
        manager.leads(number) or number == 0
    )
    if params.training.weight_decay and (trains_with_penalty or reports_penalty):
        kernels = [
            tf.cast(variable.value, tf.float32)
            for variable in trainable
            if variable.has_weight_decay
        ]
        if params.training.single_l2_loss_op and kernels:
            kernels = [tf.concat([tf.reshape(kernel, [-1]) for kernel in kernels], 0)]
        penalty = params.training.weight_decay * tf.add_n(
            [tf.nn.l2_loss(kernel) for kernel in kernels] or [tf.zeros([])]
        )
    values, scale = [variable.value for variable in trainable], [loss_scale.value]
    of_loss = gradients = tf.gradients(objective, values, grad_ys=scale)
    if trains_with_penalty and penalty is not None:
        gradients = [
            gradient if of_penalty is None else gradient + of_penalty
            for gradient, of_penalty in zip(
                of_loss, tf.gradients(penalty, values, grad_ys=scale), strict=True
            )
        ]
    # Gradients of 16-bit variables have 16 bits; from here on all gradients are float32.
    gradients = [tf.cast(gradient, tf.float32) for gradient in gradients]
    return _Tower(base_loss, penalty, top_k, gradients, of_loss)


def _reported_loss(config: StepConfig, towers: Sequence[_Tower]) -> Tensor:
    """Returns a float32 scalar: the mean over this process's images, with weight decay unless
    --loss_type_to_report=base_loss.
    """
    loss = _mean([tower.base_loss for tower in towers])
    penalties = [tower.penalty for tower in towers if tower.penalty is not None]
    return (
        loss + _mean(penalties)
        if penalties and config.params.run.loss_type_to_report == 'total_loss'
        else loss
    )


def _cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Returns a float32 scalar: the mean cross entropy of logits [N, K] with labels [N].

    smoothing is the fraction of a label that is spread over all K classes: Szegedy et al. 2015
    (arXiv:1512.00567), section 7.
    """
    if not smoothing:
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
        )
    num_classes = int(logits.shape[1])
    share = smoothing / num_classes
    targets = tf.one_hot(labels, num_classes, on_value=1 - smoothing + share, off_value=share)
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=targets, logits=logits))


def _top_k_accuracy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns two float32 scalars: top-1 and top-5 accuracy for logits [N, K], labels [N]."""
    ranks = label_ranks(logits, labels)
    top_1, top_5 = tf.unstack(
        tf.reduce_mean(tf.cast(ranks[:, tf.newaxis] < [1.0, 5.0], tf.float32), axis=0)
    )
    return top_1, top_5


def _mean(scalars: Sequence[Tensor]) -> Tensor:
    return tf.add_n(scalars) / len(scalars) if len(scalars) > 1 else scalars[0]
