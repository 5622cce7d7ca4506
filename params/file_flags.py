"""The flags about files: checkpoints, summaries, exports, traces and profiles; and which process writes each."""

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import format_flag
from params.rules import IN_EVAL, NO_MODEL, TAKES_NO_STEPS, TRAINS_NOTHING, Idle, Rule, in_forward_only
from params.spec import NEW, Output, flag, numbers_of

if TYPE_CHECKING:
    from params.table import Params


_NO_SUMMARIES = Idle(lambda p, run: p.train_dir is None, 'summaries need --train_dir')
_NO_CHECKPOINTS = Idle(lambda p, run: p.train_dir is None, 'checkpoints need --train_dir')
_SAVES_NOTHING = in_forward_only('--forward_only saves no checkpoints')


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FileFlags:
    """The part of Params about files."""

    GROUP: ClassVar[str] = 'Files'

    train_dir: str | None = flag(
        None,
        'Folder for checkpoints and summaries, created if missing. Training continues from its newest checkpoint.',
        is_path=True,
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
        opened_by_tensorflow=True,
        not_in_exchange=True,
        idle=(
            NO_MODEL,
            Idle(
                lambda p, run: p.forward_only and not (p.save_summaries_steps and p.summary_verbosity),
                '--forward_only saves no checkpoints, and summaries need --save_summaries_steps and '
                '--summary_verbosity',
            ),
        ),
    )
    save_model_secs: float = flag(
        0.0,
        'Seconds between two checkpoints; 0 saves only at the start and at the end.',
        lower_bound=0,
        unit='seconds',
        idle=(NO_MODEL, IN_EVAL, _NO_CHECKPOINTS, _SAVES_NOTHING),
    )
    save_model_steps: int | None = flag(
        None,
        'Steps between two checkpoints; by default --save_model_secs decides alone.',
        lower_bound=1,
        unit='steps',
        common=True,
        idle=(NO_MODEL, IN_EVAL, _NO_CHECKPOINTS, _SAVES_NOTHING),
    )
    max_ckpts_to_keep: int = flag(
        5,
        'How many of the newest checkpoints are kept.',
        lower_bound=1,
        unit='checkpoints',
        setting=False,
        idle=(NO_MODEL, IN_EVAL, _NO_CHECKPOINTS, _SAVES_NOTHING),
    )
    backbone_model_path: str | None = flag(
        None,
        'Checkpoint, or folder of checkpoints, whose weights training starts from.',
        is_path=True,
        inside=('checkpoint', 'model.ckpt-*'),
        opened_by_tensorflow=True,
        not_in_exchange=True,
        idle=(NO_MODEL, IN_EVAL, TRAINS_NOTHING),
    )
    export_saved_model: str | None = flag(
        None,
        'New folder for a SavedModel of the model that was trained or evaluated.',
        is_path=True,
        original=NEW,
        output=Output.NEW_FOLDER,
        opened_by_tensorflow=True,
        not_in_exchange=True,
        idle=(NO_MODEL, TRAINS_NOTHING),
    )
    save_summaries_steps: int = flag(
        0,
        'Steps between two summaries in --train_dir; 0 writes none.',
        lower_bound=0,
        unit='steps',
        idle=(
            NO_MODEL,
            IN_EVAL,
            _NO_SUMMARIES,
            Idle(lambda p, run: not p.summary_verbosity, '--summary_verbosity=0 writes no summaries'),
        ),
    )
    summary_verbosity: int = flag(
        0,
        '0 writes no summaries, 1 scalars, 2 also histograms of variables, 3 also histograms of gradients.',
        lower_bound=0,
        upper_bound=3,
        idle=(
            NO_MODEL,
            IN_EVAL,
            _NO_SUMMARIES,
            Idle(lambda p, run: not p.save_summaries_steps, '--save_summaries_steps=0 writes no summaries'),
        ),
    )
    trace_file: str | None = flag(
        None,
        'File for a trace of the last warm-up step.',
        is_path=True,
        common=True,
        output=Output.FILE,
        idle=(NO_MODEL, TAKES_NO_STEPS),
    )
    use_chrome_trace_format: bool = flag(
        True,
        'Write --trace_file in the format of chrome://tracing; without it as text.',
        idle=(NO_MODEL, TAKES_NO_STEPS, Idle(lambda p, run: p.trace_file is None, 'only --trace_file uses it')),
    )
    graph_file: str | None = flag(
        None,
        'File for the graph; it is text if its name ends with txt.',
        is_path=True,
        output=Output.FILE,
        idle=(NO_MODEL, TAKES_NO_STEPS),
    )
    partitioned_graph_file_prefix: str | None = flag(
        None,
        'First part of the paths of files with the graph of each device, as the last warm-up step ran it.',
        is_path=True,
        output=Output.PREFIX,
        inside=('[0-9]*.pbtxt',),
        idle=(NO_MODEL, TAKES_NO_STEPS),
    )
    tfprof_file: str | None = flag(
        None,
        'File for a profile of the last warm-up step.',
        is_path=True,
        output=Output.FILE,
        idle=(NO_MODEL, TAKES_NO_STEPS),
    )
    profile_steps: str | None = flag(
        None,
        'FIRST,LAST: the first and the last timed step to profile for TensorBoard, counted from 1.',
        original=NEW,
        idle=(NO_MODEL, IN_EVAL),
    )
    profile_dir: str | None = flag(
        None,
        'Folder for the profile of --profile_steps, created if missing.',
        is_path=True,
        original=NEW,
        output=Output.CHIEF_FOLDER,
        inside=('plugins*',),
        opened_by_tensorflow=True,
        idle=(NO_MODEL, IN_EVAL),
    )


def _a_step_can_be_traced(params: 'Params') -> str | None:
    for name in ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix'):
        value = getattr(params, name)
        if value is not None and params.num_warmup_batches == 0:
            return (
                f'{format_flag(name, value)} clashes with --num_warmup_batches=0: it records the last warm-up step; '
                'write --num_warmup_batches=1 or more'
            )
    return None


def _profiled_steps_are_two(params: 'Params') -> str | None:
    for given, missing in itertools.permutations(('profile_steps', 'profile_dir')):
        if (value := getattr(params, given)) and not getattr(params, missing):
            return f'{format_flag(given, value)}: a profile needs --{missing} too; add it'
    try:
        first, last = numbers_of(params.profile_steps, int) or (1, 1)
    except ValueError:
        first, last = 1, 0
    if first > last:
        written = format_flag('profile_steps', params.profile_steps)
        return f'{written}: it must be the first and the last of the timed steps to profile, such as 10,20'
    return None


RULES: tuple[Rule, ...] = (_a_step_can_be_traced, _profiled_steps_are_two)
