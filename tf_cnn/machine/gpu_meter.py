"""Measures the noise on the GPUs of a run, through NVML. Does not import TensorFlow."""

import contextlib
import functools
import os
import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_cnn.machine.gpus import nvml, query_nvml, visible_handles
from tf_cnn.machine.meters import run_processes

# A sample takes the driver some milliseconds, and Python's lock only between its calls.
_SAMPLE_SECS = 1.0
# Bits of NvmlClocksEventReasons (nvml.h). Heat in the hardware sets its general bit, 0x8, too.
_IDLE, _POWER_CAP, _HARDWARE, _HEAT = 0x1, 0x4, 0x8 | 0x80, 0x20 | 0x40
# A driver that has lost a GPU may never answer, and the run must end.
_LAST_SAMPLE_SECS = 10.0


@dataclass
class _Gpu:
    """A GPU and what its samples had: MHz, bits of NvmlClocksEventReasons, °C, and numbers of other
    processes. Lists of values that it does not support stay empty.
    """

    handle: Any
    max_clock: int | None
    clocks: list[int] = field(default_factory=list)
    reasons: list[int] = field(default_factory=list)
    temperatures: list[int] = field(default_factory=list)
    other_processes: list[int] = field(default_factory=list)
    is_lost: bool = False


class GpuMeter:
    """Measures the noise on the first num_gpus GPUs of CUDA_VISIBLE_DEVICES between start() and
    stop(): a thread samples them every sample_secs.

    With in_cluster, other tasks of the run may use these GPUs, started by the parent of this
    process.
    """

    def __init__(
        self,
        num_gpus: int,
        environ: Mapping[str, str] = os.environ,
        *,
        in_cluster: bool = False,
        sample_secs: float = _SAMPLE_SECS,
    ) -> None:
        self._num_gpus = num_gpus
        self._environ = environ
        self._in_cluster = in_cluster
        self._sample_secs = sample_secs
        self._library: Any = None
        self._open_library = contextlib.ExitStack()
        self._gpus: list[_Gpu] = []
        # Processes on the GPUs so far: those of this run, and others.
        self._own_pids: set[int] = set()
        self._other_pids: set[int] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._keep_sampling, name='gpus', daemon=True)

    def start(self) -> None:
        self._library = library = self._open_library.enter_context(nvml())
        if library is None:
            return
        ask = functools.partial(query_nvml, library, library.nvmlDeviceGetMaxClockInfo)
        handles = visible_handles(library, self._environ)[: self._num_gpus]
        self._gpus = [_Gpu(handle, ask(handle, library.NVML_CLOCK_SM)) for handle in handles]
        self._thread.start()

    def sample(self) -> None:
        """Reads each GPU once."""
        library = self._library
        for gpu in self._gpus:
            ask = functools.partial(self._ask, gpu)
            reasons = ask(library.nvmlDeviceGetCurrentClocksEventReasons)
            clock = ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM)
            temperature = ask(library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU)
            processes = ask(library.nvmlDeviceGetComputeRunningProcesses_v3)
            # While nothing runs, as during a checkpoint, the clock drops.
            if clock is not None and not (reasons or 0) & _IDLE:
                gpu.clocks.append(clock)
            if reasons is not None:
                gpu.reasons.append(reasons)
            if temperature is not None:
                gpu.temperatures.append(temperature)
            others = self._count_others({process.pid for process in processes or ()})
            if others is not None:
                gpu.other_processes.append(others)

    def stop(self) -> dict[str, Any]:
        """Returns what the GPUs add to the object "noise" of a result; unknown values are None.

        The clocks are shares of the maximum, of the GPU with the lowest. The other shares are of
        the samples, of the GPU with the largest: those in which heat, the power limit or the
        hardware for another reason held the clock down. Other processes do not belong to this run;
        the most that had one GPU open at once.
        """
        self._is_over.set()
        if self._thread.ident:
            self._thread.join(_LAST_SAMPLE_SECS)
        if not self._thread.is_alive():
            self._open_library.close()
        gpus = self._gpus
        clocks = [(gpu.clocks, gpu.max_clock) for gpu in gpus if gpu.clocks and gpu.max_clock]

        def share(mask: int, excluded: int = 0) -> float | None:
            shares = (
                sum(bool(bits & mask) and not bits & excluded for bits in gpu.reasons)
                / len(gpu.reasons)
                for gpu in gpus
                if gpu.reasons
            )
            return max(shares, default=None)

        return {
            'gpu_clock_share': min(
                (statistics.median(values) / most for values, most in clocks), default=None
            ),
            'gpu_lowest_clock_share': min(
                (min(values) / most for values, most in clocks), default=None
            ),
            'gpu_heat_share': share(_HEAT),
            'gpu_power_cap_share': share(_POWER_CAP),
            'gpu_hardware_slowdown_share': share(_HARDWARE, excluded=_HEAT),
            'gpu_max_celsius': max(
                (value for gpu in gpus for value in gpu.temperatures), default=None
            ),
            'gpu_other_processes': max(
                (value for gpu in gpus for value in gpu.other_processes), default=None
            ),
            'gpus_lost': sum(gpu.is_lost for gpu in gpus) if gpus else None,
        }

    def _keep_sampling(self) -> None:
        while not self._is_over.wait(self._sample_secs):
            self.sample()

    def _ask(self, gpu: _Gpu, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns None for a value that this GPU or driver does not support, or of a lost GPU."""
        if gpu.is_lost:
            return None
        try:
            return function(gpu.handle, *arguments)
        except self._library.NVMLError as error:
            gpu.is_lost = error.value == self._library.NVML_ERROR_GPU_IS_LOST
            return None

    def _count_others(self, pids: set[int]) -> int | None:
        """Returns how many of the processes on a GPU do not belong to this run; None if unknown.

        In a container the driver lists the host's numbers of processes (github.com/NVIDIA/
        nvidia-docker/issues/1483), and this process, which uses the GPU, is not among them.
        """
        if os.getpid() not in pids:
            return None
        # The processes of the run are listed only for a new number, since that reads all of /proc.
        if new := pids - self._own_pids - self._other_pids:
            processes = run_processes(in_cluster=self._in_cluster) or ()
            self._own_pids |= new & {os.getpid(), *(process.pid for process in processes)}
            self._other_pids |= new - self._own_pids
        return len(pids & self._other_pids)
