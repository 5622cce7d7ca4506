"""The flags about the optimizer: update rule, learning rate, and terms of the loss."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import ABOVE_0, MOST_EPOCHS, NEW, IgnoredWhen, flag
from tf_cnn.params.optimizer_table import DEFAULT_OPTIMIZER, OPTIMIZERS, format_optimizers
from tf_cnn.params.rules import IN_EVAL, NO_COMPUTING, NO_MODEL, TRAINS_NOTHING, RunContext
from tf_cnn.training.schedules import parse_piecewise

if TYPE_CHECKING:
    from tf_cnn.params.table import Params


def _argument(name: str, default: float, help: str, **facts: Any) -> Any:
    """Defines a flag that is an argument of some optimizers only."""
    takers = format_optimizers(lambda row: name in row.arguments)
    idle = IgnoredWhen(
        lambda p, run: name not in OPTIMIZERS[p.optimizer].arguments, f'only {takers} uses it'
    )
    return flag(default, f'{help}, for {takers}.', ignored=(idle,), **facts)


_NO_LOSS = IgnoredWhen(
    lambda p, run: p.exchange_only and 'weight_decay' not in OPTIMIZERS[p.optimizer].arguments,
    '--exchange_only computes no loss',
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OptimizerFlags:
    """The part of Params about the optimizer."""

    GROUP: ClassVar[str] = 'Optimizer'
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'shared_by_workers': True}
    IGNORED: ClassVar[tuple[IgnoredWhen, ...]] = (NO_MODEL, IN_EVAL, TRAINS_NOTHING)

    optimizer: str = flag(
        DEFAULT_OPTIMIZER,
        'The update rule. '
        f'{"; ".join(f"{row.name}: {row.summary}" for row in OPTIMIZERS.values())}.',
        choices=tuple(OPTIMIZERS),
        common=True,
        resolved=True,
    )
    init_learning_rate: float | None = flag(
        None,
        "The learning rate; by default the model's own schedule, see docs/training.md. "
        '--learning_rate is another name for it.',
        common=True,
    )
    piecewise_learning_rate_schedule: str | None = flag(
        None,
        "The learning rate as 'RATE;EPOCH;RATE;...': the first rate, then each epoch (counted from "
        '0, fractions are allowed) that changes it, followed by the new rate.',
    )
    num_epochs_per_decay: float = flag(
        0.0,
        'The learning rate is multiplied by --learning_rate_decay_factor each time this many '
        'epochs have passed; 0 keeps it constant.',
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    learning_rate_decay_factor: float = flag(
        0.0, 'Factor of the learning rate for --num_epochs_per_decay.'
    )
    minimum_learning_rate: float = flag(
        0.0,
        'The decay of --num_epochs_per_decay does not go below this learning rate.',
        ignored=(
            IgnoredWhen(
                lambda p, run: not p.num_epochs_per_decay,
                'the learning rate does not decay without --num_epochs_per_decay',
            ),
        ),
    )
    num_learning_rate_warmup_epochs: float = flag(
        0.0,
        'Epochs of warm-up, while the learning rate rises linearly from 0 to its first value; 0 '
        "uses the schedule's warm-up.",
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    resnet_base_lr: float | None = flag(
        None,
        'For residual networks: the learning rate for 256 images per update. The rate is '
        'proportional to the images per update, warms up for 5 epochs, and is divided by 10 after '
        'certain epochs, see docs/training.md.',
        ignored=(
            IgnoredWhen(
                lambda p, run: not run.is_residual,
                'only residual networks use it, and --model is not one',
            ),
        ),
    )
    momentum: float = _argument('momentum', 0.9, 'Momentum', upper_bound=1)
    nesterov: bool = _argument(
        'nesterov',
        True,
        "Nesterov's momentum, which looks ahead by one more step; --nonesterov is plain momentum",
        original=NEW,
    )
    rmsprop_decay: float = _argument(
        'rmsprop_decay', 0.9, 'Decay of the mean square', upper_bound=1
    )
    rmsprop_momentum: float = _argument('rmsprop_momentum', 0.9, 'Momentum', upper_bound=1)
    rmsprop_epsilon: float = _argument('rmsprop_epsilon', 1.0, 'Term added to the mean square')
    adam_beta1: float = _argument('adam_beta1', 0.9, 'Decay of the mean', upper_bound=1)
    adam_beta2: float = _argument('adam_beta2', 0.999, 'Decay of the mean square', upper_bound=1)
    adam_epsilon: float = _argument('adam_epsilon', 1e-8, 'Term added to the denominator')
    lars_eta: float = _argument('lars_eta', 1e-3, 'Trust coefficient', original=NEW)
    weight_decay: float = flag(
        4e-5,
        'Factor of the L2 loss of the weights.',
        common=True,
        original='it applies weight decay to biases too',
        ignored=(_NO_LOSS,),
    )
    single_l2_loss_op: bool = flag(
        False,
        'Compute the L2 loss of all weights in one operation.',
        ignored=(
            NO_COMPUTING,
            IgnoredWhen(lambda p, run: not p.weight_decay, '--weight_decay=0 leaves no L2 loss'),
        ),
    )
    label_smoothing: float = flag(
        0.0,
        'Fraction of each label that is spread evenly over all classes.',
        upper_bound=1,
        original=NEW,
        ignored=(NO_COMPUTING,),
    )
    gradient_clip: float | None = flag(
        None,
        'Clip each element of a gradient to [-VALUE, VALUE]; by default gradients are not clipped.',
        lower_bound=ABOVE_0,
    )


# Each flag in _WHOLE_SCHEDULES sets the rate of the whole training and excludes all others; the
# flags in _RATE_FLAGS can be combined.
_WHOLE_SCHEDULES = ('piecewise_learning_rate_schedule', 'resnet_base_lr')
_RATE_FLAGS = (
    'init_learning_rate',
    'num_epochs_per_decay',
    'learning_rate_decay_factor',
    'minimum_learning_rate',
)


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    schedule = params.piecewise_learning_rate_schedule
    if schedule is not None:
        try:
            parse_piecewise(schedule)
        except ValueError as error:
            written = params.flag_text('piecewise_learning_rate_schedule')
            yield f"{written}: {error}; use 'RATE;EPOCH;RATE;...', such as '0.3;10;0.2;25;0.02'"
    for name, missing in itertools.permutations(
        ('num_epochs_per_decay', 'learning_rate_decay_factor')
    ):
        if getattr(params, name) and not getattr(params, missing):
            yield (
                f'{params.flag_text(name)}: a decay of the learning rate needs --{missing} above 0 '
                'too; add it'
            )
    defaults = type(params)()
    rate_flags = [
        name
        for name in (*_WHOLE_SCHEDULES, *_RATE_FLAGS)
        if getattr(params, name) != getattr(defaults, name)
    ]
    if run and not run.is_residual:
        rate_flags = [name for name in rate_flags if name != 'resnet_base_lr']
    if run and len(rate_flags) > 1 and rate_flags[0] in _WHOLE_SCHEDULES:
        yield params.conflict(
            rate_flags[0],
            rate_flags[1],
            'the first sets the learning rate of the whole training; remove one',
        )
