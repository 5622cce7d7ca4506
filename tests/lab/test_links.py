"""Which links between hosts are called slow, and which hosts cannot be used."""

import itertools
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.outputs import check_line, refused
from tests.support.sample_results import command_document
from tf_cnn.lab.links import describe_links, links
from tf_cnn.lab.rows import Row
from tf_cnn.lab.sources import find_unusable_hosts
from tf_cnn.launch.remote import line_mark, versions
from tf_cnn.launch.ssh import SshTarget
from tf_cnn.results.document import read_document

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
    }
    problems = find_unusable_hosts('abcx', target_with(tmp_path, **answers))
    assert [*problems] == ['b', 'x']
    check_line(problems['b'], 'TensorFlow 1.0')
    check_line(problems['x'], 'cannot connect')
    assert capsys.readouterr().err == 'c is the host d\n'


def test_two_names_of_one_host_and_two_hosts_of_one_name_are_refused(tmp_path):
    target = target_with(tmp_path, a=answer_of('node'), b=answer_of('b'), c=answer_of('node'))
    with refused('a', 'c', 'both', 'node'):
        find_unusable_hosts('abc', target)
