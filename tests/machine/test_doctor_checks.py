"""What the checks of the host, the GPUs and TensorFlow find, on machines made of files with stand-ins for NVIDIA's
libraries."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from machine import doctor_checks
from machine.cuda_libraries import check_libraries
from machine.doctor_checks import OK, SKIPPED, WARNING, WRONG, Finding
from machine.gpus import has_nvidia_gpu
from tests.support.machines import (
    CONTAINER_V2,
    NEEDED,
    compile_driver,
    compile_library,
    folder_with,
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


# ---- the host --------------------------------------------------------------------------------------------------------


def test_without_limits_there_are_as_many_threads_as_cores(tmp_path: Path) -> None:
    assert doctor_checks.cores(tmp_path).outcome is OK


def test_a_quota_of_less_than_the_cores_is_a_warning_that_says_how_many_threads(tmp_path: Path) -> None:
    quota = {**CONTAINER_V2, 'sys/fs/cgroup/cpu.max': '50000 100000\n'}
    found = doctor_checks.cores(write_files(tmp_path, quota))
    assert found.outcome == WARNING
    assert '0.5 cores' in found.found
    assert '--num_intra_threads=1' in (found.advice or '')


def test_a_container_with_little_memory_is_a_warning(tmp_path: Path) -> None:
    root = write_files(tmp_path, CONTAINER_V2)
    found = doctor_checks.memory(root)
    assert (found.outcome, found.figures['cgroup_bytes_left']) == (WARNING, 4 * 2**30)
    assert 'control group' in found.found


@pytest.mark.parametrize(('limit', 'outcome'), [(1 << 30, WRONG), (8 << 30, WARNING)])
def test_a_limit_of_the_shell_is_named_and_it_is_wrong_where_tensorflow_cannot_start(
    monkeypatch: pytest.MonkeyPatch, limit: int, outcome: str
) -> None:
    limits = {resource.RLIMIT_AS: (limit, limit)}
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, 'getrlimit', lambda number: limits.get(number, unlimited))
    found = doctor_checks.memory()
    assert (found.outcome, found.found.startswith('ulimit -v ')) == (outcome, True)


def test_few_open_files_are_a_warning_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (256, 4096))
    found = doctor_checks.open_files()
    assert (found.outcome, 'ulimit -n 4096' in (found.advice or '')) == (WARNING, True)
    monkeypatch.setattr(resource, 'getrlimit', lambda number: (4096, 4096))
    assert doctor_checks.open_files().outcome == OK


# ---- the GPUs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the driver and all libraries can be opened."""
    folder = tmp_path_factory.mktemp('libraries')
    environ = folder_with(
        folder, compile_library(folder, 'libgood.so'), *(library.name for library in check_libraries())
    )
    (folder / 'libcuda.so.1').unlink()
    compile_driver(folder)
    return environ


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
    assert doctor_checks.driver(tmp_path).outcome == SKIPPED
    if not has_nvidia_gpu():
        rest = (doctor_checks.libraries, doctor_checks.architecture, doctor_checks.shared_memory)
        assert [check().outcome for check in rest] == [SKIPPED] * 3


def test_a_gpu_on_the_bus_without_a_driver_is_wrong(tmp_path: Path) -> None:
    found = driver_of(tmp_path, ON_BUS)
    assert (found.outcome, found.found.startswith('1 GPU ')) == (WRONG, True)
    assert 'docs/gpu.md' in (found.advice or '')


@pytest.mark.usefixtures('_nvidia')
def test_a_driver_that_starts_is_told_with_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = driver_of(tmp_path, WITH_DRIVER)
    assert found.outcome == OK
    facts = ('550.54.15', 'CUDA 12.9', '1 x NVIDIA A100', '8.0, 40.0 GiB')
    assert [fact for fact in facts if fact not in found.found] == []
    without_pynvml(monkeypatch)
    assert 'nvidia-ml-py' in driver_of(tmp_path, WITH_DRIVER).found
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    found = driver_of(tmp_path, WITH_DRIVER)
    assert (found.outcome, 'CUDA_VISIBLE_DEVICES' in found.found) == (SKIPPED, True)


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize(
    ('changes', 'fact'),
    [({'STAND_IN_ERROR': '803'}, 'CUDA_ERROR_SYSTEM_DRIVER_MISMATCH'), ({'STAND_IN_CUDA': '11040'}, 'CUDA 11.4')],
    ids=str,
)
def test_a_driver_that_does_not_start_or_is_too_old_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], fact: str
) -> None:
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    found = driver_of(tmp_path, WITH_DRIVER)
    assert (found.outcome, fact in found.found) == (WRONG, True)


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
    assert (found.outcome, fact in (found.advice or '')) == (outcome, True)
    assert f'{capability[:-1]}.{capability[-1]}' in found.found
    assert ('CUDA_CACHE_MAXSIZE' in (found.advice or '')) == (outcome == WARNING)


@pytest.mark.usefixtures('_nvidia')
def test_libraries_that_can_all_be_opened_are_fine_and_one_that_cannot_is_named(
    compiled: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor_checks.libraries().outcome == OK
    broken = write_files(tmp_path / 'broken', {'libnccl.so.2': 'this is no library'})
    monkeypatch.setenv('LD_LIBRARY_PATH', f'{broken}:{compiled["LD_LIBRARY_PATH"]}')
    found = doctor_checks.libraries()
    assert (found.outcome, 'nvidia-nccl-cu12' in (found.advice or '')) == (WARNING, True)
    write_files(tmp_path / 'broken', {'libcudart.so.12': 'this is no library'})
    found = doctor_checks.libraries()
    assert (found.outcome, 'libcudart.so.12' in found.found) == (WRONG, True)


def test_two_gpus_need_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, 'count_gpus', lambda: 2)
    found = doctor_checks.shared_memory(tmp_path / 'shm')
    assert (found.outcome, 'tmpfs' in (found.advice or '')) == (WARNING, True)
    monkeypatch.setattr(doctor_checks, '_FEWEST_SHARED_BYTES', 1 << 62)
    assert '--shm-size' in (doctor_checks.shared_memory(tmp_path).advice or '')


def test_gpus_of_one_kind_are_listed_once() -> None:
    fast = {'name': 'A100', 'memory_bytes': 40 * 2**30, 'compute_capability': '8.0'}
    other = {'name': None, 'memory_bytes': None, 'compute_capability': None}
    listed = doctor_checks.list_gpus([fast, other, fast])
    assert listed.startswith('2 x A100 (compute capability 8.0, 40.0 GiB)')
    assert listed.count('A100') == 1


# ---- TensorFlow ------------------------------------------------------------------------------------------------------


def test_a_gpu_that_tensorflow_ignores_beside_others_is_a_warning_with_the_variables_to_set() -> None:
    assert doctor_checks.compare_counts('it computes', 2, 2, {}).outcome == OK
    found = doctor_checks.compare_counts('it computes', 1, 3, {'num_gpus': 1})
    assert (found.outcome, found.figures) == (WARNING, {'num_gpus': 1})
    assert 'ignores 2 of 3' in found.found
    facts = ['TF_MIN_GPU_MULTIPROCESSOR_COUNT=1', 'CUDA_VISIBLE_DEVICES']
    assert [fact for fact in facts if fact not in (found.advice or '')] == []
