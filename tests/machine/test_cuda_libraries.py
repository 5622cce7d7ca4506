"""Which libraries for GPUs can be opened: told by real libraries, broken files and what is not there."""

from pathlib import Path

import pytest

from machine.cuda_libraries import DRIVER, check_libraries, describe_missing
from machine.tensorflow_build import TensorFlowBuild, runs_on
from tests.support.machines import NEEDED, compile_library, folder_with
from tests.support.outputs import check_line

pytestmark = [pytest.mark.unit, *NEEDED]


@pytest.fixture(scope='module')
def good_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library(tmp_path_factory.mktemp('compiled'), 'libgood.so')


def all_names() -> list[str]:
    return [library.name for library in check_libraries()]


def test_each_library_is_opened_where_the_loader_finds_it_first(tmp_path: Path, good_library: Path) -> None:
    libraries = check_libraries(folder_with(tmp_path, good_library, *all_names()))
    assert {library.error for library in libraries} == {None}
    assert [library.path for library in libraries] == [str(tmp_path / library.name) for library in libraries]
    assert describe_missing(libraries) is None


def test_libraries_of_pip_packages_are_found_beside_tensorflow_unless_the_user_has_others(
    tmp_path: Path, good_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = TensorFlowBuild(tmp_path / 'site-packages' / 'tensorflow', '12.5.1', '9', ())
    monkeypatch.setattr('machine.cuda_libraries.tensorflow_build', lambda: build)
    packaged = tmp_path / 'site-packages/nvidia/cublas/lib'
    packaged.mkdir(parents=True)
    folder_with(packaged, good_library, 'libcublas.so.12', 'libcublasLt.so.12')
    own = tmp_path / 'own'
    own.mkdir()
    found = {
        library.name: library.path for library in check_libraries(folder_with(own, good_library, 'libcublas.so.12'))
    }
    assert found['libcublas.so.12'] == str(own / 'libcublas.so.12')
    assert found['libcublasLt.so.12'] == str(packaged / 'libcublasLt.so.12')


def test_the_driver_comes_before_the_packages(tmp_path: Path, good_library: Path) -> None:
    libraries = check_libraries(folder_with(tmp_path, good_library, *all_names()[1:3]))
    if libraries[0].error is None:
        pytest.skip('this machine has the driver')
    assert (libraries[0].name, libraries[0].package) == ('libcuda.so.1', DRIVER)
    check_line(describe_missing(libraries), 'libcuda.so.1', 'driver')


def test_what_is_missing_is_named_with_its_package(tmp_path: Path, good_library: Path) -> None:
    names = [name for name in all_names() if not name.startswith(('libcudnn', 'libcublas', 'libnccl'))]
    libraries = check_libraries(folder_with(tmp_path, good_library, *names))
    line = check_line(describe_missing(libraries), 'libcudnn.so.', 'libcublas.so.12', 'nvidia-cublas-cu12', '[cuda]')
    # pip's command names the packages again.
    assert line.rpartition(': ')[0].count('nvidia-cublas-cu12') == 1
    # TensorFlow uses GPUs without NCCL.
    assert 'nccl' not in line
    assert {library.name for library in libraries if not library.is_required} == {'libnccl.so.2', 'libcupti.so.12'}


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
    assert 'SIGABRT' in errors['libcublas.so.12']
    assert 'too short' in errors['libcufft.so.11']
    assert '1 s' in errors['libnccl.so.2']
    check_line(describe_missing(libraries), 'libcublas.so.12', 'libcufft.so.11', '--force-reinstall')


@pytest.mark.parametrize(
    ('capability', 'runs'), [('5.2', False), ('6.1', True), ('8.6', True), ('9.0', None), ('12.0', None)]
)
def test_machine_code_runs_within_its_major_capability_and_other_code_is_compiled(
    capability: str, runs: bool | None
) -> None:
    assert runs_on(capability, ('sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90')) is runs
