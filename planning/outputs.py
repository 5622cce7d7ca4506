"""Plans the files of a run: checkpoints, exported model, profiles, summaries, results, and what it starts from.

Does not import TensorFlow.
"""

import contextlib
import fnmatch
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from errors import Refusals, UsageError, format_flag, plural
from params import Params
from params.result_flags import FIELD, STDOUT, field_values, fill
from params.spec import Output, numbers_of
from params.table import SPECS, outputs_that_are
from planning.plan import Checkpoints, Counts, Instruments, Losses, Processes, Reports, Subject, Summaries
from results.benchmark_log import METRIC_LOG, RUN_LOG

# The output flags by what the checks below treat alike.
_WITH_CHECKPOINTS = ('train_dir', 'backbone_model_path')
_WILDCARDS = '*?[\\'
_FOLDERS = (Output.FOLDER, Output.CHIEF_FOLDER, Output.NEW_FOLDER)


def check_files(params: Params, processes: Processes) -> None:
    """Checks that the files of the run can be written, and that --backbone_model_path exists if it is surely needed."""
    check_outputs(params, is_chief=processes.is_chief)
    path, folder = params.backbone_model_path, params.train_dir
    # Whether training continues from one of these is told when they are read.
    has_checkpoints = folder is not None and any(Path(folder).glob('*.index'))
    if path and params.trains and processes.is_chief and not has_checkpoints and not os.path.isdir(path):
        from training.checkpoint_files import find_checkpoint

        find_checkpoint(path, format_flag('backbone_model_path', path))


def find_checkpoints(params: Params, processes: Processes, warnings: list[str]) -> Checkpoints:
    from training.checkpoint_files import find_checkpoint, latest_checkpoint

    is_chief = processes.is_chief
    saves = params.train_dir is not None and params.trains and params.input_only is None and is_chief
    resume_from = latest_checkpoint(params.train_dir) if saves and params.train_dir else None
    warm_start = None
    flag = format_flag('backbone_model_path', params.backbone_model_path)
    if params.backbone_model_path and params.trains and is_chief:
        if resume_from:
            warnings.append(f'{flag} has no effect: training continues from {resume_from}')
        else:
            warm_start = find_checkpoint(params.backbone_model_path, flag)
    return Checkpoints(
        folder=params.train_dir,
        saves=saves,
        every_secs=params.save_model_secs,
        every_steps=params.save_model_steps,
        max_to_keep=params.max_ckpts_to_keep,
        resume_from=resume_from,
        warm_start=warm_start,
        warm_start_flag=flag,
        export_folder=params.export_saved_model if is_chief and not params.forward_only else None,
    )


def find_reports(params: Params, processes: Processes, subject: Subject, counts: Counts) -> Reports:
    """Plans where the result goes. Only the chief writes it."""
    result_file, log_folder = (params.result_file, params.benchmark_log_dir) if processes.is_chief else (None, None)
    if result_file is not None:
        values = field_values(params, model=subject.model.name, batch_size=counts.batch_size, shape=processes.shape)
        result_file = fill(result_file, values)
        check_file('result_file', result_file)
    paths = {name: getattr(params, name) for name, spec in SPECS.items() if spec.is_path} | {'result_file': result_file}
    check_clashes({name: path for name, path in paths.items() if path})
    # Where the folder itself cannot be used, that has been told.
    for name in (RUN_LOG, METRIC_LOG) if log_folder and os.path.isdir(log_folder) else ():
        check_file('benchmark_log_dir', f'{log_folder}/{name}')
    return Reports(
        result_file=result_file,
        log_folder=log_folder,
        test_id=params.benchmark_test_id,
        measures_peak=params.measure_peak and not params.eval and processes.cluster is None,
        idle_secs=params.wait_for_idle,
        losses=_describe_losses(params),
    )


def find_instruments(params: Params, processes: Processes, counts: Counts, warnings: list[str]) -> Instruments:
    """Plans which diagnostic files are written. Only the chief writes profiles and summaries.

    Processes of one machine would overwrite each other's profile, and TensorBoard would merge the workers' curves.
    """
    is_chief, num_timed = processes.is_chief, counts.num_timed
    profile_steps = summaries = None
    if params.profile_steps and params.profile_dir and is_chief and not params.eval:
        flag = format_flag('profile_steps', params.profile_steps)
        first, last = numbers_of(params.profile_steps, int)
        if last > num_timed:
            raise UsageError(f'{flag}: the run has {plural(num_timed, "timed step")}; write none after the last')
        warnings.append(f'{flag}: these timed steps run under the profiler, which makes them slower')
        profile_steps = first, last
    if params.train_dir and params.save_summaries_steps and params.summary_verbosity and is_chief and not params.eval:
        asked = params.summary_verbosity
        # With constants for variables, only the loss is left to write.
        most = 3 if params.trains else 1 if params.freeze_when_forward_only else 2
        summaries = Summaries(params.train_dir, params.save_summaries_steps, min(asked, most))
        if asked > most:
            warnings.append(f'--summary_verbosity={asked} writes as much as {most}, because of --forward_only')
        elif asked >= 3:
            warnings.append(
                f'--summary_verbosity={asked}: every {params.save_summaries_steps}th step computes '
                'the histograms of its gradients within its timed seconds, which makes it slower'
            )
    return Instruments(
        trace_file=params.trace_file,
        chrome_format=params.use_chrome_trace_format,
        tfprof_file=params.tfprof_file,
        partitioned_graph_prefix=params.partitioned_graph_file_prefix,
        graph_file=params.graph_file,
        profile_folder=params.profile_dir or '',
        profile_steps=profile_steps,
        summaries=summaries,
    )


def _describe_losses(params: Params) -> Losses:
    advice = []
    if params.precision == 'fp16':
        advice.append('--precision=bf16, which has larger numbers')
        if not params.fp16_enable_auto_loss_scale:
            advice.append('--fp16_enable_auto_loss_scale')
    # Where nothing is learnt, a loss that is not finite spoils nothing; the result warns of it.
    learns = bool(params.data_dir) and not (params.forward_only or params.exchange_only)
    return Losses(params.loss_type_to_report, params.continue_on_nan or not learns, tuple(advice))


# ---- whether the files can be written -------------------------------------------------------------------------------


def check_outputs(params: Params, *, is_chief: bool = True) -> None:
    """Checks that the files of the run can be written. Creates missing folders and leaves existing files unchanged."""
    refusals = Refusals()
    for name in (name for name, spec in SPECS.items() if spec.opened_by_tensorflow):
        with refusals.collecting():
            _check_name(name, getattr(params, name))
    # Nothing is created under such a name.
    refusals.raise_all()
    for name in outputs_that_are(Output.FILE, *([Output.CHIEF_FILE] if is_chief else [])):
        # What is in braces is not known yet; check_file is called again when it is.
        if (path := getattr(params, name)) and not FIELD.search(path):
            with refusals.collecting():
                check_file(name, path)
    for name in outputs_that_are(Output.PREFIX):
        if prefix := getattr(params, name):
            with refusals.collecting(), _refusing(name, prefix):
                _try_file(Path(f'{prefix}00.pbtxt'))
    if params.eval and params.train_dir and os.path.isfile(params.train_dir):
        refusals.add(
            f'{format_flag("train_dir", params.train_dir)}: it is a file; give the folder that the checkpoints are in'
        )
    for name in outputs_that_are(*(_FOLDERS if is_chief else (Output.FOLDER,))):
        if (folder := getattr(params, name)) and not (name == 'train_dir' and params.eval):
            with refusals.collecting(), _refusing(name, folder):
                if SPECS[name].output is Output.NEW_FOLDER:
                    _check_new(name, folder)
                    # The folder is renamed into place when complete; until then its parent is written to.
                    folder = os.path.dirname(os.path.abspath(folder))
                _make_folder(Path(folder))
    refusals.raise_all()


def _check_name(name: str, path: str | None) -> None:
    """Refuses a path that TensorFlow cannot open, which it would report only after training and saving there."""
    try:
        (path or '').encode()
    except UnicodeEncodeError:
        raise UsageError(
            f'{format_flag(name, path)}: its name is not UTF-8, and TensorFlow opens no other; write another path, or '
            f'set PYTHONUTF8=1 if it is UTF-8 (file names are {sys.getfilesystemencoding()} in this locale)'
        ) from None
    if name in _WITH_CHECKPOINTS and (found := sorted(set(path or '') & set(_WILDCARDS))):
        raise UsageError(
            f'{format_flag(name, path)}: its name contains {" and ".join(found)}, which TensorFlow takes for a pattern '
            'when it reads checkpoints; write another path'
        )


def check_file(name: str, path: str) -> None:
    """Checks that a flag's file can be written, and creates its folder. --result_file may replace only a result."""
    if path == STDOUT:
        return
    with _refusing(name, path):
        _try_file(Path(path))
    if name == 'result_file' and os.path.isfile(path) and os.path.getsize(path):
        from results.document import is_document

        if not is_document(Path(path)):
            raise UsageError(
                f'{format_flag(name, path)}: the file there is not a result; write another path, or remove it'
            )


def check_clashes(paths: Mapping[str, str]) -> None:
    """Checks that no output replaces another flag's path, or a file that a run has in its folder. Follows links."""
    real = {name: os.path.realpath(path) for name, path in paths.items() if path != STDOUT}
    for output in outputs_that_are(Output.FILE, Output.CHIEF_FILE, Output.NEW_FOLDER):
        if output not in real or (os.path.exists(real[output]) and stat.S_ISCHR(os.stat(real[output]).st_mode)):
            continue
        for other, path in real.items():
            if other != output and (
                f'{path}/'.startswith(f'{real[output]}/') or _is_among(real[output], other, paths[other])
            ):
                raise UsageError(
                    f'{format_flag(output, paths[output])} clashes with {format_flag(other, paths[other])}: both '
                    f'would use {real[output]}; write another path in one of them'
                )


def _is_among(path: str, flag: str, value: str) -> bool:
    """Whether a run has its own file at a real path, because of the value of a flag that stands for several files."""
    start = os.path.realpath(f'{value}0')[:-1] if SPECS[flag].output is Output.PREFIX else f'{os.path.realpath(value)}/'
    return path.startswith(start) and any(
        fnmatch.fnmatchcase(path.removeprefix(start), name) for name in SPECS[flag].inside
    )


def _check_new(name: str, folder: str) -> None:
    """Checks that a folder which will be renamed into place is missing or empty."""
    if os.path.ismount(folder) or os.path.islink(folder):
        raise UsageError(
            f'{format_flag(name, folder)}: a link or a mounted folder cannot be replaced; write the path of a new one'
        )
    _check_length(Path(folder))
    if os.path.lexists(folder) and any(Path(folder).iterdir()):
        raise UsageError(f'{format_flag(name, folder)}: the folder is not empty; write the name of a new one')


@contextlib.contextmanager
def _refusing(name: str, path: str) -> Iterator[None]:
    """Raises UsageError, with the flag and the path, for a path that the block cannot write."""
    try:
        yield
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f'{format_flag(name, path)}: a file is where a folder must be; write another path') from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f'{format_flag(name, path)}: it cannot be written ({reason}); write another path') from None


def _try_file(path: Path) -> None:
    file = path.resolve()
    if os.path.lexists(file):
        # Appending nothing leaves the content as it is.
        file.open('ab').close()
        return
    _make_folder(file.parent)
    # The file itself is not made: another process might write it before this one has removed it.
    _check_length(file)


def _check_length(path: Path) -> None:
    """Raises OSError if a name is too long for the file system."""
    with contextlib.suppress(FileNotFoundError):
        path.lstat()


def _make_folder(folder: Path) -> None:
    """Makes a folder if it is missing, and writes to it."""
    folder.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=folder).close()
