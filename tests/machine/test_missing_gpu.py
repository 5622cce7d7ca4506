"""Why TensorFlow sees no GPU, on machines with missing, broken or old libraries and drivers."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.machine.cuda_libraries import NEEDED, compile_cuda, compile_library
from tests.support.files import write_files
from tests.support.machines import use_pynvml
from tests.support.outputs import check_line
from tf_cnn.machine.missing_gpu import (
    Driver,
    check_libraries,
    describe_driver_fault,
    describe_missing,
    explain_missing_gpu,
)
from tf_cnn.machine.tensorflow_build import TensorFlowBuild

pytestmark = [pytest.mark.unit, *NEEDED]


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
