"""Learning rates that change with the number of steps taken. Epochs become steps here; all others know steps only.

Imports TensorFlow only to build a graph, since flags are checked without it.
"""

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Tensor = Any

# Images in the step that the base rate of residual networks is for: Goyal et al. 2017 (arXiv:1706.02677), section 5.1.
_RESNET_BASE_BATCH = 256
# The epochs after which residual networks divide the rate by 10. ImageNet: Goyal et al. 2017, section 5.1, who end
# with epoch 90. CIFAR-10: He et al. 2016 (arXiv:1512.03385), section 4.2: after 32,000 and 48,000 steps of 128 of the
# 50,000 images.
_RESNET_EPOCHS = {'imagenet': (30.0, 60.0, 80.0, 90.0), 'cifar10': (81.92, 122.88)}


@dataclass(frozen=True)
class LearningRate:
    """The learning rate by the number of steps taken. Counts of steps may have fractions, as epochs have them.

    From boundaries[i] on it is rates[i + 1], before the first boundary rates[0]. Every decay_steps it is multiplied by
    decay_factor, but not to less than minimum; 0 decay_steps leave it. In the first warmup_steps it rises evenly from 0
    to rates[0] instead.
    """

    rates: tuple[float, ...]
    boundaries: tuple[float, ...] = ()
    decay_steps: float = 0.0
    decay_factor: float = 1.0
    minimum: float = 0.0
    warmup_steps: float = 0.0

    def at(self, step: Tensor) -> Tensor:
        """The rate of the step that follows so many (scalar int64), scalar float32. Adds ops to the current graph."""
        import tensorflow.compat.v1 as tf

        # float64: float32 counts to 16 million steps only.
        done = tf.cast(step, tf.float64)
        boundaries, rates = (tf.constant(values, tf.float64) for values in (self.boundaries, self.rates))
        rate = tf.gather(rates, tf.math.count_nonzero(boundaries <= done))
        if self.decay_steps:
            # A quotient that is whole may have been rounded to just below.
            times = tf.floor(done / self.decay_steps + 1e-9)
            decayed = rate * tf.constant(self.decay_factor, tf.float64) ** times
            rate = tf.maximum(decayed, self.minimum)
        if self.warmup_steps:
            rate = tf.where(done < self.warmup_steps, self.rates[0] * done / self.warmup_steps, rate)
        return tf.cast(rate, tf.float32)


def steps_of(epochs: float, num_examples: int, images_per_step: int) -> float:
    """How many steps so many epochs are; a whole number where it is one, also for decimal fractions of epochs."""
    return float(Fraction(str(epochs)) * num_examples / images_per_step)


def parse_piecewise(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The rates of 'RATE;EPOCH;RATE;...;RATE' and the epochs, counted from 0, at which all but the first begin.

    Raises:
      ValueError: with the reason: something is no number, is missing or is out of order.
    """
    words = text.split(';')
    numbers = [_number(word) for word in words]
    if len(words) == 1:
        raise ValueError('it has one rate; put a schedule in quotes, since semicolons end a command')
    if len(words) % 2 == 0:
        raise ValueError('it must end with a rate, after each epoch comes one')
    rates, epochs = tuple(numbers[::2]), tuple(numbers[1::2])
    for earlier, later in itertools.pairwise((0.0, *epochs)):
        if later <= earlier:
            raise ValueError(f'epoch {later:g} does not come after {earlier:g}; epochs must grow')
    return rates, epochs


def _number(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        raise ValueError(f'{word!r} is not a number') from None
    if not 0 <= number < math.inf:
        raise ValueError(f'{word!r} is not a number of at least 0')
    return number


def resnet_pieces(base_rate: float, batch_size: int, data_set: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The customary rates of residual networks, and the epochs at which all but the first begin.

    Args:
      base_rate: the rate for 256 images; it grows with the images (Goyal et al. 2017, section 2.1).
      batch_size: the images whose gradients make one update.
      data_set: its name; those without a custom of their own take that of ImageNet.
    """
    epochs = _RESNET_EPOCHS.get(data_set, _RESNET_EPOCHS['imagenet'])
    first = base_rate * batch_size / _RESNET_BASE_BATCH
    return tuple(first * 0.1**times for times in range(len(epochs) + 1)), epochs
