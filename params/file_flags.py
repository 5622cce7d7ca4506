"""The flags about files: checkpoints, summaries, exports, traces and profiles; and which process writes each."""

import enum
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from errors import spelled
from params.rules import Idle, Rule, idle_in_eval, idle_in_forward_only
from params.spec import flag, numbers_of

if TYPE_CHECKING:
    from params.table import Params


@dataclass(frozen=True, init=False, repr=False, eq=False)
class FileFlags:
    """The part of Params about files."""

    GROUP: ClassVar[str] = 'Files'

    train_dir: str | None = flag(
        None,
        'Folder for checkpoints and summaries, created if missing. Training continues from its newest checkpoint.',
        is_path=True,
    )
    save_model_secs: float = flag(
        0.0,
        'Seconds between two checkpoints; 0 saves only at the start and at the end.',
        lower_bound=0,
        unit='seconds',
    )
    save_model_steps: int | None = flag(
        None, 'Steps between two checkpoints; by default --save_model_secs decides alone.', lower_bound=1, unit='steps'
    )
    max_ckpts_to_keep: int = flag(5, 'How many of the newest checkpoints are kept.', lower_bound=1, unit='checkpoints')
    backbone_model_path: str | None = flag(
        None, 'Checkpoint, or folder of checkpoints, whose weights training starts from.', is_path=True
    )
    export_saved_model: str | None = flag(
        None, 'New folder for a SavedModel of the model that was trained or evaluated.', is_path=True
    )
    save_summaries_steps: int = flag(
        0, 'Steps between two summaries in --train_dir; 0 writes none.', lower_bound=0, unit='steps'
    )
    summary_verbosity: int = flag(
        0,
        '0 writes no summaries, 1 scalars, 2 also histograms of variables, 3 also histograms of gradients.',
        lower_bound=0,
        upper_bound=3,
    )
    trace_file: str | None = flag(None, 'File for a trace of the last warm-up step.', is_path=True)
    use_chrome_trace_format: bool = flag(
        True, 'Write --trace_file in the format of chrome://tracing; without it as text.'
    )
    graph_file: str | None = flag(None, 'File for the graph; it is text if its name ends with txt.', is_path=True)
    partitioned_graph_file_prefix: str | None = flag(
        None,
        'First part of the paths of files with the graph of each device, as the last warm-up step ran it.',
        is_path=True,
    )
    tfprof_file: str | None = flag(None, 'File for a profile of the last warm-up step.', is_path=True)
    profile_steps: str | None = flag(
        None, 'FIRST,LAST: the first and the last timed step to profile for TensorBoard, counted from 1.'
    )
    profile_dir: str | None = flag(None, 'Folder for the profile of --profile_steps, created if missing.', is_path=True)


class Output(enum.Enum):
    """The kind of output that a flag with a path names, and which processes write it."""

    # Every process that has the flag writes the file, so only one process may be given this path.
    FILE = 'a file'
    PREFIX = 'several files, whose paths begin with it'
    # Only the chief writes it.
    CHIEF_FILE = 'a file of the chief'
    # Every process may write there; a missing folder is created.
    FOLDER = 'a folder'
    # Only the chief writes there.
    CHIEF_FOLDER = 'a folder of the chief'
    NEW_FOLDER = 'a folder of the chief, which must not exist or be empty, and appears when it is complete'


# Each flag that names an output, and the kind of that output.
OUTPUTS: Mapping[str, Output] = {
    'trace_file': Output.FILE,
    'tfprof_file': Output.FILE,
    'graph_file': Output.FILE,
    'partitioned_graph_file_prefix': Output.PREFIX,
    'train_dir': Output.FOLDER,
    'eval_dir': Output.FOLDER,
    'profile_dir': Output.CHIEF_FOLDER,
    'benchmark_log_dir': Output.CHIEF_FOLDER,
    'export_saved_model': Output.NEW_FOLDER,
    'result_file': Output.CHIEF_FILE,
}


# The files, with wildcards, that a run reads or writes below the path of a flag. Another output must not replace them.
NAMES_INSIDE: Mapping[str, tuple[str, ...]] = {
    'train_dir': (
        'checkpoint',
        'model.ckpt-*',
        'training-*',
        '.unfinished-checkpoint*',
        '.ready-checkpoint*',
        'events.out.tfevents.*',
    ),
    'eval_dir': ('events.out.tfevents.*',),
    'profile_dir': ('plugins*',),
    'benchmark_log_dir': ('benchmark_run.log', 'metric.log'),
    'partitioned_graph_file_prefix': ('[0-9]*.pbtxt',),
    'backbone_model_path': ('checkpoint', 'model.ckpt-*'),
    'data_dir': ('*-of-*', '*-ubyte*', '*_batch*', 'batches.meta*', 'labels.txt', 'dataset.json', '*.npy'),
}


def outputs_that_are(*kinds: Output) -> tuple[str, ...]:
    """Returns the flags that name outputs of these kinds."""
    return tuple(name for name, kind in OUTPUTS.items() if kind in kinds)


_CHECKPOINTS = ('save_model_secs', 'save_model_steps', 'max_ckpts_to_keep')
_SUMMARIES = ('save_summaries_steps', 'summary_verbosity')


def _a_step_can_be_traced(params: 'Params') -> str | None:
    for name in ('trace_file', 'tfprof_file', 'partitioned_graph_file_prefix'):
        value = getattr(params, name)
        if value is not None and params.num_warmup_batches == 0:
            return (
                f'{spelled(name, value)} clashes with --num_warmup_batches=0: it records the last warm-up step; '
                'write --num_warmup_batches=1 or more'
            )
    return None


def _profiled_steps_are_two(params: 'Params') -> str | None:
    for given, missing in itertools.permutations(('profile_steps', 'profile_dir')):
        if (value := getattr(params, given)) and not getattr(params, missing):
            return f'{spelled(given, value)}: a profile needs --{missing} too; add it'
    try:
        first, last = numbers_of(params.profile_steps, int) or (1, 1)
    except ValueError:
        first, last = 1, 0
    if first > last:
        written = spelled('profile_steps', params.profile_steps)
        return f'{written}: it must be the first and the last of the timed steps to profile, such as 10,20'
    return None


RULES: tuple[Rule, ...] = (
    _a_step_can_be_traced,
    _profiled_steps_are_two,
)
IDLE: tuple[Idle, ...] = (
    idle_in_eval(*_CHECKPOINTS, *_SUMMARIES, 'backbone_model_path', 'profile_steps', 'profile_dir'),
    idle_in_eval(
        'trace_file',
        'use_chrome_trace_format',
        'tfprof_file',
        'graph_file',
        'partitioned_graph_file_prefix',
        reason='it is about training steps, and --eval takes none',
    ),
    idle_in_forward_only('backbone_model_path', 'export_saved_model', reason='--forward_only trains nothing'),
    Idle(_SUMMARIES, lambda p, run: p.train_dir is None, 'summaries need --train_dir'),
    Idle(('use_chrome_trace_format',), lambda p, run: p.trace_file is None, 'only --trace_file uses it'),
    Idle(
        ('save_summaries_steps',), lambda p, run: not p.summary_verbosity, '--summary_verbosity=0 writes no summaries'
    ),
    Idle(
        ('summary_verbosity',),
        lambda p, run: not p.save_summaries_steps,
        '--save_summaries_steps=0 writes no summaries',
    ),
    Idle(
        ('train_dir',),
        lambda p, run: p.forward_only and not (p.save_summaries_steps and p.summary_verbosity),
        '--forward_only saves no checkpoints, and summaries need --save_summaries_steps and --summary_verbosity',
    ),
    Idle(_CHECKPOINTS, lambda p, run: p.train_dir is None, 'checkpoints need --train_dir'),
    idle_in_forward_only(*_CHECKPOINTS, reason='--forward_only saves no checkpoints'),
)
