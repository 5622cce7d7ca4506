"""Builds the graph of a step and the graph of an evaluation from the plan.

Only this module knows all components of a run.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import tensorflow.compat.v1 as tf

from preprocessing import ImageOptions, Scale
from tf_cnn.cluster.topology import topology_of
from tf_cnn.graph.devices import HOST_DEVICE
from tf_cnn.inputs.catalog import InputRow, Source, pipeline_row_for
from tf_cnn.inputs.data_sets import Arrays, Shards
from tf_cnn.inputs.pipeline import InputConfig, InputPipeline, WorkersInput
from tf_cnn.inputs.pipeline_classes import PIPELINE_CLASSES
from tf_cnn.inputs.pipeline_stages import TRANSFER
from tf_cnn.inputs.synthetic import SyntheticInput
from tf_cnn.inputs.validation import (
    Dataset,
    Share,
    ValidationInput,
    array_examples,
    read_images,
    record_examples,
)
from tf_cnn.managers.all_reduce import (
    Algorithm,
    compact_algorithm,
    halves_algorithm,
    make_algorithm,
)
from tf_cnn.managers.buckets import Packing
from tf_cnn.managers.classes import make_variable_mgr
from tf_cnn.managers.manager_config import ManagerConfig
from tf_cnn.managers.user_modes import convert_manager_errors
from tf_cnn.planning.plan import Plan, Role
from tf_cnn.results.console import IN_TF32, PERHAPS_IN_TF32, format_banner, transfer_lines
from tf_cnn.results.sections import NO_TRANSFER
from tf_cnn.results.summary import format_machine
from tf_cnn.run.constant_weights import freeze
from tf_cnn.run.evaluation import Evaluation, SlicedVariables
from tf_cnn.run.exchange import GradientsInMemory, gradient_shapes
from tf_cnn.run.export import Array, export_saved_model
from tf_cnn.run.result_builder import run_section
from tf_cnn.run.step_graph import StepGraph, build_step_graph
from tf_cnn.training.optimizers import UPDATE_RULES
from tf_cnn.training.schedules import epochs_to_steps
from variable_mgr import VariableMgr

# Each restart adds this to the seeds of dropout and of the record order.
_SEEDS_PER_RESTART = 1_000_003


def build_step(plan: Plan, restart: int = 0) -> StepGraph:
    """Adds a step to the current graph. restart is 0 when training starts, and a different number
    each time it continues.
    """
    mode = plan.variables.mode
    with convert_manager_errors(mode):
        manager = _make_manager(plan)
    optimizer_settings = plan.variables.optimizer
    optimizer = UPDATE_RULES[optimizer_settings.name](*optimizer_settings.arguments)
    # Random ops start again in each session. With another seed, a continued training drops other
    # units than in its first steps.
    settings = replace(plan.step, seed=plan.step.seed + _SEEDS_PER_RESTART * restart)
    frozen_network = None
    if plan.step.freezes:
        batch_shape = plan.counts.batch_size, *plan.data.image_shape
        num_classes = plan.data.data_set.num_classes
        frozen_network = freeze(
            plan.step.network,
            batch_shape,
            num_classes,
            plan.step.seed,
            plan.step.precision,
            plan.session.config,
        )
    pipeline: InputPipeline
    if settings.exchange_only:
        pipeline = GradientsInMemory(
            gradient_shapes(settings, plan.data.image_shape), settings.first_tower
        )
    else:
        pipeline = _make_pipeline(plan, manager.get_devices(), restart)
    with convert_manager_errors(mode):
        return build_step_graph(settings, optimizer, manager, pipeline, frozen_network)


def build_evaluation(
    plan: Plan, sources: Sequence[SlicedVariables], process_index: int, num_processes: int
) -> Evaluation:
    """Adds the evaluation of this process's share of the images. Each tower reads the variables of
    one source.
    """
    evaluations, data, devices = plan.evaluations, plan.data, plan.machine.towers
    assert evaluations
    pipeline: InputPipeline
    if data.validation is None:
        pipeline = _make_synthetic(plan, devices, evaluations.batch_size, data.seed + process_index)
    else:
        num_examples = evaluations.num_examples
        if evaluations.num_passes is not None:
            # Counting reads the lengths of all records, so only processes that evaluate do it.
            num_examples = math.ceil(
                epochs_to_steps(evaluations.num_passes, data.validation.num_images, 1)
            )
        share = Share(process_index, num_processes, num_examples)
        options = replace(
            _image_options(plan, training=False), augmentation=data.validation_augmentation
        )
        examples = _make_example_reader(plan, data.validation, options, share)
        pipeline = ValidationInput(devices, evaluations.batch_size, examples, _scale(plan))
    return Evaluation(
        plan.step.network,
        data.data_set.num_classes,
        plan.machine.data_format,
        sources,
        devices,
        pipeline,
        evaluations.batch_size,
        evaluations.num_batches,
        plan.step.precision.compute_dtype,
    )


def export(plan: Plan, values: Mapping[str, Array], folder: str) -> None:
    """Writes the model as a SavedModel, with the values of its variables by name."""
    num_classes, image_shape = plan.data.data_set.num_classes, plan.data.image_shape
    export_saved_model(folder, values, plan.step.network, num_classes, image_shape, _scale(plan))


def make_banner(plan: Plan, device_prefix: str = '', step_graph: StepGraph | None = None) -> str:
    """Returns the banner of a run. device_prefix names this task of a cluster; step_graph is None
    if the run does not train.
    """
    run, counts, machine, row = run_section(plan), plan.counts, plan.machine, plan.data.input_row
    num_workers = plan.cluster_role.num_training_tasks * len(machine.hosts)
    num_batches: object = (
        f'as many as take {counts.target_secs:g} seconds'
        if counts.target_secs
        else counts.num_timed
    )
    num_epochs = 'unknown' if counts.target_secs else f'{counts.num_epochs:.2f}'
    if plan.workload.role is Role.EVALUATION and (evaluations := plan.evaluations):
        num_batches = 'all' if evaluations.banner_batches is None else evaluations.banner_batches
        num_epochs = f'{evaluations.num_epochs:.2f}'
    steps_per_run_text = (
        f'{run.steps_per_run}; the steps of one session call share its time equally'
    )
    tf32 = PERHAPS_IN_TF32 if run.tf32 is None else IN_TF32 if run.tf32 else ''
    return format_banner(
        [
            ('TensorFlow', '.'.join(tf.__version__.split('.')[:2])),
            ('Model', plan.workload.model_name),
            ('Dataset', f'{run.data_set} ({"synthetic" if run.is_synthetic else "real"})'),
            # If it differs from the usual one for these images.
            ('Input', '' if row == pipeline_row_for(plan.data.images) else row.name),
            ('Mode', run.role),
            ('SingleSess', not machine.is_local),
            ('Batch size', f'{run.global_batch_size} global'),
            ('', f'{run.batch_size} per device'),
            ('Num batches', num_batches),
            ('Num epochs', num_epochs),
            ('Steps/run', steps_per_run_text if run.steps_per_run > 1 else ''),
            ('Devices', [f'{device_prefix}{tower}' for tower in machine.towers]),
            ('NUMA bind', plan.session.process.numa or False),
            (
                'Data format',
                run.data_format
                + (f' ({reason})' if (reason := machine.data_format_reason) else ''),
            ),
            ('Precision', f'{run.precision}{tf32}' if tf32 or run.precision != 'fp32' else ''),
            ('Optimizer', run.optimizer),
            ('Variables', run.variable_update),
            ('Weights', 'constant, batch norm is folded' if plan.step.freezes else ''),
            ('AllReduce', run.all_reduce_spec or ''),
            ('Sync', run.sync),
            *transfer_lines(step_graph.transfer if step_graph else NO_TRANSFER, num_workers),
            *zip(('Machine', 'GPUs'), format_machine(plan.run_environment.machine), strict=False),
        ]
    )


def _make_manager(plan: Plan) -> VariableMgr:
    processes, machine, variables, precision = (
        plan.cluster_role,
        plan.machine,
        plan.variables,
        plan.step.precision,
    )
    packing = Packing(variables.num_packets, variables.small_max_bytes, variables.small_max_group)
    transfer = tf.as_dtype(variables.transfer) if variables.transfer else None
    settings = ManagerConfig(
        devices=machine.towers,
        seed=plan.step.seed,
        parameter_devices=machine.parameter_devices,
        algorithm=_make_algorithm(plan, transfer),
        packing=packing,
        server_devices=[f'{task.device}/cpu:0' for task in processes.cluster.servers]
        if processes.cluster
        else (),
        slices_variables=variables.slices_variables,
        is_synchronous=processes.is_synchronous,
        worker=processes.index,
        num_workers=processes.num_training_tasks,
        transfer=transfer,
        nccl_over_towers=variables.uses_nccl,
        horovod=processes.horovod,
        horovod_device=variables.horovod_device,
        # The host needs the scalars of each step, unless it only starts a loop in the graph.
        scalar_device=machine.parameter_devices[0]
        if plan.counts.steps_per_run > 1
        else HOST_DEVICE,
        variable_dtype=precision.variable_dtype,
    )
    if variables.mode.manager:
        return variables.mode.manager(settings)
    topology = topology_of(processes.cluster)
    return make_variable_mgr(
        variables.variable_update,
        topology,
        settings,
        staged=variables.is_staged,
        relaxed=variables.is_relaxed,
    )


def _make_algorithm(plan: Plan, transfer: tf.DType | None) -> Algorithm:
    towers, sums = plan.machine.towers, plan.variables.size_ranges
    algorithm = (
        halves_algorithm(towers, plan.variables.leaders)
        if sums is None
        else make_algorithm(sums, towers, HOST_DEVICE, plan.machine.hosts)
    )
    return compact_algorithm(algorithm, towers, transfer) if transfer else algorithm


def make_input(plan: Plan, until: str) -> InputPipeline:
    return _make_pipeline(plan, plan.machine.towers, restart=0, until=until)


def _make_pipeline(
    plan: Plan, devices: Sequence[str], restart: int, until: str = TRANSFER
) -> InputPipeline:
    hosts, row, source = plan.machine.hosts, plan.data.input_row, plan.data.images
    if row.in_memory and source is not None:
        options = _image_options(plan, training=False)
        source = read_images(
            source,
            _make_example_reader(plan, source, options, Share()),
            options,
            plan.session.config,
        )
    first_worker, num_workers = (
        plan.cluster_role.index,
        plan.cluster_role.num_training_tasks * len(hosts),
    )
    devices_per_worker = len(devices) // len(hosts)
    worker_inputs = [
        _make_worker_input(
            plan,
            row,
            source,
            devices[devices_per_worker * number :][:devices_per_worker],
            host,
            first_worker + number,
            num_workers,
            restart,
            until,
        )
        for number, host in enumerate(hosts)
    ]
    return (
        worker_inputs[0]
        if len(worker_inputs) == 1
        else WorkersInput(worker_inputs, devices_per_worker)
    )


# Nine arguments: one group describes the run, the other this worker and its share of the images.
def _make_worker_input(
    plan: Plan,
    row: InputRow,
    source: Source,
    devices: Sequence[str],
    host_device: str,
    worker: int,
    num_workers: int,
    restart: int,
    until: str,
) -> InputPipeline:
    """Makes the input of one worker's towers, up to the stage `until`."""
    data, seed = plan.data, plan.data.seed
    if not data.distinct_workers:
        worker, num_workers = 0, 1
    if not isinstance(source, Arrays):
        seed += worker * len(devices)
    if isinstance(source, Shards):
        # Reading cannot resume in the middle of an epoch. A continued training reads the records in
        # another order, or it would see the first records more often.
        seed += _SEEDS_PER_RESTART * restart
    settings = InputConfig(
        source=source,
        devices=devices,
        batch_size=plan.counts.batch_size,
        num_classes=data.data_set.num_classes,
        options=_image_options(plan, training=not plan.step.forward_only, seed=seed),
        seed=seed,
        normalize_on_device=plan.machine.kind == 'gpu',
        host_device=host_device,
        worker=worker,
        num_workers=num_workers,
        tf_data=data.tf_data,
        last_stage=until,
    )
    return PIPELINE_CLASSES[row.name](settings)


def _make_example_reader(
    plan: Plan, source: Shards | Arrays, options: ImageOptions, share: Share
) -> Callable[[], Dataset]:
    num_classes = plan.data.data_set.num_classes
    if isinstance(source, Shards):
        return functools.partial(record_examples, source, num_classes, options, share)
    return functools.partial(array_examples, source, options, share)


def _make_synthetic(
    plan: Plan, devices: Sequence[str], batch_size: int, seed: int
) -> InputPipeline:
    num_classes, options = plan.data.data_set.num_classes, _image_options(plan, training=False)
    return SyntheticInput(InputConfig(None, devices, batch_size, num_classes, options, seed))


def _image_options(plan: Plan, *, training: bool, seed: int = 0) -> ImageOptions:
    data = plan.data
    height, width, channels = data.image_shape
    return ImageOptions(
        height=height,
        width=width,
        channels=channels,
        training=training,
        distortions=training and data.distortions,
        in_yiq=data.in_yiq,
        resize_method=data.resize_method,
        scaled_decode=data.scaled_decode,
        seed=seed,
        augmentation=data.augmentation,
        scale=_scale(plan),
        shorter_side=data.preprocessor.shorter_side,
    )


def _scale(plan: Plan) -> Scale:
    return Scale(plan.data.preprocessor.factor, plan.data.preprocessor.offsets)
