"""The one table of optimizers: every fact about each value of --optimizer. Does not import
TensorFlow.

An optimizer's name appears here and in UPDATE_RULES of tf_cnn/training/optimizers.py, its class.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerRow:
    """One value of --optimizer.

    Attributes:
      name: the flag's value.
      summary: what the optimizer does, for the docs and --help.
      arguments: the flags whose values are the arguments of its class, in order.
      fits_16_bits: whether its slots can be stored in 16 bits.
    """

    name: str
    summary: str
    arguments: tuple[str, ...] = ()
    fits_16_bits: bool = False


_ROWS = (
    OptimizerRow('sgd', 'gradient descent', fits_16_bits=True),
    OptimizerRow(
        'momentum',
        "gradient descent with momentum, Nesterov's unless --nonesterov is given",
        ('momentum', 'nesterov'),
        fits_16_bits=True,
    ),
    # The optimizers below compute squares or norms of gradients, which exceed the range of 16 bits.
    OptimizerRow(
        'rmsprop',
        'gradients divided by the root of their mean square, with momentum',
        ('rmsprop_decay', 'rmsprop_momentum', 'rmsprop_epsilon'),
    ),
    OptimizerRow(
        'adam',
        'mean gradients divided by the root of their mean square',
        ('adam_beta1', 'adam_beta2', 'adam_epsilon'),
    ),
    OptimizerRow(
        'lars',
        'momentum with a learning rate of its own for each layer',
        ('momentum', 'lars_eta', 'weight_decay'),
    ),
)
OPTIMIZERS: Mapping[str, OptimizerRow] = {row.name: row for row in _ROWS}
DEFAULT_OPTIMIZER = _ROWS[0].name


def format_optimizers(fits: Callable[[OptimizerRow], bool]) -> str:
    """Returns the flag with the values of the optimizers that fit, as errors and warnings name
    them.
    """
    return ' or '.join(f'--optimizer={row.name}' for row in _ROWS if fits(row))
