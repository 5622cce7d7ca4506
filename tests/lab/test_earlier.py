"""The earlier runs of a setting judge the next one."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.lab.sample_folders import write_runs
from tests.support.programs import run_main
from tests.support.sample_results import cut_off
from tf_cnn.lab.earlier import SPREAD_MULTIPLES, expected_throughput

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
