"""How often compare_with_others finds a slow host and names a wrong one, simulated.

python -m tests.lab.host_simulation prints the table of docs/acceptance.md, with two more columns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tf_cnn.results.ratios import Ratio, compare, compare_with_others, estimate_runs

HOSTS = (2, 3, 4, 8, 32, 64)
SPREAD = 0.03


@dataclass(frozen=True)
class Scenario:
    """Hosts with normal log rates.

    Attributes:
      slow_rate: the rate of slow hosts, if others have 1.
      slow_share: how many are slow; at least one.
      wide_share: how many have twice the spread.
      wild_rate: by how much the first run of the first host is slower than its other runs.
    """

    slow_rate: float = 1.0
    slow_share: float = 0.0
    wide_share: float = 0.0
    wild_rate: float = 1.0


EQUAL = Scenario()
WIDE = Scenario(wide_share=0.5)
WILD = Scenario(wild_rate=0.5)
SLOW = Scenario(slow_rate=0.9)
FIFTH = Scenario(slow_rate=0.9, slow_share=0.2)
SLOW_AND_WILD = Scenario(slow_rate=0.9, wild_rate=0.5)


def ratios_of(rates: NDArray[np.float64]) -> list[Ratio]:
    estimates = [*map(estimate_runs, rates)]
    if len(estimates) == 2:
        return [compare(*estimates[::-1]), compare(*estimates)]
    medians = np.median(rates, axis=1).tolist()
    return [ratio for ratio, _ in compare_with_others(estimates, medians)]


def simulate(scenario: Scenario, num_hosts: int, num_runs: int, trials: int) -> tuple[float, float]:
    """Returns the share of slow hosts that are called slower, and the share of collections in which
    another host is called slower or faster.
    """
    draw = np.random.default_rng([num_hosts, num_runs])
    num_slow = max(1, int(scenario.slow_share * num_hosts)) if scenario.slow_rate < 1 else 0
    spreads = np.full((num_hosts, 1), SPREAD)
    spreads[: int(scenario.wide_share * num_hosts)] *= 2
    num_found = num_wrong = 0
    for _ in range(trials):
        rates = np.exp(draw.normal(0, spreads, (num_hosts, num_runs)))
        rates[num_hosts - num_slow :] *= scenario.slow_rate
        rates[0, 0] *= scenario.wild_rate
        ratios = ratios_of(rates)
        slow_ratios = ratios[num_hosts - num_slow :]
        num_found += sum(ratio.is_significant and ratio.value < 1 for ratio in slow_ratios)
        num_wrong += any(ratio.is_significant for ratio in ratios[: num_hosts - num_slow])
    return num_found / max(1, num_slow) / trials, num_wrong / trials


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
        for scenario, index in columns.values():
            shares = [simulate(scenario, num_hosts, runs, 2000)[index] for runs in (3, 5, 10)]
            cells.append(' / '.join(f'{100 * share:.0f}' for share in shares) + ' %')
        print(f'| {num_hosts} |', ' | '.join(cells), '|', flush=True)


if __name__ == '__main__':
    main()
