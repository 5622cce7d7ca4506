"""Measures the phases before the first timed step, and the energy, noise and memory of the timed
steps.
"""

import time
from collections.abc import Mapping, Sequence
from typing import cast

import tensorflow.compat.v1 as tf

from tf_cnn.inputs.pipeline_stages import Buffer
from tf_cnn.machine.gpu_meter import GpuMeter
from tf_cnn.machine.meters import EnergyMeter, NoiseMeter, host_peak_bytes
from tf_cnn.plan.plan import Plan
from tf_cnn.results import sections
from tf_cnn.results.sections import Phase
from tf_cnn.results.steps import Step, StepValues
from tf_cnn.run.step_loop import Hook


class RunMeters(Hook[StepValues]):
    """The meters of a run, and its other properties that are known only while it runs.

    Attributes:
      start_time: when the first phase began, in seconds of time.perf_counter().
      phase_seconds: the seconds of each phase that has ended.
      unix_at_zero: the Unix time when time.perf_counter() was 0.
      joules: the source and the energy of the timed steps; None if it cannot be measured.
      noise: what disturbed the timed steps.
      transfer, input_buffers, input_stages, peak_flops (in FLOP/s), alone, alone_wait (see
        StepsAlone.measure): filled in by the run.
    """

    def __init__(self, plan: Plan, start_time: float) -> None:
        self.joules: tuple[str, float] | None = None
        self.noise: sections.NoiseSection = {}
        self.transfer = sections.NO_TRANSFER
        self.input_buffers: Sequence[Buffer] = ()
        self.input_stages: Sequence[sections.StageRow] | None = None
        self.peak_flops: float | None = None
        self.alone: Mapping[str, sections.AloneSection] = {}
        self.alone_wait = 0.0
        self.phase_seconds: dict[str, float] = {}
        self.unix_at_zero = time.time() - time.perf_counter()
        self._plan = plan
        self.start_time = start_time
        self._phase: str | None = 'import'
        self._phase_start = start_time
        kind, environ = plan.devices.kind, plan.environment
        in_cluster = plan.cluster_role.cluster is not None
        self._energy_meter = EnergyMeter(kind, environ)
        self._noise_meter = NoiseMeter(in_cluster=in_cluster)
        self._gpu_meter = (
            GpuMeter(plan.params.devices.num_gpus, environ, in_cluster=in_cluster)
            if kind == 'gpu'
            else None
        )
        self._is_metering = False
        self._step_memory: sections.MemorySection | None = None

    def begin_phase(self, phase: str | None, now: float | None = None) -> None:
        """Ends the current phase of the time to the first timed step, and begins the next.

        `now` is in seconds of time.perf_counter.
        """
        now = time.perf_counter() if now is None else now
        if self._phase:
            seconds = self.phase_seconds.get(self._phase, 0.0) + now - self._phase_start
            self.phase_seconds[self._phase] = seconds
        self._phase, self._phase_start = phase, now

    def begin(self, phase: Phase) -> bool:
        if phase is Phase.WARMUP:
            self.begin_phase('warm_up')
        else:
            self._noise_meter.start()
            self._energy_meter.start()
            if self._gpu_meter:
                self._gpu_meter.start()
            self._is_metering = True
        return False

    def after(self, steps: Sequence[Step[StepValues]]) -> bool:
        if self._phase:
            self.phase_seconds.setdefault('first_step', steps[0].end - self.start_time)
            if steps[0].phase is Phase.TIMED:
                self.begin_phase(None, steps[0].start)
        return False

    def end(self) -> None:
        """Reads the meters of the timed steps, once; device meters end with the session."""
        if self._is_metering:
            self.joules = self._energy_meter.stop()
            noise = self._noise_meter.stop() | (self._gpu_meter.stop() if self._gpu_meter else {})
            self.noise = cast(sections.NoiseSection, noise)
            peaks = self._device_peaks()
            self._step_memory = sections.MemorySection(host_peak_bytes(), peaks)
            # Cleared last: after an interruption, the end of the run reads all meters again.
            self._is_metering = False

    def memory(self) -> sections.MemorySection:
        """Returns the peaks up to the last timed step, or up to now."""
        return self._step_memory or sections.MemorySection(host_peak_bytes(), {})

    def _device_peaks(self) -> dict[str, int]:
        """Returns the peak memory in bytes that TensorFlow held on each GPU of this process; empty
        on a CPU.
        """
        devices = self._plan.devices
        if devices.kind != 'gpu' or not devices.is_local:
            return {}
        return {
            tower: int(
                tf.compat.v2.config.experimental.get_memory_info(tower.strip('/').upper())['peak']
            )
            for tower in devices.towers
        }
