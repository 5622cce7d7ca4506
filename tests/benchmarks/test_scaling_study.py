"""The study of predicted clusters: what it takes for the measured limit."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import scaling_study
from benchmarks.command_runs import RunFailedError
from scaling.links import LinkRow

pytestmark = pytest.mark.unit

TWO_SERVERS, RING = scaling_study._clusters("""
4 1000 distributed_replicated 2 resnet50 fp32
2  100 collective_all_reduce  0 lenet    fp32
""")
ROW = LinkRow('parameter_servers', 'float32', 4, 4, 1, 2, 1000, 3, 500, 2.9, 'resnet50')


def outcome(computing: float, exchange: float, limit: str) -> scaling_study._Outcome:
    predicted = {'images_per_second': 3.0, 'low': 2.6, 'high': 3.4, 'limit': limit}
    return scaling_study._Outcome(TWO_SERVERS, predicted, 2.7, computing, exchange, 6.0)


@pytest.mark.parametrize(
    ('computing', 'exchange', 'limits'),
    [
        # Neither takes half of the 6 seconds, and the rest is waiting and crowding.
        (2.64, 2.1, {'compute'}),
        (2.1, 2.64, {'network', "a parameter server's link", 'sums in the host', 'latency'}),
        # Both take more than half of them, since one hides a part of the other.
        (3.5, 5.0, {'network', "a parameter server's link", 'sums in the host', 'latency'}),
        (5.0, 3.5, {'compute'}),
    ],
)
def test_the_limit_is_what_takes_longer_alone(computing: float, exchange: float, limits: set[str]) -> None:
    names = ('compute', 'network', "a parameter server's link", 'sums in the host', 'latency')
    assert {name for name in names if outcome(computing, exchange, name).is_limit_right} == limits


def test_the_table_has_both_as_a_part_of_the_step() -> None:
    head, _, row = scaling_study._table([outcome(2.64, 2.1, 'compute')]).splitlines()
    cells = dict(zip(map(str.strip, head.split('|')), map(str.strip, row.split('|')), strict=True))
    assert (cells['step s'], cells['of it computing'], cells['exchange alone']) == ('6.000', '44%', '35%')


def test_the_exchange_alone_is_that_of_just_the_cluster() -> None:
    changes: list[dict[str, Any]] = [
        {'servers': 1},
        {'workers': 2},
        {'hosts': 5, 'server_hosts': 1},
        {'slices': False},
        {'model': 'lenet'},
        {'exchange': 'collective', 'servers': 0},
    ]
    others = [replace(ROW, seconds=1.0, **change) for change in changes]
    assert scaling_study.exchange_alone(TWO_SERVERS, [*others, ROW]) == 2.9
    ring = replace(ROW, exchange='collective', servers=0, hosts=2, workers=2, model='lenet', seconds=0.7)
    assert scaling_study.exchange_alone(RING, [ROW, ring]) == 0.7
    with pytest.raises(RunFailedError, match='distributed_replicated, 2 ps'):
        scaling_study.exchange_alone(TWO_SERVERS, others)
