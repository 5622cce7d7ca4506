"""The flags about evaluation: of checkpoints with --eval, and of the model during training."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import ABOVE_0, MOST_EPOCHS, IgnoredWhen, Output, flag, parse_numbers
from tf_cnn.params.rules import NO_MODEL, TRAINS_NOTHING, RunContext

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

# The flags that set when training pauses for an evaluation; only one of them may be given.
EVAL_DURING_TRAINING = (
    'eval_during_training_every_n_steps',
    'eval_during_training_every_n_epochs',
    'eval_during_training_at_specified_steps',
    'eval_during_training_at_specified_epochs',
)
_NOTHING_EVALUATED = IgnoredWhen(lambda p, run: not p.evaluates, 'nothing is evaluated; see --eval')
_schedule_flag = functools.partial(flag, None, not_in_exchange=True, ignored=(TRAINS_NOTHING,))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class EvaluationFlags:
    """The part of Params about evaluation."""

    GROUP: ClassVar[str] = 'Evaluation'
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'shared_by_workers': True}
    IGNORED: ClassVar[tuple[IgnoredWhen, ...]] = (
        IgnoredWhen(lambda p, run: p.exchange_only, '--exchange_only trains no model'),
        NO_MODEL,
    )

    eval: bool = flag(
        False,
        'Do not train; print the accuracy of the newest checkpoint of --train_dir on the '
        'validation images.',
        common=True,
        original='by default it evaluates as many batches as training takes; here each '
        'validation image once',
        not_in_exchange=True,
    )
    eval_interval_secs: float = flag(
        0.0,
        'With --eval, the time between two looks for a new checkpoint, until the training that '
        'writes them has finished; 0 evaluates the newest checkpoint once.',
        unit='seconds',
        shared_by_workers=False,
        ignored=(IgnoredWhen(lambda p, run: not p.eval, 'only --eval uses it'),),
    )
    eval_batch_size: int = flag(
        0,
        'Images evaluated at a time on each device; 0 uses the batch size of training.',
        unit='images',
        ignored=(_NOTHING_EVALUATED,),
    )
    num_eval_batches: int | None = flag(
        None,
        'Batches to evaluate; a batch is a global batch of all devices. By default --num_batches '
        'with --eval, else every validation image once, or as many synthetic batches as timed '
        'steps.',
        lower_bound=1,
        unit='batches',
        ignored=(_NOTHING_EVALUATED,),
    )
    num_eval_epochs: float | None = flag(
        None,
        'Passes over the validation images, instead of --num_eval_batches; fractions are allowed. '
        'By default --num_epochs with --eval.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
        ignored=(_NOTHING_EVALUATED,),
    )
    eval_during_training_every_n_steps: int | None = _schedule_flag(
        'Steps of training between two evaluations.', lower_bound=1, unit='steps'
    )
    eval_during_training_every_n_epochs: float | None = _schedule_flag(
        'Epochs of training between two evaluations, fractions are allowed.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
    )
    eval_during_training_at_specified_steps: str | None = _schedule_flag(
        'Evaluate after these steps of training, separated by commas.'
    )
    eval_during_training_at_specified_epochs: str | None = _schedule_flag(
        'Evaluate after these epochs of training, separated by commas; fractions are allowed.'
    )
    stop_at_top_1_accuracy: float | None = flag(
        None,
        'Stop training after the first evaluation with at least this top-1 accuracy.',
        upper_bound=1,
    )
    eval_dir: str | None = flag(
        None,
        'Folder for summaries of evaluations, created if missing; by default none are written.',
        original='its default is a folder in /tmp',
        output=Output.FOLDER,
        shared_by_workers=False,
        setting=False,
        ignored=(_NOTHING_EVALUATED,),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    kinds = [
        name for name in ('forward_only', 'eval', *EVAL_DURING_TRAINING) if getattr(params, name)
    ]
    if ('eval' in kinds and len(kinds) > 1) or len(set(kinds) - {'forward_only'}) > 1:
        yield params.conflict(kinds[-2], kinds[-1], 'they exclude each other; remove one')
    if params.num_eval_batches is not None and params.num_eval_epochs is not None:
        yield params.conflict(
            'num_eval_batches', 'num_eval_epochs', 'both set how much to evaluate; remove one'
        )
    elif params.num_eval_epochs is not None and params.data_dir is None:
        yield (
            f'{params.flag_text("num_eval_epochs")}: synthetic images have no epochs; use '
            '--num_eval_batches, or add --data_dir=DIR'
        )
    if params.eval and params.train_dir is None:
        yield '--eval: the folder of the checkpoints is missing; add --train_dir=DIR'
    for name, kind, noun in (
        ('eval_during_training_at_specified_steps', int, 'steps, such as 100,200'),
        ('eval_during_training_at_specified_epochs', float, 'epochs, such as 0.5,1,2'),
    ):
        try:
            parse_numbers(getattr(params, name), kind)
        except ValueError:
            yield f'{params.flag_text(name)}: it must be a list of {noun}, each above 0'
    if params.stop_at_top_1_accuracy is None:
        return
    if not params.evaluates_in_training:
        yield (
            f'{params.flag_text("stop_at_top_1_accuracy")}: nothing is evaluated while '
            'training; add '
            '--eval_during_training_every_n_epochs=1'
        )
    elif run and not run.is_single_process and not params.cross_replica_sync:
        yield params.conflict(
            'stop_at_top_1_accuracy',
            'cross_replica_sync',
            'workers that do not wait for each other stop at different steps; remove one',
        )
