"""Contestants take turns, disturbed turns are repeated, and ratios have the intervals of `compare`."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from benchmarks.command_runs import Results, RunFailedError, run_command, take_runs
from benchmarks.peers.measuring import run_steps
from benchmarks.standings import Measure, Throughput, format_report, paired_ratio
from benchmarks.turns import Turn, order_of_round, take_turns
from comparison.changes import make_rows
from comparison.ratios import Clock, Significance, compare, estimate
from comparison.sides import read_side
from hardware.meters import Disturbances
from results import document as record
from results.document import Record, read_file
from tests.support.sample_results import sample_document

pytestmark = pytest.mark.unit

SECONDS = Measure[float]('s', lambda seconds: seconds, is_cost=True, is_paired=True)
RATE = Measure[float]('images/sec', lambda seconds: 1 / seconds, is_paired=True)
SCHEMA = jsonschema.Draft202012Validator(json.loads(Path(record.__file__).with_name('result.schema.json').read_text()))
FAKE = Path(__file__).resolve().parent.parent / 'support' / 'fake_benchmark.py'


def as_turns(values: list[float]) -> list[Turn[float]]:
    return [Turn(value, None) for value in values]


@pytest.mark.parametrize('names', ['ab', 'abc', 'abcd'])
def test_each_contestant_comes_first_and_last_equally_often(names: str) -> None:
    rounds = [order_of_round(list(names), number) for number in range(1, 2 * len(names) + 1)]
    for name in names:
        assert [order[0] for order in rounds].count(name) == 2
        assert [order[-1] for order in rounds].count(name) == 2


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Callable[[], Disturbances], Callable[[int], None]]:
    """What watches a turn of two seconds on one core, and a way to let other processes use that core (in ticks)."""
    (tmp_path / 'proc' / 'self').mkdir(parents=True)
    (tmp_path / 'proc' / 'self' / 'status').write_text('Cpus_allowed_list:\t0\n')
    ticks = [0, 0]

    def use(others: int) -> None:
        ticks[0] += others
        ticks[1] += 200 - others
        (tmp_path / 'proc' / 'stat').write_text(f'cpu0 {1000 + ticks[0]} 0 0 {1000 + ticks[1]} 0 0 0 0 0 0\n')

    use(0)
    clock = iter(range(0, 1000, 2))
    return lambda: Disturbances(root=tmp_path, clock=lambda: float(next(clock))), use


def test_a_turn_is_repeated_while_others_use_the_cores(
    watched: tuple[Callable[[], Disturbances], Callable[[int], None]],
) -> None:
    watch, use = watched
    disturbing = iter([150, 100, 0, 150, 150, 150])
    taken: list[int] = []

    def contestant(number: int) -> int:
        use(next(disturbing))
        taken.append(number)
        return len(taken)

    found = take_turns({'one': contestant}, 2, max_repeats=2, watch=watch)['one']
    # The third attempt of the first turn is quiet; no attempt of the second turn is, and the last one counts.
    assert taken == [1, 1, 1, 2, 2, 2]
    assert [(turn.outcome, turn.is_disturbed) for turn in found] == [(3, False), (6, True)]
    assert found[1].others == pytest.approx(0.75, abs=0.02)


def test_what_disturbs_both_contestants_of_a_round_does_not_widen_the_interval() -> None:
    common = np.exp(np.random.default_rng(1).normal(0, 0.3, 10))
    found = paired_ratio(2 * common, 1.6 * common)
    assert found.value == pytest.approx(0.8)
    assert found.interval == pytest.approx((0.8, 0.8))
    assert found.verdict is Significance.SLOWER


@pytest.mark.parametrize('rounds', [3, 8, 40])
def test_the_interval_of_paired_turns_contains_the_true_ratio_in_95_percent_of_cases(rounds: int) -> None:
    draw = np.random.default_rng(3)
    hits, num_cases = 0, 300
    for _ in range(num_cases):
        own = draw.normal(0, 0.05, rounds)
        common = np.exp(draw.normal(0, 0.3, rounds))
        interval = paired_ratio(common * np.exp(own), common).interval
        assert interval
        hits += interval[0] <= np.exp(-(0.05**2) / 2) <= interval[1]
    # 4 standard errors are 5 %.
    assert 0.9 <= hits / num_cases <= 1


def test_two_pairs_give_a_ratio_without_an_interval() -> None:
    found = paired_ratio([1, 2], [2, 4])
    assert (found.value, found.interval, found.verdict) == (2, None, Significance.FEW_RUNS)


def test_published_ratios_stand_beside_the_measured_ones() -> None:
    turns = {name: as_turns([cost, 1.1 * cost, 1.05 * cost]) for name, cost in {'a': 4.0, 'b': 2.0, 'c': 1.0}.items()}
    seconds = Measure[float]('s', lambda value: value, is_cost=True, is_paired=True, published={('a', 'b'): 1.5})
    *_, titles, _, to_b, to_c = format_report(turns, [seconds], [('a', 'b'), ('a', 'c')]).splitlines()
    cells = [[cell.strip() for cell in row.split('|')[1:-1]] for row in (titles, to_b, to_c)]
    assert [row[0] for row in cells] == ['ours / theirs', 'a / b', 'a / c']
    assert [row[2] for row in cells] == ['ratio', '2.000', '4.000']
    assert [row[-1] for row in cells] == ['published', '1.50', '']


def test_a_ratio_of_costs_is_that_of_the_costs() -> None:
    ours, theirs = [2.0, 2.2, 2.1], [1.0, 1.1, 1.0]
    cost, rate = SECONDS.ratio(ours, theirs), RATE.ratio(ours, theirs)
    assert cost.value == pytest.approx(sum(ours) / sum(theirs))
    assert rate.value == pytest.approx(sum(theirs) / sum(ours))
    unpaired = Measure[float]('MB', lambda size: size, is_cost=True).ratio(ours, theirs)
    assert unpaired.value == pytest.approx(cost.value)
    assert SECONDS.median_ratio(ours, theirs) == pytest.approx(2)
    # The printed mean of costs is that of the costs, and its interval contains it.
    mean, interval = Measure[float]('s', lambda size: size, is_cost=True).cells(ours)
    low, high = map(float, interval.split(' to '))
    assert float(mean) == pytest.approx(2.1)
    assert low < 2.1 < high


def test_the_report_names_contestants_ratios_and_disturbed_turns() -> None:
    turns = {'ours': [Turn(1.0, 0.5), Turn(1.0, 0.0), Turn(1.0, None)], 'theirs': as_turns([2.0, 2.0, 2.0])}
    lines = [line.split('|') for line in format_report(turns, [RATE], [('ours', 'theirs')]).splitlines() if '|' in line]
    cells = {row[1].strip(): [cell.strip() for cell in row[2:-1]] for row in lines}
    assert cells['ours'][0] == '1.00'
    assert cells['ours'][-2:] == ['3', '1']
    assert cells['theirs'][0] == '0.50'
    assert cells['ours / theirs'][:2] == ['images/sec', '2.000']


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The command line of a program that writes a result of 10 images/sec for each image of the batch."""
    (tmp_path / 'document.json').write_text(json.dumps(sample_document()))
    monkeypatch.setenv('FAKE_DOCUMENT', str(tmp_path / 'document.json'))
    monkeypatch.setenv('FAKE_LOG', str(tmp_path / 'log'))
    return sys.executable, str(FAKE)


def test_the_results_of_commands_stay_and_compare_prints_the_same_ratio(
    program: tuple[str, ...], tmp_path: Path
) -> None:
    results = Results(tmp_path / 'results')
    contestants = {
        name: results.contestant(name, [*program, f'--batch_size={size}'])
        for name, size in (('theirs', 10), ('ours, new', 12))
    }
    turns = take_runs(contestants, argparse.Namespace(rounds=2, max_repeats=0))
    records = {name: [turn.outcome for turn in taken] for name, taken in turns.items()}
    found = Throughput().ratio(records['ours, new'], records['theirs'])
    assert found.value == pytest.approx(1.2)
    assert found == compare(estimate(records['theirs']), estimate(records['ours, new']))
    folders = [Path(taken[0].source).parent for taken in records.values()]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [['001.json', '002.json']] * 2
    rows = make_rows([read_side(str(folder)) for folder in folders], Clock.WALL)
    assert rows[1].ratio == found
    # Results that are there are taken as they are only if that is asked for.
    kept = Results(tmp_path / 'results', keep=True).contestant('theirs', ['no such program'])(1)
    assert kept.source == records['theirs'][0].source
    Results(tmp_path / 'results').contestant('theirs', ['no such program'])
    assert not list(folders[0].iterdir())


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(RunFailedError, match=r'(?s)the reason.*exit code 3'):
        run_command([sys.executable, '-c', 'import sys; print("the reason", file=sys.stderr); sys.exit(3)'])


def test_a_command_that_cannot_be_started_is_a_failed_run() -> None:
    with pytest.raises(RunFailedError, match='no-such-program'):
        run_command(['no-such-program'])


def test_the_result_of_a_peer_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(
        batch_size=4,
        num_batches=12,
        num_warmup_batches=1,
        precision='bf16',
        forward_only=True,
        result_file=str(tmp_path / 'peer.json'),
    )
    run_steps(args, 'Other software', {'other': '1.0'}, lambda: float(sum(os.urandom(100_000))))
    found = read_file(Path(args.result_file))
    assert isinstance(found, Record)
    assert found.work == {
        'model': 'resnet50',
        'data_set': 'imagenet',
        'is_synthetic': True,
        'image_size': 224,
        'role': 'forward-only',
    }
    assert estimate([found]).num_steps == 12
    assert f'total images/sec: {found.images_per_second:.2f}' in capsys.readouterr().out
    assert read_side(args.result_file).groups
    assert not list(SCHEMA.iter_errors(found.document))
