"""The flags about precision: which numbers have 16 bits, and the loss scale."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import spelled
from params.optimizer_table import OPTIMIZERS, optimizers_that
from params.rules import Idle, Rule, idle_in_eval, idle_in_forward_only, idle_on_cpu
from params.spec import flag

if TYPE_CHECKING:
    from params.table import Params

_LOSS_SCALE = ('fp16_loss_scale', 'fp16_enable_auto_loss_scale', 'fp16_inc_loss_scale_every_n')


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PrecisionFlags:
    """The part of Params about precision."""

    GROUP: ClassVar[str] = 'Precision'

    precision: str = flag(
        'fp32',
        'The type in which the network computes; variables (see --fp16_vars), loss and updates keep 32 bits. '
        '--use_fp16 means fp16.',
        choices=('fp32', 'fp16', 'bf16'),
    )
    tf32: bool = flag(
        True,
        'On GPUs of compute capability 8.0 and above, multiply numbers of 32 bits in TF32, which keeps 10 bits of the '
        'mantissa, as TensorFlow does by default.',
    )
    fp16_vars: bool = flag(False, 'Keep trained variables in the 16-bit type of --precision too.')
    fp16_loss_scale: float | None = flag(
        None,
        'Factor of the loss with --precision=fp16; the first one if it changes automatically. By default 128.',
        lower_bound=1,
    )
    fp16_enable_auto_loss_scale: bool = flag(
        False,
        'Halve the scale and skip the update after a step whose gradients overflow; double the scale after '
        '--fp16_inc_loss_scale_every_n steps without overflow.',
    )
    fp16_inc_loss_scale_every_n: int = flag(
        1000,
        'Consecutive steps without overflow after which --fp16_enable_auto_loss_scale doubles the scale.',
        lower_bound=1,
        unit='steps',
    )
    continue_on_nan: bool = flag(
        False,
        'Continue when the loss is not finite, instead of stopping with an error. On synthetic images runs always '
        'continue, with a warning.',
    )


def _16_bits_hold_what_the_optimizer_keeps(params: 'Params') -> str | None:
    if params.fp16_vars and params.precision != 'fp32' and not OPTIMIZERS[params.optimizer].fits_16_bits:
        return (
            f'--fp16_vars clashes with {spelled("optimizer", params.optimizer)}, which computes squares or norms of '
            f'gradients and needs 32 bits; write {optimizers_that(lambda row: row.fits_16_bits)}, or leave --fp16_vars '
            'out'
        )
    return None


RULES: tuple[Rule, ...] = (_16_bits_hold_what_the_optimizer_keeps,)
IDLE: tuple[Idle, ...] = (
    idle_on_cpu('tf32'),
    Idle(('fp16_vars',), lambda p, run: p.precision == 'fp32', 'only --precision=fp16 or --precision=bf16 uses it'),
    Idle(_LOSS_SCALE, lambda p, run: p.precision != 'fp16', 'only --precision=fp16 scales the loss'),
    idle_in_eval(*_LOSS_SCALE, 'fp16_vars', 'continue_on_nan'),
    idle_in_forward_only(*_LOSS_SCALE, reason='--forward_only computes no gradients'),
    idle_in_forward_only('continue_on_nan', reason='--forward_only never stops for a loss'),
    Idle(
        ('fp16_inc_loss_scale_every_n',),
        lambda p, run: not p.fp16_enable_auto_loss_scale,
        'only --fp16_enable_auto_loss_scale uses it',
    ),
)
