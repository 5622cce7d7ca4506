"""The scripts in benchmarks/ compare pairs of commands; peers print their rates."""

import time
from argparse import Namespace

import pytest

from benchmarks.comparing import compare_pairs
from benchmarks.start_time import run_to_first_step
from tests.support.outputs import check_line
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.unit


def test_each_pair_is_compared_also_after_one_that_fails(tmp_path, capsys):
    commands = {
        name: ['echo', f'total images/sec: {rate}'] for name, rate in (('a', 10), ('b', 25))
    }
    commands['a failure'] = ['false']
    args = Namespace(rounds=3, output=tmp_path)
    assert compare_pairs(commands, [('a failure', 'a'), ('b', 'a')], args) == 1
    captured = capsys.readouterr()
    assert 'b (B) / a (A)' in captured.out
    assert 'ratio 2.500' in captured.out
    (error,) = [line for line in captured.err.splitlines() if 'error: ' in line]
    check_line(error, '--command=false', 'exit code 1')
    runs = collect([str(tmp_path / 'b-a/results/b')]).commands
    assert [run.images_per_second for run in runs] == [25] * 3
    args.rounds = 1
    assert compare_pairs(commands, [('b', 'a'), ('a', 'b')], args) == 2
    check_line(capsys.readouterr().err, '--rounds=1', 'at least 3')


def test_a_command_ends_at_its_first_step():
    start = time.monotonic()
    assert run_to_first_step(['sh', '-c', r'printf "1\timages/sec: 5\n"; exec sleep 60']) == 0
    assert time.monotonic() - start < 30
    assert run_to_first_step(['sh', '-c', 'echo Step; exit 3']) == 3
    assert run_to_first_step(['true']) == 1
