"""Which hosts cannot be used, the pairs of hosts, and which links are called slow."""

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.outputs import check_line, refused
from tf_cnn.launch.remote import line_mark, versions
from tf_cnn.launch.ssh import SshTarget
from tf_cnn.sweep.fleet import describe_spread, find_slow_links, find_unusable_hosts, pair_up

pytestmark = pytest.mark.unit

NAMES = [f'node{number}' for number in range(1, 9)]


def rates_of(
    count: int, parts: Mapping[str, float], spread: float = 0.03, num_rounds: int = 3, seed: int = 0
) -> dict[frozenset[str], list[float]]:
    """Simulates the MB/s of all pairs of `count` hosts.

    parts: what part of 100 MB/s a host ('node2'), or a pair ('node1 node2'), reaches at most.
    """
    generator = random.Random(seed)
    rates = {}
    for pair in map(frozenset, itertools.combinations(NAMES[:count], 2)):
        part = min([1, *(part for names, part in parts.items() if {*names.split()} <= pair)])
        rates[pair] = [100 * part * generator.lognormvariate(0, spread) for _ in range(num_rounds)]
    return rates


def slow_links(
    count: int, parts: Mapping[str, float], spread: float = 0.03, seed: int = 0
) -> list[str]:
    rates = rates_of(count, parts, spread=spread, seed=seed)
    return [line.partition(':')[0] for line in find_slow_links(NAMES[:count], rates, 0.8)]


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
    }
    problems = find_unusable_hosts('abcx', target_with(tmp_path, **answers))
    assert [*problems] == ['b', 'x']
    check_line(problems['b'], 'b: ', 'TensorFlow 1.0')
    check_line(problems['x'], 'x: ', 'cannot connect')
    assert capsys.readouterr().err == 'c is the host d\n'


def test_two_names_of_one_host_and_two_hosts_of_one_name_are_refused(tmp_path):
    target = target_with(tmp_path, a=answer_of('node'), b=answer_of('b'), c=answer_of('node'))
    with refused('a', 'c', 'both', 'node'):
        find_unusable_hosts('abc', target)


@pytest.mark.parametrize('count', range(2, 9))
def test_each_pair_meets_once_and_disjoint_pairs_at_the_same_time(count):
    rounds = pair_up(NAMES[:count])
    assert len(rounds) == count - 1 + count % 2
    pairs = [frozenset(pair) for simultaneous in rounds for pair in simultaneous]
    assert sorted(map(sorted, pairs)) == sorted(map(list, itertools.combinations(NAMES[:count], 2)))
    for simultaneous in rounds:
        assert len({*itertools.chain(*simultaneous)}) == 2 * len(simultaneous) == count // 2 * 2


def test_a_slow_link_is_its_hosts_and_a_slow_pair_is_only_this_pair():
    for count, parts, lines in (
        (3, {'node2': 0.2}, ["node2's link is slow"]),
        (3, {'node1 node2': 0.3}, ['only node1 with node2']),
        (4, {'node2': 0.2, 'node3': 0.2}, ["node2's link is slow", "node3's link is slow"]),
        (4, {'node2': 0.2, 'node1 node3': 0.3}, ["node2's link is slow", 'only node1 with node3']),
        (8, {'node4': 0.5}, ["node4's link is slow"]),
        (
            8,
            {'node4 node7': 0.5, 'node1 node2': 0.5},
            ['only node1 with node2', 'only node4 with node7'],
        ),
        (8, {'node4': 0.95}, []),
        # Nothing to compare with.
        (2, {'node2': 0.2}, []),
        (3, {'node1': 0.2, 'node2': 0.2}, []),
    ):
        assert slow_links(count, parts) == lines, parts


def test_a_slow_link_is_told_with_its_part_and_its_pairs():
    rates = rates_of(8, {'node4': 0.21, 'node1 node2': 0.3}, spread=0)
    rates[frozenset({'node4', 'node8'})] = []
    assert [*find_slow_links(NAMES, rates, 0.8)] == [
        "node4's link is slow: 0.21 of the others' (6 of 6 pairs)",
        'only node1 with node2: 0.30',
    ]


def test_a_pair_that_was_slow_once_is_not_called_slow():
    rates = rates_of(4, {})
    rates[frozenset({'node1', 'node2'})][0] = 10
    assert not [*find_slow_links(NAMES[:4], rates, 0.8)]


@pytest.mark.parametrize(('spread', 'most_wrong'), [(0.05, 0), (0.1, 4)])
def test_three_rounds_find_a_link_of_half_the_rate_and_hardly_any_other(spread, most_wrong):
    fleets = [(count, seed) for count in (3, 4, 8) for seed in range(50)]
    wrong = [slow_links(count, {}, spread=spread, seed=seed) for count, seed in fleets]
    assert sum(map(bool, wrong)) <= most_wrong
    lines = [slow_links(count, {'node2': 0.5}, spread=spread, seed=seed) for count, seed in fleets]
    assert all("node2's link is slow" in names for names in lines)


def test_without_a_slow_link_the_agreement_is_told():
    for count, parts, facts in (
        (8, {}, ('agree within 0 %', '28 pairs', '100 to 100 MB/s')),
        (3, {'node1 node2': 0.9}, ('agree within 11 %', '90.0 to 100 MB/s')),
        (2, {}, ('100 MB/s', 'three hosts')),
        # A slow link between two groups of hosts makes most pairs slow.
        (3, {'node1 node2': 0.5, 'node2 node3': 0.6}, ('differ by 2 times', '50.0 to 100 MB/s')),
    ):
        text = describe_spread(rates_of(count, parts, spread=0), 0.8)
        assert all(fact in text for fact in facts), text
