"""The GPU meter turns NVML's answers into values of a result."""

import os
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.support.machines import use_pynvml
from tf_cnn.machine.gpu_meter import GpuMeter

pytestmark = pytest.mark.unit

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
