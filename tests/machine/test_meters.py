"""Energy, memory and noise, on this machine and with counters that the tests change; NVML's answers
as values of a result.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import psutil
import pytest

from tests.support.files import write_files
from tests.support.machines import MACHINES, use_pynvml
from tests.support.programs import ROOT, run_python
from tf_cnn.machine.gpu_meter import GpuMeter
from tf_cnn.machine.meters import EnergyMeter, NoiseMeter, host_peak_bytes

pytestmark = pytest.mark.unit


def counters(*microjoules: int) -> dict[str, str]:
    """Returns the files of energy counters: two packages, a part of the first, and the sum."""
    files = {}
    domains = {'0': 'package-0', '1': 'package-1', '0:0': 'core', '2': 'psys'}
    for (number, name), count in zip(domains.items(), microjoules, strict=False):
        folder = f'sys/class/powercap/intel-rapl:{number}'
        files[f'{folder}/name'] = f'{name}\n'
        files[f'{folder}/energy_uj'] = f'{count}\n'
        files[f'{folder}/max_energy_range_uj'] = '262143328850\n'
    return files


def test_the_packages_give_the_energy(tmp_path):
    # core is a part of its package, psys contains both packages.
    first = counters(10_000_000, 262_143_000_000, 5_000_000, 50_000_000)
    meter = EnergyMeter(root=write_files(tmp_path, first))
    meter.start()
    # The second counter has started anew.
    write_files(tmp_path, counters(12_500_000, 1_000_000, 6_000_000, 90_000_000))
    assert meter.stop() == ('RAPL', pytest.approx(2.5 + (262143.32885 - 262143.0 + 1.0)))


def test_a_counter_that_starts_anew_several_times_is_followed(tmp_path):
    write_files(tmp_path, counters(0))
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


def test_unreadable_energy_is_unknown(tmp_path):
    for files in ({}, {'sys/class/powercap/intel-rapl:0/name': 'package-0\n'}):
        meter = EnergyMeter(root=write_files(tmp_path, files))
        meter.start()
        assert meter.stop() is None
    no_gpus = EnergyMeter('gpu', {'CUDA_VISIBLE_DEVICES': ''}, tmp_path)
    no_gpus.start()
    assert no_gpus.stop() is None


def test_the_peak_of_the_memory_grows_with_what_is_used(tmp_path):
    # A child process does not count the memory of its parent.
    code = 'from tf_cnn.machine.meters import host_peak_bytes; print(host_peak_bytes())'
    held = bytearray(b'\1') * 200_000_000
    assert 1_000_000 < int(run_python(code).out) < 150_000_000
    assert host_peak_bytes() > len(held)
    # Without these files, getrusage has the peak.
    assert host_peak_bytes(tmp_path) >= len(held)


class Times(NamedTuple):
    """The times of a core, as psutil has them on Linux; `user` includes `guest`."""

    user: float
    idle: float
    steal: float = 0.0
    guest: float = 0.0


def measure_noise(
    root: Path,
    before: Mapping[str, str],
    after: Mapping[str, str],
    seconds: float = 10.0,
    usable: Sequence[int] = (),
    times: tuple[Sequence[Times], Sequence[Times]] = ((), ()),
) -> dict[str, Any]:
    """Measures for so many seconds while files and the times of all cores change. The process may
    use the usable cores, and uses no time itself.
    """
    now = 100.0
    with (
        mock.patch.object(psutil, 'cpu_times', return_value=times[0]) as cpu_times,
        mock.patch.object(psutil.Process, 'cpu_affinity', return_value=list(usable)),
        mock.patch.object(psutil.Process, 'cpu_times', return_value=(0.0,) * 5),
    ):
        meter = NoiseMeter(root=write_files(root, before), clock=lambda: now)
        meter.start()
        write_files(root, after)
        now += seconds
        cpu_times.return_value = times[1]
        return meter.stop()


def test_other_processes_are_measured_on_the_cores_that_this_one_may_use(tmp_path):
    # Core 0 is offline, so that psutil lists only the other three.
    online = {'sys/devices/system/cpu/online': '1-3\n'}
    # On cores 1 and 2 something else worked for 4 of 20 seconds, and on the other core all the
    # time.
    later = [Times(9.0, 11.0, guest=2.0), Times(5.0, 14.0, 1.0), Times(15.0, 5.0)]
    times = ([Times(5.0, 5.0)] * 3, later)
    noise = measure_noise(tmp_path, online, {}, usable=[0, 1, 2], times=times)
    assert noise['seconds'] == 10.0
    assert noise['other_cpu_share'] == pytest.approx(0.2)
    assert noise['steal_share'] == pytest.approx(0.05)
    assert (noise['other_cpu_share_of_cgroup'], noise['thermal_throttles']) == (None, None)
    # A short time has no shares.
    noise = measure_noise(tmp_path, {}, {}, 0.2, [0, 1, 2], times)
    assert (noise['other_cpu_share'], noise['steal_share']) == (None, None)


def test_other_processes_outside_the_container_are_counted_separately(tmp_path):
    used = 'usage_usec 6000000\nnr_throttled 50\nthrottled_usec 4000000\n'
    times = ([Times(0.0, 0.0)] * 16, [Times(5.0, 5.0)] * 16)
    root = shutil.copytree(MACHINES / 'container', tmp_path / 'container')
    after = {'sys/fs/cgroup/cpu.stat': used}
    noise = measure_noise(root, {}, after, usable=range(16), times=times)
    assert noise['other_cpu_share'] == pytest.approx(0.5)
    assert noise['other_cpu_share_of_cgroup'] == pytest.approx(1 / 160)
    assert noise['cgroup_throttled_seconds'] == pytest.approx(1.5)


def test_the_hottest_core_counts(tmp_path):
    def counts(*throttles: int) -> dict[str, str]:
        file = 'sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count'
        return {file.format(core): f'{count}\n' for core, count in enumerate(throttles)}

    noise = measure_noise(tmp_path, counts(3, 100), counts(10, 101))
    assert noise['thermal_throttles'] == 7


def test_another_process_on_this_machine_counts_unless_it_is_a_task_of_the_run():
    # In a process of its own: the other processes of these tests would end as tasks of the run.
    # The busy process waits when it has used its time, so that the meters do not see it end.
    code = """
import json, subprocess, sys, time
from tf_cnn.machine.meters import NoiseMeter
busy = "import time\\nwhile time.process_time() < 0.6: pass\\nprint(1, flush=True)\\ninput()"
alone, in_cluster = NoiseMeter(), NoiseMeter(in_cluster=True)
alone.start()
in_cluster.start()
began = time.monotonic()
pipes = {'stdin': subprocess.PIPE, 'stdout': subprocess.PIPE}
with subprocess.Popen([sys.executable, '-c', busy], **pipes) as other:
    other.stdout.readline()
    time.sleep(max(0.0, began + 1.05 - time.monotonic()))
    print(json.dumps([alone.stop(), in_cluster.stop()]))
    other.communicate(b'\\n')
"""
    noise, task = json.loads(run_python(code).out)
    share = 0.5 / len(os.sched_getaffinity(0)) / noise['seconds']
    assert noise['other_cpu_share'] > 0.9 * share
    assert noise['other_cpu_share'] - task['other_cpu_share'] > 0.9 * share


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='it needs two cores')
def test_the_time_of_a_task_with_other_cores_is_not_taken_from_the_share_of_this_core():
    mine, other = (str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    busy = ['-c', 'while True: pass']
    meter = """
import json, time
from tf_cnn.machine.meters import NoiseMeter
meter = NoiseMeter(in_cluster=True)
meter.start()
time.sleep(1.2)
print(json.dumps(meter.stop()))
"""
    launcher = """
import subprocess, sys
with subprocess.Popen(['taskset', '-c', sys.argv[2], sys.executable, *BUSY]) as task:
    try:
        subprocess.run(['taskset', '-c', sys.argv[1], sys.executable, '-c', METER], check=True)
    finally:
        task.kill()
"""
    launcher = launcher.replace('BUSY', repr(busy)).replace('METER', repr(meter))
    with subprocess.Popen(['taskset', '-c', mine, sys.executable, *busy]) as program:
        try:
            command = [sys.executable, '-c', launcher, mine, other]
            noise = json.loads(subprocess.check_output(command, cwd=ROOT, timeout=60))
        finally:
            program.kill()
    assert noise['other_cpu_share'] + noise['steal_share'] > 0.9


# ---- GPUs ----------------------------------------------------------------------------------------


# Bits of NvmlClocksEventReasons.
IDLE, POWER_CAP, HARDWARE, SOFTWARE_HEAT, HARDWARE_HEAT, POWER_BRAKE = 1, 4, 8, 0x20, 0x40, 0x80


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """NVML with four GPUs at their maximum clock of 1410 MHz, which nothing else uses."""
    return use_pynvml(monkeypatch, tmp_path, 4)


def measure(library: ModuleType, num_samples: int = 1, **answers: Any) -> dict[str, Any]:
    """Returns the values after so many samples of the first two GPUs. `answers` replace NVML's
    functions nvmlDeviceGet....
    """
    for name, answer in answers.items():
        assert hasattr(library, f'nvmlDeviceGet{name}')
        setattr(library, f'nvmlDeviceGet{name}', answer)
    meter = GpuMeter(2, {}, sample_secs=3600)
    meter.start()
    for _ in range(num_samples):
        meter.sample()
    return meter.stop()


def in_turn(*values: Any, of_gpu: int = 0, otherwise: Any = 0) -> Any:
    """Returns a function of NVML that returns, or raises, one value a call for one GPU, and always
    the same for others.
    """
    calls = iter(values)

    def answer(gpu: int, *_: Any) -> Any:
        value = next(calls) if gpu == of_gpu else otherwise
        if isinstance(value, Exception):
            raise value
        return value

    return answer


def test_the_slowest_gpu_decides_the_clock(library):
    clocks = in_turn(1128, 705, 987, of_gpu=1, otherwise=1410)
    noise = measure(library, num_samples=3, ClockInfo=clocks)
    assert noise['gpu_clock_share'] == pytest.approx(0.7)
    assert noise['gpu_lowest_clock_share'] == pytest.approx(0.5)


def test_the_clock_of_an_idle_gpu_does_not_count(library):
    clocks = in_turn(1410, 210, otherwise=1410)
    reasons = in_turn(0, IDLE)
    noise = measure(library, 2, ClockInfo=clocks, CurrentClocksEventReasons=reasons)
    assert noise['gpu_lowest_clock_share'] == 1.0


@pytest.mark.parametrize(
    ('bits', 'name'),
    [
        (SOFTWARE_HEAT, 'gpu_heat_share'),
        (HARDWARE | HARDWARE_HEAT, 'gpu_heat_share'),
        (POWER_CAP, 'gpu_power_cap_share'),
        (HARDWARE, 'gpu_hardware_slowdown_share'),
        (HARDWARE | POWER_BRAKE, 'gpu_hardware_slowdown_share'),
    ],
)
def test_each_reason_for_a_low_clock_has_its_share_of_the_samples(library, bits, name):
    reasons = in_turn(bits, 0, 0, bits)
    noise = measure(library, num_samples=4, CurrentClocksEventReasons=reasons)
    assert {key for key, share in noise.items() if share == 0.5} == {name}


def processes(*pids: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(pid=pid) for pid in pids]


def test_other_programs_are_counted_on_each_gpu(library):
    mine = processes(os.getpid())
    running = in_turn(processes(os.getpid(), 1), processes(os.getpid(), 1, 2), mine, otherwise=mine)
    noise = measure(library, num_samples=3, ComputeRunningProcesses_v3=running)
    assert noise['gpu_other_processes'] == 2


def test_a_task_that_the_same_launcher_started_is_not_another_program(library):
    library.nvmlDeviceGetComputeRunningProcesses_v3 = lambda gpu: processes(
        os.getpid(), os.getppid()
    )
    meter = GpuMeter(1, {}, in_cluster=True, sample_secs=3600)
    meter.start()
    meter.sample()
    assert meter.stop()['gpu_other_processes'] == 0


def test_values_that_a_driver_does_not_support_are_unknown(library):
    def unsupported(*_: Any) -> Any:
        raise library.NVMLError

    names = {
        'ClockInfo': ('gpu_clock_share', 'gpu_lowest_clock_share'),
        'MaxClockInfo': ('gpu_clock_share', 'gpu_lowest_clock_share'),
        'Temperature': ('gpu_max_celsius',),
        'CurrentClocksEventReasons': (
            'gpu_heat_share',
            'gpu_power_cap_share',
            'gpu_hardware_slowdown_share',
        ),
        'ComputeRunningProcesses_v3': ('gpu_other_processes',),
    }
    mine = processes(os.getpid())
    library.nvmlDeviceGetComputeRunningProcesses_v3 = lambda gpu: mine
    for name, unknown in names.items():
        supported = getattr(library, f'nvmlDeviceGet{name}')
        setattr(library, f'nvmlDeviceGet{name}', unsupported)
        noise = measure(library)
        setattr(library, f'nvmlDeviceGet{name}', supported)
        assert {key for key, value in noise.items() if value is None} == {*unknown}, name


def test_a_lost_gpu_is_counted_and_its_samples_remain(library):
    is_lost = library.NVMLError(library.NVML_ERROR_GPU_IS_LOST)
    noise = measure(library, num_samples=3, ClockInfo=in_turn(705, is_lost, otherwise=1410))
    assert (noise['gpus_lost'], noise['gpu_lowest_clock_share']) == (1, 0.5)


def test_only_the_visible_gpus_are_measured(library):
    gpus = []
    library.nvmlDeviceGetTemperature = lambda gpu, sensor: gpus.append(gpu)
    for num_gpus, visible in ((2, '3,1,0'), (2, 'GPU-25a2'), (1, '')):
        meter = GpuMeter(num_gpus, {'CUDA_VISIBLE_DEVICES': visible}, sample_secs=3600)
        meter.start()
        meter.sample()
        meter.stop()
    assert gpus == [3, 1, 2]


def test_a_thread_takes_the_samples(library):
    is_sampled = threading.Event()

    def temperature(gpu: int, sensor: int) -> int:
        is_sampled.set()
        return 60

    library.nvmlDeviceGetTemperature = temperature
    meter = GpuMeter(1, {}, sample_secs=0.001)
    meter.start()
    assert is_sampled.wait(60)
    assert meter.stop()['gpu_max_celsius'] == 60
    assert 'gpus' not in {thread.name for thread in threading.enumerate()}


def test_without_nvml_or_samples_all_values_are_unknown(library, monkeypatch):
    assert {*measure(library, num_samples=0).values()} == {None, 0}
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    assert {*measure(library, num_samples=0).values()} == {None}
