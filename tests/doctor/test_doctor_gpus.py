"""The checks of GPUs, on machines made of files, with stand-ins for NVIDIA's libraries."""

from pathlib import Path

import pytest

from doctor import copies
from doctor import gpu_checks as gpus
from doctor.check_runner import find_patience
from doctor.verdicts import Context, Outcome, Verdict
from machine.cuda_libraries import check_libraries
from tests.support.machines import (
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

HERE = Context(num_gpus=2)
ON_BUS = {
    'sys/bus/pci/devices/0000:07:00.0/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.0/class': '0x030200\n',
    # Its sound, and a GPU of another maker.
    'sys/bus/pci/devices/0000:07:00.1/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.1/class': '0x040300\n',
    'sys/bus/pci/devices/0000:08:00.0/vendor': '0x1002\n',
    'sys/bus/pci/devices/0000:08:00.0/class': '0x030000\n',
}
SECOND = {
    'sys/bus/pci/devices/0000:09:00.0/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:09:00.0/class': '0x030200\n',
}
WITH_DRIVER = {
    **ON_BUS,
    'dev/nvidia0': '',
    'proc/driver/nvidia/version': 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5 2024\n',
}


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
    monkeypatch.setenv('LD_LIBRARY_PATH', compiled['LD_LIBRARY_PATH'])
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    monkeypatch.delenv('SLURM_JOB_ID', raising=False)


def driver_of(tmp_path: Path, files: dict[str, str]) -> Verdict:
    return gpus.driver(HERE, str(write_files(tmp_path / 'root', files)))


def test_without_a_gpu_the_driver_is_no_matter(tmp_path: Path) -> None:
    assert gpus.driver(HERE, str(tmp_path)).outcome is Outcome.SKIPPED


def test_a_gpu_on_the_bus_without_a_driver_is_wrong(tmp_path: Path) -> None:
    found = driver_of(tmp_path, ON_BUS)
    assert (found.outcome, found.figures['gpus_on_bus']) == (Outcome.WRONG, 1)
    assert 'docs/gpu.md' in (found.advice or '')


@pytest.mark.usefixtures('_nvidia')
def test_a_driver_that_starts_is_told_with_its_gpus(tmp_path: Path) -> None:
    found = driver_of(tmp_path, WITH_DRIVER)
    assert found.outcome is Outcome.OK
    missing = [
        fact for fact in ('550.54.15', 'CUDA 12.9', '1 x NVIDIA A100', '8.0, 40.0 GiB') if fact not in found.found
    ]
    assert missing == []
    assert found.figures['driver']['capabilities'] == ('8.0', '8.0')


@pytest.mark.usefixtures('_nvidia')
def test_without_its_package_the_facts_of_nvml_are_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pynvml(monkeypatch)
    found = driver_of(tmp_path, WITH_DRIVER)
    assert (found.outcome, found.figures['gpus']) == (Outcome.WARNING, [])
    assert '550.54.15' in found.found
    assert '[cuda]' in found.found
    assert 'nvidia-ml-py' in (found.advice or '') or 'make' in (found.advice or '')


FIRST_DRIVEN = {'proc/driver/nvidia/gpus/0000:07:00.0/information': ''}
BOTH_DRIVEN = {**FIRST_DRIVEN, 'proc/driver/nvidia/gpus/0000:09:00.0/information': ''}


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize('driven', [FIRST_DRIVEN, BOTH_DRIVEN], ids=['not driven', 'not listed'])
def test_a_gpu_that_the_driver_has_lost_is_a_warning(tmp_path: Path, driven: dict[str, str]) -> None:
    found = driver_of(tmp_path, {**WITH_DRIVER, **SECOND, **driven})
    assert found.outcome is Outcome.WARNING
    assert 'Xid' in (found.advice or '')


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize(
    ('files', 'environ'),
    [
        ({'.dockerenv': ''}, {}),
        ({'run/.containerenv': ''}, {}),
        ({'proc/1/cgroup': '0::/kubepods/burstable/pod1/abc\n'}, {}),
        ({}, {'SLURM_JOB_ID': '7'}),
    ],
    ids=str,
)
def test_gpus_that_are_kept_from_a_container_or_a_job_are_not_missed(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str]
) -> None:
    root = write_files(tmp_path / 'root', {**WITH_DRIVER, **SECOND, **BOTH_DRIVEN, **files})
    assert gpus.driver(HERE, str(root), environ).outcome is Outcome.OK


@pytest.mark.usefixtures('_nvidia')
def test_a_gpu_that_a_virtual_machine_has_is_not_missed(tmp_path: Path) -> None:
    root = write_files(tmp_path / 'root', {**WITH_DRIVER, **SECOND, **FIRST_DRIVEN})
    (root / 'sys/bus/pci/drivers/vfio-pci').mkdir(parents=True)
    (root / 'sys/bus/pci/devices/0000:09:00.0/driver').symlink_to('../../drivers/vfio-pci')
    assert gpus.driver(HERE, str(root), {}).outcome is Outcome.OK


@pytest.mark.usefixtures('_nvidia')
def test_hidden_gpus_are_no_fault_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    found = driver_of(tmp_path, WITH_DRIVER)
    assert found.outcome is Outcome.SKIPPED
    assert 'CUDA_VISIBLE_DEVICES' in found.found


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
    assert found.outcome is Outcome.WRONG
    assert fact in found.found


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize(
    ('capability', 'outcome'),
    [('80', Outcome.OK), ('86', Outcome.OK), ('120', Outcome.WARNING), ('52', Outcome.WRONG)],
)
def test_a_gpu_needs_kernels_of_its_architecture(
    monkeypatch: pytest.MonkeyPatch, capability: str, outcome: Outcome
) -> None:
    monkeypatch.setenv('STAND_IN_CAPABILITY', capability)
    found = gpus.architecture(HERE)
    assert found.outcome is outcome
    assert f'{capability[:-1]}.{capability[-1]}' in found.found
    assert ('CUDA_CACHE_MAXSIZE' in (found.advice or '')) == (outcome is Outcome.WARNING)


@pytest.mark.usefixtures('_nvidia')
def test_where_most_is_machine_code_compiling_takes_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    advice = {}
    for capability in ('90', '120'):
        monkeypatch.setenv('STAND_IN_CAPABILITY', capability)
        found = gpus.architecture(HERE)
        assert found.outcome is Outcome.WARNING
        advice[capability] = found.advice or ''
    assert 'minutes' in advice['90']
    assert 'hour' not in advice['90']
    assert 'half an hour' in advice['120']


@pytest.mark.usefixtures('_nvidia')
@pytest.mark.parametrize(('capability', 'is_patient'), [('80', False), ('90', True), ('120', True), ('52', False)])
def test_limits_are_longer_where_the_driver_compiles_kernels(
    monkeypatch: pytest.MonkeyPatch, capability: str, is_patient: bool
) -> None:
    monkeypatch.setenv('STAND_IN_CAPABILITY', capability)
    assert (find_patience() > 1) == is_patient


@pytest.mark.usefixtures('_nvidia')
def test_libraries_that_can_all_be_opened_are_fine_and_one_that_cannot_is_named(
    compiled: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gpus.libraries(HERE).outcome is Outcome.OK
    broken = write_files(tmp_path / 'broken', {'libnccl.so.2': 'this is no library'})
    monkeypatch.setenv('LD_LIBRARY_PATH', f'{broken}:{compiled["LD_LIBRARY_PATH"]}')
    found = gpus.libraries(HERE)
    assert (found.outcome, 'nvidia-nccl-cu12' in (found.advice or '')) == (Outcome.WARNING, True)
    write_files(tmp_path / 'broken', {'libcudart.so.12': 'this is no library'})
    found = gpus.libraries(HERE)
    assert (found.outcome, 'libcudart.so.12' in found.found) == (Outcome.WRONG, True)


def test_gpus_of_one_kind_are_listed_once() -> None:
    fast = {'name': 'A100', 'memory_bytes': 40 * 2**30, 'compute_capability': '8.0'}
    other = {'name': None, 'memory_bytes': None, 'compute_capability': None}
    listed = gpus.list_gpus([fast, other, fast])
    assert '2 x A100 (compute capability 8.0, 40.0 GiB)' in listed
    assert listed.count('A100') == 1


def test_a_gpu_is_slow_beside_others_of_its_name_only() -> None:
    names = ['A100', 'A100', 'A100', 'T4']
    assert copies.slow_gpus(names, {'fp32': [19.0, 18.9, 15.0, 8.0], 'bf16': [300.0, 200.0, 301.0, 60.0]}) == [1, 2]
