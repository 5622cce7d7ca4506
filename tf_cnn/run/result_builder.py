"""Makes the document of a result: the measurements, with the context needed to interpret them."""

import datetime
import math
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import convert

from models.catalog import read_costs
from models.counting import network_cost
from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.graph.onednn import uses_onednn
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.inputs.pipeline_stages import max_total_bytes
from tf_cnn.plan.params import Role, output_flags
from tf_cnn.plan.plan import Plan
from tf_cnn.results import VERSION, sections
from tf_cnn.results.advice import find_warnings
from tf_cnn.results.document import SCHEMA_VERSION, Result
from tf_cnn.results.sections import (
    START_PHASES,
    ExitSection,
    ThroughputSection,
    WarningRow,
)
from tf_cnn.results.steps import Accuracy, StepLog
from tf_cnn.run.run_meters import RunMeters
from tf_cnn.system.documents import as_json
from tf_cnn.system.errors import format_flag, plural

# A multiply-add is two operations. For each product of the forward pass, the backward pass has two
# of the same size: one for the gradients of the weights and one for the gradients of the
# activations.
_FLOPS_PER_MULTIPLY_ADD = 2
_TRAINING_PASSES = 3


def run_section(plan: Plan, num_skipped_steps: int = 0) -> sections.RunSection:
    """Returns the resolved settings of a run, as a section of its result."""
    data, devices, params = plan.data, plan.devices, plan.params
    batch_size, num_timed, num_epochs = params.run.batch_size, params.run.num_batches, None
    if num_timed is not None:
        num_epochs = plan.num_epochs
    evaluates = plan.role is Role.EVALUATION
    if evaluates and plan.evaluations:
        batch_size = params.evaluation.eval_batch_size
        num_timed, num_epochs = plan.evaluations.banner_batches, plan.evaluations.num_epochs
    facts: dict[str, Any] = dict(
        role=plan.role.value,
        has_synchronous_workers=plan.cluster_role.is_synchronous,
        image_size=data.image_size,
        data_set=data.data_set.name,
        is_synthetic=params.data.data_dir is None,
        num_missing_shards=data.shards.num_missing if data.shards else 0,
        devices=devices.towers,
        tf32=devices.tf32,
        onednn=uses_onednn(),
        images_per_step=plan.images_per_global_step,
        num_warmup=params.run.num_warmup_batches,
        num_timed=num_timed,
        num_epochs=num_epochs,
        sync=plan.is_synchronous,
        batch_size=batch_size,
        global_batch_size=batch_size * len(devices.towers) * plan.cluster_role.num_training_tasks,
        input_pipeline=None if evaluates else data.input_row.name,
        precision=str(plan.precision),
        num_skipped_steps=num_skipped_steps,
        data_sha256=data.sha256,
        **{f'{flag}_sha256': digest for flag, digest in plan.file_hashes.items()},
    )
    # The other fields have the names and the resolved values of flags.
    names = {*sections.RunSection.__struct_fields__} - facts.keys()
    flags = {name: value for name, value in params.values().items() if name in names}
    return sections.RunSection(**facts, **flags)


def worker_section(plan: Plan, meters: RunMeters, log: StepLog) -> dict[str, Any]:
    """Returns the steps of this process, as an item of the list of workers in the document."""
    meters.end()
    task = plan.cluster_role.cluster
    task_name = f'{task.job} {task.index}' if task else None
    steps = log.steps_section(meters.unix_at_zero)
    section = sections.WorkerSection(task_name, socket.gethostname(), meters.memory(), steps)
    if task:
        section.machine, section.noise = plan.machine, meters.noise
        section.alone = meters.alone
    return as_json(section)


# Long, because the document is one object and reads best in one piece.
def build_result(
    plan: Plan,
    argv: tuple[str, ...],
    meters: RunMeters,
    log: StepLog,
    evaluations: Sequence[Accuracy],
    exit_info: ExitSection,
    workers: Sequence[Mapping[str, Any] | None],
) -> Result:
    """Returns the result, see docs/results.md. workers has the worker_section() of each worker, or
    None if it was lost.
    """
    # Counting may build a graph; a process that was stopped has no time for it.
    parameters, multiply_adds = _model_cost(plan) if exit_info.is_complete else (None, None)
    meters.end()
    warnings = [WarningRow('settings', line) for line in plan.warnings]
    worker_sections = [convert(worker, sections.WorkerSection) for worker in workers if worker]
    if num_missing := len(workers) - len(worker_sections):
        text = (
            f'the steps of {plural(num_missing, "worker")} are missing: lost, or too late to '
            'reach the chief'
        )
        warnings.append(WarningRow('workers_missing', text))
    throughput = log.throughput
    result = Result(
        schema_version=SCHEMA_VERSION,
        id=uuid.uuid4().hex,
        is_complete=exit_info.is_complete,
        exit_status=exit_info,
        started_at=_format_utc(meters.unix_at_zero + meters.start_time),
        ended_at=_format_utc(time.time()),
        program=sections.ProgramSection(VERSION, plan.git_commit),
        command=sections.CommandSection(argv, plan.params.values(), dict(plan.params.given_flags)),
        run=log.run,
        cluster=_cluster(plan),
        model=sections.ModelSection(
            name=plan.model_name,
            parameters=parameters,
            gmacs_per_image=None if multiply_adds is None else multiply_adds / 1e9,
        ),
        workers=worker_sections,
        throughput=throughput,
        statistics=sections.StatisticsSection.of([step.seconds for step in log.timed_steps]),
        phases={name: meters.phase_seconds.get(name) for name in START_PHASES},
        compute=_compute(plan, meters.peak_flops, multiply_adds, throughput),
        memory=meters.memory(),
        transfer=meters.transfer,
        input=_input(meters, log, throughput),
        energy=_energy(plan, meters, throughput, num_missing),
        evaluations=[accuracy.as_row(meters.unix_at_zero) for accuracy in evaluations],
        machine=plan.machine,
        environment=plan.environment,
        noise=meters.noise,
        warnings=warnings,
    )
    warnings += find_warnings(result, _rerun_flags(plan, result.run.batch_size))
    return result


def _rerun_flags(plan: Plan, batch_size: int) -> list[str]:
    """Returns the flags that measure the setting of this run again in one process; with --verbose
    only, since commands are long.
    """
    if not plan.params.run.verbose:
        return []
    if plan.cluster_role.cluster:
        # The flags of one task of a cluster mean nothing to a process alone.
        return [format_flag('model', plan.model_name), format_flag('batch_size', batch_size)]
    return [
        text
        for name, text in plan.params.given_flags.items()
        if name not in ('repeat', 'verbose', *ROLE_FLAGS, *output_flags())
    ]


def _cluster(plan: Plan) -> sections.ClusterSection:
    shape, cluster = plan.cluster_role.shape, plan.cluster_role.cluster
    return sections.ClusterSection(
        shape=str(shape),
        num_workers=shape.workers,
        devices_per_worker=shape.devices,
        num_ps=shape.num_ps,
        tasks=[f'{task.job} {task.index}' for task in (*cluster.training_tasks, *cluster.servers)]
        if cluster
        else [],
    )


def _model_cost(plan: Plan) -> tuple[int | None, int | None]:
    """Returns (parameters, multiply-adds per image), for the image shape and classes of this
    run.
    """
    model, data = plan.model, plan.data
    if (size := plan.params.run.exchange_bytes) is not None:
        return size // 4, None
    data_set = DATA_SETS.get(model.data_set)
    has_usual_classes = data_set is not None and data_set.num_classes == data.data_set.num_classes
    table_cost = read_costs().get((model.name, model.data_set, data.image_size))
    if model.network.is_built_in and has_usual_classes and table_cost:
        return table_cost
    try:
        # In a separate graph, for networks, images or classes that the table does not have.
        return network_cost(model.network, data.image_shape, data.data_set.num_classes)
    except Exception:
        return None, None


def _compute(
    plan: Plan, peak_flops: float | None, multiply_adds: int | None, throughput: ThroughputSection
) -> sections.ComputeSection:
    flops, role = None, plan.role
    if multiply_adds is not None and role not in (Role.INPUT_ONLY, Role.EXCHANGE_ONLY):
        flops = (
            _FLOPS_PER_MULTIPLY_ADD
            * multiply_adds
            * (_TRAINING_PASSES if role is Role.TRAINING else 1)
        )
    rate = throughput.images_per_second
    flops_per_second = flops * rate if flops is not None and rate is not None else None
    return sections.ComputeSection(
        flops_per_image=flops,
        flops_per_second=flops_per_second,
        peak_flops_per_second=peak_flops,
        share_of_peak=flops_per_second / peak_flops
        if flops_per_second is not None and peak_flops
        else None,
    )


def _input(meters: RunMeters, log: StepLog, throughput: ThroughputSection) -> sections.InputSection:
    waits = [
        step.values.input_wait for step in log.timed_steps if step.values.input_wait is not None
    ]
    seconds = math.fsum(waits) if waits else None
    buffers = meters.input_buffers
    return sections.InputSection(
        wait_seconds=seconds,
        wait_share=seconds / throughput.step_seconds
        if seconds is not None and throughput.step_seconds
        else None,
        stages=meters.input_stages,
        memory=sections.BuffersSection(max_total_bytes(buffers), buffers) if buffers else None,
    )


def _energy(
    plan: Plan, meters: RunMeters, throughput: ThroughputSection, num_missing: int
) -> sections.EnergySection:
    source, joules = meters.joules or (None, None)
    # RAPL measures one machine, and NVML the GPUs of one process. The images come from all
    # workers.
    cluster = plan.cluster_role.cluster
    covers_all_images = not cluster or (
        not num_missing and source == 'RAPL' and cluster.is_on_one_host
    )
    per_image = (
        joules / throughput.images if joules and throughput.images and covers_all_images else None
    )
    return sections.EnergySection(source, joules, per_image)


def _format_utc(unix_secs: float) -> str:
    return datetime.datetime.fromtimestamp(unix_secs, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
