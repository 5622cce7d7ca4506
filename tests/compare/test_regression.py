"""The earlier runs of a setting judge the next one."""

import math
from typing import Any

import numpy as np
import pytest

from tests.support.sample_results import cut_off, record_of, sample_document
from tf_cnn.compare.regression import SPREAD_MULTIPLES, check_regression, expected_throughput
from tf_cnn.results.document import Result

pytestmark = pytest.mark.unit


def a_run(number: int, rate: float = 100.0, **changes: Any) -> dict[str, Any]:
    document = sample_document(
        rate=rate, seed=number, started_at=f'2026-10-01T{number:02}:00:00Z', **changes
    )
    return {**document, 'id': f'run-{number}'}


def as_records(documents: list[dict[str, Any]]) -> list[Result]:
    return [record_of(document) for document in documents]


@pytest.mark.parametrize(('noise', 'share'), [(0.03, 0.06), (0.005, 0.01)])
@pytest.mark.parametrize('count', [*SPREAD_MULTIPLES, 30])
def test_at_most_one_in_20_of_equal_runs_is_called_slower_or_faster(
    count: int, noise: float, share: float
) -> None:
    # What differs by less than the least tolerance is as before; few runs do not show that.
    if noise == 0.005 and count < 6:
        return
    found = 0
    for rates in 100 * np.exp(np.random.default_rng(count).normal(0, noise, (4000, count + 1))):
        *earlier, rate = rates.tolist()
        low, high = expected_throughput(earlier)[1] or (0, math.inf)
        found += not low <= rate <= high
    # 3 standard errors of 5 % in 4000 are 1 %.
    assert found / 4000 <= share


def test_a_shift_is_seen_at_once_and_becomes_the_new_level() -> None:
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


def test_equal_runs_still_tolerate_2_percent() -> None:
    runs = as_records([a_run(number, seconds=[3.2, 3.2]) for number in range(6)])
    assert check_regression(runs[5:], runs).verdict == 'as before'
    too_short = as_records([a_run(6, seconds=[0.16] * 2)])
    assert check_regression(too_short, runs).verdict == 'too short to judge'
    for rate, verdict in ((9.85, 'as before'), (9.75, 'slower than the 5 runs before')):
        new = as_records([a_run(6, seconds=[32 / rate] * 2)])
        assert check_regression(new, runs[:5]).verdict == verdict


def test_a_run_is_judged_by_the_last_runs_of_its_setting_on_its_machine() -> None:
    draw = np.random.default_rng(2)
    history = []
    for number in range(17):
        run = a_run(number, (100 if number < 7 else 90) * math.exp(draw.normal(0, 0.005)))
        run['program']['git_commit'] = 'abc' if number < 9 else 'def'
        run['machine']['versions']['tensorflow'] = '2.20.0'
        history.append(run)
    # These do not count.
    history += [
        a_run(17, 10, flags={'batch_size': 64}),
        a_run(18, 10, machine={'hostname': 'beta'}),
        a_run(19, 10, **cut_off('interrupted')),
    ]
    found = check_regression(as_records([a_run(20, 90.2)]), as_records(history))
    assert found.verdict == 'as before'
    assert (found.num_earlier, found.num_compared) == (17, 10)
    assert found.median == pytest.approx(90, rel=0.01)
    assert found.changes['versions.tensorflow'] == ('2.20.0', '2.21.0')
    assert found.changes['program.git_commit'] == ('abc', 'def')
    slower = check_regression(as_records([a_run(20, 86)]), as_records(history))
    assert (slower.verdict, slower.is_slower) == ('slower than the 10 runs before', True)
    assert (
        check_regression(as_records([a_run(20, 96)]), as_records(history)).verdict
        == 'faster than the 10 runs before'
    )


def test_too_few_runs_and_runs_that_differ_too_much_give_no_verdict() -> None:
    runs = as_records([a_run(number) for number in range(3)])
    found = check_regression(runs[2:], runs)
    assert (found.verdict, found.interval, found.is_slower) == ('too few runs: 2 of 3', None, False)
    runs = as_records(
        [a_run(number, rate) for number, rate in enumerate((20, 400, 90, 1500, 5, 700))]
    )
    found = check_regression(runs[5:], runs)
    assert (found.verdict, found.interval) == ('the runs before differ too much', None)


def test_later_runs_do_not_judge_earlier_ones() -> None:
    runs = as_records([a_run(number) for number in range(8)])
    assert check_regression(runs[:1], runs).num_earlier == 0
