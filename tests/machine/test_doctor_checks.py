"""What the checks of the host, the GPUs and TensorFlow find, on machines made of files with stand-ins for NVIDIA's
libraries."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from machine import doctor_checks
from machine.doctor_checks import OK, SKIPPED, WARNING, WRONG, Finding
from machine.gpus import has_nvidia_gpu
from tests.support.machines import (
    CONTAINER_V2,
    NEEDED,
    compile_cuda,
    use_pynvml,
    without_pynvml,
    write_files,
    write_pynvml,
)

pytestmark = [pytest.mark.unit, *NEEDED]

ON_BUS = {
    'sys/bus/pci/devices/0000:07:00.0/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.0/class': '0x030200\n',
    # Its sound, and a GPU of another maker.
    'sys/bus/pci/devices/0000:07:00.1/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.1/class': '0x040300\n',
    'sys/bus/pci/devices/0000:08:00.0/vendor': '0x1002\n',
    'sys/bus/pci/devices/0000:08:00.0/class': '0x030000\n',
}
WITH_DRIVER = {
    **ON_BUS,
    'dev/nvidia0': '',
    'proc/driver/nvidia/version': 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 2024\n',
}


def check(finding: Finding, outcome: str, *facts: str) -> None:
    """Checks a finding, and that what it found or advises has these facts."""
    assert finding.outcome == outcome, finding
    assert [fact for fact in facts if fact not in f'{finding.found}\n{finding.advice}'] == [], finding


# ---- the host --------------------------------------------------------------------------------------------------------


def test_a_quota_of_less_than_the_cores_is_a_warning_that_says_how_many_threads(tmp_path: Path) -> None:
    check(doctor_checks.cores(tmp_path), OK)
    quota = {**CONTAINER_V2, 'sys/fs/cgroup/cpu.max': '50000 100000\n'}
    check(doctor_checks.cores(write_files(tmp_path, quota)), WARNING, '0.5 cores', '--num_intra_threads=1')


def test_a_container_with_little_memory_is_a_warning(tmp_path: Path) -> None:
    found = doctor_checks.memory(write_files(tmp_path, CONTAINER_V2))
    check(found, WARNING, 'control group')
    assert found.figures['cgroup_bytes_left'] == 4 * 2**30


@pytest.mark.parametrize(('limit', 'outcome'), [(1 << 30, WRONG), (8 << 30, WARNING)])
def test_a_limit_of_the_shell_is_named_and_it_is_wrong_where_tensorflow_cannot_start(
    monkeypatch: pytest.MonkeyPatch, limit: int, outcome: str
) -> None:
    limits = {resource.RLIMIT_AS: (limit, limit)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, 'getrlimit', lambda number: limits.get(number, unlimited))
    check(doctor_checks.memory(), outcome, 'ulimit -v ')


def test_few_open_files_are_a_warning_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (256, 4096))
    check(doctor_checks.open_files(), WARNING, 'ulimit -n 4096')
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (4096, 4096))
    check(doctor_checks.open_files(), OK)


# ---- the GPUs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return compile_cuda(tmp_path_factory.mktemp('libraries'))


@pytest.fixture
def _nvidia(compiled: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with NVIDIA's driver and libraries."""
    if Path('/proc/driver/nvidia/version').exists():
        pytest.skip('this machine has the driver')
    use_pynvml(monkeypatch, write_pynvml(tmp_path, 1))
    monkeypatch.setattr(doctor_checks, 'has_nvidia_gpu', _has_gpu)
    monkeypatch.setenv('LD_LIBRARY_PATH', compiled['LD_LIBRARY_PATH'])
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)


def _has_gpu(environ: Any = os.environ, root: Path = Path('/')) -> bool:
    return root == Path('/') or (environ.get('CUDA_VISIBLE_DEVICES') != '' and (root / 'dev/nvidia0').exists())


def driver_of(tmp_path: Path, files: dict[str, str]) -> Finding:
    return doctor_checks.driver(write_files(tmp_path / 'root', files))


def test_without_a_gpu_there_is_nothing_to_check(tmp_path: Path) -> None:
    check(doctor_checks.driver(tmp_path), SKIPPED)
    if not has_nvidia_gpu():
        for other in (doctor_checks.libraries, doctor_checks.architecture, doctor_checks.shared_memory):
            check(other(), SKIPPED)
    check(driver_of(tmp_path, ON_BUS), WRONG, '1 GPU ', 'docs/gpu.md')


@pytest.mark.usefixtures('_nvidia')
def test_a_driver_that_starts_is_told_with_its_gpus_and_one_that_does_not_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(driver_of(tmp_path, WITH_DRIVER), OK, '550.54.15', 'CUDA 12.9', '1 x NVIDIA A100', '8.0, 40.0 GiB')
    without_pynvml(monkeypatch)
    check(driver_of(tmp_path, WITH_DRIVER), OK, 'nvidia-ml-py')
    monkeypatch.setenv('STAND_IN_ERROR', '803')
    check(driver_of(tmp_path, WITH_DRIVER), WRONG, 'CUDA_ERROR_SYSTEM_DRIVER_MISMATCH')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    check(driver_of(tmp_path, WITH_DRIVER), SKIPPED, 'CUDA_VISIBLE_DEVICES')


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize(
    ('capability', 'outcome', 'fact'),
    [('80', OK, ''), ('86', OK, ''), ('90', WARNING, 'minutes'), ('120', WARNING, 'half an hour'), ('35', WRONG, '')],
)
def test_a_gpu_needs_kernels_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, capability: str, outcome: str, fact: str
) -> None:
    monkeypatch.setenv('STAND_IN_CAPABILITY', capability)
    found = doctor_checks.architecture()
    check(found, outcome, fact, f'{capability[:-1]}.{capability[-1]}')
    assert ('CUDA_CACHE_MAXSIZE' in (found.advice or '')) == (outcome == WARNING)


@pytest.mark.usefixtures('_nvidia')
def test_libraries_that_can_all_be_opened_are_fine_and_one_that_cannot_is_named(
    compiled: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(doctor_checks.libraries(), OK)
    broken = write_files(tmp_path / 'broken', {'libnccl.so.2': 'this is no library'})
    monkeypatch.setenv('LD_LIBRARY_PATH', f'{broken}:{compiled["LD_LIBRARY_PATH"]}')
    check(doctor_checks.libraries(), WARNING, 'nvidia-nccl-cu12')
    write_files(tmp_path / 'broken', {'libcudart.so.12': 'this is no library'})
    check(doctor_checks.libraries(), WRONG, 'libcudart.so.12')


def test_two_gpus_need_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, 'count_gpus', lambda: 2)
    check(doctor_checks.shared_memory(tmp_path / 'shm'), WARNING, 'tmpfs')
    monkeypatch.setattr(doctor_checks, '_FEWEST_SHARED_BYTES', 1 << 62)
    check(doctor_checks.shared_memory(tmp_path), WARNING, '--shm-size')


def test_gpus_of_one_kind_are_listed_once() -> None:
    fast = {'name': 'A100', 'memory_bytes': 40 * 2**30, 'compute_capability': '8.0'}
    other = dict.fromkeys(fast)
    listed = doctor_checks.list_gpus([fast, other, fast])
    assert listed.startswith('2 x A100 (compute capability 8.0, 40.0 GiB), 1 x unknown GPU')


def test_a_gpu_that_tensorflow_ignores_beside_others_is_a_warning_with_the_variables_to_set() -> None:
    check(doctor_checks.compare_counts('it computes', 2, 2, {}), OK)
    found = doctor_checks.compare_counts('it computes', 1, 3, {'num_gpus': 1})
    check(found, WARNING, 'ignores 2 of 3', 'TF_MIN_GPU_MULTIPROCESSOR_COUNT=1', 'CUDA_VISIBLE_DEVICES')
    assert found.figures == {'num_gpus': 1}
