"""What the checks that run the whole program make of its results."""

import math
from pathlib import Path

import pytest

from doctor.benchmarks import compare_processes, lacks_tf32, throughput
from doctor.verdicts import Context, Outcome
from tests.support.machines import use_pynvml, write_pynvml

pytestmark = pytest.mark.unit

LOSSES = [2.30259, 2.2514, 2.2011]
ROUNDED = [loss * (1 + 1e-7) for loss in LOSSES]


@pytest.mark.parametrize(
    ('device', 'second', 'outcome'),
    [
        ('cpu', LOSSES, Outcome.OK),
        ('gpu', LOSSES, Outcome.OK),
        ('cpu', ROUNDED, Outcome.WRONG),
        ('gpu', ROUNDED, Outcome.OK),
        ('gpu', [loss * 1.01 for loss in LOSSES], Outcome.WRONG),
        ('gpu', [*LOSSES[:-1], math.nan], Outcome.WRONG),
    ],
)
def test_two_gpus_may_round_differently_and_two_cpus_may_not(
    device: str, second: list[float], outcome: Outcome
) -> None:
    found = compare_processes(device, LOSSES, LOSSES, second)
    assert found.outcome is outcome
    if outcome is Outcome.WRONG:
        shown = found.found.partition(': ')[2].split(' and ')
        assert shown[0] != shown[1]


OLD_AND_NEW = [{'uuid': 'GPU-1', 'compute_capability': '7.5'}, {'uuid': 'GPU-2', 'compute_capability': '8.6'}]


@pytest.mark.parametrize(
    ('environ', 'fact'),
    [
        ({}, '7.5'),
        ({'CUDA_VISIBLE_DEVICES': '1'}, None),
        ({'CUDA_VISIBLE_DEVICES': 'GPU-2,GPU-1'}, None),
        ({'CUDA_VISIBLE_DEVICES': '1', 'NVIDIA_TF32_OVERRIDE': '0'}, 'NVIDIA_TF32_OVERRIDE=0'),
    ],
    ids=str,
)
def test_tf32_is_not_measured_where_there_is_none(environ: dict[str, str], fact: str | None) -> None:
    why = lacks_tf32(OLD_AND_NEW, environ)
    assert (why is None) if fact is None else (why is not None and fact in why)
    assert lacks_tf32([{'uuid': None, 'compute_capability': None}], {}) is None


def test_a_run_in_tf32_on_an_older_gpu_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path('/proc/driver/nvidia/version').exists():
        pytest.skip('this machine has the driver')
    use_pynvml(monkeypatch, write_pynvml(tmp_path, 1, name='Tesla T4', capability=(7, 5)))
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    found = throughput(Context(num_gpus=1), ['--model=trivial', '--tf32'])
    assert found.outcome is Outcome.SKIPPED
    assert '7.5' in found.found
