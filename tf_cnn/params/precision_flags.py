"""The flags about precision: 16-bit types and the loss scale."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, flag
from tf_cnn.params.optimizer_table import OPTIMIZERS, format_optimizers
from tf_cnn.params.rules import (
    IN_EVAL,
    NO_COMPUTING,
    NO_MODEL,
    ON_CPU,
    RunContext,
    ignored_in_forward_only,
)

if TYPE_CHECKING:
    from tf_cnn.params.table import Params
_UNSCALED = IgnoredWhen(
    lambda p, run: p.precision != 'fp16', 'only --precision=fp16 scales the loss'
)
_OF_SCALE = (
    NO_COMPUTING,
    _UNSCALED,
    IN_EVAL,
    ignored_in_forward_only('--forward_only computes no gradients'),
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class PrecisionFlags:
    """The part of Params about precision."""

    GROUP: ClassVar[str] = 'Precision'
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'shared_by_workers': True}
    IGNORED: ClassVar[tuple[IgnoredWhen, ...]] = (NO_MODEL,)

    precision: str = flag(
        'fp32',
        'The type of the computation of the network; variables (see --fp16_vars), loss and updates '
        'keep 32 bits. --use_fp16 means fp16.',
        choices=('fp32', 'fp16', 'bf16'),
        common=True,
        original=NEW,
        resolved=True,
    )
    tf32: bool = flag(
        True,
        'On GPUs of compute capability 8.0 and above, multiply numbers of 32 bits in TF32, which '
        'keeps 10 bits of the mantissa, as TensorFlow does by default.',
        original=NEW,
        shared_by_workers=False,
        ignored=(ON_CPU,),
    )
    fp16_vars: bool = flag(
        False,
        'Store trained variables in the 16-bit type of --precision too.',
        ignored=(
            IgnoredWhen(
                lambda p, run: p.precision == 'fp32',
                'only --precision=fp16 or --precision=bf16 uses it',
            ),
            IN_EVAL,
        ),
    )
    fp16_loss_scale: float | None = flag(
        None,
        'Loss scale with --precision=fp16; the initial scale if it changes automatically. By '
        'default 128.',
        lower_bound=1,
        ignored=_OF_SCALE,
    )
    fp16_enable_auto_loss_scale: bool = flag(
        False,
        'Halve the loss scale and skip the update when gradients overflow; double the scale after '
        '--fp16_inc_loss_scale_every_n steps without overflow.',
        ignored=_OF_SCALE,
    )
    fp16_inc_loss_scale_every_n: int = flag(
        1000,
        'Consecutive steps without overflow after which --fp16_enable_auto_loss_scale doubles the '
        'scale.',
        lower_bound=1,
        unit='steps',
        ignored=(
            *_OF_SCALE,
            IgnoredWhen(
                lambda p, run: not p.fp16_enable_auto_loss_scale,
                'only --fp16_enable_auto_loss_scale uses it',
            ),
        ),
    )
    continue_on_nan: bool = flag(
        False,
        'Continue when the loss is not finite, instead of stopping with an error. Runs on '
        'synthetic images always continue, with a warning.',
        original=NEW,
        shared_by_workers=False,
        ignored=(
            NO_COMPUTING,
            IN_EVAL,
            ignored_in_forward_only('--forward_only never stops because of a loss'),
        ),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    if (
        params.fp16_vars
        and params.precision != 'fp32'
        and not OPTIMIZERS[params.optimizer].fits_16_bits
    ):
        yield params.conflict(
            'fp16_vars',
            'optimizer',
            'squares or norms of gradients need 32 bits, not 16; use '
            f'{format_optimizers(lambda row: row.fits_16_bits)}, or remove --fp16_vars',
        )
