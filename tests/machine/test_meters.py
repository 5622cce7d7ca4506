"""Energy, memory and noise, on this machine and with counters that change as a test says."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.machines import CONTAINER, write_files
from tf_cnn.machine.meters import EnergyMeter, NoiseMeter, host_peak_bytes

pytestmark = pytest.mark.unit


def domain(number: str, name: str, microjoules: int) -> dict[str, str]:
    folder = f'sys/class/powercap/intel-rapl:{number}'
    return {
        f'{folder}/name': f'{name}\n',
        f'{folder}/energy_uj': f'{microjoules}\n',
        f'{folder}/max_energy_range_uj': '262143328850\n',
    }


def test_the_energy_is_that_of_the_packages(tmp_path: Path) -> None:
    # core is a part of its package, psys contains both packages.
    first = domain('0', 'package-0', 10_000_000) | domain('1', 'package-1', 262_143_000_000)
    others = domain('0:0', 'core', 5_000_000) | domain('2', 'psys', 50_000_000)
    meter = EnergyMeter(root=write_files(tmp_path, first | others))
    meter.start()
    # The second counter has started anew.
    second = domain('0', 'package-0', 12_500_000) | domain('1', 'package-1', 1_000_000)
    write_files(
        tmp_path, second | domain('0:0', 'core', 6_000_000) | domain('2', 'psys', 90_000_000)
    )
    source, joules = meter.stop() or ('', 0.0)
    assert (source, joules) == ('RAPL', pytest.approx(2.5 + (262143.32885 - 262143.0 + 1.0)))


def test_a_counter_that_starts_anew_several_times_is_followed(tmp_path: Path) -> None:
    write_files(tmp_path, domain('0', 'package-0', 0))
    meter = EnergyMeter(root=tmp_path, counter_secs=0.001)
    meter.start()
    path = tmp_path / 'sys/class/powercap/intel-rapl:0/energy_uj'
    for half_full in (150_000_000_000, 20_000_000_000, 150_000_000_000, 20_000_000_000):
        # Written in one piece, so that the thread never reads an empty file.
        path.with_name('new').write_text(str(half_full))
        path.with_name('new').replace(path)
        deadline = time.monotonic() + 10
        while meter._counters[0].last != half_full and time.monotonic() < deadline:
            time.sleep(0.001)
    assert meter.stop() == ('RAPL', pytest.approx(2 * 262143.32885 + 20_000))


def test_energy_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    for files in ({}, {'sys/class/powercap/intel-rapl:0/name': 'package-0\n'}):
        meter = EnergyMeter(root=write_files(tmp_path, files))
        meter.start()
        assert meter.stop() is None
    no_gpus = EnergyMeter('gpu', {'CUDA_VISIBLE_DEVICES': ''}, tmp_path)
    no_gpus.start()
    assert no_gpus.stop() is None


def test_the_peak_of_the_memory_grows_with_what_is_used(tmp_path: Path) -> None:
    # A process that another one starts does not count the memory of that.
    code = 'from tf_cnn.machine.meters import host_peak_bytes; print(host_peak_bytes())'
    held = bytearray(b'\1') * 200_000_000
    child = int(
        subprocess.run(
            [sys.executable, '-c', code], capture_output=True, check=True, timeout=60
        ).stdout
    )
    assert 1_000_000 < child < 150_000_000
    assert host_peak_bytes() > len(held)
    # getrusage tells the peak where these files are not.
    assert host_peak_bytes(tmp_path) >= len(held)


class Clock:
    """A clock that stands still until it is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Times(NamedTuple):
    """The times of a core, as psutil has them on Linux; that of guests is a part of user."""

    user: float
    idle: float
    steal: float = 0.0
    guest: float = 0.0


class Cores:
    """The cores of a machine: the process may use some of them, and has used no time itself."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, usable: list[int], first: list[Times]
    ) -> None:
        self.times = first
        monkeypatch.setattr(psutil, 'cpu_times', lambda percpu: self.times)
        monkeypatch.setattr(psutil.Process, 'cpu_affinity', lambda process: usable)
        monkeypatch.setattr(psutil.Process, 'cpu_times', lambda process: (0.0, 0.0, 0.0, 0.0, 0.0))


def measure_noise(
    root: Path,
    before: Mapping[str, str],
    after: Mapping[str, str],
    cores: Cores | None = None,
    times: Sequence[Times] = (),
    seconds: float = 10.0,
) -> dict[str, Any]:
    """What is found after files have changed from `before` to `after`, and the times of the cores
    to these.
    """
    clock = Clock()
    found = NoiseMeter(root=write_files(root, before), clock=clock)
    found.start()
    write_files(root, after)
    clock.now += seconds
    if cores:
        cores.times = list(times)
    return found.stop()


def test_other_processes_are_measured_on_the_cores_that_this_one_may_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Core 0 is offline, so that psutil lists only the other three.
    online = {'sys/devices/system/cpu/online': '1-3\n'}
    cores = Cores(monkeypatch, [0, 1, 2], [Times(5.0, 5.0)] * 3)
    # On cores 1 and 2 something else worked for 4 of 20 seconds, and on the other core all the
    # time.
    times = [Times(9.0, 11.0, guest=2.0), Times(5.0, 14.0, 1.0), Times(15.0, 5.0)]
    found = measure_noise(tmp_path, online, {}, cores, times)
    assert found['seconds'] == 10.0
    assert found['other_cpu_share'] == pytest.approx(0.2)
    assert found['steal_share'] == pytest.approx(0.05)
    assert (found['other_cpu_share_of_cgroup'], found['thermal_throttles']) == (None, None)
    # A short time has no shares.
    found = measure_noise(tmp_path, {}, {}, seconds=0.2)
    assert (found['other_cpu_share'], found['steal_share']) == (None, None)


def test_what_the_host_of_a_container_does_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = Cores(monkeypatch, list(range(16)), [Times(0.0, 0.0)] * 16)
    after = {
        'sys/fs/cgroup/cpu.stat': 'usage_usec 6000000\nnr_throttled 50\nthrottled_usec 4000000\n'
    }
    found = measure_noise(tmp_path, CONTAINER, after, cores, [Times(5.0, 5.0)] * 16)
    assert found['other_cpu_share'] == pytest.approx(0.5)
    assert found['other_cpu_share_of_cgroup'] == pytest.approx(1 / 160)
    assert found['cgroup_throttled_seconds'] == pytest.approx(1.5)


def test_the_hottest_core_counts_and_the_load_of_the_start_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counts(*throttles: int) -> dict[str, str]:
        return {
            f'sys/devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count': f'{count}\n'
            for core, count in enumerate(throttles)
        }

    loads = [(0.25, 0.5, 0.75), (4.00390625, 1.0, 0.7998046875)]
    monkeypatch.setattr(psutil, 'getloadavg', lambda: loads.pop(0))
    found = measure_noise(tmp_path, counts(3, 100), counts(10, 101))
    assert found['thermal_throttles'] == 7
    assert found['load_average_start'] == [0.25, 0.5, 0.75]
    assert found['load_average_end'] == [4.0, 1.0, 0.8]


BUSY = (
    'import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: '
    'pass\nprint(1, flush=True)\ninput()'
)


def test_another_process_is_seen_on_this_machine_and_a_task_of_the_run_is_none() -> None:
    num_cores = len(os.sched_getaffinity(0))
    alone, in_cluster = NoiseMeter(), NoiseMeter(in_cluster=True)
    alone.start()
    in_cluster.start()
    began = time.monotonic()
    # It has used its CPU time, and has not ended: a task beside this one, started by the same
    # process or a child of it.
    with subprocess.Popen(
        [sys.executable, '-c', BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == '1\n'
        time.sleep(max(0.0, began + 1.05 - time.monotonic()))
        seen, task = alone.stop(), in_cluster.stop()
        other.communicate('\n', timeout=60)
    share = 0.5 / num_cores / seen['seconds']
    assert seen['other_cpu_share'] > 0.9 * share
    assert seen['other_cpu_share'] - task['other_cpu_share'] > 0.9 * share
