"""Makes the document of a result: the measurements, with the context needed to interpret them."""

import datetime
import math
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import tensorflow.compat.v1 as tf
from msgspec import convert

from models.catalog import read_costs
from models.counting import network_cost
from tf_cnn.cluster.config import ROLE_FLAGS
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.inputs.pipeline_stages import Buffer, max_total_bytes
from tf_cnn.plan.params import Role, output_flags
from tf_cnn.plan.parsing import Invocation
from tf_cnn.plan.plan import Plan
from tf_cnn.results import VERSION, sections
from tf_cnn.results.advice import find_warnings
from tf_cnn.results.benchmark_log import run_info
from tf_cnn.results.document import SCHEMA_VERSION, Result, as_json
from tf_cnn.results.sections import (
    NO_TRANSFER,
    START_PHASES,
    ExitSection,
    StageRow,
    ThroughputSection,
    WarningRow,
)
from tf_cnn.results.steps import Accuracy, StepLog
from tf_cnn.run.run_meters import RunMeters
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
        onednn=plan.session.onednn,
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
        **{f'{flag}_sha256': digest for flag, digest in plan.file_hashes.items()},
    )
    # The other fields have the names and the resolved values of flags.
    names = {*sections.RunSection.__struct_fields__} - facts.keys()
    flags = {name: value for name, value in params.values().items() if name in names}
    return sections.RunSection(**facts, **flags)


class ResultBuilder:
    """Collects the properties of a run besides its steps, and builds its result.

    The run fills in the public attributes. peak_flops is in FLOP/s.
    """

    def __init__(self, plan: Plan, invocation: Invocation, meters: RunMeters) -> None:
        self.transfer = NO_TRANSFER
        self.peak_flops: float | None = None
        self.input_buffers: Sequence[Buffer] = ()
        self.input_stages: Sequence[StageRow] | None = None
        self._plan = plan
        self._invocation = invocation
        self._meters = meters
        self._unix_at_zero = time.time() - time.perf_counter()

    def worker_section(self, measurements: StepLog) -> dict[str, Any]:
        """Returns the steps of this process, as an item of the list of workers in the document."""
        self._meters.end()
        task = self._plan.cluster_role.cluster
        task_name = f'{task.job} {task.index}' if task else None
        steps = measurements.steps_section(self._unix_at_zero)
        return as_json(
            sections.WorkerSection(task_name, socket.gethostname(), self._meters.memory(), steps)
        )

    # Long, because the document is one object and reads best in one piece.
    def build(
        self,
        measurements: StepLog,
        evaluations: Sequence[Accuracy],
        exit_info: ExitSection,
        workers: Sequence[Mapping[str, Any] | None],
    ) -> Result:
        """Returns the result, see docs/results.md. workers has the worker_section() of each worker,
        or None if it was lost.
        """
        plan, run_environment = self._plan, self._plan.run_environment
        # Counting may build a graph; a process that was stopped has no time for it.
        parameters, multiply_adds = self._model_cost() if exit_info.is_complete else (None, None)
        self._meters.end()
        warnings = [WarningRow('settings', line) for line in plan.warnings]
        worker_sections = [convert(worker, sections.WorkerSection) for worker in workers if worker]
        if num_missing := len(workers) - len(worker_sections):
            text = (
                f'the steps of {plural(num_missing, "worker")} are missing: lost, or too late to '
                'reach the chief'
            )
            warnings.append(WarningRow('workers_missing', text))
        throughput = measurements.throughput
        result = Result(
            schema_version=SCHEMA_VERSION,
            id=uuid.uuid4().hex,
            is_complete=exit_info.is_complete,
            exit_status=exit_info,
            started_at=_format_utc(self._unix_at_zero + self._invocation.start_time),
            ended_at=_format_utc(time.time()),
            program=sections.ProgramSection(VERSION, run_environment.git_commit),
            command=sections.CommandSection(
                self._invocation.argv, self._plan.params.values(), dict(plan.params.given_flags)
            ),
            run=measurements.run,
            cluster=self._cluster(),
            model=sections.ModelSection(
                name=plan.model_name,
                parameters=parameters,
                gmacs_per_image=None if multiply_adds is None else multiply_adds / 1e9,
            ),
            workers=worker_sections,
            throughput=throughput,
            statistics=sections.StatisticsSection.of(
                [step.seconds for step in measurements.timed_steps]
            ),
            phases={name: self._meters.phase_seconds.get(name) for name in START_PHASES},
            compute=self._compute(multiply_adds, throughput),
            memory=self._meters.memory(),
            transfer=self.transfer,
            input=self._input(measurements, throughput),
            energy=self._energy(throughput, num_missing),
            evaluations=[accuracy.as_row(self._unix_at_zero) for accuracy in evaluations],
            machine=run_environment.machine,
            environment=run_environment.environment,
            noise=self._meters.noise,
            warnings=warnings,
        )
        warnings += find_warnings(result, self._rerun_flags(result.run.batch_size))
        return result

    def log_header(self) -> dict[str, Any]:
        """Returns the beginning of benchmark_run.log, see results.benchmark_log."""
        plan = self._plan
        return run_info(
            model=plan.model_name,
            data_set=plan.data.data_set.name,
            flags=self._plan.params.values(),
            machine=plan.run_environment.machine,
            environment=plan.run_environment.environment,
            tensorflow_version=tf.version.VERSION,
            tensorflow_git=tf.version.GIT_VERSION,
            test_id=plan.params.results.benchmark_test_id,
            available_memory=psutil.virtual_memory().available,
        )

    def _rerun_flags(self, batch_size: int) -> list[str]:
        """Returns the flags that measure the setting of this run again in one process."""
        params = self._plan.params
        if self._plan.cluster_role.cluster:
            # The flags of one task of a cluster mean nothing to a process alone.
            return [
                format_flag('model', self._plan.model_name),
                format_flag('batch_size', batch_size),
            ]
        return [
            text
            for name, text in params.given_flags.items()
            if name not in ('repeat', *ROLE_FLAGS, *output_flags())
        ]

    def _cluster(self) -> sections.ClusterSection:
        shape, cluster = self._plan.cluster_role.shape, self._plan.cluster_role.cluster
        return sections.ClusterSection(
            shape=str(shape),
            num_workers=shape.workers,
            devices_per_worker=shape.devices,
            num_ps=shape.num_ps,
            tasks=[
                f'{task.job} {task.index}' for task in (*cluster.training_tasks, *cluster.servers)
            ]
            if cluster
            else [],
        )

    def _model_cost(self) -> tuple[int | None, int | None]:
        """Returns (parameters, multiply-adds per image), for the image shape and classes of this
        run.
        """
        model, data = self._plan.model, self._plan.data
        if (size := self._plan.params.run.exchange_bytes) is not None:
            return size // 4, None
        data_set = DATA_SETS.get(model.data_set)
        has_usual_classes = (
            data_set is not None and data_set.num_classes == data.data_set.num_classes
        )
        table_cost = read_costs().get((model.name, model.data_set, data.image_size))
        if model.network.is_builtin and has_usual_classes and table_cost:
            return table_cost
        try:
            # In a separate graph, for networks, images or classes that the table does not have.
            return network_cost(model.network, data.image_shape, data.data_set.num_classes)
        except Exception:
            return None, None

    def _compute(
        self, multiply_adds: int | None, throughput: ThroughputSection
    ) -> sections.ComputeSection:
        flops, role = None, self._plan.role
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
            peak_flops_per_second=self.peak_flops,
            share_of_peak=flops_per_second / self.peak_flops
            if flops_per_second is not None and self.peak_flops
            else None,
        )

    def _input(self, measurements: StepLog, throughput: ThroughputSection) -> sections.InputSection:
        waits = [
            step.values.input_wait
            for step in measurements.timed_steps
            if step.values.input_wait is not None
        ]
        seconds = math.fsum(waits) if waits else None
        buffers = self.input_buffers
        return sections.InputSection(
            wait_seconds=seconds,
            wait_share=seconds / throughput.step_seconds
            if seconds is not None and throughput.step_seconds
            else None,
            stages=self.input_stages,
            memory=sections.BuffersSection(max_total_bytes(buffers), buffers) if buffers else None,
        )

    def _energy(self, throughput: ThroughputSection, num_missing: int) -> sections.EnergySection:
        source, joules = self._meters.joules or (None, None)
        # RAPL measures one machine, and NVML the GPUs of one process. The images come from all
        # workers.
        cluster = self._plan.cluster_role.cluster
        covers_all_images = not cluster or (
            not num_missing and source == 'RAPL' and cluster.is_on_one_host
        )
        per_image = (
            joules / throughput.images
            if joules and throughput.images and covers_all_images
            else None
        )
        return sections.EnergySection(source, joules, per_image)


def _format_utc(unix_secs: float) -> str:
    return datetime.datetime.fromtimestamp(unix_secs, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
