"""The scripts in benchmarks/ run commands and functions in rounds, print their ratios, and write
results of peers.
"""

import itertools
import json
import os

import jsonschema
import pytest

from benchmarks.peers.measuring import make_parser, run_steps
from benchmarks.turns import print_report, run_commands, run_in_turns
from tests.support.outputs import check_line, refused
from tests.sweep.fake_runs import FAKE, environment, sizes_in
from tf_cnn.compare.run_sets import read_run_set
from tf_cnn.results.document import Result, read_result
from tf_cnn.results.schema import FILE
from tf_cnn.system.documents import as_json

pytestmark = pytest.mark.unit


def cells_of(table: str) -> list[list[str]]:
    """Returns the cells of a table in Markdown."""
    lines = [line for line in table.splitlines() if '|' in line]
    return [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]


def test_commands_take_turns_and_an_interrupted_script_goes_on(tmp_path, monkeypatch, capsys):
    for name, value in environment(tmp_path, {'--batch_size=3': 'fail'}).items():
        monkeypatch.setenv(name, value)
    commands = {f'with {size}': [*FAKE, f'--batch_size={size}'] for size in (10, 12, 3)}
    runs_by_command = run_commands(commands, 2, tmp_path / 'out')
    # A command that fails in its first run is not repeated.
    assert sizes_in(tmp_path) == [10, 12, 3, 12, 10]
    rates = {
        name: [run and run['images/sec'] for run in runs] for name, runs in runs_by_command.items()
    }
    assert rates == {'with 10': [100.0] * 2, 'with 12': [120.0] * 2, 'with 3': [None]}
    # compare can read the folder of a command.
    (group,) = read_run_set(str(tmp_path / 'out/results/with_10')).groups
    assert len(group.results) == 2
    run_commands(commands, 3, tmp_path / 'out')
    assert sorted(sizes_in(tmp_path)[5:]) == [10, 12]
    with refused(tmp_path / 'out', 'other commands'):
        run_commands({'one': [*FAKE, '--batch_size=4']}, 3, tmp_path / 'out')
    capsys.readouterr()
    assert print_report(runs_by_command, [('with 12', 'with 10')]) == 1
    cells = cells_of(capsys.readouterr().out)
    assert [' '.join([row[0], row[1].removeprefix('! '), row[-1]]) for row in cells[2:5]] == [
        'with 10 100 2 of 2',
        'with 12 120 2 of 2',
        'with 3  0 of 1',
    ]
    assert cells[-1][0] == 'with 12 / with 10'
    assert cells[-1][1].removeprefix('! ') == '1.200'


def test_functions_take_turns():
    counting = itertools.count(1)
    runs_by_function = run_in_turns(
        {name: lambda: {'s': float(next(counting))} for name in 'ab'}, 3
    )
    turns = {name: [run['s'] for run in runs] for name, runs in runs_by_function.items()}
    assert turns == {'a': [1, 4, 6], 'b': [2, 3, 5]}


def test_functions_are_measured_with_what_others_used_of_the_cores_meanwhile():
    (run,) = run_in_turns({'a': lambda: {'s': 1.0}}, 1)['a']
    assert [*run] == ['s', 'others, % of cores']
    assert run_in_turns({'a': lambda: {'s': 1.0}}, 1, is_shown=False) == {'a': [{'s': 1.0}]}


def test_disturbed_runs_and_their_ratios_have_the_mark_of_the_program(capsys):
    rates = {'quiet': (50, 3), 'loaded': (25, 85), 'also quiet': (40, 10)}
    turns = {
        name: [{'images/sec': rate, 'others, % of cores': others}]
        for name, (rate, others) in rates.items()
    }
    assert print_report(turns, [('loaded', 'quiet'), ('also quiet', 'quiet')]) == 0
    out = capsys.readouterr().out
    cells = cells_of(out)
    assert [row[1] for row in cells[2:5]] == ['50', '! 25', '40']
    assert [row[:2] for row in cells[-2:]] == [
        ['loaded / quiet', '! 0.500'],
        ['also quiet / quiet', '0.800'],
    ]
    check_line(out.splitlines()[-1], '1 of 3 runs', '10 %', '85 %')
    # Without pairs there is no table of ratios.
    print_report({'quiet': turns['quiet']}, [])
    assert 'ratio' not in capsys.readouterr().out


def test_noise_in_both_turns_of_a_round_does_not_widen_the_interval(capsys):
    noise = (1.0, 1.7, 0.4)
    turns = {'a': [{'s': 2 * factor} for factor in noise]}
    turns['b'] = [{'s': 1.6 * factor} for factor in noise]
    assert print_report(turns, [('a', 'b')]) == 0
    assert cells_of(capsys.readouterr().out)[-1] == ['a / b', '1.250', '1.250 to 1.250']


def test_the_result_of_a_peer_can_be_compared(tmp_path, capsys):
    file = tmp_path / 'peer.json'
    words = '--batch_size=4 --num_batches=12 --precision=bf16 --forward_only'
    args = make_parser('A peer.').parse_args([*words.split(), f'--result_file={file}'])
    run_steps(args, 'Other software', {'other': '1.0'}, lambda: float(sum(os.urandom(100_000))))
    result = read_result(file)
    assert isinstance(result, Result)
    assert result.workload == {
        'model': 'resnet50',
        'data_set': 'imagenet',
        'is_synthetic': True,
        'image_size': 224,
        'role': 'forward-only',
    }
    assert result.step_seconds().size == 12
    assert 0 < sum(result.step_seconds()) <= result.throughput.wall_seconds
    assert f'total images/sec: {result.images_per_second:.2f}' in capsys.readouterr().out
    assert read_run_set(args.result_file).groups
    jsonschema.Draft202012Validator(json.loads(FILE.read_text())).validate(as_json(result))
