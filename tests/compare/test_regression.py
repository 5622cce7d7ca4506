"""The earlier runs of a setting judge the next one."""

import math
from typing import Any

import numpy as np
import pytest

from tests.support.sample_results import cut_off, record_of, sample_document
from tf_cnn.compare.regression import SPREAD_MULTIPLES, check_regression, expected_throughput
from tf_cnn.results.document import Result

pytestmark = pytest.mark.unit


def a_run(number: int, rate: float = 100.0, **changes: Any) -> Result:
    start = f'2026-10-01T{number:02}:00:00Z'
    document = sample_document(rate=rate, seed=number, started_at=start, **changes)
    return record_of({**document, 'id': f'run-{number}'})


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


def test_equal_runs_still_tolerate_2_percent():
    runs = [a_run(number, rate=10, noise=0) for number in range(6)]
    assert check_regression(runs[5:], runs).verdict == 'as before'
    for rate, verdict in ((9.85, 'as before'), (9.75, 'slower than the 5 runs before')):
        assert check_regression([a_run(6, rate, noise=0)], runs[:5]).verdict == verdict
    too_short = check_regression([a_run(6, seconds=[0.16] * 2)], runs)
    assert (too_short.verdict, too_short.is_slower) == ('too short to judge', False)


def test_a_run_is_judged_by_the_last_runs_of_its_setting_on_its_machine():
    history = [
        a_run(
            number,
            rate=100 if number < 7 else 90,
            program={'git_commit': 'abc' if number < 9 else 'def'},
            machine={'versions': {'tensorflow': '2.20.0', 'python': '3.11.7'}},
        )
        for number in range(17)
    ]
    do_not_count = [
        a_run(17, 10, flags={'batch_size': 64}),
        a_run(18, 10, machine={'hostname': 'beta'}),
        a_run(19, 10, **cut_off('interrupted')),
    ]
    for rate, verdict in (
        (86, 'slower than the 10 runs before'),
        (90.2, 'as before'),
        (96, 'faster than the 10 runs before'),
    ):
        new = a_run(20, rate, program={'git_commit': 'def'})
        check = check_regression([new], history + do_not_count)
        assert (check.verdict, check.is_slower) == (verdict, rate == 86)
        assert (check.num_earlier, check.num_compared) == (17, 10)
        assert check.median == pytest.approx(90, rel=0.01)
        assert check.ratio == pytest.approx(rate / 90, rel=0.01)
        assert check.changes['versions.tensorflow'] == ('2.20.0', '2.21.0')
        assert check.changes['program.git_commit'] == ('abc', 'def')


def test_too_few_runs_and_runs_that_differ_too_much_give_no_verdict():
    for rates, verdict in (
        ((100, 100, 100), 'too few runs: 2 of 3'),
        ((20, 400, 90, 1500, 5, 700), 'the runs before differ too much'),
    ):
        *earlier, new = (a_run(number, rate) for number, rate in enumerate(rates))
        check = check_regression([new], earlier)
        assert (check.verdict, check.expected, check.is_slower) == (verdict, None, False)


def test_later_runs_do_not_judge_earlier_ones():
    first, *later = (a_run(number) for number in range(8))
    assert check_regression([first], later).num_earlier == 0
