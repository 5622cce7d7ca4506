"""Throughputs, their ratios and intervals, held against SciPy and simulations whose true ratio is
known.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.support.sample_results import sample_record
from tf_cnn.compare.intervals import estimate_runs, t_quantile
from tf_cnn.compare.ratios import Significance, compare, estimate
from tf_cnn.results.document import Result

pytestmark = pytest.mark.unit


@given(st.floats(1, 1e5))
def test_quantiles_are_those_of_scipy(degrees_of_freedom: float) -> None:
    assert t_quantile(degrees_of_freedom) == pytest.approx(
        stats.t.ppf(0.975, degrees_of_freedom), rel=1e-7
    )


@given(st.lists(st.floats(80, 120), min_size=3, max_size=20))
def test_intervals_are_those_of_scipy_for_the_relative_error_of_the_seconds(
    rates: list[float],
) -> None:
    seconds = [1 / rate for rate in rates]
    mean = sum(seconds) / len(seconds)
    found = estimate_runs(rates)
    assert found.images_per_second == pytest.approx(1 / mean)
    assert found.interval
    assert found.plus_minus is not None
    low, high = found.interval
    half = stats.t.ppf(0.975, len(rates) - 1) * stats.sem(seconds) / mean
    assert (low * mean, high * mean) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-6)
    assert found.plus_minus == pytest.approx(math.sinh(half), rel=1e-6, abs=1e-9)


def test_the_rate_of_runs_of_unequal_length_is_all_images_over_all_seconds() -> None:
    images, seconds = [1000, 4000, 2500, 3300], [10.0, 41.0, 24.0, 34.0]
    found = estimate_runs([i / s for i, s in zip(images, seconds, strict=True)], images)
    assert found.images_per_second == pytest.approx(sum(images) / sum(seconds))
    # The jackknife estimates the same error without the formula.
    size = len(images)
    left_out = [
        (sum(seconds) - s) / (sum(images) - i) for i, s in zip(images, seconds, strict=True)
    ]
    middle = sum(left_out) / size
    jackknife = (size - 1) / size * sum((value - middle) ** 2 for value in left_out)
    assert math.sqrt(found.variance) == pytest.approx(
        math.sqrt(jackknife) * found.images_per_second, rel=0.15
    )


@pytest.mark.parametrize('num_runs', [3, 5, 10])
def test_the_interval_contains_the_true_ratio_in_95_percent_of_simulated_pairs(
    num_runs: int,
) -> None:
    draw = np.random.default_rng(num_runs)
    hits = 0
    for _ in range(400):
        before, after = (
            estimate_runs(rate * np.exp(draw.normal(0, 0.03, num_runs))) for rate in (100, 90)
        )
        interval = compare(before, after).interval
        assert interval
        hits += interval[0] <= 0.9 <= interval[1]
    # 4 standard errors are 4.4 %.
    assert 0.906 <= hits / 400 <= 0.994


def steady(rate: float) -> Result:
    """A run whose steps take equally long."""
    return sample_record(seconds=[32 / rate] * 50, gap=0)


def test_the_ratio_of_repeated_runs_has_the_interval_of_welch() -> None:
    # Small differences, where logarithms and relative differences are nearly equal.
    before, after = [100.0, 100.2, 99.7, 100.4], [98.0, 98.9, 98.3, 98.1, 98.6]
    sides = [estimate([steady(rate) for rate in side]) for side in (before, after)]
    found = compare(sides[0], sides[1])
    expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False).confidence_interval()
    assert found.interval
    assert np.log(found.interval) == pytest.approx([expected.low, expected.high], rel=2e-2)
    assert found.verdict is Significance.SLOWER
    assert compare(sides[1], sides[0]).verdict is Significance.FASTER
    assert compare(sides[0], sides[0]).verdict is Significance.SAME


@pytest.mark.parametrize(('num_before', 'num_after'), [(1, 1), (5, 2)])
def test_with_fewer_than_three_runs_on_a_side_there_is_no_interval(
    num_before: int, num_after: int
) -> None:
    before, after = (
        estimate([steady(rate + number) for number in range(count)])
        for rate, count in ((100, num_before), (50, num_after))
    )
    assert (after.interval, after.plus_minus) == (None, None)
    found = compare(before, after)
    assert (found.interval, found.verdict, found.is_significant) == (
        None,
        Significance.FEW_RUNS,
        False,
    )
    assert found.value == pytest.approx(0.5, rel=0.05)


def test_a_single_run_has_its_rate_and_the_spread_of_its_steps() -> None:
    seconds = np.random.default_rng(1).normal(0.32, 0.016, 400)
    found = estimate([sample_record(seconds=seconds.tolist(), gap=0)])
    assert (found.num_runs, found.interval) == (1, None)
    assert found.step_spread == pytest.approx(0.05, rel=0.1)
    assert math.isnan(estimate([sample_record(seconds=[0.3])]).step_spread)
