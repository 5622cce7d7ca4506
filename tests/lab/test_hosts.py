"""How often a slow host among others is found, and a wrong one named: by simulation."""

import math

import numpy as np
import pytest

from tests.lab.host_simulation import (
    EQUAL,
    FIFTH,
    HOSTS,
    SLOW,
    SLOW_AND_WILD,
    WIDE,
    WILD,
    simulate,
)
from tf_cnn.results.ratios import variance_of_median

pytestmark = pytest.mark.unit


def num_trials(num_hosts: int) -> int:
    return max(40, 800 // num_hosts)


def tolerance(trials: int, share: float = 0.05) -> float:
    """Four standard errors of a simulated share."""
    return 4 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.parametrize('num_runs', [3, 5, 10])
def test_one_of_20_collections_of_equal_hosts_has_a_host_that_is_called_different(num_runs):
    shares = {hosts: simulate(EQUAL, hosts, num_runs, num_trials(hosts))[1] for hosts in HOSTS}
    assert all(share <= 0.05 + tolerance(num_trials(hosts)) for hosts, share in shares.items())
    mean = np.average([*shares.values()], weights=[*map(num_trials, HOSTS)])
    assert 0.02 < mean < 0.065


@pytest.mark.parametrize('num_hosts', HOSTS)
def test_a_host_with_a_wild_run_makes_no_host_slow(num_hosts):
    trials = num_trials(num_hosts)
    assert simulate(WILD, num_hosts, 3, trials)[1] <= 0.05 + tolerance(trials)


@pytest.mark.parametrize('num_hosts', HOSTS[1:])
def test_a_slow_host_is_found_and_the_others_are_not_blamed(num_hosts):
    trials = num_trials(num_hosts)
    for scenario in (SLOW, FIFTH, *([SLOW_AND_WILD] if num_hosts > 4 else [])):
        slow_share, wrong_share = simulate(scenario, num_hosts, 3, trials)
        assert slow_share >= 0.8 - tolerance(trials, 0.2)
        assert wrong_share <= 0.08 + tolerance(trials)
        assert simulate(scenario, num_hosts, 5, trials // 3)[0] >= 0.95


@pytest.mark.parametrize(('num_hosts', 'most'), [(4, 0.08), (8, 0.1), (32, 0.2)])
def test_unequal_spreads_name_more_hosts_but_not_many(num_hosts, most):
    trials = num_trials(num_hosts)
    assert simulate(WIDE, num_hosts, 3, trials)[1] <= most + tolerance(trials, most)


def test_the_variance_of_a_median_is_exact():
    # Sarhan and Greenberg 1962, Contributions to Order Statistics, table 10C.1.
    assert [variance_of_median(size) for size in (1, 3, 5, 9)] == pytest.approx(
        [1, 0.44867, 0.28683, 0.16610], abs=1e-5
    )
