"""Intervals of throughputs and ratios, held against SciPy and against simulations whose true ratio is known."""

import math
import statistics
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from comparison.intervals import MIN_STEPS, Estimate, correlation, estimate_runs, mean_error
from comparison.ratios import Clock, Significance, compare, estimate, given_spread, known_spread
from results.document import Record
from tests.support.sample_results import sample_document, sample_record, step_seconds

pytestmark = pytest.mark.unit

# Simulated runs. Steps follow an AR(1) process; with bursts, slow steps (twice as long, 5 on average) begin at 1 % of
# the steps. Repeats add a difference between processes, which no step shows.
_STEP_SPREAD, _RUN_SPREAD = 0.05, 0.03
_BURST_STARTS, _BURST_STEPS, _BURST_SLOWER = 0.01, 5, 1.0
_TRUE_RATIO = 0.9
_UNUSED = 200


@dataclass(frozen=True)
class Kind:
    """Simulated runs of a setting.

    Attributes:
      num_steps: of each run.
      rho: the correlation of neighbouring steps.
      has_bursts: whether some steps are slow, several at a time.
      num_runs: of each setting.
    """

    num_steps: int
    rho: float
    has_bursts: bool
    num_runs: int = 1


def steps_of_run(draw: np.random.Generator, kind: Kind, mean: float) -> NDArray[np.float64]:
    """Returns the seconds of [num_steps] steps."""
    shocks = draw.normal(0, math.sqrt(1 - kind.rho**2), kind.num_steps + _UNUSED)
    values = np.convolve(shocks, kind.rho ** np.arange(_UNUSED, dtype=np.float64))[: shocks.size]
    seconds = mean * (1 + _STEP_SPREAD * values[_UNUSED:])
    if kind.has_bursts:
        begins = draw.random(kind.num_steps + _UNUSED) < _BURST_STARTS
        slow = np.zeros(kind.num_steps + _UNUSED, dtype=bool)
        for begin in np.flatnonzero(begins):
            slow[begin : begin + draw.geometric(1 / _BURST_STEPS)] = True
        seconds = seconds * (1 + _BURST_SLOWER * slow[_UNUSED:])
    if kind.num_runs > 1:
        seconds = seconds * math.exp(draw.normal(0, _RUN_SPREAD))
    return np.asarray(seconds)


def estimated(runs: list[NDArray[np.float64]]) -> Estimate:
    """As comparison.ratios.estimate, from the seconds of steps with one image each."""
    if len(runs) > 1:
        return estimate_runs([1 / run.mean() for run in runs])
    mean = float(runs[0].mean())
    error = mean_error(runs[0])
    assert error
    spread = float(runs[0].std(ddof=1)) / mean
    return Estimate(1 / mean, 1, runs[0].size, error.variance / mean**2, error.degrees_of_freedom, None, spread)


def coverage(kind: Kind, num_pairs: int, seed: int) -> float:
    """Returns the share of the intervals given that contain the true ratio; a pair too disturbed has none."""
    draw = np.random.default_rng(seed)
    hits = []
    for _ in range(num_pairs):
        before, after = ([steps_of_run(draw, kind, mean) for _ in range(kind.num_runs)] for mean in (_TRUE_RATIO, 1.0))
        if interval := compare(estimated(before), estimated(after)).interval:
            hits.append(interval[0] <= _TRUE_RATIO <= interval[1])
    return sum(hits) / len(hits)


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


# 400 pairs: 4 standard errors are 4.4 %.
@pytest.mark.parametrize(
    'kind', [Kind(100, rho, bursts) for rho in (0.0, 0.8) for bursts in (False, True)] + [Kind(100, 0.5, False, 3)]
)
def test_the_interval_contains_the_true_ratio_in_95_percent_of_simulated_pairs(kind: Kind) -> None:
    assert 0.906 <= coverage(kind, 400, seed=5) <= 0.994


# The table of docs/compare.md. 1000 pairs: the interval of a share of 95 % has +/- 2 % (3 standard errors).
@pytest.mark.long
@pytest.mark.parametrize(
    'kind',
    [Kind(1000, rho, bursts) for bursts in (False, True) for rho in (0.3, 0.8)]
    + [Kind(100, 0.5, bursts, runs) for runs in (3, 5) for bursts in (False, True)],
)
def test_the_interval_contains_the_true_ratio_in_93_percent_or_more_of_many_pairs(kind: Kind) -> None:
    assert 0.93 <= coverage(kind, 1000, seed=1) <= 0.985


def steady(rate: float) -> Record:
    """A run whose steps take equally long."""
    return sample_record(seconds=[32 / rate] * 50, gap=0)


def test_the_throughput_of_runs_is_that_of_all_their_seconds() -> None:
    runs = [steady(rate) for rate in (50, 100, 200)]
    assert estimate(runs).images_per_second == pytest.approx(3 / (1 / 50 + 1 / 100 + 1 / 200))


def test_the_ratio_of_repeated_runs_has_the_interval_of_welch() -> None:
    # Small differences, where logarithms and relative differences are nearly equal.
    before, after = [100.0, 100.2, 99.7, 100.4], [98.0, 98.9, 98.3, 98.1, 98.6]
    sides = [estimate([steady(rate) for rate in side]) for side in (before, after)]
    found = compare(sides[0], sides[1])
    assert found.basis == 'runs'
    expected = stats.ttest_ind(np.log(after), np.log(before), equal_var=False).confidence_interval()
    assert found.interval
    assert np.log(found.interval) == pytest.approx([expected.low, expected.high], rel=2e-2)
    assert found.verdict is Significance.SLOWER


def test_one_run_is_compared_with_repeats_by_the_spread_of_these() -> None:
    many = estimate([steady(rate) for rate in (100, 101, 99, 100.5)])
    single = estimate([sample_record(seconds=step_seconds(32 / 98, noise=0.001), gap=0)])
    found = compare(many, single)
    low, high = found.interval or (0, 0)
    spread = statistics.stdev(np.log([100, 101, 99, 100.5]))
    assert math.log(high / low) / 2 == pytest.approx(stats.t.ppf(0.975, 3) * spread * math.sqrt(1 + 1 / 4), rel=2e-2)
    assert found.verdict is Significance.SAME


def test_the_spread_is_pooled_over_all_settings_with_repeats() -> None:
    sides = [estimate([steady(r) for r in rates]) for rates in ((99, 100, 101), (95, 100, 105))]
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
    assert found.verdict is Significance.SAME
    assert found.threshold
    assert compare(before, much).verdict is Significance.SLOWER
    assert compare(much, before).verdict is Significance.FASTER
    assert compare(before, slightly, given_spread(0.002)).verdict is Significance.SLOWER
    assert compare(before, slightly, given_spread(0.002)).interval == found.interval


def test_what_other_processes_took_from_a_run_is_no_difference() -> None:
    document = dict(sample_document(rate=60, seed=2), disturbance={'other_cpu_share': 0.3, 'steal_share': 0.1})
    quiet, disturbed = estimate([sample_record(rate=100, seed=1)]), estimate([Record('busy.json', document)])
    assert disturbed.share_of_others == pytest.approx(0.4)
    assert compare(quiet, disturbed).verdict is Significance.SAME
    assert compare(quiet, disturbed, given_spread(0.02)).verdict is Significance.SLOWER
    on_gpu = dict(document, run={**document['run'], 'device': 'gpu'})
    assert estimate([Record('gpu.json', on_gpu)]).share_of_others == 0


def test_equal_runs_whose_processes_differ_are_seldom_called_different() -> None:
    draw = np.random.default_rng(3)
    records = []
    for number in range(120):
        kind = Kind(100, 0.5, has_bursts=True)
        seconds = steps_of_run(draw, kind, 0.01 * math.exp(draw.normal(0, 0.05)))
        records.append(sample_record(seconds=seconds, seed=number))
    sides = [estimate([record]) for record in records]
    ratios = [compare(before, after) for before, after in zip(sides[::2], sides[1::2], strict=True)]
    assert sum(ratio.is_significant for ratio in ratios) <= 3


def test_the_clock_counts_what_lies_between_steps_or_not() -> None:
    quick, printing = sample_record(gap=0.0), sample_record(gap=0.08)
    wall, steps = (
        compare(estimate([quick], clock), estimate([printing], clock)) for clock in (Clock.WALL, Clock.STEPS)
    )
    assert wall.value == pytest.approx(0.32 / 0.4, rel=0.02)
    assert steps.value == pytest.approx(1)


def test_a_run_of_few_steps_has_a_rate_but_no_verdict() -> None:
    few = estimate([sample_record(seconds=step_seconds(num_steps=MIN_STEPS - 1))])
    assert few.interval is None
    found = compare(few, estimate([sample_record()]))
    assert (found.interval, found.verdict) == (None, Significance.FEW_STEPS)
    assert not found.is_significant


def test_hopelessly_noisy_runs_are_told_instead_of_an_absurd_interval() -> None:
    noisy = estimate([sample_record(seconds=[0.001] * 50 + [1e6], gap=0)])
    found = compare(noisy, noisy, given_spread(1e9))
    assert (found.interval, found.threshold, found.verdict) == (None, None, Significance.DISTURBED)
    # A difference that even these show is still one.
    wild = [estimate([sample_record(rate=factor * rate) for rate in (100, 200, 300)]) for factor in (1, 1.1, 1e6)]
    assert compare(wild[0], wild[1]).verdict is Significance.DISTURBED
    found = compare(wild[0], wild[2])
    assert (found.interval, found.verdict) == (None, Significance.FASTER)


def test_two_runs_of_each_setting_have_no_interval_and_no_verdict() -> None:
    before, after = (estimate([sample_record(rate=rate + number) for number in (0, 1)]) for rate in (100, 50))
    found = compare(before, after)
    assert (before.interval, found.interval, found.verdict) == (None, None, Significance.FEW_RUNS)
    assert compare(before, estimate([sample_record()])).verdict is Significance.FEW_RUNS
