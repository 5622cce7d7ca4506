"""Rates of steps and the distribution of their seconds, compared with NumPy, SciPy and the standard
library.
"""

import dataclasses
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from scipy import stats

from tf_cnn.results.sections import StatisticsSection
from tf_cnn.results.statistics import Rate, drift_deviations, outliers, spread, summarize

pytestmark = pytest.mark.unit

SECONDS = st.lists(st.floats(1e-4, 1e3), min_size=4, max_size=60)


def test_a_moving_average_changes_the_rate_alone():
    rate = summarize(10, [1, 2, 5])
    # Each step has half of the weight of the next one: 1/4, 1/2 and 1, together 7/4.
    averaged = summarize(10, [1, 2, 5], 0.5)
    assert averaged.images_per_second == pytest.approx(10 / ((1 / 4 + 2 / 2 + 5) / (7 / 4)))
    assert dataclasses.replace(averaged, images_per_second=rate.images_per_second) == rate
    assert summarize(10, [1, 2, 5], 1).images_per_second == 2
    assert summarize(10, [1, 2, 5], 0) == rate


def test_a_single_step_has_no_spread():
    assert summarize(10, [4]) == Rate(2.5, 0.0, 0.0)


@given(st.integers(1, 1000), SECONDS)
def test_rates_equal_the_standard_librarys(images, seconds):
    rate, rates = summarize(images, seconds), [images / second for second in seconds]
    assert rate.images_per_second == pytest.approx(statistics.harmonic_mean(rates))
    tiny = 1e-9 * max(rates)
    assert rate.standard_error == pytest.approx(
        statistics.stdev(rates) / math.sqrt(len(rates)), rel=1e-6, abs=tiny
    )
    middle = statistics.median(rates)
    deviation = statistics.median([abs(value - middle) for value in rates])
    assert rate.jitter == pytest.approx(1.4826 * deviation, rel=1e-6, abs=tiny)


@given(SECONDS)
def test_the_distribution_equals_numpys_and_scipys(seconds):
    distribution = StatisticsSection.of(seconds)
    expected = {
        'mean': statistics.fmean(seconds),
        'median': statistics.median(seconds),
        'mad': stats.median_abs_deviation(seconds),
        'min': min(seconds),
        'max': max(seconds),
        **{f'p{percent}': np.percentile(seconds, percent) for percent in (50, 90, 95, 99)},
    }
    assert distribution.num_steps == len(seconds)
    assert asdict(distribution.step_seconds) == pytest.approx(expected)
    half = len(seconds) // 2
    first, second = (len(part) / sum(part) for part in (seconds[:half], seconds[half:]))
    assert distribution.drift == pytest.approx(second / first - 1)


def test_no_steps_have_no_distribution_and_few_have_no_drift():
    distribution = StatisticsSection.of([])
    assert distribution.num_steps == distribution.num_outliers == 0
    assert set(asdict(distribution.step_seconds).values()) == {None}
    assert distribution.drift is None
    assert StatisticsSection.of([1.0, 2.0, 3.0]).drift is None


def test_outliers_are_slow_and_normal_steps_are_none():
    seconds = np.random.default_rng(3).normal(0.5, 0.01, 2000)
    assert spread(seconds) == pytest.approx(0.02, rel=0.05)
    assert outliers(seconds).sum() == 0
    seconds[[7, 100]] = 0.9, 0.7
    seconds[8] = 0.1
    assert np.flatnonzero(outliers(seconds)).tolist() == [7, 100]
    assert StatisticsSection.of(seconds).num_outliers == 2


def test_the_halves_are_compared_as_by_hand():
    blocks = np.array([1.0, 2.0, 1.0, 2.0, 1.0, 3.0, 4.0, 3.0, 4.0, 3.0])
    # The means of the halves are 1.4 and 3.4; neighbours differ by 1, so the variance of a block is
    # 1/2.
    expected = (3.4 - 1.4) / math.sqrt((0.5 + 0.5) / 5)
    seconds = np.repeat(blocks, 4)
    assert drift_deviations(seconds) == pytest.approx(expected)
    assert drift_deviations(seconds[::-1]) == pytest.approx(-expected)
    # Steps that do not fill a block are left out at the start.
    assert drift_deviations([9.0, 9.0, *seconds]) == pytest.approx(expected)
    # Without noise a drift is sure; with fewer than 4 steps in a block it is unknown.
    assert drift_deviations([1.0] * 40) == 0
    assert drift_deviations([1.0] * 20 + [2.0] * 20) == math.inf
    assert math.isnan(drift_deviations([1.0] * 39))


def test_without_drift_the_halves_differ_by_about_one_standard_error():
    draw = np.random.default_rng(4)
    deviations = [drift_deviations(draw.normal(0.5, 0.01, 200)) for _ in range(1000)]
    # Student's t of few degrees of freedom, here compared in the middle, where these hardly matter.
    assert np.mean(np.abs(deviations) < 1) == pytest.approx(2 * stats.t(6).cdf(1) - 1, abs=0.05)
