"""Why TensorFlow sees no GPU, and what `doctor` finds, on machines made of files with stand-ins for
NVIDIA's libraries.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.files import write_files
from tests.support.machines import compile_library, use_pynvml
from tests.support.outputs import check_line
from tf_cnn.doctor.checks import compare_gpu_counts
from tf_cnn.machine.findings import OK, SKIPPED, WARNING, WRONG, Finding
from tf_cnn.machine.missing_gpu import (
    GPU_CHECKS,
    Driver,
    check_architectures,
    check_cuda_libraries,
    check_driver,
    check_libraries,
    describe_driver_fault,
    describe_missing,
    explain_missing_gpu,
)
from tf_cnn.machine.tensorflow_build import TensorFlowBuild, tensorflow_build

BUILD = tensorflow_build()
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(
        not (BUILD and BUILD.cuda_version), reason='TensorFlow is built without CUDA'
    ),
    pytest.mark.skipif(shutil.which('cc') is None, reason='there is no C compiler'),
]


def compile_cuda(folder: Path, *left_out: str) -> dict[str, str]:
    """Compiles stand-ins for NVIDIA's libraries; returns the environment that makes the loader find
    them.
    """
    library = compile_library(folder, 'libgood.so')
    for name in check_libraries():
        if not name.startswith(left_out):
            shutil.copy(library, folder / name)
    return {**os.environ, 'LD_LIBRARY_PATH': str(folder)}


@pytest.fixture(scope='module')
def environ(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a machine that has all libraries."""
    environ = compile_cuda(tmp_path_factory.mktemp('libraries'))
    environ.pop('CUDA_VISIBLE_DEVICES', None)
    return environ


def test_each_library_is_opened_where_the_loader_finds_it_first(tmp_path, environ, monkeypatch):
    errors = check_libraries(environ)
    assert not any(errors.values())
    assert describe_missing(errors) is None
    # pip installs libraries beside TensorFlow. The user's own come first.
    packaged, user_folder = tmp_path / 'site-packages/nvidia/all/lib', tmp_path / 'own'
    packaged.parent.mkdir(parents=True)
    packaged.symlink_to(environ['LD_LIBRARY_PATH'])
    build = TensorFlowBuild(tmp_path / 'site-packages' / 'tensorflow', '12.5.1', '9', ())
    monkeypatch.setattr('tf_cnn.machine.missing_gpu.tensorflow_build', lambda: build)
    write_files(user_folder, {'libcublas.so.12': 'this is no library'})
    errors = check_libraries({**environ, 'LD_LIBRARY_PATH': str(user_folder)})
    assert [name for name, error in errors.items() if error] == ['libcublas.so.12']


def test_a_missing_library_is_named_with_the_package_that_has_it(tmp_path):
    environ = compile_cuda(tmp_path, 'libcudnn', 'libcublas', 'libnccl')
    errors = check_libraries(environ)
    if all(error is None for error in errors.values()):
        pytest.skip('this machine has the libraries')
    line = check_line(describe_missing(errors), 'libcudnn.so.', 'libcublas.so.12', '[cuda]')
    # TensorFlow uses GPUs without NCCL.
    assert 'nccl' not in line
    reason = explain_missing_gpu(environ, write_files(tmp_path, {'dev/nvidia0': ''}))
    assert reason == f'{line}; see docs/gpu.md'
    # The driver comes before the packages.
    (tmp_path / 'libcuda.so.1').unlink()
    check_line(describe_missing(check_libraries(environ)), 'libcuda.so.1', 'driver')


def test_a_library_that_aborts_or_hangs_hides_no_fault_of_another_library(tmp_path):
    environ = compile_cuda(tmp_path)
    (tmp_path / 'libcufft.so.11').write_bytes(b'')
    begin = (
        '#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) void begin(void)'
    )
    compile_library(tmp_path, 'libcublas.so.12', f'{begin} {{ abort(); }}')
    compile_library(tmp_path, 'libnccl.so.2', f'{begin} {{ sleep(60); }}')
    errors = check_libraries(environ, timeout_secs=2)
    facts = {'libcublas.so.12': '-6', 'libcufft.so.11': 'too short', 'libnccl.so.2': '2 s'}
    assert [name for name, error in errors.items() if error] == [*facts]
    for name, fact in facts.items():
        assert fact in (errors[name] or '')


def test_drivers_fit_the_cuda_version_as_in_nvidias_tables():
    architectures = ('sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90')
    build = TensorFlowBuild(Path('/'), '12.5.1', '9', architectures)
    for driver, facts in (
        (Driver('470.57', (11, 4), ('8.0',)), ('470.57', '11.4', '12.5')),
        # Machine code runs on every driver of CUDA 12, and code that the driver compiles on those
        # for 12.5 only.
        (Driver('525.60.13', (12, 0), ('8.0',)), ()),
        (Driver('525.60.13', (12, 0), ('9.0',)), ('9.0', '12.5')),
        (Driver('555.42.02', (12, 5), ('9.0',)), ()),
        # TensorFlow ignores one GPU and uses the other.
        (Driver('570.26', (12, 8), ('5.2', '8.0')), ()),
        # Without nvidia-ml-py.
        (Driver(), ()),
    ):
        fault = describe_driver_fault(driver, build)
        assert bool(fault) == bool(facts), driver
        check_line(fault or 'fits', *facts)


def test_the_reason_names_what_to_change(environ, tmp_path, monkeypatch):
    for changes, capability, facts in (
        ({'CUDA_VISIBLE_DEVICES': '-1'}, (8, 0), ['CUDA_VISIBLE_DEVICES=-1']),
        ({}, (3, 5), ['3.5', '--device=cpu']),
        ({}, (8, 0), ['--verbose']),
    ):
        use_pynvml(monkeypatch, tmp_path, 1, capability=capability)
        changed = {**environ, **changes}
        assert explain_missing_gpu(changed, tmp_path / 'without_gpu') is None
        root = write_files(tmp_path, {'dev/nvidia0': ''})
        check_line(explain_missing_gpu(changed, root), *facts)


# ---- `doctor` ------------------------------------------------------------------------------------


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
