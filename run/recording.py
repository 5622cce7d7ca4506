"""Makes the document of a result: what a run measured, and everything that one needs to know to believe it."""

import datetime
import math
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import tensorflow.compat.v1 as tf

from errors import counted
from hardware.meters import Disturbances, EnergyMeter, host_peak_bytes
from hardware.surroundings import available_memory
from inputs.buffers import Buffer, most_bytes
from inputs.data_sets import DATA_SETS
from models.costs import read_table
from models.counting import network_cost
from planning.plan import Plan, Role
from results import VERSION
from results.advice import advise
from results.benchmark_log import run_info
from results.document import RESULT, SCHEMA_VERSION
from results.result import Accuracy, Between, Cause, Ending, Phase, Result, Step, StepValues, Transfer
from results.statistics import describe, throughput
from run.invocation import Invocation

# Multiply-adds are two operations. The backward pass has two products of the size of each of the forward pass: one for
# the gradients of the weights, one for those of the activations.
_FLOPS_OF_MULTIPLY_ADD = 2
_PASSES_OF_TRAINING = 3


class Recording:
    """What is known about a run beside its steps, from its start on.

    Args:
      invocation: how the run was asked for.

    Attributes:
      transfer: what a step moves between processes, once the graph is built.
      input_buffers: what the input pipeline holds in host memory, once the graph is built.
      input_stages: the rows of run.input_stages; None if the stages of the input were not measured.
      peak_flops: what the devices reach with large matrix products, in FLOP/s; None if it was not measured.
    """

    def __init__(self, plan: Plan, invocation: Invocation) -> None:
        self.transfer = Transfer()
        self.peak_flops: float | None = None
        self.input_buffers: Sequence[Buffer] = ()
        self.input_stages: Sequence[Mapping[str, Any]] | None = None
        self._plan = plan
        self._invocation = invocation
        self._unix_at_zero = time.time() - time.perf_counter()
        self._phases: dict[str, float] = {}
        self._phase: str | None = 'import'
        self._phase_start = invocation.begun
        self._first_step: float | None = None
        self._started = self._unix_at_zero + invocation.begun
        self._is_inherited = False
        self._energy = EnergyMeter(plan.machine.kind, plan.surroundings.environment)
        self._disturbances = Disturbances(in_cluster=plan.processes.cluster is not None)
        self._metered: dict[str, Any] | None = None

    # ---- the time to the first step -------------------------------------------------------------------------------

    def begin(self, phase: str | None, now: float | None = None) -> None:
        """Ends a phase of the time to the first timed step and begins another one; None is the last.

        Args:
          now: the time of this, in seconds of time.perf_counter; by default the current one.
        """
        if self._is_inherited:
            return
        now = time.perf_counter() if now is None else now
        if self._phase:
            self._phases[self._phase] = self._phases.get(self._phase, 0.0) + now - self._phase_start
        self._phase, self._phase_start = phase, now

    def note_step(self, step: Step[StepValues]) -> None:
        """To be called after each step."""
        if self._first_step is None:
            self._first_step = step.end - self._invocation.begun
        if step.phase is Phase.TIMED and self._phase:
            self.begin(None, step.start)

    # ---- the timed steps ------------------------------------------------------------------------------------------

    def begin_timed_steps(self) -> None:
        """To be called just before the first timed step."""
        self._disturbances.start()
        self._energy.start()
        self._metered = {}

    def end_timed_steps(self) -> None:
        """To be called just after the last timed step, before the run closes its session."""
        if self._metered == {}:
            source, joules = self._energy.joules() or (None, None)
            self._metered = {
                'energy': {'source': source, 'joules': joules},
                'disturbance': self._disturbances.stop(),
                'memory': {'host_peak_bytes': host_peak_bytes(), 'device_peak_bytes': self._device_peaks()},
            }

    def _memory(self) -> dict[str, Any]:
        of_steps: dict[str, Any] | None = (self._metered or {}).get('memory')
        return of_steps or {'host_peak_bytes': host_peak_bytes(), 'device_peak_bytes': {}}

    def _device_peaks(self) -> dict[str, int]:
        """The most memory, in bytes, that TensorFlow held on each GPU of this process; empty on a CPU."""
        machine = self._plan.machine
        if machine.kind != 'gpu' or not machine.is_here:
            return {}
        return {
            tower: int(tf.compat.v2.config.experimental.get_memory_info(tower.strip('/').upper())['peak'])
            for tower in machine.towers
        }

    # ---- what another process goes on with ------------------------------------------------------------------------

    def handed_on(self) -> dict[str, Any]:
        """What the process that replaces this one needs for inherit()."""
        return {'phases': self._phases, 'first_step': self._first_step, 'started': self._started}

    def inherit(self, handed_on: Mapping[str, Any]) -> None:
        """Goes on with the recording of the process that this one replaced: its times to the first step count."""
        self._phases, self._first_step = dict(handed_on['phases']), handed_on['first_step']
        self._started = handed_on['started']
        self._is_inherited = True

    # ---- the document ---------------------------------------------------------------------------------------------

    def steps_of(self, result: Result) -> dict[str, Any]:
        """The steps of this process, as an object of the document's list of workers."""
        self.end_timed_steps()
        task = self._plan.processes.cluster
        return {
            'task': f'{task.job} {task.index}' if task else None,
            'host': socket.gethostname(),
            'memory': self._memory(),
            'steps': columns_of(result.steps, result.between, self._unix_at_zero),
        }

    # Long, because the document is one literal, which reads best in one piece.
    def document(self, result: Result, ending: Ending, workers: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
        """The document of a result, see docs/results.md.

        Args:
          workers: steps_of() each worker, in order; None for those that were lost. Of this process alone if the run
            did not get so far that the workers knew each other.
        """
        plan, surroundings = self._plan, self._plan.surroundings
        # Counting may build a graph, for which a process that was stopped has no time.
        parameters, multiply_adds = self._costs() if ending.is_complete else (None, None)
        self.end_timed_steps()
        metered = self._metered or {}
        energy = metered.get('energy') or {'source': None, 'joules': None}
        joules = energy['joules']
        flops = _FLOPS_OF_MULTIPLY_ADD * multiply_adds if multiply_adds is not None else None
        if plan.subject.role is Role.INPUT_ONLY:
            flops = None
        if flops is not None and plan.subject.role is Role.TRAINING:
            flops *= _PASSES_OF_TRAINING
        known = [worker for worker in workers if worker]
        num_missing = len(workers) - len(known)
        # RAPL is that of one machine, NVML that of the GPUs of one process; the images are those of all.
        cluster = plan.processes.cluster
        is_of_all = not cluster or (not num_missing and energy['source'] == 'RAPL' and cluster.is_on_one_host)
        joules_per_image = joules / result.images if joules and result.images and is_of_all else None
        document: dict[str, Any] = {
            'schema': RESULT,
            'schema_version': SCHEMA_VERSION,
            'id': uuid.uuid4().hex,
            'complete': ending.is_complete,
            'ended': {'exit_code': ending.exit_code, 'reason': ending.reason},
            'started_at': _utc(self._started),
            'ended_at': _utc(time.time()),
            'program': {'version': VERSION, 'git_commit': surroundings.git_commit},
            'command': self._command(),
            'run': {**result.run, 'num_skipped_steps': result.num_skipped_steps},
            'cluster': self._cluster(),
            'model': {
                'name': plan.subject.model.name,
                'parameters': parameters,
                'gflops_per_image': None if multiply_adds is None else multiply_adds / 1e9,
            },
            'workers': known,
            'throughput': _throughput(result, len(plan.machine.towers)),
            'statistics': describe([step.seconds for step in result.timed_steps]),
            'phases': {
                **{name: self._phases.get(name) for name in ('import', 'join', 'build', 'initialise', 'warm_up')},
                'first_step': self._first_step,
            },
            'compute': self._compute(flops, result),
            'memory': self._memory(),
            'transfer': asdict(self.transfer),
            'input': {**_input(result), 'stages': self.input_stages, 'memory': self._input_memory()},
            'energy': {**energy, 'joules_per_image': joules_per_image},
            'evaluations': [_evaluation(found, self._unix_at_zero) for found in result.evaluations],
            'machine': surroundings.machine,
            'environment': surroundings.environment,
            'disturbance': {**(metered.get('disturbance') or {}), **self._invocation.wait_facts},
        }
        warnings = [{'code': 'settings', 'text': line} for line in plan.warnings]
        if num_missing:
            text = f'the steps of {counted(num_missing, "worker")} are missing: lost, or too late to reach the chief'
            warnings.append({'code': 'workers_missing', 'text': text})
        return {**document, 'warnings': [*warnings, *advise(document)]}

    def log_header(self) -> dict[str, Any]:
        """What benchmark_run.log has, see results.benchmark_log."""
        plan = self._plan
        return run_info(
            model=plan.subject.model.name,
            data_set=plan.data.data_set.name,
            flags=self._flags(),
            machine=plan.surroundings.machine,
            environment=plan.surroundings.environment,
            tensorflow_version=tf.version.VERSION,
            tensorflow_git=tf.version.GIT_VERSION,
            test_id=plan.reports.test_id,
            available_memory=available_memory(),
        )

    def _command(self) -> dict[str, Any]:
        given = dict(self._plan.params.given)
        return {'argv': list(self._invocation.argv), 'flags': self._flags(), 'given': given}

    def _flags(self) -> dict[str, Any]:
        """The value of each flag, as the run uses it."""
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
        return {name: resolved.get(name, value) for name, value in vars(params).items() if name != 'given'}

    def _input_memory(self) -> dict[str, Any] | None:
        buffers = list(map(asdict, self.input_buffers))
        return {'most_bytes': most_bytes(self.input_buffers), 'buffers': buffers} if buffers else None

    def _cluster(self) -> dict[str, Any]:
        shape, cluster = self._plan.processes.shape, self._plan.processes.cluster
        return {
            'shape': str(shape),
            'num_workers': shape.workers,
            'devices_per_worker': shape.devices,
            'num_ps': shape.num_ps,
            'tasks': [f'{task.job} {task.index}' for task in (*cluster.trainers, *cluster.servers)] if cluster else [],
        }

    def _costs(self) -> tuple[int | None, int | None]:
        """The parameters of the model and the multiply-adds of one image, with the images and classes of this run."""
        model, data = self._plan.subject.model, self._plan.data
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

    def _compute(self, flops: int | None, result: Result) -> dict[str, Any]:
        rate = _number(result.images_per_second)
        reached = flops * rate if flops is not None and rate is not None else None
        share = reached / self.peak_flops if reached is not None and self.peak_flops else None
        return {
            'flops_per_image': flops,
            'flops_per_second': reached,
            'peak_flops_per_second': self.peak_flops,
            'share_of_peak': share,
        }


def columns_of(
    steps: Sequence[Step[StepValues]], between: Sequence[Between], unix_at_zero: float = 0.0
) -> dict[str, Any]:
    """Steps as lists of equal length, one for each of their attributes.

    Args:
      between: what followed each step.
      unix_at_zero: the Unix time at which the clock of the steps was at 0.
    """

    def values(name: str) -> list[float | None] | None:
        found = [getattr(step.values, name) for step in steps]
        return None if all(value is None for value in found) else [_number(value) for value in found]

    causes = [cause for cause in Cause if any(gap.get(cause) for gap in between)]
    return {
        'phase': [step.phase.value for step in steps],
        'index': [step.index for step in steps],
        'global_step': [step.values.steps_after for step in steps],
        'generation': [step.generation for step in steps],
        'start': [unix_at_zero + step.start for step in steps],
        'seconds': [step.seconds for step in steps],
        'loss': [_number(step.values.loss) for step in steps],
        'top_1': values('top_1'),
        'top_5': values('top_5'),
        'learning_rate': values('learning_rate'),
        'input_wait': values('input_wait'),
        'between': {cause.value: [gap.get(cause, 0.0) for gap in between] for cause in causes},
    }


def _throughput(result: Result, num_devices: int) -> dict[str, Any]:
    has_steps = bool(result.timed_steps)
    rate = result.rate if has_steps else None
    of_steps = _number(throughput(result.images, result.step_seconds)) if has_steps else None
    total = _number(result.images_per_second)
    return {
        'images_per_second': total,
        'images_per_second_of_steps': of_steps,
        'images': result.images,
        'wall_seconds': result.wall_seconds,
        'step_seconds': result.step_seconds,
        'between_seconds': {cause.value: seconds for cause, seconds in result.between_seconds.items()},
        'standard_error': rate.standard_error if rate else None,
        'jitter': rate.jitter if rate else None,
        'images_per_second_per_device': None if total is None else total / (num_devices * result.num_workers),
    }


def _input(result: Result) -> dict[str, Any]:
    waits = [step.values.input_wait for step in result.timed_steps if step.values.input_wait is not None]
    seconds = math.fsum(waits) if waits else None
    share = seconds / result.step_seconds if seconds is not None and result.step_seconds else None
    return {'wait_seconds': seconds, 'wait_share': share}


def _evaluation(found: Accuracy, unix_at_zero: float) -> dict[str, Any]:
    return {
        'step': found.step,
        'num_images': found.num_images,
        'top_1': _number(found.top_1),
        'top_5': _number(found.top_5),
        'seconds': found.seconds,
        'end': None if found.end is None else unix_at_zero + found.end,
        'images_per_second': _number(throughput(found.num_images, found.seconds)),
    }


def _number(value: float | None) -> float | None:
    """JSON has no nan and no infinity."""
    return value if value is not None and math.isfinite(value) else None


def _utc(unix_secs: float) -> str:
    return datetime.datetime.fromtimestamp(unix_secs, datetime.timezone.utc).strftime('%Y-%m-%dT%H:%M:%SZ')
