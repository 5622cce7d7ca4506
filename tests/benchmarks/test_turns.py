"""Contestants of the scripts in benchmarks/: commands and functions in rounds, their ratios, and results of peers."""

import argparse
import itertools
import json
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from benchmarks.peers.measuring import run_steps
from benchmarks.turns import Measure, format_report, rate, ratio_of, take_runs, take_turns
from comparison.sides import read_side
from results import document
from results.document import Record, read_file
from tests.support.outputs import refused
from tests.support.sample_results import FAKE, environment, sizes_in

pytestmark = pytest.mark.unit

SCHEMA = jsonschema.Draft202012Validator(
    json.loads(Path(document.__file__).with_name('result.schema.json').read_text())
)


def test_commands_take_turns_and_an_interrupted_script_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(tmp_path, {'--batch_size=3': 'fail'}).items():
        monkeypatch.setenv(name, value)
    commands = {f'with {size}': [*FAKE, f'--batch_size={size}'] for size in (10, 12, 3)}
    taken = take_runs(commands, 2, tmp_path / 'out')
    # What failed in its first run is not repeated.
    assert sizes_in(tmp_path) == [10, 12, 3, 12, 10]
    rates = {name: [found and found.images_per_second for found in runs] for name, runs in taken.items()}
    assert rates == {'with 10': [100.0] * 2, 'with 12': [120.0] * 2, 'with 3': [None]}
    # compare reads the folder of a contestant.
    assert len(read_side(str(tmp_path / 'out' / 'results' / 'with_10')).groups[0].records) == 2
    take_runs(commands, 3, tmp_path / 'out')
    assert sorted(sizes_in(tmp_path)[5:]) == [10, 12]
    with refused(tmp_path / 'out', 'other commands'):
        take_runs({'one': [*FAKE, '--batch_size=4']}, 3, tmp_path / 'out')
    report = format_report(taken, [rate(published={('with 12', 'with 10'): 1.5})], [('with 12', 'with 10')])
    cells = [[cell.strip() for cell in line.split('|')[1:-1]] for line in report.splitlines() if '|' in line]
    assert cells[2:5] == [['with 10', '100.00', '2 of 2'], ['with 12', '120.00', '2 of 2'], ['with 3', '', '0 of 1']]
    assert cells[-1] == ['with 12 / with 10', 'images/sec', '1.200', '', '1.50']


def test_functions_take_turns() -> None:
    counting = itertools.count(1)
    assert take_turns({name: lambda: next(counting) for name in 'abc'}, 2) == {'a': [1, 6], 'b': [2, 5], 'c': [3, 4]}


def test_what_disturbs_both_turns_of_a_round_does_not_widen_the_interval() -> None:
    common = np.exp(np.random.default_rng(1).normal(0, 0.3, 10))
    value, interval = ratio_of(2 * common, 1.6 * common)
    assert value == pytest.approx(1.25)
    assert interval == pytest.approx((1.25, 1.25))
    assert ratio_of([1, 2], [2, 4]) == (pytest.approx(0.5), None)


@pytest.mark.parametrize('rounds', [3, 8, 40])
def test_the_interval_contains_the_true_ratio_in_95_percent_of_cases(rounds: int) -> None:
    draw = np.random.default_rng(3)
    hits, num_cases = 0, 300
    for _ in range(num_cases):
        common = np.exp(draw.normal(0, 0.3, rounds))
        _, interval = ratio_of(common * np.exp(draw.normal(0, 0.05, rounds)), common)
        assert interval
        hits += interval[0] <= 1 <= interval[1]
    # 4 standard errors are 5 %.
    assert 0.9 <= hits / num_cases <= 1


def test_a_number_without_ratios_is_in_the_first_table_only() -> None:
    measures = [Measure[float]('s', lambda value: value), Measure[float]('loss', lambda value: value, has_ratios=False)]
    report = format_report({'a': [4.0, 4.4], 'b': [2.0, 2.2]}, measures, [('a', 'b')])
    assert 'loss' in report
    assert [cell.strip() for cell in report.splitlines()[-1].split('|')[1:4]] == ['a / b', 's', '2.000']


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
    assert found.step_seconds().size == 12
    assert 0 < sum(found.step_seconds()) <= found.document['throughput']['wall_seconds']
    assert f'total images/sec: {found.images_per_second:.2f}' in capsys.readouterr().out
    assert read_side(args.result_file).groups
    assert not list(SCHEMA.iter_errors(found.document))
