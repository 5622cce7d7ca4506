"""What the checks of the GPUs and TensorFlow find, on machines made of files with stand-ins for
NVIDIA's libraries.
"""

import sys
from pathlib import Path

import pytest

from tests.machine.cuda_libraries import NEEDED, compile_cuda
from tests.support.files import write_files
from tests.support.machines import use_pynvml
from tf_cnn.doctor.checks import compare_gpu_counts
from tf_cnn.machine.findings import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.machine.missing_gpu import (
    GPU_CHECKS,
    check_architectures,
    check_cuda_libraries,
    check_driver,
    explain_missing_gpu,
)

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
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with NVIDIA's driver."""
    use_pynvml(monkeypatch, tmp_path, 1)
    return write_files(tmp_path / 'root', WITH_DRIVER)


def test_without_a_gpu_there_is_nothing_to_check(tmp_path):
    for check_gpus in GPU_CHECKS.values():
        check(check_gpus({}, tmp_path), SKIPPED)
    on_bus = write_files(tmp_path, ON_BUS)
    finding = check_driver({}, on_bus)
    check(finding, WRONG, '1 GPU ', 'docs/gpu.md')
    # A run says the same.
    assert explain_missing_gpu({}, on_bus) == f'{finding.found}; {finding.advice}'


def test_a_driver_is_reported_with_its_gpus(root, monkeypatch):
    check(check_driver({}, root), OK, '550.54.15', 'CUDA 12.9', 'NVIDIA A100', '40 GiB', '8.0')
    monkeypatch.setitem(sys.modules, 'pynvml', None)
    check(check_driver({}, root), WARNING, 'nvidia-ml-py')
    check(check_driver({'CUDA_VISIBLE_DEVICES': ''}, root), SKIPPED, 'CUDA_VISIBLE_DEVICES')


def test_a_gpu_needs_kernels_of_its_architecture(root, tmp_path, monkeypatch):
    for capability, outcome in {
        (8, 0): OK,
        (8, 6): OK,
        (9, 0): WARNING,
        (12, 0): WARNING,
        (3, 5): WRONG,
    }.items():
        use_pynvml(monkeypatch, tmp_path, 1, capability=capability)
        finding = check_architectures({}, root)
        check(finding, outcome, '.'.join(map(str, capability)))
        assert ('CUDA_CACHE_PATH' in (finding.advice or '')) == (outcome == WARNING)
        # The elementwise kernels of older versions fit no GPU above 9.0.
        assert ('2.20' in finding.found) == (capability == (12, 0))


def test_libraries_that_can_all_be_opened_are_fine_and_one_that_cannot_is_named(root, tmp_path):
    environ = compile_cuda(tmp_path) | {'CUDA_VISIBLE_DEVICES': '0'}
    check(check_cuda_libraries(environ, root), OK)
    write_files(tmp_path, {'libnccl.so.2': 'this is no library'})
    check(check_cuda_libraries(environ, root), WARNING, 'libnccl.so.2', '--all_reduce_spec=nccl')
    write_files(tmp_path, {'libcudart.so.12': 'this is no library'})
    check(check_cuda_libraries(environ, root), WRONG, 'libcudart.so.12')


def test_a_gpu_that_tensorflow_ignores_beside_others_is_a_warning():
    check(compare_gpu_counts('it computes', 2, 2, {}), OK)
    finding = compare_gpu_counts('it computes', 1, 3, {'num_gpus': 1})
    variables = ('TF_MIN_GPU_MULTIPROCESSOR_COUNT=1', 'CUDA_VISIBLE_DEVICES')
    check(finding, WARNING, 'ignores 2 of 3', *variables)
    assert finding.figures == {'num_gpus': 1}
