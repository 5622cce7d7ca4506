"""How often a slow host among others is found, and a wrong one named, by simulation; which links
are called slow, and which hosts cannot be used.

python -m tests.lab.test_hosts prints the table of docs/acceptance.md, with two more columns.
"""

import itertools
import json
import math
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.outputs import check_line, refused
from tests.support.sample_results import command_document
from tf_cnn.lab.links import describe_links, links
from tf_cnn.lab.rows import Row
from tf_cnn.lab.sources import find_unusable_hosts
from tf_cnn.launch.remote import line_mark, versions
from tf_cnn.launch.ssh import SshTarget
from tf_cnn.results.document import read_document
from tf_cnn.results.ratios import compare, compare_with_others, estimate_runs, variance_of_median

pytestmark = pytest.mark.unit


NAMES = [f'node{number}' for number in range(1, 9)]
COMMAND: Any = read_document(json.dumps(command_document(20, 100)), 'command.json')


def clauses(
    count: int, parts: Mapping[str, float], spread: float = 0.03, seed: int = 0
) -> list[str]:
    """Simulates three runs of all pairs of `count` hosts; returns what is said about them.

    parts: what part of 100 a host ('node2'), or a pair ('node1 node2'), reaches at most.
    """
    generator = random.Random(seed)
    rows = []
    for pair in itertools.combinations(NAMES[:count], 2):
        part = min([1, *(part for names, part in parts.items() if {*names.split()} <= {*pair})])
        rates = [100 * part * generator.lognormvariate(0, spread) for _ in range(3)]
        setting = {'pair': ' with '.join(pair)}
        runs = [
            msgspec.structs.replace(COMMAND, flags=setting, rates={'rate': rate}) for rate in rates
        ]
        rows.append(Row(setting=setting, runs=tuple(runs), facts={'host': None}))
    return describe_links([*links(0.8)(rows)])


@pytest.mark.parametrize(
    ('count', 'parts', 'expected'),
    [
        (3, {'node2': 0.2}, ["node2's link is slow: 0.20 of the others' (2 of 2 pairs)"]),
        (3, {'node1 node2': 0.3}, ['only node1 with node2: 0.30 of the others']),
        (
            4,
            {'node2': 0.2, 'node3': 0.2},
            [
                "node2's link is slow: 0.20 of the others' (3 of 3 pairs)",
                "node3's link is slow: 0.20 of the others' (3 of 3 pairs)",
            ],
        ),
        (
            8,
            {'node4': 0.21, 'node1 node2': 0.3},
            [
                "node4's link is slow: 0.21 of the others' (7 of 7 pairs)",
                'only node1 with node2: 0.30 of the others',
            ],
        ),
        (
            4,
            {'node1 node2': 0.3, 'node2 node3': 0.3},
            ["node2's link is slow: 0.30 of the others' (2 of 3 pairs)"],
        ),
        (
            8,
            {'node4 node7': 0.5, 'node1 node2': 0.5},
            [
                'only node1 with node2: 0.50 of the others',
                'only node4 with node7: 0.50 of the others',
            ],
        ),
        (8, {}, ['all links agree within 0 % (28 pairs, 100 to 100 rates per second)']),
        (
            3,
            {'node1 node2': 0.95},
            ['all links agree within 5 % (3 pairs, 95.0 to 100 rates per second)'],
        ),
        # Nothing to compare with.
        (
            2,
            {'node2': 0.2},
            ['20.0 to 20.0 rates per second: a slow link shows only among three hosts or more'],
        ),
        (
            3,
            {'node1': 0.2, 'node2': 0.2},
            ['all links agree within 0 % (3 pairs, 20.0 to 20.0 rates per second)'],
        ),
        (
            3,
            {'node1 node2': 0.85, 'node2 node3': 0.75},
            [
                'no link stands out as slow, but 3 pairs differ by 1.3 times (75.0 to 100 rates '
                'per second)'
            ],
        ),
    ],
)
def test_a_slow_link_is_its_hosts_and_a_slow_pair_is_only_this_pair(count, parts, expected):
    assert clauses(count, parts, spread=0) == expected
    # Noise changes the numbers alone.
    words = [
        [re.findall('[a-z]+', line) for line in lines]
        for lines in (expected, clauses(count, parts))
    ]
    assert words[0] == words[1]


@pytest.mark.parametrize(('spread', 'most_wrong'), [(0.05, 0), (0.1, 4)])
def test_three_rounds_find_a_link_of_half_the_rate_and_hardly_any_other(spread, most_wrong):
    fleets = [(count, seed) for count in (3, 4, 8) for seed in range(50)]
    wrong = [' '.join(clauses(count, {}, spread, seed)) for count, seed in fleets]
    assert sum('link is slow' in line or 'only' in line for line in wrong) <= most_wrong
    for count, seed in fleets:
        assert "node2's link" in ' '.join(clauses(count, {'node2': 0.5}, spread, seed))


def target_with(folder: Path, **answers: str) -> SshTarget:
    """Returns a target with an ssh that prints the answer of each host; others do not exist."""
    for name, answer in answers.items():
        (folder / name).write_text(answer)
    ssh = folder / 'ssh'
    ssh.write_text(
        '#!/bin/sh\nfor word; do host=$last; last=$word; done\ncd "${0%/*}"\n'
        'cat "$host" && exit; exit 255\n'
    )
    ssh.chmod(0o700)
    return SshTarget((str(ssh),), '/python', '/folder', '/', 'token')


def answer_of(hostname: str, **changes: str) -> str:
    answer = {'hostname': hostname, 'versions': {**versions(), **changes}, 'tasks': []}
    return f'{line_mark("token")}{json.dumps(answer)}\n'


def test_hosts_of_another_version_and_hosts_that_do_not_answer_cannot_be_used(tmp_path, capsys):
    answers = {
        'a': answer_of('a.example'),
        'b': answer_of('b', TensorFlow='1.0'),
        'c': answer_of('d'),
        'e': "ModuleNotFoundError: No module named 'msgspec'\n",
        'f': 'sh: no such file\n',
    }
    problems = find_unusable_hosts('abcefx', target_with(tmp_path, **answers))
    assert [*problems] == ['b', 'e', 'f', 'x']
    # What a host lacks comes with the command that installs it.
    check_line(problems['e'], 'msgspec', 'e /python -m pip install')
    check_line(problems['f'], 'no such file', '--remote_dir=/folder', '--remote_python=/python')
    check_line(problems['b'], 'TensorFlow 1.0')
    check_line(problems['x'], 'cannot connect')
    assert capsys.readouterr().err == 'c is the host d\n'


def test_two_names_of_one_host_and_two_hosts_of_one_name_are_refused(tmp_path):
    target = target_with(tmp_path, a=answer_of('node'), b=answer_of('b'), c=answer_of('node'))
    with refused('a', 'c', 'both', 'node'):
        find_unusable_hosts('abc', target)


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
