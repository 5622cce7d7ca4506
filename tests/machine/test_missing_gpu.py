"""Why TensorFlow sees no GPU: told on machines that lack a library, or whose driver does not fit."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from machine.cuda_driver import Driver, check_driver, describe_driver_fault
from machine.cuda_libraries import check_libraries
from machine.missing_gpu import explain_missing_gpu
from machine.tensorflow_build import TensorFlowBuild
from tests.support.machines import BUILD, NEEDED, compile_driver, compile_library, folder_with, write_files
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
    folder = tmp_path_factory.mktemp('libraries')
    library = compile_library(folder, 'libgood.so')
    found = folder_with(folder, library, *(wanted.name for wanted in check_libraries()))
    (folder / 'libcuda.so.1').unlink()
    compile_driver(folder)
    found.pop('CUDA_VISIBLE_DEVICES', None)
    return found


def test_a_machine_without_a_gpu_needs_no_explanation(environ: Mapping[str, str], tmp_path: Path) -> None:
    assert explain_missing_gpu(environ, tmp_path) is None


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
    check_line(explain_missing_gpu({**environ, **changes}, write_files(tmp_path, GPU)), *facts)


def test_a_missing_library_is_named_even_though_the_driver_starts(environ: Mapping[str, str], tmp_path: Path) -> None:
    compile_driver(tmp_path)
    changed = {**environ, 'LD_LIBRARY_PATH': str(tmp_path)}
    line = explain_missing_gpu(changed, write_files(tmp_path, GPU))
    if all(library.error is None for library in check_libraries(changed)):
        pytest.skip('this machine has the libraries')
    check_line(line, 'libcudnn.so.', 'nvidia-cudnn-cu12', '[cuda]')


def test_the_driver_tells_its_gpus(environ: Mapping[str, str], tmp_path: Path) -> None:
    driver = check_driver({**environ, 'STAND_IN_CUDA': '12020'}, write_files(tmp_path, GPU))
    assert driver == Driver('515.43.04', (12, 2), None, ('8.0', '8.0'))
    hanging = check_driver({**environ, 'STAND_IN_HANGS': '1'}, tmp_path, timeout_secs=0.5)
    check_line(describe_driver_fault(hanging, AS_BUILT), '515.43.04', '525.60.13')
    hanging = check_driver({**environ, 'STAND_IN_HANGS': '1'}, tmp_path / 'elsewhere', timeout_secs=0.5)
    check_line(describe_driver_fault(hanging, AS_BUILT), '0.5 s')


@pytest.mark.parametrize(
    ('driver', 'facts'),
    [
        # Machine code runs on every driver of CUDA 12, and code that the driver compiles on those for 12.5 only.
        (Driver('525.60.13', (12, 0), None, ('8.0',)), None),
        (Driver('525.60.13', (12, 0), None, ('9.0',)), ['9.0', '12.5', '555.42.02']),
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


def test_the_tables_know_the_build() -> None:
    assert BUILD is not None
    ancient = Driver('1.0', (1, 0))
    assert 'install' in (describe_driver_fault(ancient, BUILD) or '')
