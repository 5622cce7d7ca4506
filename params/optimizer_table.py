"""The one table of optimizers: every fact about each value of --optimizer. Does not import TensorFlow.

An optimizer's name appears in this table only. A new optimizer is a class in training/optimizers.py and a row here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from machine.tensorflow_import import LazyPackage

if TYPE_CHECKING:
    import training.optimizers
else:
    training = LazyPackage('training')

# Returns the class of an update rule. Only the call imports its module, and so TensorFlow.
RuleClass = Callable[[], Callable[..., 'training.optimizers.Optimizer']]


@dataclass(frozen=True)
class OptimizerRow:
    """One value of --optimizer.

    Attributes:
      arguments: the flags whose values are the arguments of the class of its update rule, in order.
      fits_16_bits: whether its slots can be stored in 16 bits.
    """

    name: str
    summary: str
    rule: RuleClass
    arguments: tuple[str, ...] = ()
    fits_16_bits: bool = False


_ROWS = (
    OptimizerRow('sgd', 'gradient descent', lambda: training.optimizers.GradientDescent, fits_16_bits=True),
    OptimizerRow(
        'momentum',
        "gradient descent with momentum, Nesterov's unless --nonesterov is given",
        lambda: training.optimizers.Momentum,
        ('momentum', 'nesterov'),
        fits_16_bits=True,
    ),
    # The optimizers below compute squares or norms of gradients, which exceed the range of 16 bits.
    OptimizerRow(
        'rmsprop',
        'gradients divided by the root of their mean square, with momentum',
        lambda: training.optimizers.RmsProp,
        ('rmsprop_decay', 'rmsprop_momentum', 'rmsprop_epsilon'),
    ),
    OptimizerRow(
        'adam',
        'mean gradients divided by the root of their mean square',
        lambda: training.optimizers.Adam,
        ('adam_beta1', 'adam_beta2', 'adam_epsilon'),
    ),
    OptimizerRow(
        'lars',
        'momentum with a learning rate of its own for each layer',
        lambda: training.optimizers.Lars,
        ('momentum', 'lars_eta', 'weight_decay'),
    ),
)
OPTIMIZERS: Mapping[str, OptimizerRow] = {row.name: row for row in _ROWS}
DEFAULT_OPTIMIZER = _ROWS[0].name


def optimizers_that(fits: Callable[[OptimizerRow], bool]) -> str:
    """Returns the flag with the values of the optimizers that fit, as errors and warnings name them."""
    return ' or '.join(f'--optimizer={row.name}' for row in _ROWS if fits(row))
