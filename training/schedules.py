"""Learning rate schedules. Converts epochs to steps; the other modules use steps only.

Imports TensorFlow only when it builds a graph, because flags are checked without TensorFlow.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Tensor = Any

# The batch size of the base learning rate of residual networks: Goyal et al. 2017 (arXiv:1706.02677), section 5.1.
_RESNET_BASE_BATCH = 256
# The epochs after which residual networks divide the rate by 10. ImageNet: Goyal et al. 2017, section 5.1, where
# training ends at epoch 90. CIFAR-10: He et al. 2016 (arXiv:1512.03385), section 4.2: after 32,000 and 48,000 steps
# with batch size 128 on 50,000 images.
_RESNET_EPOCHS = {'imagenet': (30.0, 60.0, 80.0, 90.0), 'cifar10': (81.92, 122.88)}


@dataclass(frozen=True)
class LearningRate:
    """The learning rate as a function of the number of steps taken. Step counts may be fractional, as epochs are.

    The rate is rates[0] before the first boundary and rates[i + 1] from boundaries[i] on. After every decay_steps it is
    multiplied by decay_factor, down to minimum; decay_steps=0 disables this. During the first warmup_steps it rises
    linearly from 0 to rates[0] instead.
    """

    rates: tuple[float, ...]
    boundaries: tuple[float, ...] = ()
    decay_steps: float = 0.0
    decay_factor: float = 1.0
    minimum: float = 0.0
    warmup_steps: float = 0.0

    def at(self, step: Tensor) -> Tensor:
        """Returns the rate, scalar float32, of the step after `step` steps (scalar int64). Adds ops to the graph."""
        import tensorflow.compat.v1 as tf

        # float64: float32 counts exactly only up to 16 million steps.
        done = tf.cast(step, tf.float64)
        boundaries, rates = (tf.constant(values, tf.float64) for values in (self.boundaries, self.rates))
        rate = tf.gather(rates, tf.math.count_nonzero(boundaries <= done))
        if self.decay_steps:
            # The offset makes up for whole quotients that were rounded down.
            times = tf.floor(done / self.decay_steps + 1e-9)
            decayed = rate * tf.constant(self.decay_factor, tf.float64) ** times
            rate = tf.maximum(decayed, self.minimum)
        if self.warmup_steps:
            rate = tf.where(done < self.warmup_steps, self.rates[0] * done / self.warmup_steps, rate)
        return tf.cast(rate, tf.float32)


def steps_of(epochs: float, num_examples: int, images_per_step: int) -> float:
    """Converts epochs to steps, without rounding errors for decimal fractions of epochs."""
    return float(Fraction(str(epochs)) * num_examples / images_per_step)


def parse_piecewise(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Parses 'RATE;EPOCH;RATE;...;RATE' into the rates and the epochs, counted from 0, at which the later rates begin.

    Raises:
      ValueError: a number is malformed, missing or out of order; the message gives the reason.
    """
    fields = text.split(';')
    numbers = [_parse_number(field) for field in fields]
    if len(fields) == 1:
        raise ValueError('it has only one rate; put the schedule in quotes, because a semicolon ends a shell command')
    if len(fields) % 2 == 0:
        raise ValueError('it must end with a rate, because a rate follows each epoch')
    rates, epochs = tuple(numbers[::2]), tuple(numbers[1::2])
    for earlier, later in itertools.pairwise((0.0, *epochs)):
        if later <= earlier:
            raise ValueError(f'epoch {later:g} does not come after {earlier:g}; epochs must increase')
    return rates, epochs


def _parse_number(field: str) -> float:
    try:
        number = float(field)
    except ValueError:
        raise ValueError(f'{field!r} is not a number') from None
    if not 0 <= number < math.inf:
        raise ValueError(f'{field!r} is not a finite number of at least 0')
    return number


def resnet_pieces(base_rate: float, batch_size: int, data_set: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the usual rates of residual networks, and the epochs at which the later rates begin.

    Args:
      base_rate: the rate for batch size 256; the rate is proportional to the batch size (Goyal et al. 2017, section
        2.1).
      batch_size: the number of images per update, over all towers and workers.
      data_set: the name; data sets without published epochs use those of ImageNet.
    """
    epochs = _RESNET_EPOCHS.get(data_set, _RESNET_EPOCHS['imagenet'])
    first = base_rate * batch_size / _RESNET_BASE_BATCH
    return tuple(first * 0.1**times for times in range(len(epochs) + 1)), epochs
