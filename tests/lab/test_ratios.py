"""The ratios of throughputs and their intervals, compared with SciPy and with simulations of a
known ratio, of hosts and of earlier runs.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.lab.sample_folders import write_runs
from tests.support.programs import run_main
from tests.support.sample_results import cut_off, sample_record
from tf_cnn.lab.conclude import rounds_needed
from tf_cnn.lab.earlier import SPREAD_MULTIPLES, expected_throughput
from tf_cnn.lab.rows import estimate
from tf_cnn.results.ratios import (
    Ratio,
    Significance,
    compare,
    estimate_runs,
    geometric_mean,
    t_quantile,
)

pytestmark = pytest.mark.unit


@given(st.floats(1, 1e5))
def test_quantiles_equal_scipys(degrees_of_freedom):
    assert t_quantile(degrees_of_freedom) == pytest.approx(
        stats.t.ppf(0.975, degrees_of_freedom), rel=1e-7
    )


@given(st.lists(st.floats(80, 120), min_size=3, max_size=20))
def test_intervals_equal_scipys_for_the_relative_error_of_the_seconds(rates):
    seconds = 1 / np.array(rates)
    mean = seconds.mean()
    throughput = estimate_runs(rates)
    assert throughput.images_per_second == pytest.approx(1 / mean)
    low, high = throughput.interval or (0, 0)
    half = stats.t.ppf(0.975, len(rates) - 1) * stats.sem(seconds) / mean
    assert (low * mean, high * mean) == pytest.approx((math.exp(-half), math.exp(half)), rel=1e-6)
    assert not throughput.is_short


def test_the_rate_of_runs_of_unequal_length_is_all_images_over_all_seconds():
    images, seconds = np.array([1000, 4000, 2500, 3300]), np.array([10.0, 41.0, 24.0, 34.0])
    throughput = estimate_runs(images / seconds, images.tolist())
    assert throughput.images_per_second == pytest.approx(images.sum() / seconds.sum())
    # The jackknife estimates the same error without the formula.
    left_out = (seconds.sum() - seconds) / (images.sum() - images)
    jackknife = math.sqrt(3 * left_out.var())
    assert math.sqrt(throughput.variance) == pytest.approx(
        jackknife * throughput.images_per_second, rel=0.15
    )


@pytest.mark.parametrize('num_runs', [3, 5, 10])
def test_the_interval_contains_the_true_ratio_in_95_percent_of_simulated_pairs(num_runs):
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


@pytest.mark.parametrize(('num_settings', 'num_runs'), [(2, 3), (9, 3), (9, 5)])
def test_the_interval_of_the_geometric_mean_contains_it_in_95_percent_of_simulations(
    num_settings, num_runs
):
    draw = np.random.default_rng(num_settings + num_runs)
    ratios = draw.uniform(0.5, 2, num_settings)
    # The spread differs between settings, and between the sides.
    spreads = draw.uniform(0.01, 0.06, (num_settings, 2))
    mean, hits = np.exp(np.log(ratios).mean()), 0
    for _ in range(400):
        pairs = [
            (
                estimate_runs(100 * np.exp(draw.normal(0, before, num_runs))),
                estimate_runs(100 * ratio * np.exp(draw.normal(0, after, num_runs))),
            )
            for ratio, (before, after) in zip(ratios, spreads, strict=True)
        ]
        low, high = geometric_mean(pairs).interval or (0, 0)
        hits += low <= mean <= high
    # 4 standard errors are 4.4 %.
    assert 0.906 <= hits / 400 <= 0.994


@pytest.mark.parametrize('spread', [0.02, 0.04])
@pytest.mark.parametrize('true_ratio', [1, 0.98, 0.93])
def test_the_advised_rounds_give_a_verdict_in_half_of_the_cases(spread, true_ratio):
    draw, limit, verdicts = np.random.default_rng(1), 0.95, list[bool]()

    def is_unclear(ratio: Ratio) -> bool:
        low, high = ratio.interval or (0, 0)
        return low < limit and not (high < 1 and ratio.value < limit)

    for _ in range(1000):
        rates = np.exp(draw.normal(0, spread, (2, 1000))) * [[1], [true_ratio]]
        ratio = compare(*map(estimate_runs, rates[:, :3]))
        rounds = rounds_needed(ratio, 3, limit)
        if is_unclear(ratio) and 0 < rounds < 1000:
            verdicts.append(not is_unclear(compare(*map(estimate_runs, rates[:, :rounds]))))
    assert len(verdicts) > 30
    assert np.mean(verdicts) > 0.5 + 3 * math.sqrt(0.25 / len(verdicts))


def test_the_geometric_mean_of_one_ratio_is_the_ratio():
    before, after = estimate_runs([100, 101, 99]), estimate_runs([80, 83, 81, 80])
    ratio, mean = compare(before, after), geometric_mean([(before, after)])
    assert mean.value == pytest.approx(ratio.value)
    assert mean.interval == pytest.approx(ratio.interval)


def test_the_ratio_of_repeated_runs_has_the_interval_of_welch():
    # Small differences, where logarithms and relative differences are nearly equal.
    rates = [100.0, 100.2, 99.7, 100.4], [98.0, 98.9, 98.3, 98.1, 98.6]
    before, after = (
        estimate([sample_record(rate=rate, noise=0) for rate in side]) for side in rates
    )
    ratio = compare(before, after)
    first, second = map(np.log, rates)
    expected = stats.ttest_ind(second, first, equal_var=False).confidence_interval()
    assert ratio.interval
    assert np.log(ratio.interval) == pytest.approx([expected.low, expected.high], rel=2e-2)
    assert ratio.verdict is Significance.SLOWER
    assert compare(after, before).verdict is Significance.FASTER
    assert compare(before, before).verdict is Significance.SAME


def test_two_runs_have_the_mean_of_their_seconds_and_one_its_rate_to_the_last_digit():
    assert estimate_runs([100, 300]).images_per_second == pytest.approx(150)
    assert all(estimate_runs([rate]).images_per_second == rate for rate in (49.0, 97.3, 1e-3))


def test_a_single_run_has_its_rate():
    throughput = estimate([sample_record(noise=0.05, num_steps=400)])
    assert (throughput.num_runs, throughput.interval) == (1, None)
    assert throughput.images_per_second == pytest.approx(100, rel=0.02)


# ---- earlier runs --------------------------------------------------------------------------------


def judge(rate: float, **changes: Any) -> dict[str, Any]:
    """Judges a new run, after 25 days, by the folder `earlier`; returns its row."""
    write_runs('new', [rate], day=25, **changes)
    [row] = json.loads(run_main('compare', 'new', '--against=earlier', '--format=json')[0])['rows']
    Path('new/0.json').unlink()
    return dict(row)


@pytest.mark.parametrize(('noise', 'share'), [(0.03, 0.06), (0.005, 0.01)])
@pytest.mark.parametrize('count', [*SPREAD_MULTIPLES, 30])
def test_at_most_one_in_20_of_equal_runs_is_called_slower_or_faster(count, noise, share):
    # What differs by less than the least tolerance is as before; few runs do not show that.
    if noise == 0.005 and count < 6:
        return
    num_outside = 0
    for rates in 100 * np.exp(np.random.default_rng(count).normal(0, noise, (4000, count + 1))):
        *earlier, rate = rates.tolist()
        low, high = expected_throughput(earlier)[1] or (0, math.inf)
        num_outside += not low <= rate <= high
    # 3 standard errors of 5 % in 4000 are 1 %.
    assert num_outside / 4000 <= share


def test_a_shift_is_seen_at_once_and_becomes_the_new_level():
    draw = np.random.default_rng(1)
    hits = np.zeros(20)
    for _ in range(200):
        rates = np.repeat([100.0, 90.0], [10, 20]) * np.exp(draw.normal(0, 0.01, 30))
        # One run that another program disturbed.
        rates[4] = 40.0
        for run in range(20):
            _, expected = expected_throughput(rates[: 10 + run].tolist())
            hits[run] += expected is not None and rates[10 + run] < expected[0]
    assert hits[0] >= 195
    # By then the last 10 runs are all of the new level: false alarms remain.
    assert hits[10:].max() <= 20


def test_equal_runs_still_tolerate_2_percent_and_short_ones_get_no_verdict():
    for day in range(5):
        write_runs('earlier', [10], day=day)
    for rate, verdict in ((9.85, 'as before'), (9.75, 'slower'), (10.25, 'faster')):
        assert judge(rate)['verdict'] == verdict
    assert judge(10, seconds=[0.16] * 2)['verdict'] == 'too short to judge'


def test_the_last_complete_runs_of_the_setting_on_the_machine_count():
    versions = {'versions': {'tensorflow': '2.20.0', 'python': '3.11.7'}}
    for day in range(17):
        write_runs('earlier', [100 if day < 7 else 90], day=day, machine=versions)
    write_runs('earlier', [10], day=18, flags={'batch_size': 64})
    write_runs('earlier', [10], day=18, machine={'hostname': 'beta'})
    write_runs('earlier', [10], day=18, **cut_off('interrupted'))
    # Later than the new run.
    write_runs('earlier', [10] * 9, day=26)
    for rate, verdict in ((86, 'slower'), (90.2, 'as before'), (96, 'faster')):
        row = judge(rate)
        assert (row['verdict'], row['reference']['name']) == (verdict, 'the 10 runs before')
        assert row['reference']['rate'] == pytest.approx(90)
        assert row['reference']['files'][0] == 'earlier/7.json'
        assert row['ratio'] == pytest.approx(rate / 90)
        assert row['differences']['versions.tensorflow'] == ['2.20.0', '2.21.0']
