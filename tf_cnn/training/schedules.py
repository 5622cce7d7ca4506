"""Learning rates, and the conversion of epochs to steps. Imports TensorFlow only to build a graph,
since flags are checked without it.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Tensor = Any


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the number of steps taken.

    The rate is rates[0] up to boundaries[0] steps, and rates[i + 1] after more than boundaries[i].
    After every decay_steps it is multiplied by decay_factor, down to minimum; decay_steps=0
    disables this. During the first warmup_steps it rises linearly from 0 to rates[0] instead. The
    step at a boundary still has the earlier rate, as in the original program and in
    tf.train.piecewise_constant.
    """

    rates: tuple[float, ...]
    boundaries: tuple[int, ...] = ()
    decay_steps: int = 0
    decay_factor: float = 1.0
    minimum: float = 0.0
    warmup_steps: int = 0

    @property
    def changes(self) -> bool:
        """Whether the rate depends on the number of steps."""
        return bool(self.boundaries or self.decay_steps or self.warmup_steps)

    def rate_at(self, step: Tensor) -> Tensor:
        """Returns the rate, scalar float32, of the step after `step` steps (scalar int64). Adds ops
        to the graph.
        """
        import tensorflow.compat.v1 as tf

        # float64: float32 counts exactly only up to 16 million steps.
        steps_done = tf.cast(step, tf.float64)
        boundaries, rates = (
            tf.constant(values, tf.float64) for values in (self.boundaries, self.rates)
        )
        rate = tf.gather(rates, tf.math.count_nonzero(boundaries < steps_done))
        if self.decay_steps:
            times = tf.cast(step // self.decay_steps, tf.float64)
            decayed = rate * tf.constant(self.decay_factor, tf.float64) ** times
            rate = tf.maximum(decayed, self.minimum)
        if self.warmup_steps:
            rate = tf.where(
                steps_done < self.warmup_steps, self.rates[0] * steps_done / self.warmup_steps, rate
            )
        return tf.cast(rate, tf.float32)


def epochs_to_steps(epochs: float, num_examples: int, images_per_step: int) -> float:
    """Converts epochs to steps, without rounding errors for decimal fractions of epochs."""
    return float(Fraction(str(epochs)) * num_examples / images_per_step)


def epochs_to_whole_steps(epochs: float, num_examples: int, images_per_step: int) -> int:
    return math.floor(epochs_to_steps(epochs, num_examples, images_per_step))


def parse_piecewise(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parses 'RATE;EPOCH;RATE;...;RATE' into the rates and the epochs, counted from 0, at which the
    later rates begin.

    Raises:
      ValueError: a number is malformed, missing or out of order; the message gives the reason.
    """
    fields = text.split(';')
    numbers = [_parse_number(field) for field in fields]
    if len(fields) == 1:
        raise ValueError(
            'it has only one rate; put the schedule in quotes, because a semicolon ends a shell '
            'command'
        )
    if len(fields) % 2 == 0:
        raise ValueError('it must end with a rate, because a rate follows each epoch')
    rates, epochs = tuple(numbers[::2]), tuple(numbers[1::2])
    for earlier, later in itertools.pairwise((0.0, *epochs)):
        if later <= earlier:
            raise ValueError(
                f'epoch {later:g} does not come after {earlier:g}; epochs must increase'
            )
    return rates, epochs


def _parse_number(field: str) -> float:
    try:
        number = float(field)
    except ValueError:
        raise ValueError(f'{field!r} is not a number') from None
    if not 0 <= number < math.inf:
        raise ValueError(f'{field!r} is not a finite number of at least 0')
    return number
