"""The flags about the optimizer, precision and checkpoints. Does not import TensorFlow."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tf_cnn.flags.spec import (
    ABOVE_0,
    MOST_EPOCHS,
    NEW,
    NO_COMPUTING,
    NO_FOLDER,
    NO_MODEL,
    NO_STEPS,
    NO_TRAINING,
    ON_CPU,
    Note,
    Output,
    flag,
)
from tf_cnn.training.schedules import parse_piecewise

if TYPE_CHECKING:
    from tf_cnn.plan.params import Params, RuleContext
    from tf_cnn.plan.workload import Context


# The values of --precision, and TensorFlow's names of the dtypes.
DTYPES: Mapping[str, str] = {'fp32': 'float32', 'fp16': 'float16', 'bf16': 'bfloat16'}


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


# Each flag in _WHOLE_SCHEDULES sets the rate of the whole training and excludes all others; the
# flags in _RATE_FLAGS can be combined.
_WHOLE_SCHEDULES = ('piecewise_learning_rate_schedule', 'resnet_base_lr')
_RATE_FLAGS = (
    'init_learning_rate',
    'num_epochs_per_decay',
    'learning_rate_decay_factor',
    'minimum_learning_rate',
)


def _takers(name: str) -> str:
    return format_optimizers(lambda row: name in row.arguments)


def _argument(name: str, default: float, help: str, **properties: Any) -> Any:
    """Defines a flag that is an argument of some optimizers only."""
    return flag(default, f'{help}, for {_takers(name)}.', **properties)


@dataclass(frozen=True)
class OptimizerConfig:
    """The update rule, the learning rate, and terms of the loss."""

    GROUP: ClassVar[str] = 'Optimizer'
    PROPERTIES: ClassVar[Mapping[str, object]] = {
        'shared_by_workers': True,
        'ignored': NO_TRAINING,
    }

    optimizer: str = flag(
        DEFAULT_OPTIMIZER,
        'The update rule. '
        f'{"; ".join(f"{row.name}: {row.summary}" for row in OPTIMIZERS.values())}.',
        choices=tuple(OPTIMIZERS),
        common=True,
        in_run_section=True,
    )
    init_learning_rate: float | None = flag(
        None,
        "The learning rate; by default the model's own schedule, see docs/training.md. "
        '--learning_rate is another name for it.',
        common=True,
        chosen=True,
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
    )
    single_l2_loss_op: bool = flag(
        False,
        'Compute the L2 loss of all weights in one operation.',
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )
    label_smoothing: float = flag(
        0.0,
        'Fraction of each label that is spread evenly over all classes.',
        upper_bound=1,
        original=NEW,
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )
    gradient_clip: float | None = flag(
        None,
        'Clip each element of a gradient to [-VALUE, VALUE]; by default gradients are not clipped.',
        lower_bound=ABOVE_0,
    )

    @property
    def row(self) -> OptimizerRow:
        return OPTIMIZERS[self.optimizer]

    def resolve(self, params: 'Params', context: 'Context') -> Self:
        assert context.learning_rate
        return replace(self, init_learning_rate=context.learning_rate.rates[0])

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        schedule = self.piecewise_learning_rate_schedule
        if schedule is not None:
            try:
                parse_piecewise(schedule)
            except ValueError as error:
                written = params.flag_text('piecewise_learning_rate_schedule')
                yield f"{written}: {error}; use 'RATE;EPOCH;RATE;...', such as '0.3;10;0.2;25;0.02'"
        for name, missing in itertools.permutations(
            ('num_epochs_per_decay', 'learning_rate_decay_factor')
        ):
            if getattr(self, name) and not getattr(self, missing):
                yield (
                    f'{params.flag_text(name)}: a decay of the learning rate needs --{missing} '
                    'above 0 too; add it'
                )
        defaults = OptimizerConfig()
        rate_flags = [
            name
            for name in (*_WHOLE_SCHEDULES, *_RATE_FLAGS)
            if getattr(self, name) != getattr(defaults, name)
        ]
        if not rules.is_residual:
            rate_flags = [name for name in rate_flags if name != 'resnet_base_lr']
        if len(rate_flags) > 1 and rate_flags[0] in _WHOLE_SCHEDULES:
            yield params.conflict(
                rate_flags[0],
                rate_flags[1],
                'the first sets the learning rate of the whole training; remove one',
            )
        if not self.num_epochs_per_decay:
            reason = 'the learning rate does not decay without --num_epochs_per_decay'
            yield ('minimum_learning_rate',), reason
        if not rules.is_residual:
            yield ('resnet_base_lr',), 'only residual networks use it, and --model is not one'
        all_arguments = {name for row in OPTIMIZERS.values() for name in row.arguments}
        for name in all_arguments - {*self.row.arguments, 'weight_decay'}:
            yield (name,), f'only {_takers(name)} uses it'
        if params.run.exchange_only and 'weight_decay' not in self.row.arguments:
            yield ('weight_decay',), '--exchange_only computes no loss'
        if not self.weight_decay:
            yield ('single_l2_loss_op',), '--weight_decay=0 leaves no L2 loss'


@dataclass(frozen=True)
class PrecisionConfig:
    """The types of numbers, the loss scale, and what happens when a loss is not finite."""

    GROUP: ClassVar[str] = 'Precision'
    PROPERTIES: ClassVar[Mapping[str, object]] = {
        'shared_by_workers': True,
        'ignored': (NO_MODEL,),
    }

    precision: str = flag(
        'fp32',
        'The type of the computation of the network; variables (see --fp16_vars), loss and updates '
        'keep 32 bits. --use_fp16 means fp16.',
        choices=(*DTYPES,),
        common=True,
        original=NEW,
        in_run_section=True,
    )
    tf32: bool = flag(
        True,
        'On GPUs of compute capability 8.0 and above, multiply numbers of 32 bits in TF32, which '
        'keeps 10 bits of the mantissa, as TensorFlow does by default.',
        original=NEW,
        shared_by_workers=False,
        ignored=(NO_MODEL, ON_CPU),
    )
    fp16_vars: bool = flag(
        False,
        'Store trained variables in the 16-bit type of --precision too.',
        ignored=NO_STEPS,
    )
    fp16_loss_scale: float | None = flag(
        None,
        'Loss scale with --precision=fp16; the initial scale if it changes automatically. By '
        'default 128.',
        lower_bound=1,
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )
    fp16_enable_auto_loss_scale: bool = flag(
        False,
        'Halve the loss scale and skip the update when gradients overflow; double the scale after '
        '--fp16_inc_loss_scale_every_n steps without overflow.',
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )
    fp16_inc_loss_scale_every_n: int = flag(
        1000,
        'Consecutive steps without overflow after which --fp16_enable_auto_loss_scale doubles the '
        'scale.',
        lower_bound=1,
        unit='steps',
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )
    continue_on_nan: bool = flag(
        False,
        'Continue when the loss is not finite, instead of stopping with an error. Runs on '
        'synthetic images always continue, with a warning.',
        original=NEW,
        shared_by_workers=False,
        ignored=(*NO_TRAINING, NO_COMPUTING),
    )

    @property
    def dtype(self) -> str:
        """The dtype of activations, as TensorFlow names it."""
        return DTYPES[self.precision]

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if self.fp16_vars and self.precision != 'fp32' and not params.training.row.fits_16_bits:
            yield params.conflict(
                'fp16_vars',
                'optimizer',
                'squares or norms of gradients need 32 bits, not 16; use '
                f'{format_optimizers(lambda row: row.fits_16_bits)}, or remove --fp16_vars',
            )
        if self.precision == 'fp32':
            yield ('fp16_vars',), 'only --precision=fp16 or --precision=bf16 uses it'
        if self.precision != 'fp16':
            names = (
                'fp16_loss_scale',
                'fp16_enable_auto_loss_scale',
                'fp16_inc_loss_scale_every_n',
            )
            yield names, 'only --precision=fp16 scales the loss'
        if not self.fp16_enable_auto_loss_scale:
            reason = 'only --fp16_enable_auto_loss_scale uses it'
            yield ('fp16_inc_loss_scale_every_n',), reason


@dataclass(frozen=True)
class CheckpointConfig:
    """The checkpoints and models that a run reads and writes."""

    GROUP: ClassVar[str] = 'Files'
    PROPERTIES: ClassVar[Mapping[str, object]] = {'ignored': (NO_MODEL,)}

    train_dir: str | None = flag(
        None,
        'Folder for checkpoints and summaries, created if missing. Training continues from its '
        'newest checkpoint, and --forward_only computes with its weights; --eval and '
        '--forward_only also accept a single checkpoint, as in DIR/model.ckpt-100.',
        common=True,
        output=Output.FOLDER,
    )
    save_model_secs: float = flag(
        0.0,
        'Seconds between two checkpoints; 0 saves only at the start and at the end.',
        unit='seconds',
        ignored=(*NO_TRAINING, NO_FOLDER),
    )
    save_model_steps: int | None = flag(
        None,
        'Steps between two checkpoints; by default only --save_model_secs counts.',
        lower_bound=1,
        unit='steps',
        common=True,
        ignored=(*NO_TRAINING, NO_FOLDER),
    )
    max_ckpts_to_keep: int = flag(
        5,
        'The number of newest checkpoints to keep; 0 keeps all.',
        unit='checkpoints',
        setting=False,
        ignored=(*NO_TRAINING, NO_FOLDER),
    )
    backbone_model_path: str | None = flag(
        None,
        'Checkpoint, or folder of checkpoints, with the weights that training starts from.',
        is_path=True,
        ignored=NO_TRAINING,
    )

    def notes(self, params: 'Params', rules: 'RuleContext') -> Iterator[Note]:
        if (
            params.run.forward_only
            and not params.writes_to('train_dir')
            and not rules.has_checkpoint
        ):
            reason = (
                'it holds no checkpoint, --forward_only saves none, and summaries need '
                '--save_summaries_steps and --summary_verbosity'
            )
            yield ('train_dir',), reason
