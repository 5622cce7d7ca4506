"""The files of a run: whether they can be written, and the name of the result file. Does not import
TensorFlow.
"""

import contextlib
import datetime
import itertools
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_cnn.flags.spec import Output
from tf_cnn.plan.cluster_role import ClusterRole
from tf_cnn.plan.params import SPECS, Params, output_flags
from tf_cnn.results.file_names import FIELD, RUN_FIELD, names_in_order
from tf_cnn.system.atomic import make_folder
from tf_cnn.system.errors import STDIO, ErrorCollector, UsageError, format_flag

_FOLDERS = (Output.FOLDER, Output.CHIEF_FOLDER)


def field_values(params: Params, *, model: str, batch_size: int, shape: object) -> dict[str, Any]:
    """Returns the values of all fields of a result file's name, by name; {run} stays in the name.

    model: the full name.
    """
    now = datetime.datetime.now()
    return {
        **params.values(),
        'model': model,
        'batch_size': batch_size,
        'shape': str(shape),
        'hostname': socket.gethostname(),
        'date': f'{now:%Y-%m-%d}',
        'time': f'{now:%H%M%S}',
        'run': RUN_FIELD,
    }


def remove_outputs_of_other_tasks(params: Params, cluster_role: ClusterRole) -> Params:
    """Removes the output files that another process writes from the flags.

    horovodrun gives all processes the same flags, so only the chief writes. In other clusters each
    process has separate flags.
    """
    if cluster_role.horovod is None or cluster_role.is_chief:
        return params
    return params.with_values(**dict.fromkeys(output_flags(Output.FILE, Output.PREFIX)))


def find_checkpoints(
    params: Params, folder: str | None, cluster_role: ClusterRole, warnings: list[str]
) -> tuple[str | None, str | None]:
    """Returns the prefix of the checkpoint that training continues from, or that a forward-only run
    reads, and of another one that training starts from.

    folder: where this process saves checkpoints, if it does.

    Raises:
      UsageError: the workers of a cluster cannot make constants of a checkpoint.
    """
    from tf_cnn.training.checkpoint_files import (
        find_checkpoint,
        incomplete_checkpoint_warning,
        latest_checkpoint,
        parse_checkpoint_prefix,
    )

    resume_from = warm_start = None
    if params.run.forward_only and cluster_role.is_chief:
        folder = params.checkpoints.train_dir
    if folder:
        resume_from = parse_checkpoint_prefix(folder) or latest_checkpoint(folder)
        if line := incomplete_checkpoint_warning(folder, resume_from):
            warnings.append(line)
    if resume_from and params.run.freeze_when_forward_only and cluster_role.cluster:
        raise UsageError(
            params.conflict(
                'freeze_when_forward_only',
                'train_dir',
                'only the chief of a cluster reads checkpoints; remove one',
            )
        )
    path = params.checkpoints.backbone_model_path
    if path and params.trains and cluster_role.is_chief:
        flag = format_flag('backbone_model_path', path)
        if resume_from:
            warnings.append(f'{flag} has no effect: training continues from {resume_from}')
        else:
            warm_start = find_checkpoint(path, flag)
            if line := incomplete_checkpoint_warning(path, warm_start):
                warnings.append(line)
    return resume_from, warm_start


def check_paths(params: Params, result_file: str | None) -> None:
    """Checks that the result can be written, and that no output file is another flag's path.

    params: as given; result_file: its path without fields, except {run}.
    """
    if result_file:
        result_file = next(names_in_order(result_file))
        check_file('result_file', result_file)
    params = params.with_values(result_file=result_file)
    check_path_conflicts(
        {
            name: path
            for name, spec in SPECS.items()
            if spec.is_path and (path := params.value(name))
        }
    )


# ---- checks that files can be written ------------------------------------------------------------


def check_outputs(params: Params, *, is_chief: bool = True) -> None:
    """Checks that the files of the run can be written. Creates missing folders and leaves existing
    files unchanged.
    """
    refusals = ErrorCollector()
    for name in ('train_dir', 'backbone_model_path'):
        # TensorFlow would train and save there, but reading treats such a name as a pattern.
        if wrong := re.search(r'[*?[\\]', params.value(name) or ''):
            refusals.add(
                f'{params.flag_text(name)}: TensorFlow finds no checkpoint in a path with '
                f'{wrong[0]}; rename it'
            )
    if refusal := _refuse_train_dir(params, is_chief=is_chief):
        refusals.add(refusal)
    # Stop before creating anything under such a name.
    refusals.raise_all()
    for name in output_flags(Output.FILE, *([Output.CHIEF_FILE] if is_chief else [])):
        # Fields in braces have no value yet; check_paths checks the final path.
        if (path := params.value(name)) and not FIELD.search(path):
            with refusals.collecting():
                check_file(name, path)
    for name in output_flags(Output.PREFIX):
        if prefix := params.value(name):
            with refusals.collecting(), _refusing(name, prefix):
                _try_file(Path(f'{prefix}00.pbtxt'))
    for name in output_flags(*(_FOLDERS if is_chief else (Output.FOLDER,))):
        if (folder := params.value(name)) and params.writes_to(name):
            with refusals.collecting(), _refusing(name, folder):
                make_folder(Path(folder))
    refusals.raise_all()


def _refuse_train_dir(params: Params, *, is_chief: bool) -> str | None:
    """Returns the error message for a --train_dir that names a checkpoint where the run saves, or
    that lacks the checkpoint that the run reads; None if there is no such problem.
    """
    from tf_cnn.training.checkpoint_files import may_hold_checkpoint, parse_checkpoint_prefix

    path, written = params.checkpoints.train_dir, params.flag_text('train_dir')
    if path is None:
        return None
    if not params.writes_to('train_dir') and os.path.isfile(path):
        # An evaluator would wait for checkpoints in it.
        return f'{written}: it is a file; use the folder of the checkpoints'
    prefix = parse_checkpoint_prefix(path)
    if prefix is None:
        waits = params.evaluation.eval_interval_secs
        if params.evaluation.eval and not waits and not may_hold_checkpoint(path):
            return (
                f'{written}: it holds no checkpoint; train with this --train_dir first, or wait '
                'for one with --eval_interval_secs=10'
            )
        return None
    folder = os.path.dirname(prefix) or '.'
    if params.trains:
        return (
            f'{written}: this is a checkpoint, and training needs a folder; use '
            f'--train_dir={folder} to continue from the newest checkpoint there, or '
            f'--backbone_model_path={prefix} to start another training from its weights'
        )
    if params.writes_to('train_dir'):
        return (
            f'{written}: this is a checkpoint, and summaries need a folder; use '
            f'--train_dir={folder} for the newest checkpoint there, or remove '
            '--save_summaries_steps'
        )
    if params.evaluation.eval_interval_secs:
        return (
            f'{written} conflicts with {params.flag_text("eval_interval_secs")}: it is one '
            f'checkpoint, and a wait for new ones needs the folder; use --train_dir={folder} for '
            f'all of them, or remove --eval_interval_secs'
        )
    if (is_chief or params.evaluation.eval) and not os.path.isfile(f'{prefix}.index'):
        return (
            f'{written}: there is no such checkpoint; use --train_dir={folder} for the newest one '
            'there'
        )
    return None


def check_file(name: str, path: str) -> None:
    """Checks that a flag's file can be written, and creates its folder.

    --result_file may replace only a result.
    """
    if path == STDIO:
        return
    with _refusing(name, path):
        _try_file(Path(path))
    if name == 'result_file' and os.path.isfile(path) and os.path.getsize(path):
        from tf_cnn.results.document import is_document

        if not is_document(Path(path)):
            raise UsageError(
                f'{format_flag(name, path)}: the file there is not a result; use another path, '
                'or remove it'
            )


def check_path_conflicts(paths: Mapping[str, str]) -> None:
    """Checks that no output file is the path of another flag, or its folder. Follows links."""
    real = {name: Path(os.path.realpath(path)) for name, path in paths.items() if path != STDIO}
    for output, other in itertools.permutations(real, 2):
        file = real[output]
        is_file = SPECS[output].output in (Output.FILE, Output.CHIEF_FILE)
        is_device = os.path.exists(file) and file.is_char_device()
        if is_file and real[other].is_relative_to(file) and not is_device:
            raise UsageError(
                f'{format_flag(output, paths[output])} conflicts with '
                f'{format_flag(other, paths[other])}: both would use {file}; use another path in '
                'one of them'
            )


@contextlib.contextmanager
def _refusing(name: str, path: str) -> Iterator[None]:
    """Converts an OSError of the block to a UsageError with the flag and the path."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f'{format_flag(name, path)}: a file is where a folder must be; use another path'
        ) from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f'{format_flag(name, path)}: it cannot be written ({reason}); use another path'
        ) from None


def _try_file(path: Path) -> None:
    # exists() raises OSError if the name is too long for the file system.
    if path.exists():
        # Appending nothing does not change the content.
        path.open('ab').close()
        return
    # Do not create the file: another process might write it before this process removes it again.
    make_folder(path.resolve().parent)
