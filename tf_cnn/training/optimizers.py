"""The optimizers. Where TensorFlow has a fused kernel, which applies one gradient to one variable,
they use it.

The kernels lock the variables, so that no update by asynchronous workers is lost.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, ClassVar

import tensorflow.compat.v1 as tf

from tf_cnn.graph.variables import Variable, create_variable, ops_before
from tf_cnn.training.config import OptimizerConfig
from tf_cnn.training.precision import LossScale

Tensor = Any
# Makes an optimizer slot of a variable: (variable, slot name, initial value) -> slot.
MakeSlot = Callable[[Variable, str, float], Variable]
Apply = Callable[[Variable, Tensor], tf.Operation]
# The slots of each variable by slot name; the key of a variable is a reference to its handle.
Slots = dict[Any, dict[str, Variable]]


class Optimizer(ABC):
    """An update rule.

    Attributes:
      decays_weights: whether the rule includes weight decay; then the loss must not include it.
      needs_whole_variables: whether the update of one slice of a variable needs the gradients of
        all its slices.
    """

    decays_weights: ClassVar[bool] = False
    needs_whole_variables: ClassVar[bool] = False

    def prepare_gradients(
        self, learning_rate: Tensor, pairs: Sequence[tuple[Tensor, Variable]]
    ) -> list[Tensor]:
        """Returns the tensor to apply to each (gradient, slice) of one variable: by default the
        gradient itself.
        """
        del learning_rate
        return [gradient for gradient, _ in pairs]

    @abstractmethod
    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        """Adds the ops that all variables of one device share, and returns a function that applies
        a gradient to one.

        learning_rate has the dtype of the variables; step, scalar int64, is the number of steps
        taken before this one.
        """


def has_fused_kernels(learning_rate: Tensor) -> bool:
    """Whether fused kernels exist for the dtype and device of the learning rate.

    TensorFlow has none for bfloat16 on GPUs, and would move the variables and their updates to the
    CPU. The same arithmetic in separate ops gives the same bits, since the fused kernels also round
    after each operation.
    """
    return not (learning_rate.dtype == tf.bfloat16 and 'gpu' in learning_rate.device.lower())


@dataclass(frozen=True)
class GradientDescent(Optimizer):
    """v <- v - learning_rate * g."""

    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        del step, make_slot
        fuses = has_fused_kernels(learning_rate)

        def apply(variable: Variable, gradient: Tensor) -> tf.Operation:
            if not fuses:
                return tf.raw_ops.AssignSubVariableOp(
                    resource=variable.handle, value=learning_rate * gradient
                )
            return tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.handle, alpha=learning_rate, delta=gradient, use_locking=True
            )

        return apply


@dataclass(frozen=True)
class Momentum(Optimizer):
    """a <- momentum * a + g; v <- v - learning_rate * a; with nesterov v <- v - learning_rate *
    (momentum * a + g).

    Sutskever et al. 2013 ("On the importance of initialization and momentum in deep learning",
    section 2), with the learning rate outside of a. Nesterov's form is rewritten so that v is the
    point at which the gradient is computed: Bengio et al. 2012 (arXiv:1212.0901), section 3.5.
    """

    momentum: float
    nesterov: bool = False

    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        del step
        momentum = tf.constant(self.momentum, learning_rate.dtype)
        fuses = has_fused_kernels(learning_rate)

        def apply(variable: Variable, gradient: Tensor) -> tf.Operation:
            slot = make_slot(variable, 'momentum', 0.0)
            if not fuses:
                accumulated = momentum * slot.value + gradient
                if self.nesterov:
                    # The fused kernel has the same order of operations, so rounding is the same.
                    moved = gradient * learning_rate + accumulated * momentum * learning_rate
                else:
                    moved = learning_rate * accumulated
                return tf.group(
                    slot.assign(accumulated),
                    tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=moved),
                )
            return tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=slot.handle,
                lr=learning_rate,
                grad=gradient,
                momentum=momentum,
                use_locking=True,
                use_nesterov=self.nesterov,
            )

        return apply


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """s <- decay * s + (1 - decay) * g^2; m <- momentum * m + learning_rate * g / sqrt(s +
    epsilon); v <- v - m.

    Tieleman & Hinton 2012, lecture 6.5; s starts at 1 and epsilon is inside the root, as in
    TensorFlow.
    """

    decay: float
    momentum: float
    epsilon: float

    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        del step
        decay, momentum, epsilon = (
            tf.constant(x) for x in (self.decay, self.momentum, self.epsilon)
        )

        def apply(variable: Variable, gradient: Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyRMSProp(
                var=variable.handle,
                ms=make_slot(variable, 'rms', 1.0).handle,
                mom=make_slot(variable, 'momentum', 0.0).handle,
                lr=learning_rate,
                rho=decay,
                momentum=momentum,
                epsilon=epsilon,
                grad=gradient,
                use_locking=True,
            )

        return apply


@dataclass(frozen=True)
class Adam(Optimizer):
    """Kingma & Ba 2015 (arXiv:1412.6980), in the form just before section 2.1, without bias
    correction of epsilon.
    """

    beta1: float
    beta2: float
    epsilon: float

    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        beta1, beta2, epsilon = (tf.constant(x) for x in (self.beta1, self.beta2, self.epsilon))
        # float64, because the bias correction subtracts powers near 1 from 1.
        steps_taken = tf.cast(step + 1, tf.float64)
        beta1_power, beta2_power = (
            tf.cast(tf.pow(tf.constant(beta, tf.float64), steps_taken), tf.float32)
            for beta in (self.beta1, self.beta2)
        )

        def apply(variable: Variable, gradient: Tensor) -> tf.Operation:
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=make_slot(variable, 'm', 0.0).handle,
                v=make_slot(variable, 'v', 0.0).handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=learning_rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=epsilon,
                grad=gradient,
                use_locking=True,
            )

        return apply


@dataclass(frozen=True)
class Lars(Optimizer):
    """a <- momentum * a + learning_rate * trust * (g + weight_decay * v); v <- v - a.

    You, Gitman & Ginsburg 2017 (arXiv:1708.03888), algorithm 1, with trust = eta * |v| / (|g| +
    weight_decay * |v|) of the whole variable, and 1 if a norm is 0, so that zeros can change.
    Biases and batch norm have trust 1 and no decay, as in Grill et al. 2020 (arXiv:2006.07733),
    "Optimization".
    """

    momentum: float
    eta: float
    weight_decay: float
    decays_weights: ClassVar[bool] = True
    needs_whole_variables: ClassVar[bool] = True

    def prepare_gradients(
        self, learning_rate: Tensor, pairs: Sequence[tuple[Tensor, Variable]]
    ) -> list[Tensor]:
        if pairs[0][1].has_weight_decay:
            learning_rate, pairs = self._adapt(learning_rate, pairs)
        scaled = []
        for gradient, variable in pairs:
            with tf.device(variable.device):
                scaled.append(learning_rate * gradient)
        return scaled

    def _adapt(
        self, learning_rate: Tensor, pairs: Sequence[tuple[Tensor, Variable]]
    ) -> tuple[Tensor, list[tuple[Tensor, Variable]]]:
        """Returns the learning rate times trust, and the (gradient, slice) pairs with weight decay
        added to the gradients.
        """
        squares, decayed = [], []
        for gradient, variable in pairs:
            with tf.device(variable.device):
                # Read the current value: towers may have computed with an older one.
                value = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=gradient.dtype)
                squares.append(
                    tf.stack([tf.reduce_sum(tf.square(value)), tf.reduce_sum(tf.square(gradient))])
                )
                decayed.append((gradient + self.weight_decay * value, variable))
        with tf.device(pairs[0][1].device):
            value_norm, gradient_norm = tf.unstack(tf.sqrt(tf.add_n(squares)))
            trust = self.eta * value_norm / (gradient_norm + self.weight_decay * value_norm)
            return learning_rate * tf.where(
                tf.minimum(value_norm, gradient_norm) > 0, trust, 1.0
            ), decayed

    def make_apply(self, learning_rate: Tensor, step: Tensor, make_slot: MakeSlot) -> Apply:
        # prepare_gradients has already multiplied the gradients by the learning rate.
        return Momentum(self.momentum).make_apply(tf.constant(1.0), step, make_slot)


def make_optimizer(config: OptimizerConfig) -> Optimizer:
    """Returns the update rule of --optimizer, with the flags that are its arguments."""
    arguments = [getattr(config, name) for name in config.row.arguments]
    optimizer: Optimizer = resolve_name(config.row.rule)(*arguments)
    return optimizer


class OptimizerStep:
    """Applies gradients to variables on any device, and keeps the slots of each variable on its
    device.

    Args:
      step: scalar int64 tensor, the number of steps taken before this one.
      gradient_clip: each element of an unscaled gradient is clipped to [-gradient_clip,
        gradient_clip].
      outputs: tensors that the networks compute in this step before any gradient.

    Attributes:
      updates: for each variable (the key is a reference to its handle), the op after which it has
        its new value.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        learning_rate: Tensor,
        step: Tensor,
        gradient_clip: float | None,
        loss_scale: LossScale | None = None,
        outputs: Sequence[Tensor] = (),
    ) -> None:
        self.initializers: list[tf.Operation] = []
        self.slots: Slots = {}
        self.updates: dict[Any, tf.Operation] = {}
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        self.loss_scale = loss_scale or LossScale(1.0)
        # Skipped steps are not updates, and optimizers count updates.
        self._step = (
            step if self.loss_scale.num_skipped is None else step - self.loss_scale.num_skipped
        )
        self._gradient_clip = gradient_clip
        self._outputs = outputs
        self._is_staged = False
        self._appliers: dict[tuple[str, tf.DType], Apply] = {}
        self._fills: dict[tuple[str, tuple[int, ...], tf.DType, float], Tensor] = {}

    def apply_all(
        self,
        variables: Sequence[Sequence[tuple[Tensor, Variable]]],
        distinct_gradients: Sequence[Tensor],
        make_other_updates: Callable[[], Sequence[tf.Operation]],
    ) -> Sequence[tf.Operation]:
        """Returns the ops that update everything, or nothing if the loss scale skips the step.

        Args:
          variables: the (gradient, slice) pairs of each variable, see apply_slices.
          distinct_gradients: the gradients, without copies of the same gradient.
        """
        step_ops = self.loss_scale.guard_update(
            distinct_gradients,
            lambda: [
                *(op for pairs in variables for op in self.apply_slices(pairs)),
                *make_other_updates(),
            ],
        )
        if self.needs_all_gradients:
            # A skipped step runs no update, so ops that wait for an update must wait for the step.
            self.updates = dict.fromkeys(self.updates, tf.group(*step_ops))
        return step_ops

    @property
    def needs_all_gradients(self) -> bool:
        """Whether all gradients must be known before any variable changes."""
        return self.loss_scale.num_skipped is not None

    @property
    def has_independent_updates(self) -> bool:
        """Whether the update of a variable or slice needs no gradients of others."""
        return not self.needs_all_gradients and not self._optimizer.needs_whole_variables

    def stage_loss_scale(self, device: str) -> list[tf.Operation]:
        """Makes apply_all() take gradients of the previous step. See LossScale.stage."""
        self._is_staged = True
        return self.loss_scale.stage(device)

    def apply_slices(self, pairs: Sequence[tuple[Tensor, Variable]]) -> list[tf.Operation]:
        """Returns the op on each slice's device that applies its float32 gradient of the scaled
        loss, for the (gradient, slice) pairs of one variable.
        """
        pairs = [(self._prepare(gradient, variable), variable) for gradient, variable in pairs]
        apply_ops = []
        for gradient, (_, variable) in zip(
            self._optimizer.prepare_gradients(self._learning_rate, pairs), pairs, strict=True
        ):
            key = variable.device, variable.value.dtype
            with tf.device(variable.device):
                if key not in self._appliers:
                    learning_rate = tf.cast(tf.identity(self._learning_rate), variable.value.dtype)
                    self._appliers[key] = self._optimizer.make_apply(
                        learning_rate, self._step, self._make_slot
                    )
                with tf.control_dependencies(self._late_readers(variable)):
                    apply_ops.append(
                        self._appliers[key](variable, tf.cast(gradient, variable.value.dtype))
                    )
            self.updates[variable.handle.ref()] = apply_ops[-1]
        return apply_ops

    def _late_readers(self, variable: Variable) -> list[tf.Operation]:
        """Returns the ops that may still hold the variable's value when its gradient is known.

        An update that runs before these ops are done makes TensorFlow copy the whole variable.
        Staged gradients need this copy, since they are applied while the towers compute.
        """
        if self._is_staged:
            return []
        readers = [op for op in variable.value.consumers() if op.device == variable.value.device]
        # tf.gradients also adds gradients of images, which nothing uses and no step computes.
        return [
            op
            for op in readers
            if op not in self._forward_ops and any(out.consumers() for out in op.outputs)
        ]

    @functools.cached_property
    def _forward_ops(self) -> set[tf.Operation]:
        """The ops that the networks' outputs depend on. TensorFlow fuses them unless other ops wait
        for them.
        """
        return ops_before(self._outputs)

    def _prepare(self, gradient: Tensor, variable: Variable) -> Tensor:
        with tf.device(variable.device):
            gradient = self.loss_scale.unscale(gradient)
            if self._gradient_clip is None:
                return gradient
            return tf.clip_by_value(gradient, -self._gradient_clip, self._gradient_clip)

    def _make_slot(self, variable: Variable, name: str, fill: float) -> Variable:
        # The initializer must not depend on the control inputs of the update.
        with tf.control_dependencies(None):
            dtype = variable.value.dtype
            slot = create_variable(
                f'{variable.name}/{name}',
                variable.shape,
                scope=variable.scope,
                device=variable.device,
                dtype=dtype,
            )
            key = (variable.device, variable.shape, dtype, fill)
            if key not in self._fills:
                self._fills[key] = tf.fill(variable.shape, tf.cast(fill, dtype))
            self.initializers.append(slot.assign(self._fills[key]))
        self.slots.setdefault(variable.handle.ref(), {})[name] = slot
        return slot
