"""The flags about files: checkpoints, summaries, exports, traces and profiles."""

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tf_cnn.flags.spec import NEW, IgnoredWhen, Output, flag, parse_numbers
from tf_cnn.params.rules import (
    IN_EVAL,
    NO_MODEL,
    TRAINS_NOTHING,
    RunContext,
    ignored_in_forward_only,
)

if TYPE_CHECKING:
    from tf_cnn.params.table import Params
_NO_FOLDER = IgnoredWhen(
    lambda p, run: p.train_dir is None, 'checkpoints and summaries need --train_dir'
)
_SAVES_NOTHING = ignored_in_forward_only('--forward_only saves no checkpoints')
_checkpoint_flag = functools.partial(flag, ignored=(IN_EVAL, _NO_FOLDER, _SAVES_NOTHING))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FileFlags:
    """The part of Params about files."""

    GROUP: ClassVar[str] = 'Files'
    IGNORED: ClassVar[tuple[IgnoredWhen, ...]] = (NO_MODEL,)

    train_dir: str | None = flag(
        None,
        'Folder for checkpoints and summaries, created if missing. Training continues from its '
        'newest checkpoint; --eval also accepts a single checkpoint, as in DIR/model.ckpt-100.',
        common=True,
        output=Output.FOLDER,
        inside=(
            'checkpoint',
            'model.ckpt-*',
            'training-*',
            '.unfinished-checkpoint*',
            '.ready-checkpoint*',
            'events.out.tfevents.*',
        ),
        not_in_exchange=True,
        ignored=(
            IgnoredWhen(
                lambda p, run: (
                    p.forward_only and not (p.save_summaries_steps and p.summary_verbosity)
                ),
                '--forward_only saves no checkpoints, and summaries need --save_summaries_steps '
                'and --summary_verbosity',
            ),
        ),
    )
    save_model_secs: float = _checkpoint_flag(
        0.0,
        'Seconds between two checkpoints; 0 saves only at the start and at the end.',
        unit='seconds',
    )
    save_model_steps: int | None = _checkpoint_flag(
        None,
        'Steps between two checkpoints; by default only --save_model_secs counts.',
        lower_bound=1,
        unit='steps',
        common=True,
    )
    max_ckpts_to_keep: int = _checkpoint_flag(
        5,
        'The number of newest checkpoints to keep.',
        lower_bound=1,
        unit='checkpoints',
        setting=False,
    )
    backbone_model_path: str | None = flag(
        None,
        'Checkpoint, or folder of checkpoints, with the weights that training starts from.',
        is_path=True,
        inside=('checkpoint', 'model.ckpt-*'),
        not_in_exchange=True,
        ignored=(IN_EVAL, TRAINS_NOTHING),
    )
    export_saved_model: str | None = flag(
        None,
        'New folder for a SavedModel of the trained or evaluated model.',
        original=NEW,
        output=Output.NEW_FOLDER,
        not_in_exchange=True,
        ignored=(TRAINS_NOTHING,),
    )
    save_summaries_steps: int = flag(
        0,
        'Steps between two summaries in --train_dir; 0 writes none.',
        unit='steps',
        ignored=(
            IN_EVAL,
            _NO_FOLDER,
            IgnoredWhen(
                lambda p, run: not p.summary_verbosity, '--summary_verbosity=0 writes no summaries'
            ),
        ),
    )
    summary_verbosity: int = flag(
        0,
        '0 writes no summaries, 1 scalars, 2 also histograms of variables, 3 also histograms of '
        'gradients.',
        upper_bound=3,
        ignored=(
            IN_EVAL,
            _NO_FOLDER,
            IgnoredWhen(
                lambda p, run: not p.save_summaries_steps,
                '--save_summaries_steps=0 writes no summaries',
            ),
        ),
    )
    trace_file: str | None = flag(
        None,
        'File for a trace of the last warm-up step.',
        common=True,
        output=Output.FILE,
        ignored=(IN_EVAL,),
    )
    use_chrome_trace_format: bool = flag(
        True,
        'The format of --trace_file: chrome://tracing, or text if the switch is off.',
        ignored=(
            IN_EVAL,
            IgnoredWhen(lambda p, run: p.trace_file is None, 'only --trace_file uses it'),
        ),
    )
    graph_file: str | None = flag(
        None,
        'File for the graph, as text if its name ends with txt.',
        output=Output.FILE,
        ignored=(IN_EVAL,),
    )
    partitioned_graph_file_prefix: str | None = flag(
        None,
        'Prefix of files with the partitioned graph of each device, as the last warm-up step ran '
        'it.',
        output=Output.PREFIX,
        ignored=(IN_EVAL,),
    )
    tfprof_file: str | None = flag(
        None,
        'File for a profile of the last warm-up step.',
        output=Output.FILE,
        ignored=(IN_EVAL,),
    )
    profile_steps: str | None = flag(
        None,
        'FIRST,LAST: the first and the last timed step to profile for TensorBoard, counted from 1.',
        original=NEW,
        ignored=(IN_EVAL,),
    )
    profile_dir: str | None = flag(
        None,
        'Folder for the profile of --profile_steps, created if missing.',
        original=NEW,
        output=Output.CHIEF_FOLDER,
        ignored=(IN_EVAL,),
    )


def find_conflicts(params: 'Params', run: RunContext | None) -> Iterator[str]:
    for name in ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix'):
        if getattr(params, name) is not None and params.num_warmup_batches == 0:
            yield params.conflict(
                name,
                'num_warmup_batches',
                'it records the last warm-up step; use --num_warmup_batches=1 or more',
            )
    for given_flag, missing in itertools.permutations(('profile_steps', 'profile_dir')):
        if getattr(params, given_flag) and not getattr(params, missing):
            yield f'{params.flag_text(given_flag)}: a profile needs --{missing} too; add it'
            return
    try:
        first, last = parse_numbers(params.profile_steps, int) or (1, 1)
    except ValueError:
        first, last = 1, 0
    if first > last:
        yield (
            f'{params.flag_text("profile_steps")}: it must be the first and the last of the timed '
            'steps to profile, such as 10,20'
        )
