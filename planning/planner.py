"""Makes the plan of a run from the settings: the one place that reads flags, folders, the network and devices.

Raises every UsageError of a run. Checks that need no TensorFlow come first; independent mistakes are reported together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cluster.discovery import as_evaluator, find_cluster
from cluster.environments import find_place_on_host, is_evaluator
from cluster.shape import Shape
from cluster.signals import uninterrupted
from cluster.topology import Cluster, Timeout, place_of, public_hosts
from errors import Refusals, UsageError, spelled
from hardware.gpus import has_nvidia_gpu
from hardware.missing_gpu import explain_missing_gpu
from hardware.openmp import set_openmp
from hardware.surroundings import environment_facts, git_commit, machine_facts
from hardware.tensorflow_import import import_tensorflow
from hardware.visible_gpus import ONLY_ONE, PlaceOnHost, show_gpus
from inputs.catalog import Source
from inputs.data_folder import DataFolder, open_folder, recognise
from inputs.data_sets import DATA_SETS, Arrays
from inputs.preprocessors import DEFAULT, PREPROCESSORS, preprocessor_for
from models.model_facts import ModelFacts
from models.registry import MODELS, load_model_file
from params import Params
from params.all_rules import check_run, find_idle
from params.file_flags import Output, outputs_that_are
from params.input_flags import chosen_pipeline, tf_data_settings
from params.modes import MODES, Mode
from params.rules import RunFacts
from params.shared_flags import flags_to_agree_on
from params.tensorflow_flags import OPENMP, chosen_gpus
from planning.counts import count_steps, find_evaluations, find_input_stages
from planning.devices import check_devices, find_kind, needs_no_tensorflow
from planning.gpu_settings import contradictions
from planning.held_images import check_gpu_memory, check_host_memory, choose_augmentation
from planning.output_checks import check_outputs
from planning.outputs import check_backbone, find_checkpoints, find_instruments, find_reports
from planning.plan import (
    Data,
    Losses,
    Plan,
    Processes,
    Role,
    ServerPlan,
    Surroundings,
)


def resolve(params: Params, environ: Mapping[str, str]) -> Plan | ServerPlan:
    """Makes the plan of this process, and checks that the run is possible.

    Reads --model_file, the environment, the data folder, the checkpoints and the devices, and creates the output
    folders. The only environment variables that it changes are, for TensorFlow, TF_XLA_FLAGS, CUDA_VISIBLE_DEVICES,
    those of OpenMP and, on GPUs, those of planning.gpu_settings.

    Args:
      params: the settings.
      environ: the environment of the process, which may describe a cluster.

    Raises:
      UsageError: the settings contradict each other, or do not fit the cluster, the data, the files or this machine.
      RunError: a checkpoint or the data cannot be read.
    """
    # An evaluator is started with the flags of the training tasks, where they do have an effect.
    is_cluster_evaluator = is_evaluator(environ)
    params = as_evaluator(params, environ)
    mode = MODES[params.variable_update]
    refusals = Refusals()
    horovod = cluster = model = folder = None
    is_known = False
    with refusals.collecting():
        horovod, cluster = _find_processes(params, mode, environ)
        is_known = True
    with refusals.collecting():
        model = _find_model(params)
        model, folder = _open_folder(params, model, reads=not (cluster and cluster.job == 'ps'))
    if model is None or not is_known:
        refusals.raise_all()
    assert model
    facts = _run_facts(model, folder, alone=cluster is None and horovod is None)
    with refusals.collecting():
        check_run(params, facts)
    warnings = [] if is_cluster_evaluator else find_idle(params, facts)
    if cluster and cluster.serves:
        with refusals.collecting():
            _check_folder(params, folder)
        refusals.raise_all()
        warnings += set_openmp(_for_openmp(params))
        return _plan_server(params, cluster, warnings, environ)
    return _plan_run(params, mode, horovod, cluster, model, folder, warnings, environ, refusals)


def _find_processes(params: Params, mode: Mode, environ: Mapping[str, str]) -> tuple[Any, Cluster | None]:
    """The module horovod.tensorflow if the mode needs it, and the cluster."""
    if mode.launcher is None:
        return None, find_cluster(params, environ)
    from cluster.horovod_worker import horovod_cluster, load_horovod

    # An MPI that knows CUDA looks for GPUs when Horovod starts it.
    if place := find_place_on_host(environ):
        _show_gpus(params, place, environ)
    horovod = load_horovod()
    return horovod, horovod_cluster(horovod)


def _show_gpus(params: Params, place: PlaceOnHost, environ: Mapping[str, str], *, computes: bool = True) -> bool:
    """Shows this process its GPUs; returns whether its host has any. computes: whether its towers are in it."""
    needed = params.num_gpus if computes and params.device != 'cpu' else 0
    return show_gpus(needed, place, environ, chosen_gpus(params.gpu_indices) if needed else ())


def _for_openmp(params: Params) -> dict[str, tuple[str, str]]:
    """By the variable of the environment: the flag as it was written, and the value."""
    asked = {flag: getattr(params, flag) for flag in OPENMP}
    return {OPENMP[flag]: (spelled(flag, value), str(value)) for flag, value in asked.items() if value is not None}


def _find_model(params: Params) -> ModelFacts:
    if params.model_file:
        load_model_file(params.model_file)
    return MODELS.find_model(params.model, params.data_name)


def _open_folder(params: Params, model: ModelFacts, *, reads: bool) -> tuple[ModelFacts, DataFolder | None]:
    """The model for the data set, and the data folder; the folder is None for synthetic images.

    Args:
      model: that for --data_name. reads: whether this process reads data.
    """
    if params.data_dir is None or not reads:
        return model, None
    folder = open_folder(params.data_dir, params.data_name or recognise(params.data_dir) or model.data_set)
    name = folder.data_set.name
    source = None if params.data_name else f'{name}, which is what --data_dir={params.data_dir} holds'
    return MODELS.find_model(params.model, name, source), folder


def _run_facts(model: ModelFacts, folder: DataFolder | None, *, alone: bool) -> RunFacts:
    has_records = folder is None or folder.data_set.has_records
    return RunFacts(alone=alone, residual=model.residual, has_records=has_records)


def _check_folder(params: Params, folder: DataFolder | None) -> None:
    if folder and not params.eval:
        folder.check(folder.subset_of_steps(forward_only=params.forward_only))
    if folder and params.evaluates:
        folder.check('validation')


def check_launch(params: Params, *, alone: bool = False) -> None:
    """Checks the flags of a whole cluster, or of one process, before any process is started, without TensorFlow.

    Raises:
      UsageError: as for resolve, except for errors that depend on the role of a process or on its devices.
    """
    refusals, folder = Refusals(), None
    with refusals.collecting():
        model = _find_model(params)
        with refusals.collecting():
            model, folder = _open_folder(params, model, reads=True)
            _check_folder(params, folder)
        check_run(params, _run_facts(model, folder, alone=alone))
    with refusals.collecting():
        check_outputs(params)
    refusals.raise_all()


def _plan_server(
    params: Params,
    cluster: Cluster,
    warnings: Sequence[str],
    environ: Mapping[str, str],
) -> ServerPlan:
    uninterrupted(import_tensorflow)
    from planning.session_settings import server_config

    # A parameter server keeps its variables on the CPU.
    computes = cluster.job == 'worker'
    host_has_gpus = _show_gpus(params, cluster.place_on_host, environ, computes=computes)
    if computes and params.device != 'cpu':
        warnings = [*warnings, *contradictions(params)]
    return ServerPlan(
        cluster=cluster,
        config=server_config(params, computes=computes, host_has_gpus=host_has_gpus),
        settings=flags_to_agree_on(params, serves=True),
        # Without its controller no task can continue.
        together=(params.cross_replica_sync and not params.forward_only) or bool(cluster.controller_hosts),
        connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
        peer=Timeout('peer_timeout_secs', params.peer_timeout_secs),
        linger_secs=params.ps_linger_secs,
        warnings=tuple(warnings),
    )


def _plan_run(
    params: Params,
    mode: Mode,
    horovod: Any,
    cluster: Cluster | None,
    model: ModelFacts,
    folder: DataFolder | None,
    warnings: list[str],
    environ: Mapping[str, str],
    refusals: Refusals,
) -> Plan:
    """The plan of a process that trains or evaluates.

    Args:
      refusals: the mistakes that were found so far.
    """
    is_chief = cluster is None or cluster.is_chief
    if horovod and not is_chief:
        # horovodrun gives all processes the same flags, so only the chief writes; in other clusters flags may differ.
        # Each of these flags may be None, which mypy cannot see.
        params = replace(params, **dict.fromkeys(outputs_that_are(Output.FILE, Output.PREFIX)))  # type: ignore[arg-type]
    elsewhere = [server.device for server in cluster.servers] if cluster and cluster.controller_hosts else []
    num_hosts = len(elsewhere) or 1
    num_towers = num_hosts * params.num_gpus
    processes = Processes(
        cluster=cluster,
        horovod=horovod,
        together=cluster is None
        or params.eval
        or horovod is not None
        or (params.cross_replica_sync and not params.forward_only),
        settings=flags_to_agree_on(params, serves=False),
        keeps_state=params.train_dir is not None,
        connect=Timeout('connect_timeout_secs', params.connect_timeout_secs),
        peer=Timeout('peer_timeout_secs', params.peer_timeout_secs),
    )
    shape = Shape(num_hosts * processes.num_trainers, params.num_gpus, cluster.num_ps if cluster else 0)
    host_has_gpus = False
    with refusals.collecting():
        place = cluster.place_on_host if cluster else ONLY_ONE
        if horovod:
            place = horovod.local_rank(), horovod.local_size()
        host_has_gpus = _show_gpus(params, place, environ, computes=not elsewhere)
    with refusals.collecting():
        if needs_no_tensorflow(params):
            kind = find_kind(params, 0, is_here=not elsewhere, host_has_gpus=host_has_gpus)
            check_devices(params, kind, 0, is_here=not elsewhere)
    with refusals.collecting():
        check_outputs(params, is_chief=is_chief)
        check_backbone(params, is_chief)
    # What depends on the data is not known if its folder could not be opened.
    if folder or params.data_dir is None:
        with refusals.collecting():
            data = _open_data(params, model, folder, warnings)
            check_host_memory(params, data)
            input_stages = find_input_stages(params, data, warnings)
            counts = count_steps(params, model, data, processes, num_towers)
            with refusals.collecting():
                reports = find_reports(params, model, counts, shape, processes)
            instruments = find_instruments(params, is_chief, counts.num_timed, warnings)
    refusals.raise_all()
    warnings += set_openmp(_for_openmp(params))
    # From here on TensorFlow is needed.
    uninterrupted(import_tensorflow)
    from planning.machine import find_machine
    from planning.numa import bind_process
    from planning.session_settings import check_xla, find_threads, session_config
    from planning.step import describe_step, find_optimizer, place_variables

    machine = find_machine(params, mode, elsewhere, alone=cluster is None, host_has_gpus=host_has_gpus)
    step = describe_step(params, mode, model, data, machine, counts, processes)
    numa = bind_process(params.use_numa_affinity, machine, place, environ)
    warnings += [numa.warning] if numa.warning else []
    threads = find_threads(params, machine)
    warnings += [threads.warning] if threads.warning else []
    config = session_config(params, machine, in_cluster=cluster is not None, threads=threads)
    config.experimental.use_numa_affinity = numa.by_tensorflow
    if params.xla and machine.is_here:
        check_xla(config, machine.towers[0])
    if params.device is None and machine.kind == 'cpu' and has_nvidia_gpu() and (reason := explain_missing_gpu()):
        warnings.append(
            f'this machine has a GPU of NVIDIA, but TensorFlow sees none and the run is on the CPU: {reason}; '
            'or write --device=cpu'
        )
    if params.device is None:
        # Which flags have no effect on the kind of device that the run has found.
        facts = _run_facts(model, folder, alone=cluster is None and horovod is None)
        known = find_idle(params, facts)
        warnings += [line for line in find_idle(replace(params, device=machine.kind), facts) if line not in known]
    if machine.kind == 'gpu' and machine.is_here:
        warnings += contradictions(params)
    if cluster and not horovod and (public := public_hosts(cluster)):
        warnings.append(
            f"{', '.join(public)}: not in a private network; TensorFlow's servers have neither passwords nor "
            'encryption, and anyone who can reach one can do everything that its user can'
        )
    checkpoints = find_checkpoints(params, is_chief, warnings)
    facts_of_machine = machine_facts(threads.intra_op, threads.inter_op, threads.reason)
    surroundings = Surroundings(facts_of_machine, environment_facts(environ), git_commit())
    if machine.kind == 'gpu' and machine.is_here:
        check_gpu_memory(params, data, facts_of_machine['gpus'])
    return Plan(
        params=params,
        role=_role(params),
        processes=processes,
        model=model,
        data=data,
        machine=machine,
        config=config,
        numa_bind=numa.shown,
        counts=counts,
        step=step,
        freezes=params.forward_only and params.freeze_when_forward_only,
        optimizer=find_optimizer(params),
        variables=place_variables(
            params,
            mode,
            place_of(cluster),
            machine,
            step.precision,
            shown_sync=params.cross_replica_sync and processes.together,
        ),
        evaluations=find_evaluations(params, data, counts, processes, num_towers) if params.evaluates else None,
        checkpoints=checkpoints,
        instruments=instruments,
        losses=_describe_losses(params),
        reports=reports,
        shape=shape,
        surroundings=surroundings,
        warnings=tuple(warnings),
        input_stages=input_stages,
    )


def _role(params: Params) -> Role:
    if params.eval:
        return Role.EVALUATION
    if params.input_only:
        return Role.INPUT_ONLY
    return Role.TRAINING if params.trains else Role.FORWARD_ONLY


def _open_data(params: Params, model: ModelFacts, folder: DataFolder | None, warnings: list[str]) -> Data:
    """Opens the images that steps and evaluations read."""
    data_set = folder.data_set if folder else DATA_SETS[model.data_set]
    usual = params.augmentation or data_set.augmentation
    augmentation = choose_augmentation(params, usual, warnings)

    def open_subset(subset: str) -> Source:
        assert folder
        images = folder.open(subset)
        if isinstance(images, Arrays) and params.augmentation == 'resized_crop':
            raise UsageError(
                f'--augmentation=resized_crop: it is for records, and {data_set.name} is not read from records; '
                'write --augmentation=padded_crop or none'
            )
        if warning := folder.warning_about(images):
            warnings.append(warning)
        return images

    preprocessor = PREPROCESSORS[DEFAULT]
    if data_set.has_records:
        preprocessor = preprocessor_for(params.input_preprocessor, ml_perf=params.ml_perf)
    images = validation = None
    if folder and not params.eval:
        images = open_subset(folder.subset_of_steps(forward_only=params.forward_only))
        if params.distortions and not params.forward_only and data_set.channels != 3:
            raise UsageError(
                f'--distortions: they change colours, which needs 3 channels, and the images of {data_set.name} have '
                f'{data_set.channels}; write --nodistortions'
            )
    if folder and params.evaluates:
        validation = open_subset('validation')
    return Data(
        data_set=data_set,
        folder=params.data_dir,
        images=images,
        validation=validation,
        image_size=(model.any_size and data_set.image_size) or model.image_size,
        augmentation=augmentation,
        validation_augmentation=usual,
        distortions=params.distortions and not preprocessor.plain,
        in_yiq=params.distort_color_in_yiq,
        resize_method='bilinear' if preprocessor.plain else params.resize_method,
        scaled_decode=params.scaled_decode,
        seed=params.tf_random_seed,
        distinct_workers=params.distinct_worker_data,
        deterministic=params.deterministic,
        preprocessor=preprocessor,
        pipeline=chosen_pipeline(params),
        tf_data=tf_data_settings(params),
    )


def _describe_losses(params: Params) -> Losses:
    advice = []
    if params.precision == 'fp16':
        advice.append('--precision=bf16, which has larger numbers')
        if not params.fp16_enable_auto_loss_scale:
            advice.append('--fp16_enable_auto_loss_scale')
    # Without training a loss that is not finite spoils nothing; the result warns of it.
    return Losses(params.loss_type_to_report, params.continue_on_nan or params.forward_only, tuple(advice))
