"""How long a sweep will take, before it runs."""

from pathlib import Path

import pytest

from sweeps.durations import estimate_seconds
from tests.support.sample_results import plan_of

pytestmark = pytest.mark.unit


def test_a_guess_grows_with_the_work(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[flags]\ndevice = "cpu"\n[grid]\nmodel = ["lenet", "resnet50"]\nbatch_size = [8, 64]\n')
    small, large, deep, _ = (estimate_seconds([one], {}, has_gpu=False)[0] for one in plan.configurations)
    assert 1 < small < large < deep
    total, basis = estimate_seconds(plan.configurations, {}, has_gpu=False)
    assert total > deep + large
    assert 'guess' in basis
    with_gpu, _ = estimate_seconds(
        [plan_of(tmp_path, '[grid]\nbatch_size = [64, 65]\n').configurations[0]], {}, has_gpu=True
    )
    assert with_gpu < total


def test_a_run_of_fixed_length_takes_that_long(tmp_path: Path) -> None:
    (one, _) = plan_of(tmp_path, '[flags]\ntarget_seconds = 500\n[grid]\nbatch_size = [8, 64]\n').configurations
    assert 500 < estimate_seconds([one], {}, has_gpu=False)[0] < 520


def test_runs_that_are_done_say_more_than_a_guess(tmp_path: Path) -> None:
    one, other = plan_of(tmp_path, '[grid]\nbatch_size = [8, 64]\n').configurations
    seconds, basis = estimate_seconds([one, one, other], {one.id: [10.0, 12.0], other.id: []}, has_gpu=False)
    assert seconds == 33
    assert '2 runs' in basis
    assert '1 run that is' in estimate_seconds([one], {one.id: [10.0]}, has_gpu=False)[1]
