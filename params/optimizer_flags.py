"""The flags about the optimizer: update rule, learning rate, and what is added to the loss."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import format_flag
from params.optimizer_table import DEFAULT_OPTIMIZER, OPTIMIZERS, optimizers_that
from params.rules import IN_EVAL, NO_COMPUTING, NO_MODEL, TRAINS_NOTHING, Idle, Rule, RunFacts, RunRule
from params.spec import MOST_EPOCHS, NEW, flag
from training.schedules import parse_piecewise

if TYPE_CHECKING:
    from params.table import Params


def _takers_of(name: str) -> str:
    return optimizers_that(lambda row: name in row.arguments)


def _only_with(name: str) -> Idle:
    return Idle(lambda p, run: name not in OPTIMIZERS[p.optimizer].arguments, f'only {_takers_of(name)} uses it')


_NO_LOSS = Idle(
    lambda p, run: p.exchange_only and 'weight_decay' not in OPTIMIZERS[p.optimizer].arguments,
    '--exchange_only computes no loss, to which it would be added',
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OptimizerFlags:
    """The part of Params about the optimizer."""

    GROUP: ClassVar[str] = 'Optimizer'
    AGREED: ClassVar[bool] = True
    IDLE: ClassVar[tuple[Idle, ...]] = (NO_MODEL, IN_EVAL, TRAINS_NOTHING)

    optimizer: str = flag(
        DEFAULT_OPTIMIZER,
        f'The update rule. {"; ".join(f"{row.name}: {row.summary}" for row in OPTIMIZERS.values())}.',
        choices=tuple(OPTIMIZERS),
        common=True,
        resolved=True,
    )
    init_learning_rate: float | None = flag(
        None,
        "The learning rate; by default the model's own schedule, see docs/training.md. --learning_rate is another name "
        'of it.',
        lower_bound=0,
        common=True,
    )
    piecewise_learning_rate_schedule: str | None = flag(
        None,
        "The learning rate as 'RATE;EPOCH;RATE;...': the first rate, then the epochs (counted from 0, fractions are "
        'allowed) at which it changes, each with its new rate.',
    )
    num_epochs_per_decay: float = flag(
        0.0,
        'The learning rate is multiplied by --learning_rate_decay_factor each time this many epochs have passed; 0 '
        'keeps it constant.',
        lower_bound=0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    learning_rate_decay_factor: float = flag(
        0.0, 'Factor of the learning rate for --num_epochs_per_decay.', lower_bound=0
    )
    minimum_learning_rate: float = flag(
        0.0,
        'The decay of --num_epochs_per_decay does not go below this learning rate.',
        lower_bound=0,
        idle=(
            Idle(
                lambda p, run: not p.num_epochs_per_decay,
                'the learning rate does not decay without --num_epochs_per_decay',
            ),
        ),
    )
    num_learning_rate_warmup_epochs: float = flag(
        0.0,
        "Epochs in which the learning rate rises evenly from 0 to its first value; 0 is the schedule's own warm-up.",
        lower_bound=0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    resnet_base_lr: float | None = flag(
        None,
        'For residual networks: the learning rate for 256 images per update. The rate is proportional to the images, '
        'rises for 5 epochs, and is divided by 10 after the usual epochs, see docs/training.md.',
        lower_bound=0,
        idle=(Idle(lambda p, run: not run.residual, 'only residual networks use it, and --model is not one'),),
    )
    momentum: float = flag(
        0.9, f'Momentum, for {_takers_of("momentum")}.', lower_bound=0, upper_bound=1, idle=(_only_with('momentum'),)
    )
    nesterov: bool = flag(
        True,
        f"Nesterov's momentum, for {_takers_of('nesterov')}: the step looks ahead by one more step of the momentum. "
        '--nonesterov is the plain one.',
        original=NEW,
        idle=(_only_with('nesterov'),),
    )
    rmsprop_decay: float = flag(
        0.9,
        f'Decay of the mean square, for {_takers_of("rmsprop_decay")}.',
        lower_bound=0,
        upper_bound=1,
        idle=(_only_with('rmsprop_decay'),),
    )
    rmsprop_momentum: float = flag(
        0.9,
        f'Momentum, for {_takers_of("rmsprop_momentum")}.',
        lower_bound=0,
        upper_bound=1,
        idle=(_only_with('rmsprop_momentum'),),
    )
    rmsprop_epsilon: float = flag(
        1.0,
        f'Term added to the mean square, for {_takers_of("rmsprop_epsilon")}.',
        lower_bound=0,
        idle=(_only_with('rmsprop_epsilon'),),
    )
    adam_beta1: float = flag(
        0.9,
        f'Decay of the mean, for {_takers_of("adam_beta1")}.',
        lower_bound=0,
        upper_bound=1,
        idle=(_only_with('adam_beta1'),),
    )
    adam_beta2: float = flag(
        0.999,
        f'Decay of the mean square, for {_takers_of("adam_beta2")}.',
        lower_bound=0,
        upper_bound=1,
        idle=(_only_with('adam_beta2'),),
    )
    adam_epsilon: float = flag(
        1e-8,
        f'Term added to the denominator, for {_takers_of("adam_epsilon")}.',
        lower_bound=0,
        idle=(_only_with('adam_epsilon'),),
    )
    lars_eta: float = flag(
        1e-3,
        f'Trust coefficient, for {_takers_of("lars_eta")}.',
        lower_bound=0,
        original=NEW,
        idle=(_only_with('lars_eta'),),
    )
    weight_decay: float = flag(
        4e-5,
        'Factor of the L2 loss of the weights.',
        lower_bound=0,
        common=True,
        original='there biases decay, too',
        idle=(_NO_LOSS,),
    )
    single_l2_loss_op: bool = flag(
        False,
        'Compute the L2 loss of all weights in one operation.',
        idle=(NO_COMPUTING, Idle(lambda p, run: not p.weight_decay, '--weight_decay=0 leaves no L2 loss')),
    )
    label_smoothing: float = flag(
        0.0,
        'Part of each label that is spread evenly over all classes.',
        lower_bound=0,
        upper_bound=1,
        original=NEW,
        idle=(NO_COMPUTING,),
    )
    gradient_clip: float | None = flag(
        None,
        'Clip each element of a gradient to the range from minus this to this; by default there is no clipping.',
        lower_bound=0,
    )


# Each of the first flags sets the rate of the whole training, so only one may be given; the others can be combined.
_WHOLE_SCHEDULES = ('piecewise_learning_rate_schedule', 'resnet_base_lr')
_RATE_FLAGS = ('init_learning_rate', 'num_epochs_per_decay', 'learning_rate_decay_factor', 'minimum_learning_rate')


def _the_clip_leaves_something(params: 'Params') -> str | None:
    if params.gradient_clip == 0:
        return '--gradient_clip=0: every gradient would be zero; leave it out, or write a number above 0'
    return None


def _a_piecewise_schedule_has_pieces(params: 'Params') -> str | None:
    schedule = params.piecewise_learning_rate_schedule
    if schedule is not None:
        try:
            parse_piecewise(schedule)
        except ValueError as error:
            written = format_flag('piecewise_learning_rate_schedule', schedule)
            return f"{written}: {error}; write 'RATE;EPOCH;RATE;...', such as '0.3;10;0.2;25;0.02'"
    return None


def _a_decay_has_an_interval_and_a_factor(params: 'Params') -> str | None:
    for given, missing in itertools.permutations(('num_epochs_per_decay', 'learning_rate_decay_factor')):
        if (value := getattr(params, given)) and not getattr(params, missing):
            return f'{format_flag(given, value)}: a decay of the learning rate needs --{missing} above 0 too; add it'
    return None


def _the_learning_rate_is_given_once(params: 'Params', facts: RunFacts) -> str | None:
    defaults = type(params)()
    given = [name for name in (*_WHOLE_SCHEDULES, *_RATE_FLAGS) if getattr(params, name) != getattr(defaults, name)]
    if not facts.residual:
        given = [name for name in given if name != 'resnet_base_lr']
    if len(given) > 1 and given[0] in _WHOLE_SCHEDULES:
        whole, other = (format_flag(name, getattr(params, name)) for name in given[:2])
        return f'{whole} clashes with {other}: the first sets the learning rate of the whole training; leave one out'
    return None


RULES: tuple[Rule, ...] = (
    _the_clip_leaves_something,
    _a_piecewise_schedule_has_pieces,
    _a_decay_has_an_interval_and_a_factor,
)
RUN_RULES: tuple[RunRule, ...] = (_the_learning_rate_is_given_once,)
