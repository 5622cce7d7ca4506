"""Intervals of means, held against SciPy."""

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from comparison.intervals import estimate_runs, t_quantile

pytestmark = pytest.mark.unit


@given(st.floats(0.001, 0.999), st.floats(1, 1e5))
def test_quantiles_are_those_of_scipy(probability: float, degrees_of_freedom: float) -> None:
    expected = scipy.stats.t.ppf(probability, degrees_of_freedom)
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(st.lists(st.floats(80, 120), min_size=3, max_size=20))
def test_intervals_are_those_of_scipy_for_the_relative_error_of_the_seconds(rates: list[float]) -> None:
    seconds = [1 / rate for rate in rates]
    mean = sum(seconds) / len(seconds)
    found = estimate_runs(rates)
    assert found.images_per_second == pytest.approx(1 / mean)
    assert found.interval
    assert found.plus_minus is not None
    low, high = found.interval
    half = scipy.stats.t.ppf(0.975, len(rates) - 1) * scipy.stats.sem(seconds) / mean
    assert (low * mean, high * mean) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-6)
    assert found.plus_minus == pytest.approx(math.sinh(half), rel=1e-6, abs=1e-9)


def test_the_rate_of_runs_of_unequal_length_is_all_images_over_all_seconds() -> None:
    images, seconds = [1000, 4000, 2500, 3300], [10.0, 41.0, 24.0, 34.0]
    found = estimate_runs([i / s for i, s in zip(images, seconds, strict=True)], images)
    assert found.images_per_second == pytest.approx(sum(images) / sum(seconds))
    # The jackknife estimates the same error without the formula.
    size = len(images)
    left_out = [(sum(seconds) - s) / (sum(images) - i) for i, s in zip(images, seconds, strict=True)]
    middle = sum(left_out) / size
    jackknife = (size - 1) / size * sum((value - middle) ** 2 for value in left_out)
    assert math.sqrt(found.variance) == pytest.approx(math.sqrt(jackknife) * found.images_per_second, rel=0.15)


def test_too_few_runs_have_no_interval() -> None:
    for few in ([3.0], [3.0, 3.1]):
        found = estimate_runs(few)
        assert (found.interval, found.plus_minus) == (None, None)
    with pytest.raises(ValueError, match='0'):
        t_quantile(0.9, 0.5)
