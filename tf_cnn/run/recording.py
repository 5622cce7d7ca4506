"""Makes the document of a result: what a run measured, with the context needed to interpret it."""

import datetime
import math
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

import psutil
import tensorflow.compat.v1 as tf
from msgspec import convert

from models.costs import read_table
from models.counting import network_cost
from tf_cnn.inputs.buffers import Buffer, most_bytes
from tf_cnn.inputs.data_sets import DATA_SETS
from tf_cnn.machine.meters import Disturbances, EnergyMeter, host_peak_bytes
from tf_cnn.planning.plan import Plan, Role
from tf_cnn.results import VERSION, sections
from tf_cnn.results.advice import advise
from tf_cnn.results.benchmark_log import run_info
from tf_cnn.results.document import SCHEMA_VERSION, Result, as_json
from tf_cnn.results.sections import (
    NO_TRANSFER,
    START_PHASES,
    Ending,
    Phase,
    StageRow,
    ThroughputSection,
    WarningRow,
)
from tf_cnn.results.steps import Accuracy, Measured, Step, StepValues
from tf_cnn.run.invocation import Invocation
from tf_cnn.system.errors import plural

# Multiply-adds are two operations. The backward pass has two products of the size of each of the
# forward pass: one for the gradients of the weights, one for those of the activations.
_FLOPS_OF_MULTIPLY_ADD = 2
_PASSES_OF_TRAINING = 3


def run_section(plan: Plan, num_skipped_steps: int = 0) -> sections.RunSection:
    """Returns what the flags led to."""
    data, machine, counts, variables = plan.data, plan.machine, plan.counts, plan.variables
    role, evaluations, asked = plan.subject.role, plan.evaluations, not counts.target_secs
    evaluated = evaluations if role is Role.EVALUATION else None
    batch_size = evaluated.batch_size if evaluated else counts.batch_size
    return sections.RunSection(
        role=role.value,
        together=plan.processes.together,
        image_size=data.image_size,
        data_set=data.data_set.name,
        is_synthetic=data.folder is None,
        num_missing_shards=data.shards.num_missing if data.shards else 0,
        device=machine.kind,
        devices=machine.towers,
        data_format=machine.data_format,
        tf32=machine.tf32,
        onednn=plan.session.onednn,
        images_per_step=counts.images_of_step,
        num_warmup=counts.num_warmup,
        display_every=counts.display_every,
        num_timed=counts.num_timed if asked else None,
        num_epochs=counts.num_epochs if asked else None,
        variable_update=variables.variable_update,
        sync=variables.sync,
        all_reduce_spec=variables.shown_spec,
        optimizer=variables.optimizer.name,
        batch_size=batch_size,
        global_batch_size=batch_size * len(machine.towers) * plan.processes.num_trainers,
        input_pipeline=None if evaluated else data.input_row.name,
        steps_per_run=1 if evaluated or role is Role.INPUT_ONLY else counts.steps_per_run,
        precision=str(plan.step.precision),
        num_skipped_steps=num_skipped_steps,
        **{f'{flag}_sha256': digest for flag, digest in plan.subject.file_hashes.items()},
    )


class Recording:
    """What is known about a run besides its steps; the run fills in the public attributes.
    peak_flops is in FLOP/s.
    """

    def __init__(self, plan: Plan, invocation: Invocation) -> None:
        self.transfer = NO_TRANSFER
        self.peak_flops: float | None = None
        self.input_buffers: Sequence[Buffer] = ()
        self.input_stages: Sequence[StageRow] | None = None
        self._plan = plan
        self._invocation = invocation
        self._unix_at_zero = time.time() - time.perf_counter()
        self._phases: dict[str, float] = {}
        self._phase: str | None = 'import'
        self._phase_start = invocation.begun
        self._started = self._unix_at_zero + invocation.begun
        self._energy_meter = EnergyMeter(plan.machine.kind, plan.surroundings.environment)
        self._disturbances = Disturbances(in_cluster=plan.processes.cluster is not None)
        # Between begin_timed_steps and end_timed_steps, which finds the three below.
        self._is_metering = False
        self._joules: tuple[str, float] | None = None
        self._disturbance: sections.DisturbanceFacts = {}
        self._memory_of_steps: sections.MemorySection | None = None

    # ---- the time to the first step --------------------------------------------------------------

    def begin(self, phase: str | None, now: float | None = None) -> None:
        """Ends a phase of the time to the first timed step and begins the next. Times are of
        time.perf_counter.
        """
        now = time.perf_counter() if now is None else now
        if self._phase:
            self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._phase_start
        self._phase, self._phase_start = phase, now

    def note_step(self, step: Step[StepValues]) -> None:
        self._phases.setdefault('first_step', step.end - self._invocation.begun)
        if step.phase is Phase.TIMED and self._phase:
            self.begin(None, step.start)

    # ---- the timed steps -------------------------------------------------------------------------

    def begin_timed_steps(self) -> None:
        self._disturbances.start()
        self._energy_meter.start()
        self._is_metering = True

    def end_timed_steps(self) -> None:
        """Reads the meters of the timed steps, once; those of the devices end with the session."""
        if self._is_metering:
            self._joules = self._energy_meter.joules()
            self._disturbance = cast(sections.DisturbanceFacts, self._disturbances.stop())
            peaks = self._device_peaks()
            self._memory_of_steps = sections.MemorySection(host_peak_bytes(), peaks)
            # Last, so that the end of an interrupted run does all of this again.
            self._is_metering = False

    def _memory(self) -> sections.MemorySection:
        return self._memory_of_steps or sections.MemorySection(host_peak_bytes(), {})

    def _device_peaks(self) -> dict[str, int]:
        """The most memory, in bytes, that TensorFlow held on each GPU of this process; empty on a
        CPU.
        """
        machine = self._plan.machine
        if machine.kind != 'gpu' or not machine.is_here:
            return {}
        return {
            tower: int(
                tf.compat.v2.config.experimental.get_memory_info(tower.strip('/').upper())['peak']
            )
            for tower in machine.towers
        }

    # ---- the document ----------------------------------------------------------------------------

    def steps_of(self, measured: Measured) -> dict[str, Any]:
        """The steps of this process, as an object of the document's list of workers."""
        self.end_timed_steps()
        task = self._plan.processes.cluster
        task_name = f'{task.job} {task.index}' if task else None
        steps = measured.columns(self._unix_at_zero)
        return as_json(
            sections.WorkerSection(task_name, socket.gethostname(), self._memory(), steps)
        )

    # Long, because the document is one object, which reads best in one piece.
    def result(
        self,
        measured: Measured,
        evaluations: Sequence[Accuracy],
        ending: Ending,
        workers: Sequence[Mapping[str, Any] | None],
    ) -> Result:
        """Returns the result, see docs/results.md. workers have their steps_of(), or None if
        lost.
        """
        plan, surroundings = self._plan, self._plan.surroundings
        # Counting may build a graph, for which a process that was stopped has no time.
        parameters, multiply_adds = self._costs() if ending.is_complete else (None, None)
        self.end_timed_steps()
        warnings = [WarningRow('settings', line) for line in plan.warnings]
        known = [convert(worker, sections.WorkerSection) for worker in workers if worker]
        if num_missing := len(workers) - len(known):
            text = (
                f'the steps of {plural(num_missing, "worker")} are missing: lost, or too late to '
                'reach the chief'
            )
            warnings.append(WarningRow('workers_missing', text))
        throughput = measured.throughput
        result = Result(
            schema_version=SCHEMA_VERSION,
            id=uuid.uuid4().hex,
            is_complete=ending.is_complete,
            ended=ending,
            started_at=_utc(self._started),
            ended_at=_utc(time.time()),
            program=sections.ProgramSection(VERSION, surroundings.git_commit),
            command=sections.CommandSection(
                self._invocation.argv, self._flags(), dict(plan.params.given)
            ),
            run=measured.run,
            cluster=self._cluster(),
            model=sections.ModelSection(
                name=plan.subject.model_name,
                parameters=parameters,
                gflops_per_image=None if multiply_adds is None else multiply_adds / 1e9,
            ),
            workers=known,
            throughput=throughput,
            statistics=sections.StatisticsSection.of(
                [step.seconds for step in measured.timed_steps]
            ),
            phases={name: self._phases.get(name) for name in START_PHASES},
            compute=self._compute(multiply_adds, throughput),
            memory=self._memory(),
            transfer=self.transfer,
            input=self._input(measured, throughput),
            energy=self._energy(throughput, num_missing),
            evaluations=[found.as_row(self._unix_at_zero) for found in evaluations],
            machine=cast(sections.MachineFacts, surroundings.machine),
            environment=surroundings.environment,
            disturbance=cast(
                sections.DisturbanceFacts, {**self._disturbance, **self._invocation.wait_facts}
            ),
            warnings=warnings,
        )
        warnings += advise(result)
        return result

    def log_header(self) -> dict[str, Any]:
        """Returns what benchmark_run.log begins with, see results.benchmark_log."""
        plan = self._plan
        return run_info(
            model=plan.subject.model_name,
            data_set=plan.data.data_set.name,
            flags=self._flags(),
            machine=plan.surroundings.machine,
            environment=plan.surroundings.environment,
            tensorflow_version=tf.version.VERSION,
            tensorflow_git=tf.version.GIT_VERSION,
            test_id=plan.reports.test_id,
            available_memory=psutil.virtual_memory().available,
        )

    def _flags(self) -> dict[str, Any]:
        plan, params = self._plan, self._plan.params
        # Instead of None or 0 what the run decided.
        resolved = {
            'batch_size': plan.counts.batch_size,
            'num_batches': None if plan.counts.target_secs else plan.counts.num_timed,
            'device': plan.machine.kind,
            'data_format': plan.machine.data_format,
            'local_parameter_device': plan.machine.parameter_device_kind,
            'all_reduce_spec': plan.machine.all_reduce_spec,
            'init_learning_rate': plan.step.learning_rate.rates[0],
        }
        return {
            name: resolved.get(name, value)
            for name, value in vars(params).items()
            if name != 'given'
        }

    def _cluster(self) -> sections.ClusterSection:
        shape, cluster = self._plan.processes.shape, self._plan.processes.cluster
        return sections.ClusterSection(
            shape=str(shape),
            num_workers=shape.workers,
            devices_per_worker=shape.devices,
            num_ps=shape.num_ps,
            tasks=[f'{task.job} {task.index}' for task in (*cluster.trainers, *cluster.servers)]
            if cluster
            else [],
        )

    def _costs(self) -> tuple[int | None, int | None]:
        """The parameters of the model and the multiply-adds of one image, with the images and
        classes of this run.
        """
        model, data = self._plan.subject.model, self._plan.data
        if (size := self._plan.subject.exchange_bytes) is not None:
            return size // 4, None
        known = DATA_SETS.get(model.data_set)
        has_known_classes = known is not None and known.num_classes == data.data_set.num_classes
        found = read_table().get((model.name, model.data_set, data.image_size))
        if model.network.is_builtin and has_known_classes and found:
            return found
        try:
            # In a graph of its own, for networks, images or classes that the table does not have.
            cost = network_cost(model.network, data.image_shape, data.data_set.num_classes)
        except Exception:
            return None, None
        return cost.parameters, cost.multiply_adds

    def _compute(
        self, multiply_adds: int | None, throughput: ThroughputSection
    ) -> sections.ComputeSection:
        flops, role = None, self._plan.subject.role
        if multiply_adds is not None and role not in (Role.INPUT_ONLY, Role.EXCHANGE_ONLY):
            flops = (
                _FLOPS_OF_MULTIPLY_ADD
                * multiply_adds
                * (_PASSES_OF_TRAINING if role is Role.TRAINING else 1)
            )
        rate = throughput.images_per_second
        reached = flops * rate if flops is not None and rate is not None else None
        return sections.ComputeSection(
            flops_per_image=flops,
            flops_per_second=reached,
            peak_flops_per_second=self.peak_flops,
            share_of_peak=reached / self.peak_flops
            if reached is not None and self.peak_flops
            else None,
        )

    def _input(self, measured: Measured, throughput: ThroughputSection) -> sections.InputSection:
        waits = [
            step.values.input_wait
            for step in measured.timed_steps
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
            memory=sections.BuffersSection(most_bytes(buffers), buffers) if buffers else None,
        )

    def _energy(self, throughput: ThroughputSection, num_missing: int) -> sections.EnergySection:
        source, joules = self._joules or (None, None)
        # RAPL is that of one machine, NVML that of the GPUs of one process; the images are those of
        # all.
        cluster = self._plan.processes.cluster
        is_of_all = not cluster or (not num_missing and source == 'RAPL' and cluster.is_on_one_host)
        per_image = (
            joules / throughput.images if joules and throughput.images and is_of_all else None
        )
        return sections.EnergySection(source, joules, per_image)


def _utc(unix_secs: float) -> str:
    return datetime.datetime.fromtimestamp(unix_secs, datetime.UTC).strftime('%Y-%m-%dT%H:%M:%SZ')
