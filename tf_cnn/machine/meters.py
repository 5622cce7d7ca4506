"""Measures the energy and memory of a run, and the noise on its CPUs (on its GPUs: gpu_meter.py),
from the kernel and NVML. Does not import TensorFlow.
"""

import contextlib
import functools
import itertools
import operator
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tf_cnn.machine import cgroups
from tf_cnn.machine.gpus import nvml, query_nvml, visible_handles
from tf_cnn.machine.processors import usable_cores
from tf_cnn.machine.run_environment import load_average
from tf_cnn.system.kernel_files import (
    ROOT,
    parse_number_list,
    read_key_values,
    read_number,
    read_text,
)

_MICROJOULE, _MILLIJOULE = 1e-6, 1e-3
_KIBIBYTE = 2**10
# The counter of a package wraps after 2**32 units of 61 µJ, 262 kJ: at 1 kW that is every 4
# minutes.
_COUNTER_SECS = 60.0
# Linux counts the time of cores in hundredths of a second: over a shorter time, shares would be off
# by more than 1 %.
_SHARES_SECS = 1.0


@dataclass
class _Counter:
    """A counter of energy, which starts at 0 again after `full`; joules since the first update,
    None if unknown.
    """

    read: Callable[[], int | None]
    joules_per_count: float
    full: int | None = None
    last: int | None = None
    joules: float | None = 0.0

    def update(self) -> None:
        now, before = self.read(), self.last
        self.last = now
        if now is None or self.joules is None:
            self.joules = None
        elif before is not None:
            used = now - before + ((self.full or 0) if now < before else 0)
            self.joules = None if used < 0 else self.joules + used * self.joules_per_count


class EnergyMeter:
    """Measures the energy of the packages of the CPU (RAPL, which Linux lets only root read), or of
    the GPUs (NVML).

    It is the energy of whole chips, whichever program uses them. It includes only GPUs that
    CUDA_VISIBLE_DEVICES shows, and no memory modules. A thread reads counters that
    may wrap every counter_secs.
    """

    def __init__(
        self,
        device: str = 'cpu',
        environ: Mapping[str, str] = os.environ,
        root: Path = ROOT,
        counter_secs: float = _COUNTER_SECS,
    ) -> None:
        self._is_gpu = device == 'gpu'
        self._environ = environ
        self._root = root
        self._counter_secs = counter_secs
        self._counters: list[_Counter] = []
        self._library = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def start(self) -> None:
        self._counters = self._gpu_counters() if self._is_gpu else _package_counters(self._root)
        self._update()
        if any(counter.full for counter in self._counters):
            threading.Thread(target=self._keep_updating, name='energy', daemon=True).start()

    def stop(self) -> tuple[str, float] | None:
        """Ends the measurement. Returns its source, RAPL or NVML, and the joules since start();
        None if unknown.
        """
        self._is_over.set()
        self._update()
        self._library.close()
        all_joules = [counter.joules for counter in self._counters]
        known_joules = [joules for joules in all_joules if joules is not None]
        if not all_joules or len(known_joules) < len(all_joules):
            return None
        return 'NVML' if self._is_gpu else 'RAPL', sum(known_joules)

    def _update(self) -> None:
        with self._lock:
            for counter in self._counters:
                counter.update()

    def _keep_updating(self) -> None:
        while not self._is_over.wait(self._counter_secs):
            self._update()

    def _gpu_counters(self) -> list[_Counter]:
        library = self._library.enter_context(nvml())
        if library is None:
            return []
        ask = functools.partial(query_nvml, library, library.nvmlDeviceGetTotalEnergyConsumption)
        return [
            _Counter(functools.partial(ask, gpu), _MILLIJOULE)
            for gpu in visible_handles(library, self._environ)
        ]


def _package_counters(root: Path) -> list[_Counter]:
    """Returns the counters of the CPU packages. Others are parts of these (core, uncore), or
    contain them (psys).
    """
    return [
        _Counter(
            functools.partial(read_number, domain / 'energy_uj'),
            _MICROJOULE,
            read_number(domain / 'max_energy_range_uj'),
        )
        for domain in sorted((root / 'sys/class/powercap').glob('intel-rapl:*'))
        if domain.name.count(':') == 1 and read_text(domain / 'name').startswith('package')
    ]


def host_peak_bytes(root: Path = ROOT) -> int:
    # getrusage would include the memory before exec, when the process was a copy of its parent.
    words = read_key_values(root / 'proc/self/status').get('VmHWM', '').split()
    if words:
        return int(words[0]) * _KIBIBYTE
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else peak * _KIBIBYTE


class _Readings(NamedTuple):
    """Counters at one moment; times in seconds, summed over cores. None is unknown."""

    at: float
    load_average: list[float]
    # The time of the cores that this process may use, its busy part, and the part that went to
    # other virtual machines.
    total: float
    busy: float
    steal: float
    # The CPU time of the processes of this run, and of the processes in the control group.
    run_seconds: float | None
    group_seconds: float | None
    # How long a CPU quota stopped threads, and how often each core was slowed down because of its
    # temperature.
    throttled: float | None
    thermal: tuple[int, ...]


class NoiseMeter:
    """Measures the noise on this machine between start() and stop(), which should enclose the timed
    steps.

    With in_cluster, other tasks of the run may be on this machine, started by the parent of this
    process.
    """

    def __init__(
        self,
        *,
        in_cluster: bool = False,
        root: Path = ROOT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._in_cluster = in_cluster
        self._root = root
        self._clock = clock
        self._before: _Readings | None = None

    def start(self) -> None:
        self._before = self._read()

    def stop(self) -> dict[str, Any]:
        """Returns the object "noise" of a result; unknown values are None.

        Shares are of the usable cores' time: what a hypervisor gave to other machines (steal), and
        what processes used that do not belong to this run, all of them or those in the control
        group of this process. Throttled seconds are summed over cores; thermal throttles are those
        of the hottest core.
        """
        if self._before is None:
            raise ValueError('start() comes before stop()')
        before, after = self._before, self._read()
        total, seconds = after.total - before.total, after.at - before.at
        run_seconds = _difference(before.run_seconds, after.run_seconds)
        is_long = seconds >= _SHARES_SECS and total > 0

        def share(used: float | None, excluded: float | None = 0.0) -> float | None:
            if not is_long or used is None or excluded is None:
                return None
            return max(used - max(excluded, 0.0), 0.0) / total

        return {
            'seconds': seconds,
            'load_average_start': before.load_average,
            'load_average_end': after.load_average,
            'cgroup_throttled_seconds': _difference(before.throttled, after.throttled),
            'thermal_throttles': max(
                map(operator.sub, after.thermal, before.thermal), default=None
            ),
            'steal_share': share(after.steal - before.steal),
            'other_cpu_share': share(after.busy - before.busy, run_seconds),
            'other_cpu_share_of_cgroup': share(
                _difference(before.group_seconds, after.group_seconds), run_seconds
            ),
        }

    def _read(self) -> _Readings:
        root = self._root
        total, busy, steal = _core_seconds(root)
        counts = sorted(
            (root / 'sys/devices/system/cpu').glob('cpu[0-9]*/thermal_throttle/*_throttle_count')
        )
        return _Readings(
            at=self._clock(),
            load_average=load_average(),
            total=total,
            busy=busy,
            steal=steal,
            run_seconds=_run_cpu_seconds(in_cluster=self._in_cluster),
            group_seconds=cgroups.cpu_seconds(root),
            throttled=cgroups.throttled_seconds(root),
            thermal=tuple(read_number(path) or 0 for path in counts),
        )


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def run_processes(*, in_cluster: bool) -> list[psutil.Process] | None:
    """Returns this process; in a cluster its parent, which may have started other tasks of the run,
    and all processes below. None if unknown.
    """
    has_launcher = in_cluster and os.getppid() > 1
    try:
        top = psutil.Process(os.getppid() if has_launcher else None)
        return [top, *(top.children(recursive=True) if has_launcher else ())]
    except psutil.Error:
        return None


def _run_cpu_seconds(*, in_cluster: bool) -> float | None:
    """Returns the CPU seconds of this process and its ended children; in a cluster, of all
    processes below its parent, on the cores that this process may use.
    """
    if (processes := run_processes(in_cluster=in_cluster)) is None:
        return None
    cores = usable_cores()
    seconds = 0.0
    for process in processes:
        # It may have ended.
        with contextlib.suppress(psutil.Error):
            # Linux does not count by core. Each task of `cluster` has its own cores, or all have
            # the same.
            theirs = process.cpu_affinity() if cores else None
            share = len({*theirs} & {*cores}) / len(theirs) if theirs and cores else 1.0
            seconds += share * sum(process.cpu_times()[:4])
    return seconds


def _core_seconds(root: Path) -> tuple[float, float, float]:
    """Returns the seconds of the usable cores: all, those with work (no waits for disks), and those
    of a hypervisor.
    """
    usable = usable_cores()
    # psutil does not number the cores, and leaves out those that are offline.
    online = [
        *parse_number_list(read_text(root / 'sys/devices/system/cpu/online'))
    ] or itertools.count()
    total = busy = steal = 0.0
    # Some sandboxes hide the times of cores.
    with contextlib.suppress(OSError):
        for number, times in zip(online, psutil.cpu_times(percpu=True), strict=False):
            if usable is None or number in usable:
                stolen = getattr(times, 'steal', 0.0)
                seconds = (
                    sum(times) - getattr(times, 'guest', 0.0) - getattr(times, 'guest_nice', 0.0)
                )
                total += seconds
                busy += seconds - times.idle - getattr(times, 'iowait', 0.0) - stolen
                steal += stolen
    return total, busy, steal
