"""Why TensorFlow sees no GPU: told on machines whose libraries or driver are missing, broken or too old."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from machine.cuda_driver import Driver, check_driver, describe_driver_fault
from machine.cuda_libraries import DRIVER, check_libraries, describe_missing
from machine.missing_gpu import explain_missing_gpu
from machine.tensorflow_build import TensorFlowBuild
from tests.support.machines import BUILD, NEEDED, compile_cuda, compile_library, folder_with, write_files
from tests.support.outputs import check_line

pytestmark = [pytest.mark.unit, *NEEDED]

GPU = {
    'dev/nvidia0': '',
    'proc/driver/nvidia/version': 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.43.04  Tue Apr 26 2022\n',
}
AS_BUILT = TensorFlowBuild(Path('/'), '12.5.1', '9', ('sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90'))


@pytest.fixture(scope='module')
def environ(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of a machine on which the driver and all libraries can be opened."""
    found = compile_cuda(tmp_path_factory.mktemp('libraries'))
    found.pop('CUDA_VISIBLE_DEVICES', None)
    return found


@pytest.fixture(scope='module')
def good_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp('compiled'), 'libgood.so')


def all_names() -> list[str]:
    return [library.name for library in check_libraries()]


# ---- the libraries ---------------------------------------------------------------------------------------------------


def test_each_library_is_opened_where_the_loader_finds_it_first(
    tmp_path: Path, good_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = check_libraries(folder_with(tmp_path, good_library, *all_names()))
    assert [(library.error, library.path) for library in libraries] == [
        (None, str(tmp_path / library.name)) for library in libraries
    ]
    assert describe_missing(libraries) is None
    # Those of pip's packages are beside TensorFlow, unless the user has others.
    packaged, own = tmp_path / 'site-packages/nvidia/cublas/lib', tmp_path / 'own'
    packaged.mkdir(parents=True)
    own.mkdir()
    build = TensorFlowBuild(tmp_path / 'site-packages' / 'tensorflow', '12.5.1', '9', ())
    monkeypatch.setattr('machine.cuda_libraries.tensorflow_build', lambda: build)
    folder_with(packaged, good_library, 'libcublas.so.12', 'libcublasLt.so.12')
    environ = folder_with(own, good_library, 'libcublas.so.12')
    found = {library.name: library.path for library in check_libraries(environ)}
    assert found['libcublas.so.12'] == str(own / 'libcublas.so.12')
    assert found['libcublasLt.so.12'] == str(packaged / 'libcublasLt.so.12')


def test_what_is_missing_is_named_with_its_package(tmp_path: Path, good_library: Path) -> None:
    names = [name for name in all_names() if not name.startswith(('libcudnn', 'libcublas', 'libnccl'))]
    environ = folder_with(tmp_path, good_library, *names)
    libraries = check_libraries(environ)
    line = check_line(describe_missing(libraries), 'libcudnn.so.', 'libcublas.so.12', 'nvidia-cublas-cu12', '[cuda]')
    # pip's command names the packages again.
    assert line.rpartition(': ')[0].count('nvidia-cublas-cu12') == 1
    # TensorFlow uses GPUs without NCCL.
    assert 'nccl' not in line
    assert {library.name for library in libraries if not library.is_required} == {'libnccl.so.2', 'libcupti.so.12'}
    # The driver comes before the packages.
    (tmp_path / 'libcuda.so.1').unlink()
    libraries = check_libraries(environ)
    if libraries[0].error is None:
        pytest.skip('this machine has the driver')
    assert (libraries[0].name, libraries[0].package) == ('libcuda.so.1', DRIVER)
    check_line(describe_missing(libraries), 'libcuda.so.1', 'driver')


def test_a_library_that_another_one_is_linked_with_is_what_to_install(tmp_path: Path, good_library: Path) -> None:
    environ = folder_with(tmp_path, good_library, *all_names())
    linked = compile_library(tmp_path, 'libnvJitLink.so.12', 'int linked;', '-Wl,-soname,libnvJitLink.so.12')
    options = ('-x', 'none', '-Wl,--no-as-needed', str(linked))
    compile_library(tmp_path, 'libcusparse.so.12', 'int sparse;', *options)
    linked.unlink()
    (library,) = (found for found in check_libraries(environ) if found.error)
    assert (library.name, library.package) == ('libcusparse.so.12', 'nvidia-nvjitlink-cu12')
    assert library.path == str(tmp_path / 'libcusparse.so.12')


def test_a_library_that_ends_its_process_or_takes_for_ever_hides_none_of_the_others(
    tmp_path: Path, good_library: Path
) -> None:
    environ = folder_with(tmp_path, good_library, *all_names())
    (tmp_path / 'libcufft.so.11').write_bytes(b'')
    begin = '#include <stdlib.h>\n#include <unistd.h>\n__attribute__((constructor)) void begin(void)'
    compile_library(tmp_path, 'libcublas.so.12', f'{begin} {{ abort(); }}')
    compile_library(tmp_path, 'libnccl.so.2', f'{begin} {{ sleep(60); }}')
    libraries = check_libraries(environ, timeout_secs=1)
    errors = {library.name: library.error for library in libraries if library.error}
    assert list(errors) == ['libcublas.so.12', 'libcufft.so.11', 'libnccl.so.2']
    for error, fact in zip(errors.values(), ('SIGABRT', 'too short', '1 s'), strict=True):
        assert fact in error
    check_line(describe_missing(libraries), 'libcublas.so.12', 'libcufft.so.11', '--force-reinstall')


# ---- the driver ------------------------------------------------------------------------------------------------------


def test_the_driver_tells_its_gpus(environ: Mapping[str, str], tmp_path: Path) -> None:
    driver = check_driver({**environ, 'STAND_IN_CUDA': '12020'}, write_files(tmp_path, GPU))
    assert driver == Driver('515.43.04', (12, 2), None, ('8.0', '8.0'))
    for root, facts in ((tmp_path, ['515.43.04', '525.60.13']), (tmp_path / 'elsewhere', ['0.5 s'])):
        hanging = check_driver({**environ, 'STAND_IN_HANGS': '1'}, root, timeout_secs=0.5)
        check_line(describe_driver_fault(hanging, AS_BUILT), *facts)


@pytest.mark.parametrize(
    ('driver', 'facts'),
    [
        # Machine code runs on every driver of CUDA 12, and code that the driver compiles on those for 12.5 only.
        (Driver('525.60.13', (12, 0), None, ('8.0',)), None),
        (Driver('525.60.13', (12, 0), None, ('9.0',)), ['9.0', '12.5']),
        (Driver('555.42.02', (12, 5), None, ('9.0',)), None),
        (Driver('515.43.04', None, 'cannot be opened'), ['515.43.04', '525.60.13']),
        # A newer library of the driver on an older kernel module.
        (Driver('515.43.04', (12, 5), None, ('8.0',)), None),
        # TensorFlow ignores one GPU and uses the other.
        (Driver('570.26', (12, 8), None, ('5.2', '8.0')), None),
    ],
    ids=str,
)
def test_a_driver_fits_as_nvidias_tables_say(driver: Driver, facts: list[str] | None) -> None:
    line = describe_driver_fault(driver, AS_BUILT)
    assert (line is None) == (facts is None)
    if facts:
        check_line(line, *facts)
    # The table knows the major version of the installed build.
    assert BUILD is not None
    assert 'install' in (describe_driver_fault(Driver('1.0', (1, 0)), BUILD) or '')


# ---- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ('changes', 'facts'),
    [
        ({'CUDA_VISIBLE_DEVICES': '-1'}, ['CUDA_VISIBLE_DEVICES=-1']),
        ({'STAND_IN_CUDA': '11040'}, ['515.43.04', 'CUDA 11.4', '525.60.13']),
        ({'STAND_IN_ERROR': '803'}, ['CUDA_ERROR_SYSTEM_DRIVER_MISMATCH', 'restart']),
        ({'STAND_IN_ERROR': '800'}, ['CUDA_ERROR_NOT_PERMITTED', 'nvidia-smi']),
        ({'STAND_IN_CAPABILITY': '35'}, ['3.5', '--device=cpu']),
        ({}, ['--verbose']),
    ],
    ids=str,
)
def test_the_reason_names_what_to_change(
    changes: dict[str, str], facts: list[str], environ: Mapping[str, str], tmp_path: Path
) -> None:
    changed = {**environ, **changes}
    assert explain_missing_gpu(changed, tmp_path) is None
    check_line(explain_missing_gpu(changed, write_files(tmp_path, GPU)), *facts)


def test_a_missing_library_is_named_even_though_the_driver_starts(environ: Mapping[str, str], tmp_path: Path) -> None:
    (tmp_path / 'libcuda.so.1').symlink_to(Path(environ['LD_LIBRARY_PATH']) / 'libcuda.so.1')
    changed = {**environ, 'LD_LIBRARY_PATH': str(tmp_path)}
    if all(library.error is None for library in check_libraries(changed)):
        pytest.skip('this machine has the libraries')
    check_line(explain_missing_gpu(changed, write_files(tmp_path, GPU)), 'libcudnn.so.', 'nvidia-cudnn-cu12', '[cuda]')
