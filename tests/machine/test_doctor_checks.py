"""What the checks of the GPUs and TensorFlow find, on machines made of files with stand-ins for
NVIDIA's libraries.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machine.cuda_libraries import NEEDED, compile_cuda
from tests.support.files import write_files
from tests.support.machines import use_pynvml
from tf_cnn.doctor import checks as doctor_checks
from tf_cnn.doctor.checks import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.machine.gpus import has_nvidia_gpu

pytestmark = [pytest.mark.unit, *NEEDED]

ON_BUS = {
    'sys/bus/pci/devices/0000:07:00.0/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.0/class': '0x030200\n',
    # The GPU's sound device, and a GPU of another maker.
    'sys/bus/pci/devices/0000:07:00.1/vendor': '0x10de\n',
    'sys/bus/pci/devices/0000:07:00.1/class': '0x040300\n',
    'sys/bus/pci/devices/0000:08:00.0/vendor': '0x1002\n',
    'sys/bus/pci/devices/0000:08:00.0/class': '0x030000\n',
}
WITH_DRIVER = {**ON_BUS, 'dev/nvidia0': ''}


def check(finding: Finding, outcome: str, *facts: str) -> None:
    """Checks the outcome, and that the finding or its advice has these facts."""
    text = f'{finding.found}\n{finding.advice}'
    assert (finding.outcome, [fact for fact in facts if fact not in text]) == (outcome, []), text


@pytest.fixture
def _nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with NVIDIA's driver."""
    use_pynvml(monkeypatch, tmp_path, 1)
    monkeypatch.setattr(doctor_checks, 'has_nvidia_gpu', _has_gpu)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)


def _has_gpu(environ: Any = os.environ, root: Path = Path('/')) -> bool:
    return root == Path('/') or (
        environ.get('CUDA_VISIBLE_DEVICES') != '' and (root / 'dev/nvidia0').exists()
    )


def driver_of(tmp_path: Path, files: dict[str, str]) -> Finding:
    return doctor_checks.check_driver(write_files(tmp_path / 'root', files))


def test_without_a_gpu_there_is_nothing_to_check(tmp_path):
    check(doctor_checks.check_driver(tmp_path), SKIPPED)
    if not has_nvidia_gpu():
        for other in (doctor_checks.check_cuda_libraries, doctor_checks.check_architectures):
            check(other(), SKIPPED)
    check(driver_of(tmp_path, ON_BUS), WRONG, '1 GPU ', 'docs/gpu.md')


@pytest.mark.usefixtures('_nvidia')
def test_a_driver_is_reported_with_its_gpus(tmp_path, monkeypatch):
    facts = ('550.54.15', 'CUDA 12.9', '1 x NVIDIA A100', '8.0, 40.0 GiB')
    check(driver_of(tmp_path, WITH_DRIVER), OK, *facts)
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    check(driver_of(tmp_path, WITH_DRIVER), WARNING, 'nvidia-ml-py')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')
    check(driver_of(tmp_path, WITH_DRIVER), SKIPPED, 'CUDA_VISIBLE_DEVICES')


@pytest.mark.usefixtures('_nvidia')
def test_a_gpu_needs_kernels_of_its_architecture(tmp_path, monkeypatch):
    for capability, outcome in {
        (8, 0): OK,
        (8, 6): OK,
        (9, 0): WARNING,
        (12, 0): WARNING,
        (3, 5): WRONG,
    }.items():
        use_pynvml(monkeypatch, tmp_path, 1, capability=capability)
        finding = doctor_checks.check_architectures()
        check(finding, outcome, '.'.join(map(str, capability)))
        assert ('CUDA_CACHE_PATH' in (finding.advice or '')) == (outcome == WARNING)
        # The elementwise kernels of older versions fit no GPU above 9.0.
        assert ('2.20' in finding.found) == (capability == (12, 0))
        assert (driver_of(tmp_path, WITH_DRIVER).outcome == WRONG) == (outcome == WRONG)


@pytest.mark.usefixtures('_nvidia')
def test_libraries_that_can_all_be_opened_are_fine_and_one_that_cannot_is_named(
    tmp_path, monkeypatch
):
    monkeypatch.setenv('LD_LIBRARY_PATH', compile_cuda(tmp_path)['LD_LIBRARY_PATH'])
    check(doctor_checks.check_cuda_libraries(), OK)
    write_files(tmp_path, {'libnccl.so.2': 'this is no library'})
    check(doctor_checks.check_cuda_libraries(), WARNING, 'libnccl.so.2', '--all_reduce_spec=nccl')
    write_files(tmp_path, {'libcudart.so.12': 'this is no library'})
    check(doctor_checks.check_cuda_libraries(), WRONG, 'libcudart.so.12')


def test_gpus_of_one_kind_are_listed_once():
    fast = {'name': 'A100', 'memory_bytes': 40 * 2**30, 'compute_capability': '8.0'}
    other = dict.fromkeys(fast)
    listed = doctor_checks.list_gpus([fast, other, fast])
    assert listed.startswith('2 x A100 (compute capability 8.0, 40.0 GiB), 1 x unknown GPU')


def test_a_gpu_that_tensorflow_ignores_beside_others_is_a_warning():
    check(doctor_checks.compare_gpu_counts('it computes', 2, 2, {}), OK)
    finding = doctor_checks.compare_gpu_counts('it computes', 1, 3, {'num_gpus': 1})
    variables = ('TF_MIN_GPU_MULTIPROCESSOR_COUNT=1', 'CUDA_VISIBLE_DEVICES')
    check(finding, WARNING, 'ignores 2 of 3', *variables)
    assert finding.figures == {'num_gpus': 1}
