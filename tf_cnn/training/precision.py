"""Mixed precision, and the loss scale that keeps small float16 gradients from becoming zero.

Micikevicius et al. 2018 (arXiv:1710.03740): networks compute in 16 bits, the trainable variables
stay in float32 (section 3.1), and the loss is multiplied by a scale. The gradients are divided by
the same scale before use (section 3.2). The smallest positive float16 is 2^-24; bfloat16 has the
range of float32.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from tf_cnn.graph.staging_area import StagingArea
from tf_cnn.graph.variables import Variable
from tf_cnn.training.config import DTYPES, PrecisionConfig
from tf_cnn.training.contents import OPTIONAL_PREFIX

Tensor = Any

# The scale of the published results of this benchmark; within the range of Micikevicius et al. (8
# to 32768).
DEFAULT_FP16_SCALE = 128.0
# The range of an automatic scale; the initial scale may be larger. Without a limit, zero gradients
# would double it for ever.
_SMALLEST, _LARGEST = 1.0, 2.0**24


@dataclass(frozen=True)
class Precision:
    """The precision of a run.

    Attributes:
      has_16bit_variables: whether the trainable variables have the dtype of `name` too.
      steps_until_doubling: None for a constant scale; else the scale is an AutomaticLossScale that
        starts at loss_scale.
    """

    name: str = 'fp32'
    has_16bit_variables: bool = False
    loss_scale: float = 1.0
    steps_until_doubling: int | None = None

    @property
    def compute_dtype(self) -> tf.DType:
        """The dtype of activations and kernels."""
        return tf.as_dtype(DTYPES[self.name])

    @property
    def variable_dtype(self) -> tf.DType:
        """The dtype of the trainable variables."""
        return self.compute_dtype if self.has_16bit_variables else tf.float32

    def __str__(self) -> str:
        parts = [self.name]
        if self.variable_dtype != tf.float32:
            parts.append('variables too')
        if self.steps_until_doubling is not None:
            parts.append(f'automatic loss scale from {self.loss_scale:g}')
        elif self.loss_scale != 1:
            parts.append(f'loss scale {self.loss_scale:g}')
        return ', '.join(parts)


FP32 = Precision()


def make_precision(flags: PrecisionConfig, *, has_loss: bool) -> Precision:
    """Returns the precision of a run; only a loss that is trained is scaled."""
    if flags.precision != 'fp16' or not has_loss:
        return Precision(flags.precision, flags.fp16_vars)
    return Precision(
        'fp16',
        flags.fp16_vars,
        flags.fp16_loss_scale or DEFAULT_FP16_SCALE,
        flags.fp16_inc_loss_scale_every_n if flags.fp16_enable_auto_loss_scale else None,
    )


class LossScale:
    """A constant scale of the loss; value is scalar float32.

    Attributes:
      num_skipped: scalar int64, the number of skipped steps before this one; None if no step is
        ever skipped.
      state: the variables of the scale, by name. Checkpoints contain them, but may omit them.
    """

    num_skipped: Tensor = None

    def __init__(self, factor: float) -> None:
        self.value = tf.constant(factor, tf.float32)
        self.state: dict[str, Variable] = {}
        self.initializers: list[tf.Operation] = []
        self._inverse = None if factor == 1 else tf.constant(1 / factor, tf.float32)

    def unscale(self, gradient: Tensor) -> Tensor:
        """Converts a gradient of the scaled loss to the gradient of the loss; both float32."""
        return gradient if self._inverse is None else gradient * self._inverse

    def stage(self, device: str) -> list[tf.Operation]:
        """Makes unscale() use the scale of the previous step, kept on a device. Run the returned
        ops in each step.
        """
        del device
        return []

    def update_if_finite(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        """Adds an update beside gradients that a later step applies; returns the ops to run.

        An automatic scale skips the update if a gradient is not finite, since it will also skip the
        later step.
        """
        del gradients
        return make_update()

    def guard_update(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        """Adds an update with these gradients; returns the ops to run. An automatic scale skips the
        update if a gradient is not finite.
        """
        del gradients
        return make_update()


class AutomaticLossScale(LossScale):
    """A scale that is as large as float16 allows (Micikevicius et al. 2018, section 3.2, last
    paragraph).

    If a gradient is not finite, the step is skipped: it changes no variable, no optimizer slot and
    no moving average, and it halves the scale. It counts as a step, so that schedules and the end
    of training do not shift. After steps_until_doubling consecutive good steps, the scale doubles.

    Asynchronous workers share the scale and check their own gradients. If two of them finish good
    steps at the same moment, only one step may be counted.
    """

    def __init__(
        self,
        create_scalar: Callable[[str, tf.DType], Variable],
        initial_scale: float,
        steps_until_doubling: int,
    ) -> None:
        self._scale = create_scalar(f'{OPTIONAL_PREFIX}scale', tf.float32)
        self._good_steps = create_scalar(f'{OPTIONAL_PREFIX}good_steps', tf.int64)
        self._skipped_steps = create_scalar(f'{OPTIONAL_PREFIX}skipped_steps', tf.int64)
        self._steps_until_doubling = steps_until_doubling
        self.value = self._scale.value
        self.num_skipped = self._skipped_steps.value
        variables = (self._scale, self._good_steps, self._skipped_steps)
        self.state = {variable.name: variable for variable in variables}
        self.initializers = [
            variable.assign(tf.constant(initial_value, variable.value.dtype))
            for variable, initial_value in zip(variables, (initial_scale, 0, 0), strict=True)
        ]
        with tf.device(self._scale.device):
            self._inverse = 1 / self.value

    def stage(self, device: str) -> list[tf.Operation]:
        area = StagingArea(device, [self._inverse])
        put = area.put([self._inverse])
        (self._inverse,) = area.get()
        return [put]

    def guard_update(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        is_good = self._are_finite(gradients)
        update_op = self._update_if(is_good, make_update)
        with tf.device(self._scale.device):
            return [update_op, *self._adjust_scale(is_good)]

    def update_if_finite(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        return [self._update_if(self._are_finite(gradients), make_update)]

    def _are_finite(self, gradients: Sequence[Tensor]) -> Tensor:
        finite = []
        # One result per device, so that one scalar per device is sent, not one per gradient.
        by_device = itertools.groupby(sorted(gradients, key=_device_name), _device_name)
        for device, device_gradients in by_device:
            with tf.device(device):
                checks = [
                    tf.reduce_all(tf.math.is_finite(gradient)) for gradient in device_gradients
                ]
                finite.append(tf.reduce_all(tf.stack(checks)))
        with tf.device(self._scale.device):
            return tf.reduce_all(tf.stack(finite))

    def _update_if(
        self, is_good: Tensor, make_update: Callable[[], Sequence[tf.Operation]]
    ) -> tf.Operation:
        with tf.device(self._scale.device):
            # Ops that depend on the branch that is not taken do not run. Merge runs after either
            # branch.
            branches = tf.raw_ops.Switch(data=is_good, pred=is_good)
            good, bad = tf.identity(branches.output_true), tf.identity(branches.output_false)
        with tf.control_dependencies([good]):
            updated = list(make_update())
        with tf.device(self._scale.device):
            with tf.control_dependencies([tf.group(*updated)]):
                good = tf.identity(good)
            return tf.raw_ops.Merge(inputs=[good, bad]).output.op

    def _adjust_scale(self, is_good: Tensor) -> list[tf.Operation]:
        scale, good_steps = self.value, self._good_steps.value + 1
        is_due = good_steps >= self._steps_until_doubling
        higher = tf.where(is_due, tf.maximum(scale, tf.minimum(2 * scale, _LARGEST)), scale)
        lower = tf.minimum(scale, tf.maximum(scale / 2, _SMALLEST))
        new_good_steps = tf.where(is_good & ~is_due, good_steps, tf.zeros_like(good_steps))
        # Count this step only after num_skipped has been read.
        with tf.control_dependencies([self.num_skipped.op]):
            count = tf.raw_ops.AssignAddVariableOp(
                resource=self._skipped_steps.handle,
                value=tf.cast(~is_good, tf.int64),
                name='count_skipped_step',
            )
        return [
            self._scale.assign(tf.where(is_good, higher, lower)),
            self._good_steps.assign(new_good_steps),
            count,
        ]


def _device_name(tensor: Tensor) -> str:
    return str(tensor.device)


def make_loss_scale(
    precision: Precision, create_scalar: Callable[[str, tf.DType], Variable]
) -> LossScale:
    """Makes the loss scale of a precision; create_scalar makes a variable that all towers of all
    workers share.
    """
    if precision.steps_until_doubling is None:
        return LossScale(precision.loss_scale)
    return AutomaticLossScale(create_scalar, precision.loss_scale, precision.steps_until_doubling)
