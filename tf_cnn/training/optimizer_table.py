"""The table of optimizers, the values of --optimizer. Does not import TensorFlow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class OptimizerRow:
    """One value of --optimizer.

    Attributes:
      name: the flag's value.
      summary: what the optimizer does, for the docs and --help.
      rule: its class, 'module:Class'.
      arguments: the flags that give the arguments of its class, in order.
      fits_16_bits: whether its slots can be stored in 16 bits.
    """

    name: str
    summary: str
    rule: str
    arguments: tuple[str, ...] = ()
    fits_16_bits: bool = False


_ROWS = (
    OptimizerRow(
        'sgd', 'gradient descent', 'tf_cnn.training.optimizers:GradientDescent', fits_16_bits=True
    ),
    OptimizerRow(
        'momentum',
        "gradient descent with momentum, Nesterov's unless --nonesterov is given",
        'tf_cnn.training.optimizers:Momentum',
        ('momentum', 'nesterov'),
        fits_16_bits=True,
    ),
    # The optimizers below compute squares or norms of gradients, which exceed the range of 16 bits.
    OptimizerRow(
        'rmsprop',
        'gradients divided by the root of their mean square, with momentum',
        'tf_cnn.training.optimizers:RmsProp',
        ('rmsprop_decay', 'rmsprop_momentum', 'rmsprop_epsilon'),
    ),
    OptimizerRow(
        'adam',
        'mean gradients divided by the root of their mean square',
        'tf_cnn.training.optimizers:Adam',
        ('adam_beta1', 'adam_beta2', 'adam_epsilon'),
    ),
    OptimizerRow(
        'lars',
        'momentum with a separate learning rate for each layer',
        'tf_cnn.training.optimizers:Lars',
        ('momentum', 'lars_eta', 'weight_decay'),
    ),
)
OPTIMIZERS: Mapping[str, OptimizerRow] = {row.name: row for row in _ROWS}
DEFAULT_OPTIMIZER = _ROWS[0].name


def format_optimizers(fits: Callable[[OptimizerRow], bool]) -> str:
    """Lists the optimizers that fit as flags, for messages: '--optimizer=A or --optimizer=B'."""
    return ' or '.join(f'--optimizer={row.name}' for row in _ROWS if fits(row))
