"""What the checks that run the whole program make of its results."""

import math

import pytest

from doctor.benchmarks import compare_processes
from doctor.verdicts import Outcome

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
