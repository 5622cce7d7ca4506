"""Intervals of means, held against SciPy."""

import math

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from reporting.intervals import mean_rate, rate_interval, t_quantile

pytestmark = pytest.mark.unit


@given(st.floats(0.001, 0.999), st.floats(1, 1e5))
def test_quantiles_are_those_of_scipy(probability: float, degrees_of_freedom: float) -> None:
    expected = scipy.stats.t.ppf(probability, degrees_of_freedom)
    assert t_quantile(probability, degrees_of_freedom) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@given(st.lists(st.floats(1, 1000), min_size=2, max_size=20), st.sampled_from([0.8, 0.95, 0.99]))
def test_intervals_are_those_of_scipy_for_the_relative_error_of_the_seconds(
    rates: list[float], confidence: float
) -> None:
    seconds = [1 / rate for rate in rates]
    mean = sum(seconds) / len(seconds)
    low, high = rate_interval(rates, confidence)
    assert mean_rate(rates) == pytest.approx(1 / mean)
    error = scipy.stats.sem(seconds) / mean
    if error > 1e-9:
        half = scipy.stats.t.ppf(0.5 + confidence / 2, len(rates) - 1) * error
        assert (low * mean, high * mean) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-6)
    else:
        assert low == pytest.approx(high)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match='1'):
        rate_interval([3.0])
    with pytest.raises(ValueError, match='0'):
        t_quantile(0.9, 0.5)
