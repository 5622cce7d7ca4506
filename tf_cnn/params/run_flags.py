"""The flags about the model and the run: the network, the number of steps, and printed lines."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tf_cnn.flags.spec import ABOVE_0, MOST_EPOCHS, NEW, IgnoredWhen, flag
from tf_cnn.managers.modes import MODES
from tf_cnn.params.rules import IN_EVAL, NO_COMPUTING, NO_MODEL, RunContext, ignored_in_forward_only
from tf_cnn.system.errors import UsageError

if TYPE_CHECKING:
    from tf_cnn.params.table import Params

# The default number of timed steps.
NUM_BATCHES = 100

_COUNTED_FOR_EVAL = IgnoredWhen(
    lambda p, run: p.eval and (p.num_eval_batches, p.num_eval_epochs) != (None, None),
    '--num_eval_batches or --num_eval_epochs sets how many images --eval evaluates',
)
_ONE_TENSOR = IgnoredWhen(
    lambda p, run: p.exchange_only and p.exchange_bytes is not None,
    '--exchange_bytes replaces the gradients of the model',
)


@dataclass(frozen=True, init=False, repr=False, eq=False)
class RunFlags:
    """The first part of Params."""

    GROUP: ClassVar[str] = 'Model and run'
    PROPERTIES: ClassVar[Mapping[str, Any]] = {'shared_by_workers': True}

    model: str = flag(
        'trivial',
        'The network.',
        common=True,
        original='a network of the same name has the same cost; docs/models.md lists the '
        'differences',
        ignored=(_ONE_TENSOR,),
    )
    model_file: str | None = flag(
        None,
        'Python file that defines more models with register_model, see docs/models.md.',
        is_path=True,
        original=NEW,
        # Workers compare the content of the file, not its path.
        shared_by_workers=False,
        setting=False,
        ignored=(_ONE_TENSOR,),
    )
    batch_size: int = flag(
        0,
        "Images per step on each device; 0 takes the model's default.",
        unit='images',
        common=True,
        resolved=True,
        ignored=(
            NO_COMPUTING,
            IgnoredWhen(
                lambda p, run: p.eval and bool(p.eval_batch_size),
                '--eval_batch_size sets how many images are evaluated at a time',
            ),
        ),
    )
    num_batches: int | None = flag(
        None,
        f'Timed steps of each worker; by default {NUM_BATCHES}, or as many as --num_epochs needs. '
        'With --eval, the default of --num_eval_batches.',
        lower_bound=1,
        unit='steps',
        common=True,
        setting=False,
        ignored=(_COUNTED_FOR_EVAL,),
    )
    num_epochs: float | None = flag(
        None,
        'Length of the timed steps in passes over the training images, by all devices of all '
        'workers, instead of --num_batches. With --eval, the default of --num_eval_epochs.',
        lower_bound=ABOVE_0,
        upper_bound=MOST_EPOCHS,
        unit='epochs',
        common=True,
        setting=False,
        not_in_exchange=True,
        ignored=(_COUNTED_FOR_EVAL,),
    )
    num_warmup_batches: int = flag(
        10,
        'Warm-up steps before the timed steps; they train, but results do not include their time.',
        unit='steps',
        common=True,
        setting=False,
        ignored=(IN_EVAL,),
    )
    steps_per_run: int = flag(
        1,
        'Steps of one session call, which runs a loop in the graph. The time of a call is divided '
        'equally among its steps. Lines, checkpoints, evaluations and signals wait for the end of '
        'the call.',
        lower_bound=1,
        unit='steps',
        original=NEW,
        not_in_cluster='the workers of a cluster synchronize after each step, to detect '
        'a lost worker',
        ignored=(NO_MODEL, IN_EVAL),
    )
    display_every: int = flag(
        10,
        'Steps between two printed lines.',
        lower_bound=1,
        unit='steps',
        common=True,
        shared_by_workers=False,
        ignored=(IN_EVAL,),
    )
    display_perf_ewma: float | None = flag(
        None,
        'Print an exponentially weighted moving average of the throughput, with this weight for '
        'the last step, instead of the average of all steps so far; the total at the end stays the '
        'same.',
        upper_bound=1,
        ignored=(IN_EVAL,),
    )
    forward_only: bool = flag(
        False,
        'Compute only the loss and the accuracy: no gradients, no updates.',
        common=True,
        shared_by_servers=True,
        not_in_exchange=True,
    )
    freeze_when_forward_only: bool = flag(
        False,
        'With --forward_only, make the weights constants, and fold batch norm into the '
        'convolution before it.',
        ignored=(
            NO_MODEL,
            IgnoredWhen(lambda p, run: not p.forward_only, 'only --forward_only freezes weights'),
        ),
    )
    exchange_only: bool = flag(
        False,
        'Exchange and apply gradients as in training, but compute nothing: gradients in the sizes '
        'of the model are in memory already.',
        original=NEW,
    )
    exchange_bytes: int | None = flag(
        None,
        'With --exchange_only: exchange one float32 tensor of this many bytes instead of the '
        'gradients of the model.',
        lower_bound=4,
        upper_bound=1 << 30,
        unit='bytes',
        original=NEW,
        ignored=(IgnoredWhen(lambda p, run: not p.exchange_only, 'only --exchange_only uses it'),),
    )
    print_training_accuracy: bool = flag(
        False,
        'Compute and print top-1 and top-5 accuracy while training.',
        shared_by_workers=False,
        ignored=(
            NO_COMPUTING,
            NO_MODEL,
            IN_EVAL,
            ignored_in_forward_only('--forward_only always prints the accuracy'),
        ),
    )
    loss_type_to_report: str = flag(
        'total_loss',
        'The loss to print: base_loss excludes weight decay, total_loss includes it.',
        choices=('base_loss', 'total_loss'),
        shared_by_workers=False,
        ignored=(
            NO_COMPUTING,
            NO_MODEL,
            IN_EVAL,
            ignored_in_forward_only(
                '--forward_only computes no weight decay, so that both losses are the same'
            ),
        ),
    )
    tf_random_seed: int = flag(
        1234,
        'Seed of weights, dropout, augmentation and image order (the order of records also '
        'depends on read timing, unless --deterministic is given).',
        lower_bound=-math.inf,
        shared_by_workers=False,
        setting=False,
        ignored=(
            IgnoredWhen(
                lambda p, run: p.eval and p.data_dir is not None,
                '--eval takes its weights from a checkpoint and does not augment images',
            ),
        ),
    )
    deterministic: bool = flag(
        False,
        'Make losses bit-identical for the same --tf_random_seed, by deterministic ops and a '
        'deterministic order of records.',
        original=NEW,
        shared_by_servers=True,
    )
    verbose: bool = flag(
        False,
        'Print the startup messages of TensorFlow, and a traceback after an error.',
        common=True,
        original=NEW,
        shared_by_workers=False,
        setting=False,
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    # Importing the flags should not import the models, and the table imports this module.
    from models.registry import MODELS
    from tf_cnn.params.table import SPECS

    # The --model_file may define the model; the planner looks it up after the file has run.
    if params.model_file is None:
        try:
            MODELS.find_model(params.model, params.data_name)
        except UsageError as error:
            yield str(error)
    if params.num_epochs is not None and params.num_batches is not None:
        yield params.conflict(
            'num_epochs', 'num_batches', 'both set the length of the run; remove one'
        )
    if params.steps_per_run > 1 and params.profile_steps and not params.eval:
        yield params.conflict(
            'steps_per_run',
            'profile_steps',
            'single steps of a loop cannot be profiled; remove one',
        )
    if not params.exchange_only:
        return
    for name, spec in SPECS.items():
        if spec.not_in_exchange and getattr(params, name) not in (None, False):
            yield params.conflict(
                'exchange_only', name, 'it computes nothing and trains no model; remove one'
            )
            break
    if not MODES[params.variable_update].shares_model:
        yield params.conflict(
            'exchange_only', 'variable_update', 'its towers exchange nothing; remove one'
        )
    if params.exchange_bytes is not None and params.exchange_bytes % 4:
        yield f'{params.flag_text("exchange_bytes")}: a value has 4 bytes; use a multiple of 4'
