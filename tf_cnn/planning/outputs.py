"""Plans the files of a run: checkpoints, exported model, profiles, summaries and results.

Does not import TensorFlow.
"""

import contextlib
import datetime
import fnmatch
import glob
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_cnn.flags.spec import Output, parse_numbers
from tf_cnn.planning.plan import (
    Checkpoints,
    ClusterRole,
    Counts,
    Data,
    Instruments,
    Losses,
    Reports,
    Summaries,
    Workload,
)
from tf_cnn.results.file_names import FIELD, STDOUT, fill_fields, numbered_path
from tf_cnn.results.result_file import check_not_reserved
from tf_cnn.run.params import SPECS, Params, output_flags
from tf_cnn.system.atomic import resolve_safely
from tf_cnn.system.errors import ErrorCollector, UsageError, format_flag, plural

_FOLDERS = (Output.FOLDER, Output.CHIEF_FOLDER, Output.NEW_FOLDER)


def field_values(
    params: Params, *, model: str, batch_size: int, shape: object, run: int | str = 1
) -> dict[str, Any]:
    """Returns the values of all fields of a result file's name, by name.

    model: the full name. run: the number of the repeat.
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
        'run': run,
    }


def find_checkpoints(
    params: Params, cluster_role: ClusterRole, data: Data, warnings: list[str]
) -> Checkpoints:
    from tf_cnn.training.checkpoint_files import (
        find_checkpoint,
        incomplete_checkpoint_warning,
        latest_checkpoint,
    )

    is_chief = cluster_role.is_chief
    saves = (
        params.checkpoints.train_dir is not None
        and params.trains
        and params.inputs.input_only is None
        and is_chief
    )
    resume_from = (
        latest_checkpoint(params.checkpoints.train_dir)
        if saves and params.checkpoints.train_dir
        else None
    )
    if (
        saves
        and params.checkpoints.train_dir
        and (line := incomplete_checkpoint_warning(params.checkpoints.train_dir, resume_from))
    ):
        warnings.append(line)
    warm_start = None
    flag = format_flag('backbone_model_path', params.checkpoints.backbone_model_path)
    if params.checkpoints.backbone_model_path and params.trains and is_chief:
        if resume_from:
            warnings.append(f'{flag} has no effect: training continues from {resume_from}')
        else:
            warm_start = find_checkpoint(params.checkpoints.backbone_model_path, flag)
            if line := incomplete_checkpoint_warning(
                params.checkpoints.backbone_model_path, warm_start
            ):
                warnings.append(line)
    return Checkpoints(
        folder=params.checkpoints.train_dir,
        saves=saves,
        every_secs=params.checkpoints.save_model_secs,
        every_steps=params.checkpoints.save_model_steps,
        max_to_keep=params.checkpoints.max_ckpts_to_keep,
        resume_from=resume_from,
        warm_start=warm_start,
        warm_start_flag=flag,
        export_folder=params.checkpoints.export_saved_model
        if is_chief and not params.run.forward_only
        else None,
        data_dir=data.folder,
        class_names=data.data_set.class_names if data.folder else None,
    )


def find_reports(
    params: Params, cluster_role: ClusterRole, workload: Workload, counts: Counts
) -> Reports:
    """Plans the result and its files. Only the chief writes them."""
    result_file, log_folder = (
        (params.results.result_file, params.results.benchmark_log_dir)
        if cluster_role.is_chief
        else (None, None)
    )
    numbered = None
    if result_file is not None:
        values = field_values(
            params,
            model=workload.model.name,
            batch_size=counts.batch_size,
            shape=cluster_role.shape,
        )
        numbered, result_file = numbered_path(result_file, values), fill_fields(result_file, values)
        check_file('result_file', result_file)
        if numbered is None:
            check_not_reserved(result_file)
    paths = {name: params.value(name) for name, spec in SPECS.items() if spec.is_path} | {
        'result_file': result_file
    }
    check_path_conflicts({name: path for name, path in paths.items() if path})
    return Reports(
        result_file=result_file,
        numbered_result_file=numbered,
        log_folder=log_folder,
        test_id=params.results.benchmark_test_id,
        measures_peak=params.results.measure_peak
        and not params.evaluation.eval
        and cluster_role.cluster is None,
        idle_secs=params.results.wait_for_idle,
        losses=_describe_losses(params),
    )


def find_instruments(
    params: Params, cluster_role: ClusterRole, counts: Counts, warnings: list[str]
) -> Instruments:
    """Plans the diagnostic files. Only the chief writes profiles and summaries.

    Processes of one machine would overwrite each other's profile, and TensorBoard would merge the
    workers' curves.
    """
    is_chief, num_timed = cluster_role.is_chief, counts.num_timed
    profile_steps = summaries = None
    if (
        params.instruments.profile_steps
        and params.instruments.profile_dir
        and is_chief
        and not params.evaluation.eval
    ):
        flag = format_flag('profile_steps', params.instruments.profile_steps)
        first, last = parse_numbers(params.instruments.profile_steps, int)
        if last > num_timed:
            raise UsageError(
                f'{flag}: the run has {plural(num_timed, "timed step")}; name no step '
                'after the last'
            )
        warnings.append(
            f'{flag}: these timed steps run under the profiler, which makes them slower'
        )
        profile_steps = first, last
    if (
        params.checkpoints.train_dir
        and params.instruments.save_summaries_steps
        and params.instruments.summary_verbosity
        and is_chief
        and not params.evaluation.eval
    ):
        verbosity = params.instruments.summary_verbosity
        # A frozen network has no variables, so only scalars can be written. Gradients stay inside a
        # loop of steps.
        has_gradients = params.trains and params.run.steps_per_run == 1
        most = (
            3
            if has_gradients
            else 1
            if params.run.forward_only and params.run.freeze_when_forward_only
            else 2
        )
        summaries = Summaries(
            params.checkpoints.train_dir,
            params.instruments.save_summaries_steps,
            min(verbosity, most),
        )
        if verbosity > most:
            because = '--steps_per_run' if params.trains else '--forward_only'
            warnings.append(
                f'--summary_verbosity={verbosity} writes the same as {most}, because of {because}'
            )
        elif verbosity >= 3:
            every = params.instruments.save_summaries_steps
            warnings.append(
                f'--summary_verbosity={verbosity}: '
                f'{"each step" if every == 1 else f"one step in {every}"} computes the histograms '
                'of its gradients within its timed seconds, and is slower'
            )
    return Instruments(
        trace_file=params.instruments.trace_file,
        chrome_format=params.instruments.use_chrome_trace_format,
        tfprof_file=params.instruments.tfprof_file,
        partitioned_graph_prefix=params.instruments.partitioned_graph_file_prefix,
        graph_file=params.instruments.graph_file,
        profile_folder=params.instruments.profile_dir or '',
        profile_steps=profile_steps,
        summaries=summaries,
    )


def _describe_losses(params: Params) -> Losses:
    advice = []
    if params.precision.precision == 'fp16':
        advice.append('--precision=bf16, which has larger numbers')
        if not params.precision.fp16_enable_auto_loss_scale:
            advice.append('--fp16_enable_auto_loss_scale')
    # If nothing is learnt, a loss that is not finite does no harm; the result has a warning.
    learns = bool(params.data.data_dir) and not (
        params.run.forward_only or params.run.exchange_only
    )
    return Losses(
        params.run.loss_type_to_report,
        params.precision.continue_on_nan or not learns,
        tuple(advice),
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
    if refusal := _refuse_checkpoint(params):
        refusals.add(refusal)
    # Stop before creating anything under such a name.
    refusals.raise_all()
    for name in output_flags(Output.FILE, *([Output.CHIEF_FILE] if is_chief else [])):
        # Fields in braces have no value yet; find_reports checks the final path.
        if (path := params.value(name)) and not FIELD.search(path):
            with refusals.collecting():
                check_file(name, path)
    for name in output_flags(Output.PREFIX):
        if prefix := params.value(name):
            with refusals.collecting(), _refusing(name, prefix):
                _try_file(Path(f'{prefix}00.pbtxt'))
    if params.evaluation.eval and os.path.isfile(params.checkpoints.train_dir or ''):
        # An evaluator would wait for checkpoints in it.
        refusals.add(
            f'{params.flag_text("train_dir")}: it is a file; use the folder of the checkpoints'
        )
    for name in output_flags(*(_FOLDERS if is_chief else (Output.FOLDER,))):
        if (folder := params.value(name)) and not (name == 'train_dir' and params.evaluation.eval):
            with refusals.collecting(), _refusing(name, folder):
                if SPECS[name].output is Output.NEW_FOLDER:
                    # Renaming the complete folder into place replaces an existing one.
                    if (
                        os.path.islink(folder)
                        or os.path.ismount(folder)
                        or _has_files(Path(folder))
                    ):
                        raise UsageError(
                            f'{format_flag(name, folder)}: it is not empty, or a link; use a '
                            'new path'
                        )
                    # The folder is renamed into place when complete; until then the run writes
                    # to its parent.
                    folder = os.path.dirname(os.path.abspath(folder))
                _make_folder(Path(folder))
    refusals.raise_all()


def _refuse_checkpoint(params: Params) -> str | None:
    """Returns the error message for a --train_dir that names a checkpoint instead of a folder; None
    if --eval can read it.
    """
    from tf_cnn.training.checkpoint_files import parse_checkpoint_prefix

    prefix = (
        parse_checkpoint_prefix(params.checkpoints.train_dir)
        if params.checkpoints.train_dir
        else None
    )
    if prefix is None:
        return None
    written, folder = params.flag_text('train_dir'), os.path.dirname(prefix) or '.'
    if not params.evaluation.eval:
        return (
            f'{written}: this is a checkpoint, and training needs a folder; use '
            f'--train_dir={folder} to continue from the newest checkpoint there, or '
            f'--backbone_model_path={prefix} to start another training from its weights'
        )
    if params.evaluation.eval_interval_secs:
        return (
            f'{written} conflicts with {params.flag_text("eval_interval_secs")}: it is one '
            f'checkpoint, and a wait for new ones needs the folder; use --train_dir={folder} for '
            f'all of them, or remove --eval_interval_secs'
        )
    if not os.path.isfile(f'{prefix}.index'):
        return (
            f'{written}: there is no such checkpoint; use --train_dir={folder} for the newest one '
            'there'
        )
    return None


def check_file(name: str, path: str) -> None:
    """Checks that a flag's file can be written, and creates its folder.

    --result_file may replace only a result.
    """
    if path == STDOUT:
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
    """Checks that no output replaces another flag's path, or a file of a run below that path.

    Follows links.
    """
    real = {name: os.path.realpath(path) for name, path in paths.items() if path != STDOUT}
    for output in output_flags(Output.FILE, Output.CHIEF_FILE, Output.NEW_FOLDER):
        if output not in real or (
            os.path.exists(real[output]) and stat.S_ISCHR(os.stat(real[output]).st_mode)
        ):
            continue
        for other, path in real.items():
            inner_patterns = (f'{glob.escape(path)}/{name}' for name in SPECS[other].inside)
            overlaps = f'{path}/'.startswith(f'{real[output]}/') or any(
                fnmatch.fnmatch(real[output], name) for name in inner_patterns
            )
            if overlaps and other != output:
                raise UsageError(
                    f'{format_flag(output, paths[output])} conflicts with '
                    f'{format_flag(other, paths[other])}: both would use {real[output]}; use '
                    f'another path in one of them'
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


def _has_files(folder: Path) -> bool:
    return folder.exists() and any(folder.iterdir())


def _try_file(path: Path) -> None:
    file = resolve_safely(path)
    # exists() raises OSError if the name is too long for the file system.
    if file.exists():
        # Appending nothing does not change the content.
        file.open('ab').close()
        return
    # Do not create the file: another process might write it before this process removes it again.
    _make_folder(file.parent)


def _make_folder(folder: Path) -> None:
    """Creates a folder if it is missing, and checks that it is writable."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
