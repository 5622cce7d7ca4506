"""Intervals of throughputs and ratios, held against SciPy and against simulations whose true ratio is known."""

import math
import statistics

import numpy as np
import pytest
from sample_results import sample_document, sample_record
from scipy import stats

from benchmarks.equal_runs import compare_pairs
from benchmarks.interval_coverage import Kind, coverage, steps_of_run
from reporting.comparison import Clock, Verdict, compare, estimate, given_spread, known_spread
from reporting.intervals import Estimate
from reporting.long_run import MIN_STEPS, correlation, mean_error
from reporting.record import Record

pytestmark = pytest.mark.unit


def test_the_error_of_independent_steps_is_the_standard_error() -> None:
    draw = np.random.default_rng(1)
    variances = []
    for _ in range(400):
        found = mean_error(draw.normal(10, 2, 200))
        assert found
        variances.append(found.variance)
    assert statistics.mean(variances) == pytest.approx(4 / 200, rel=0.05)


@pytest.mark.parametrize('rho', [0.0, 0.5, 0.8])
def test_the_correlation_of_neighbours_is_found_despite_bursts(rho: float) -> None:
    kind = Kind(5000, rho, has_bursts=True)
    assert correlation(steps_of_run(np.random.default_rng(2), kind, 1.0)) == pytest.approx(rho, abs=0.06)


def test_few_or_equal_steps_have_no_or_no_wide_interval() -> None:
    assert mean_error([1.0] * (MIN_STEPS - 1)) is None
    found = mean_error([1.0] * MIN_STEPS)
    assert found
    assert found.variance == pytest.approx(0, abs=1e-30)


# The whole table is printed by benchmarks/interval_coverage.py. 400 pairs: 4 standard errors are 4.4 %.
@pytest.mark.parametrize(
    'kind', [Kind(100, rho, bursts) for rho in (0.0, 0.8) for bursts in (False, True)] + [Kind(100, 0.5, False, 3)]
)
def test_the_interval_contains_the_true_ratio_in_95_percent_of_simulated_pairs(kind: Kind) -> None:
    share, _, _ = coverage(kind, 400, seed=5)
    assert 0.906 <= share <= 0.994


def test_the_throughput_of_runs_is_that_of_all_their_seconds() -> None:
    runs = [sample_record(rate=rate, noise=0, gap=0) for rate in (50, 100, 200)]
    assert estimate(runs).images_per_second == pytest.approx(3 / (1 / 50 + 1 / 100 + 1 / 200))


def test_the_ratio_of_repeated_runs_has_the_interval_of_welch() -> None:
    # Small differences, where logarithms and relative differences are nearly equal.
    before, after = [100.0, 100.2, 99.7, 100.4], [98.0, 98.9, 98.3, 98.1, 98.6]
    sides = [estimate([sample_record(rate=rate, noise=0, gap=0) for rate in side]) for side in (before, after)]
    found = compare(sides[0], sides[1])
    assert found.basis == 'runs'
    expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False).confidence_interval()
    assert found.interval
    assert np.log(found.interval) == pytest.approx([expected.low, expected.high], rel=2e-2)
    assert found.verdict is Verdict.SLOWER


def test_one_run_is_compared_with_repeats_by_the_spread_of_these() -> None:
    many = estimate([sample_record(rate=rate, noise=0, gap=0) for rate in (100, 101, 99, 100.5)])
    single = estimate([sample_record(rate=98, noise=0.001, gap=0)])
    found = compare(many, single)
    low, high = found.interval or (0, 0)
    spread = statistics.stdev(np.log([100, 101, 99, 100.5]))
    assert math.log(high / low) / 2 == pytest.approx(stats.t.ppf(0.975, 3) * spread * math.sqrt(1 + 1 / 4), rel=2e-2)
    assert found.verdict is Verdict.SAME


def test_the_spread_is_pooled_over_all_settings_with_repeats() -> None:
    sides = [
        estimate([sample_record(rate=r, noise=0, gap=0) for r in rates]) for rates in ((99, 100, 101), (95, 100, 105))
    ]
    pooled = known_spread([*sides, Estimate(5.0, 1, 100)])
    assert pooled
    assert pooled.degrees_of_freedom == 4
    assert pooled.relative == pytest.approx(math.sqrt((2 * 0.01**2 + 2 * 0.05**2) / 4), rel=0.02)
    assert known_spread([Estimate(5.0, 1, 100)]) is None


def test_single_runs_differ_only_if_processes_would_not() -> None:
    before, slightly, much = (estimate([sample_record(rate=rate, seed=int(rate))]) for rate in (100, 97, 80))
    found = compare(before, slightly)
    _, high = found.interval or (0, 0)
    # The steps alone show a difference.
    assert high < 1
    assert found.verdict is Verdict.SAME
    assert found.threshold
    assert compare(before, much).verdict is Verdict.SLOWER
    assert compare(much, before).verdict is Verdict.FASTER
    assert compare(before, slightly, given_spread(0.002)).verdict is Verdict.SLOWER
    assert compare(before, slightly, given_spread(0.002)).interval == found.interval


def test_what_other_processes_took_from_a_run_is_no_difference() -> None:
    document = dict(sample_document(rate=60, seed=2), disturbance={'other_cpu_share': 0.3, 'steal_share': 0.1})
    quiet, disturbed = estimate([sample_record(rate=100, seed=1)]), estimate([Record('busy.json', document)])
    assert disturbed.share_of_others == pytest.approx(0.4)
    assert compare(quiet, disturbed).verdict is Verdict.SAME
    assert compare(quiet, disturbed, given_spread(0.02)).verdict is Verdict.SLOWER
    on_gpu = dict(document, run={**document['run'], 'device': 'gpu'})
    assert estimate([Record('gpu.json', on_gpu)]).share_of_others == 0


def test_equal_runs_whose_processes_differ_are_seldom_called_different() -> None:
    draw = np.random.default_rng(3)
    records = []
    for number in range(120):
        kind = Kind(100, 0.5, has_bursts=True)
        seconds = steps_of_run(draw, kind, 0.01 * math.exp(draw.normal(0, 0.05)))
        records.append(sample_record(seconds=seconds, seed=number))
    ratios = compare_pairs(records, repeats=1)
    assert len(ratios) == 60
    assert sum(ratio.is_significant for ratio in ratios) <= 3


def test_the_clock_counts_what_lies_between_steps_or_not() -> None:
    quick, printing = sample_record(gap=0.0), sample_record(gap=0.08)
    wall, steps = (
        compare(estimate([quick], clock), estimate([printing], clock)) for clock in (Clock.WALL, Clock.STEPS)
    )
    assert wall.value == pytest.approx(0.32 / 0.4, rel=0.02)
    assert steps.value == pytest.approx(1)


def test_a_run_of_few_steps_has_a_rate_but_no_verdict() -> None:
    few = estimate([sample_record(num_steps=MIN_STEPS - 1)])
    assert few.interval is None
    found = compare(few, estimate([sample_record()]))
    assert (found.interval, found.verdict) == (None, Verdict.FEW_STEPS)
    assert not found.is_significant


def test_hopelessly_noisy_runs_are_told_instead_of_an_absurd_interval() -> None:
    noisy = estimate([sample_record(seconds=[0.001] * 50 + [1e6], gap=0)])
    found = compare(noisy, noisy, given_spread(1e9))
    assert (found.interval, found.threshold, found.verdict) == (None, None, Verdict.DISTURBED)
    # A difference that even these show is still one.
    wild = [estimate([sample_record(rate=factor * rate) for rate in (100, 200, 300)]) for factor in (1, 1.1, 1e6)]
    assert compare(wild[0], wild[1]).verdict is Verdict.DISTURBED
    found = compare(wild[0], wild[2])
    assert (found.interval, found.verdict) == (None, Verdict.FASTER)


def test_two_runs_of_each_setting_have_no_interval_and_no_verdict() -> None:
    before, after = (estimate([sample_record(rate=rate + number) for number in (0, 1)]) for rate in (100, 50))
    found = compare(before, after)
    assert (before.interval, found.interval, found.verdict) == (None, None, Verdict.FEW_RUNS)
    assert compare(before, estimate([sample_record()])).verdict is Verdict.FEW_RUNS
