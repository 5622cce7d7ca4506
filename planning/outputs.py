"""Plans the files of a run: checkpoints, exported model, profiles, summaries, results, and what it starts from.

Does not import TensorFlow.
"""

from errors import UsageError, counted, spelled
from params import Params
from params.result_flags import field_values, fill
from params.spec import numbers_of
from params.table import SPECS
from planning.environment import Environment
from planning.found import Found
from planning.plan import Checkpoints, Counts, Instruments, Losses, Processes, Reports, Subject, Summaries
from results.benchmark_log import METRIC_LOG, RUN_LOG


def check_files(params: Params, environment: Environment, processes: Processes) -> Found[None]:
    """Makes sure that the files of the run can be written, and that what it starts from is there.

    Raises:
      UsageError: a file cannot be written; --backbone_model_path names neither a folder nor a checkpoint, and is surely
        needed.
    """
    environment.check_outputs(params, is_chief=processes.is_chief)
    path, folder = params.backbone_model_path, params.train_dir
    # Whether training continues from one of these is told when they are read.
    has_checkpoints = folder is not None and environment.has_checkpoints(folder)
    if path and params.trains and processes.is_chief and not has_checkpoints and not environment.is_folder(path):
        environment.find_checkpoint(path, spelled('backbone_model_path', path))
    return Found(None)


def check_files_of_cluster(params: Params, environment: Environment) -> Found[None]:
    """Makes sure that the files which processes of this host write can be written, before any process is started."""
    environment.check_outputs(params, is_chief=True)
    return Found(None)


def find_checkpoints(params: Params, environment: Environment, processes: Processes) -> Found[Checkpoints]:
    """What is saved, and what training starts from.

    Raises:
      UsageError: --backbone_model_path names no checkpoint.
      RunError: --backbone_model_path is a folder without checkpoints.
    """
    is_chief, warnings = processes.is_chief, []
    saves = params.train_dir is not None and params.trains and is_chief
    resume_from = environment.latest_checkpoint(params.train_dir) if saves and params.train_dir else None
    warm_start = None
    flag = spelled('backbone_model_path', params.backbone_model_path)
    if params.backbone_model_path and params.trains and is_chief:
        if resume_from:
            warnings.append(f'{flag} has no effect: training continues from {resume_from}')
        else:
            warm_start = environment.find_checkpoint(params.backbone_model_path, flag)
    checkpoints = Checkpoints(
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
    return Found(checkpoints, tuple(warnings))


def find_reports(
    params: Params, environment: Environment, processes: Processes, subject: Subject, counts: Counts
) -> Found[Reports]:
    """Where the result goes. Only the chief writes it.

    Raises:
      UsageError: a file cannot be written.
    """
    values = field_values(params, model=subject.model.name, batch_size=counts.batch_size, shape=processes.shape)

    def filled(name: str) -> str | None:
        path = getattr(params, name)
        if path is None or not processes.is_chief:
            return None
        path = fill(path, values)
        environment.check_file(name, path)
        return path

    result_file = filled('result_file')
    paths = {name: getattr(params, name) for name, spec in SPECS.items() if spec.is_path}
    paths['result_file'] = result_file
    environment.check_clashes({name: path for name, path in paths.items() if path})
    log_folder = params.benchmark_log_dir if processes.is_chief else None
    # Where the folder itself cannot be used, that has been told.
    for name in (RUN_LOG, METRIC_LOG) if log_folder and environment.is_folder(log_folder) else ():
        environment.check_file('benchmark_log_dir', f'{log_folder}/{name}')
    reports = Reports(
        result_file=result_file,
        log_folder=log_folder,
        test_id=params.benchmark_test_id,
        measures_peak=params.measure_peak and not params.eval and processes.cluster is None,
        idle_secs=params.wait_for_idle,
        losses=_describe_losses(params),
    )
    return Found(reports)


def find_instruments(params: Params, processes: Processes, counts: Counts) -> Found[Instruments]:
    """Which diagnostic files are written.

    Only the chief writes profiles and summaries: processes of one machine would overwrite each other's profile, and
    TensorBoard would merge the curves of all workers into one.

    Raises:
      UsageError: --profile_steps names a step after the last timed one.
    """
    is_chief, num_timed, warnings = processes.is_chief, counts.num_timed, []
    profile_steps = summaries = None
    if params.profile_steps and params.profile_dir and is_chief and not params.eval:
        flag = spelled('profile_steps', params.profile_steps)
        first, last = numbers_of(params.profile_steps, int)
        if last > num_timed:
            raise UsageError(f'{flag}: the run has {counted(num_timed, "timed step")}; write none after the last')
        warnings.append(f'{flag}: these timed steps run under the profiler, which makes them slower')
        profile_steps = first, last
    if params.train_dir and params.save_summaries_steps and params.summary_verbosity and is_chief and not params.eval:
        asked = params.summary_verbosity
        most, reason = _most_verbose(params)
        summaries = Summaries(params.train_dir, params.save_summaries_steps, min(asked, most))
        if asked > most:
            warnings.append(f'--summary_verbosity={asked} writes as much as {most}: {reason}')
        elif asked >= 3:
            warnings.append(
                f'--summary_verbosity={asked}: every {params.save_summaries_steps}th step computes '
                'the histograms of its gradients within its timed seconds, which makes it slower'
            )
    instruments = Instruments(
        trace_file=params.trace_file,
        chrome_format=params.use_chrome_trace_format,
        tfprof_file=params.tfprof_file,
        partitioned_graph_prefix=params.partitioned_graph_file_prefix,
        graph_file=params.graph_file,
        profile_folder=params.profile_dir or '',
        profile_steps=profile_steps,
        summaries=summaries,
    )
    return Found(instruments, tuple(warnings))


def _most_verbose(params: Params) -> tuple[int, str]:
    """The largest --summary_verbosity for which there is something to write, and why there is no more."""
    if params.trains:
        return 3, ''
    if params.freeze_when_forward_only:
        return 1, '--freeze_when_forward_only leaves no variables, and --forward_only computes no gradients'
    return 2, '--forward_only computes no gradients'


def _describe_losses(params: Params) -> Losses:
    """How losses are shown, and what happens if one is not finite."""
    advice = []
    if params.precision == 'fp16':
        advice.append('--precision=bf16, which has larger numbers')
        if not params.fp16_enable_auto_loss_scale:
            advice.append('--fp16_enable_auto_loss_scale')
    # Where nothing is learnt, a loss that is not finite spoils nothing; the result warns of it.
    learns = bool(params.data_dir) and not (params.forward_only or params.exchange_only)
    return Losses(params.loss_type_to_report, params.continue_on_nan or not learns, tuple(advice))
