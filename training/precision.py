"""What is computed in 16 bits, and the scale of the loss that keeps small gradients from vanishing there.

Mixed precision is that of Micikevicius et al. 2018 (arXiv:1710.03740): networks compute in 16 bits, the variables that
are trained stay in float32 (section 3.1), and the loss is multiplied by a scale, by which gradients are divided again
before they are used (section 3.2), since float16 has no magnitudes below 2^-24. bfloat16 has those of float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from training.contents import OPTIONAL
from training.variables import Variable

Tensor = Any

DTYPES = {'fp32': tf.float32, 'fp16': tf.float16, 'bf16': tf.bfloat16}
# Within what worked in the experiments of Micikevicius et al. (8 to 32768), and in published results of this command.
DEFAULT_FP16_SCALE = 128.0
# Between these an automatic scale moves, unless it starts above: it must end where all gradients are zero.
_SMALLEST, _LARGEST = 1.0, 2.0**24


@dataclass(frozen=True)
class Precision:
    """What a run computes in.

    Attributes:
      name: one of DTYPES.
      keeps_variables: whether the variables that are trained are kept in that type, too.
      loss_scale: what the loss is multiplied with.
      doubled_every: if there is one, the scale is automatic and starts from loss_scale: see AutomaticLossScale.
    """

    name: str = 'fp32'
    keeps_variables: bool = False
    loss_scale: float = 1.0
    doubled_every: int | None = None

    @property
    def compute(self) -> tf.DType:
        """The type of activations and kernels."""
        return DTYPES[self.name]

    @property
    def variables(self) -> tf.DType:
        """The type in which those variables are kept that are trained."""
        return self.compute if self.keeps_variables else tf.float32

    def __str__(self) -> str:
        parts = [self.name]
        if self.variables != tf.float32:
            parts.append('variables too')
        if self.doubled_every is not None:
            parts.append(f'automatic loss scale from {self.loss_scale:g}')
        elif self.loss_scale != 1:
            parts.append(f'loss scale {self.loss_scale:g}')
        return ', '.join(parts)


FP32 = Precision()


class LossScale:
    """What gradients are scaled by: a number.

    Attributes:
      value: scalar float32.
      num_skipped: scalar int64, the steps before this one that changed no variable; None where none is skipped.
      state: the variables that a checkpoint holds, by name. One without them is read, too.
      initializers: ops that give those their first values.
    """

    num_skipped: Tensor = None

    def __init__(self, factor: float) -> None:
        self.value = tf.constant(factor, tf.float32)
        self.state: dict[str, Variable] = {}
        self.initializers: list[tf.Operation] = []
        self._inverse = None if factor == 1 else tf.constant(1 / factor, tf.float32)

    def unscaled(self, gradient: Tensor) -> Tensor:
        """The gradient of the loss itself, given that of the scaled loss; both float32."""
        return gradient if self._inverse is None else gradient * self._inverse

    def guard(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        """Adds an update, and whatever keeps it from being made with these gradients. All is done when the ops are."""
        del gradients
        return make_update()


class AutomaticLossScale(LossScale):
    """A scale that is as large as float16 allows (Micikevicius et al. 2018, section 3.2, last paragraph).

    A step some gradient of which is not finite changes nothing: no variable, no slot of the optimizer, no moving
    average. It halves the scale, and counts as a step, so that schedules and the end of training stay where they are.
    After doubled_every steps in a row that were good, the scale doubles.

    Workers that do not wait for each other share the scale, and check their own gradients. Of good steps that they end
    at the same moment, one may not be counted.

    Args:
      create_scalar: (name, dtype) -> a variable that all towers of all workers share.
      start: the first scale.
    """

    def __init__(self, create_scalar: Callable[[str, tf.DType], Variable], start: float, doubled_every: int) -> None:
        self._scale = create_scalar(f'{OPTIONAL}scale', tf.float32)
        self._good_steps = create_scalar(f'{OPTIONAL}good_steps', tf.int64)
        self._skipped_steps = create_scalar(f'{OPTIONAL}skipped_steps', tf.int64)
        self._doubled_every = doubled_every
        self.value = self._scale.value
        self.num_skipped = self._skipped_steps.value
        variables = (self._scale, self._good_steps, self._skipped_steps)
        self.state = {variable.name: variable for variable in variables}
        self.initializers = [
            variable.assign(tf.constant(first, variable.value.dtype))
            for variable, first in zip(variables, (start, 0, 0), strict=True)
        ]
        with tf.device(self._scale.device):
            self._inverse = 1 / self.value

    def guard(
        self, gradients: Sequence[Tensor], make_update: Callable[[], Sequence[tf.Operation]]
    ) -> Sequence[tf.Operation]:
        """Adds an update that is made if the gradients are finite, and what adjusts the scale."""
        finite = []
        for gradient in gradients:
            with tf.device(gradient.device):
                finite.append(tf.reduce_all(tf.math.is_finite(gradient)))
        with tf.device(self._scale.device):
            is_good = tf.reduce_all(tf.stack(finite))
            # What depends on the branch that is not taken is not run; the merge is, with whichever branch was.
            branches = tf.raw_ops.Switch(data=is_good, pred=is_good)
            good, bad = tf.identity(branches.output_true), tf.identity(branches.output_false)
        with tf.control_dependencies([good]):
            updated = list(make_update())
        with tf.device(self._scale.device):
            with tf.control_dependencies(updated):
                good = tf.identity(good)
            decided = tf.raw_ops.Merge(inputs=[good, bad]).output.op
            return [decided, *self._adjust(is_good)]

    def _adjust(self, is_good: Tensor) -> list[tf.Operation]:
        scale, good_steps = self.value, self._good_steps.value + 1
        is_due = good_steps >= self._doubled_every
        higher = tf.where(is_due, tf.maximum(scale, tf.minimum(2 * scale, _LARGEST)), scale)
        lower = tf.minimum(scale, tf.maximum(scale / 2, _SMALLEST))
        counted = tf.where(is_good & ~is_due, good_steps, tf.zeros_like(good_steps))
        # How many were skipped before this step is read before it is counted.
        with tf.control_dependencies([self.num_skipped.op]):
            count = tf.raw_ops.AssignAddVariableOp(
                resource=self._skipped_steps.handle, value=tf.cast(~is_good, tf.int64), name='count_skipped_step'
            )
        return [self._scale.assign(tf.where(is_good, higher, lower)), self._good_steps.assign(counted), count]


def make_loss_scale(precision: Precision, create_scalar: Callable[[str, tf.DType], Variable]) -> LossScale:
    """The scale that a precision asks for; create_scalar as in AutomaticLossScale."""
    if precision.doubled_every is None:
        return LossScale(precision.loss_scale)
    return AutomaticLossScale(create_scalar, precision.loss_scale, precision.doubled_every)
