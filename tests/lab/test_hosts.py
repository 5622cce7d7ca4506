"""How often a slow host among others is found, and a wrong one named: by simulation.

python -m tests.lab.test_hosts prints the table of docs/acceptance.md, with two more columns.
"""

import math

import numpy as np
import pytest

from tf_cnn.lab.ratios import compare, compare_with_others, estimate_runs, variance_of_median

pytestmark = pytest.mark.unit


HOSTS = (2, 3, 4, 8, 32, 64)
SPREAD = 0.03


# Settings of simulate(): hosts with a slow one, or a fifth of them slow, and so on.
EQUAL: dict[str, float] = {}
WIDE, WILD, SLOW = {'wide_share': 0.5}, {'wild_rate': 0.5}, {'slow_rate': 0.9}
FIFTH, SLOW_AND_WILD = SLOW | {'slow_share': 0.2}, SLOW | WILD


def simulate(
    num_hosts: int,
    num_runs: int,
    trials: int,
    slow_rate: float = 1.0,
    slow_share: float = 0.0,
    wide_share: float = 0.0,
    wild_rate: float = 1.0,
) -> tuple[float, float]:
    """Returns the share of slow hosts that are called slower, and the share of collections in which
    another host is called slower or faster. Hosts have normal log rates.

    Args:
      slow_rate: the rate of slow hosts, if others have 1.
      slow_share: how many are slow; at least one.
      wide_share: how many have twice the spread.
      wild_rate: by how much the first run of the first host is slower than its other runs.
    """
    draw = np.random.default_rng([num_hosts, num_runs])
    num_slow = max(1, int(slow_share * num_hosts)) if slow_rate < 1 else 0
    spreads = np.full((num_hosts, 1), SPREAD)
    spreads[: int(wide_share * num_hosts)] *= 2
    num_found = num_wrong = 0
    for _ in range(trials):
        rates = np.exp(draw.normal(0, spreads, (num_hosts, num_runs)))
        rates[num_hosts - num_slow :] *= slow_rate
        rates[0, 0] *= wild_rate
        estimates = [*map(estimate_runs, rates)]
        if num_hosts == 2:
            ratios = [compare(*estimates[::-1]), compare(*estimates)]
        else:
            medians = np.median(rates, axis=1).tolist()
            ratios = [ratio for ratio, _ in compare_with_others(estimates, medians)]
        slow_ratios = ratios[num_hosts - num_slow :]
        num_found += sum(ratio.is_significant and ratio.value < 1 for ratio in slow_ratios)
        num_wrong += any(ratio.is_significant for ratio in ratios[: num_hosts - num_slow])
    return num_found / max(1, num_slow) / trials, num_wrong / trials


def num_trials(num_hosts: int) -> int:
    return max(40, 800 // num_hosts)


def tolerance(trials: int, share: float = 0.05) -> float:
    """Four standard errors of a simulated share."""
    return 4 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.parametrize('num_runs', [3, 5, 10])
def test_one_of_20_collections_of_equal_hosts_has_a_host_that_is_called_different(num_runs):
    shares = {hosts: simulate(hosts, num_runs, num_trials(hosts))[1] for hosts in HOSTS}
    assert all(share <= 0.05 + tolerance(num_trials(hosts)) for hosts, share in shares.items())
    mean = np.average([*shares.values()], weights=[*map(num_trials, HOSTS)])
    assert 0.02 < mean < 0.065


@pytest.mark.parametrize('num_hosts', HOSTS)
def test_a_host_with_a_wild_run_makes_no_host_slow(num_hosts):
    trials = num_trials(num_hosts)
    assert simulate(num_hosts, 3, trials, **WILD)[1] <= 0.05 + tolerance(trials)


@pytest.mark.parametrize('num_hosts', HOSTS[1:])
def test_a_slow_host_is_found_and_the_others_are_not_blamed(num_hosts):
    trials = num_trials(num_hosts)
    for scenario in (SLOW, FIFTH, *([SLOW_AND_WILD] if num_hosts > 4 else [])):
        slow_share, wrong_share = simulate(num_hosts, 3, trials, **scenario)
        assert slow_share >= 0.8 - tolerance(trials, 0.2)
        assert wrong_share <= 0.08 + tolerance(trials)
        assert simulate(num_hosts, 5, trials // 3, **scenario)[0] >= 0.95


@pytest.mark.parametrize(('num_hosts', 'most'), [(4, 0.08), (8, 0.1), (32, 0.2)])
def test_unequal_spreads_name_more_hosts_but_not_many(num_hosts, most):
    trials = num_trials(num_hosts)
    assert simulate(num_hosts, 3, trials, **WIDE)[1] <= most + tolerance(trials, most)


def test_the_variance_of_a_median_is_exact():
    # Sarhan and Greenberg 1962, Contributions to Order Statistics, table 10C.1.
    assert [variance_of_median(size) for size in (1, 3, 5, 9)] == pytest.approx(
        [1, 0.44867, 0.28683, 0.16610], abs=1e-5
    )


def main() -> None:
    columns = {
        'equal': (EQUAL, 1),
        'half with twice the spread': (WIDE, 1),
        'one wild run': (WILD, 1),
        'one slow: found': (SLOW, 0),
        'a fifth slow: found': (FIFTH, 0),
        'others named': (FIFTH, 1),
        'one slow, one wild run: found': (SLOW_AND_WILD, 0),
    }
    print('| hosts |', ' | '.join(columns), '|')
    for num_hosts in HOSTS:
        cells = []
        for settings, index in columns.values():
            shares = [simulate(num_hosts, runs, 2000, **settings)[index] for runs in (3, 5, 10)]
            cells.append(' / '.join(f'{100 * share:.0f}' for share in shares) + ' %')
        print(f'| {num_hosts} |', ' | '.join(cells), '|', flush=True)


if __name__ == '__main__':
    main()
