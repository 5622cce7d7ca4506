"""`compare --command`: commands of any program are measured in turns, also beside a run."""

import json
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_error, check_line, refused
from tests.support.programs import assert_ended, run, run_main
from tests.support.sample_results import command_document, write_document, write_sample
from tests.sweep.fake_runs import fake_runner, interrupt_when_waiting
from tf_cnn.compare.report_page import make_page
from tf_cnn.results.collection import collect
from tf_cnn.sweep import compare_runs

pytestmark = pytest.mark.unit

RATE = r'--rate=images/sec: (\S+)'
SLOW, FAST = 'echo images/sec: 10', 'echo images/sec: 7; echo images/sec: 20 >&2'


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def measure(*commands: str, flags: tuple[str, ...] = (RATE,), code: int = 0) -> tuple[str, str]:
    words = [f'--command={command}' for command in commands]
    return run_main('compare', *words, '--rounds=3', '--output=out', *flags, code=code)


def rows_of(*argv: str) -> list[dict[str, Any]]:
    return list(json.loads(run_main('compare', *argv, '--format=json')[0])['rows'])


def write_commands(folder: str, seconds: float, rate: float | None, **changes: Any) -> None:
    """Writes the documents of three runs, which differ by 0.2 %."""
    for number in range(3):
        factor = 1 + 0.002 * number
        document = command_document(seconds * factor, rate and rate * factor, **changes)
        write_document(f'{folder}/{number}.json', document)


def test_the_last_match_in_the_output_of_a_command_is_its_rate():
    out, err = measure(SLOW, FAST)
    lines = [line for line in err.splitlines() if line.startswith('round')]
    for number, line in enumerate(lines, start=1):
        check_line(line, f'round {number}: A 10, B 20; so far B / A 2.000')
    assert 'rates per second.' in out.splitlines()[1]
    assert f'flags: command {SLOW} -> {FAST}' in out
    (row,) = rows_of('out/results/a', 'out/results/b')
    assert row['baseline_images_per_second'] == pytest.approx(10)
    assert row['images_per_second'] == pytest.approx(20)
    assert (row['num_runs'], row['wall_seconds']) == (3, None)
    assert row['ratio'] == pytest.approx(2)
    # A run of less than two seconds has no longer timed part.
    assert row['verdict'] == 'too short to judge'
    assert row['different_flags'] == {'command': [SLOW, FAST]}


def test_without_a_rate_the_wall_times_are_compared():
    out, err = measure('sleep 1.5', 'sleep 0.3', flags=())
    assert out.startswith('B is faster than A: ratio ')
    assert "wall times in seconds, ratio = A's time / B's time." in out.splitlines()[1]
    assert 'images/sec' not in out
    assert re.search(r'^round 3: A \d+\.\d{3} s, B \d+\.\d{3} s; so far', err, re.MULTILINE)
    (row,) = rows_of('out/results/a', 'out/results/b')
    seconds = row['baseline_wall_seconds']
    assert max(1.5, row['baseline_low']) <= seconds <= row['baseline_high']
    assert f'{seconds:.2f} s' in out
    assert row['images_per_second'] is None
    assert row['ratio'] == pytest.approx(seconds / row['wall_seconds'])


def test_a_command_has_the_folder_and_the_variables_of_the_shell(tmp_path):
    (tmp_path / 'folder').mkdir()
    for variables, expected in (
        ({'KERAS_HOME': None, 'TF_CPP_MIN_LOG_LEVEL': None}, '-/-'),
        ({'KERAS_HOME': 'k', 'TF_CPP_MIN_LOG_LEVEL': '2'}, 'k/2'),
    ):
        command = 'echo "${KERAS_HOME--}/${TF_CPP_MIN_LOG_LEVEL--}" > variables'
        words = ['compare', f'--command={command}', '--command=true', '--rounds=3']
        process = run(shlex.join(words), tmp_path / 'folder', fresh=True, **variables)
        assert process.code == 0, process.err
        assert (tmp_path / 'folder' / 'variables').read_text() == f'{expected}\n'


def test_a_command_is_compared_with_a_run(monkeypatch, tmp_path):
    program = fake_runner(tmp_path)
    monkeypatch.setattr(compare_runs, 'Runner', lambda environment, timeout_secs: program)
    words = ['compare', '--run=--model=lenet --batch_size=8', f'--command={FAST}', '--rounds=3']
    _, error = run_main(*words, code=2)
    check_error(error, f'--command={FAST}', '--rate')
    out, err = run_main(*words, RATE, '--output=out')
    assert 'round 1: A 80.0 images/sec, B 20; so far' in err
    assert 'images/sec' in out.splitlines()[1]
    (row,) = rows_of('out/results/a', 'out/results/b')
    assert row['ratio'] == pytest.approx(0.25)
    # The shape of the command is unknown, so it is no difference.
    assert row['different_flags'] == {}


@pytest.mark.parametrize(
    ('pattern', 'fact'),
    [
        (r'images/sec: \S+', 'group'),
        (r'(images)/sec: (\S+)', 'group'),
        (r'(\S*)', 'every output'),
        (r'sec: (\S+', 'regular expression'),
    ],
)
def test_a_pattern_that_finds_no_number_is_refused(pattern, fact):
    _, error = measure(SLOW, FAST, flags=(f'--rate={pattern}',), code=2)
    check_error(error, f'--rate={pattern}', fact)
    assert not Path('out').exists()


@pytest.mark.parametrize(
    ('command', 'facts'),
    [
        ('echo broken >&2; exit 3', ['exit code 3', 'broken']),
        ('no_such_command', ['exit code 127', 'no_such_command']),
        ('kill -9 $$', ['signal 9']),
        ('true', ['--rate=images/sec', 'nothing matches']),
        ('echo images/sec: n/a', ['--rate=images/sec', "'n/a'"]),
        ('echo images/sec: -5', ['--rate=images/sec', "'-5'"]),
        ('sleep 100', ['--timeout_secs=0.5']),
    ],
)
def test_a_command_without_a_rate_ends_the_comparison_in_one_line(command, facts):
    _, error = measure(SLOW, command, flags=(RATE, '--timeout_secs=0.5'), code=1)
    check_error(error, f'--command={command}', *facts, 'out/results/b/b.1.json')
    # The results of the other command stay.
    assert [run.images_per_second for run in collect(['out/results/a']).commands] == [10]
    (failure,) = collect(['out']).failures
    assert failure.reason in error


@pytest.mark.parametrize(
    ('argv', 'facts'),
    [
        ([f'--command={SLOW}'], [f'--command={SLOW}', '1 time']),
        ([f'--command={SLOW}'] * 2 + ['--run=--model=lenet', RATE], ['--run', '3 times']),
        ([f'--command={SLOW}'] * 2 + ['a.json'], ['--command', 'RESULT']),
        (['--run=--model=lenet'] * 2 + [RATE], ['--rate', '--command']),
        (['a.json', 'b.json', RATE], ['--rate', '--command']),
    ],
)
def test_wrong_use_is_refused(argv, facts):
    write_sample('a.json')
    write_sample('b.json')
    check_error(run_main('compare', *argv, code=2)[1], *facts)


def test_a_folder_continues_only_with_the_same_pattern():
    measure(SLOW, FAST)
    _, error = measure(SLOW, FAST, flags=(r'--rate=sec: (\S+)',), code=2)
    check_error(error, '--output=out', 'other commands')
    measure(SLOW, FAST, flags=(RATE, '--rounds=4'))
    (row,) = rows_of('out/results/a', 'out/results/b')
    assert (row['baseline_num_runs'], row['num_runs']) == (4, 4)


def test_ctrl_c_ends_a_command_with_all_of_its_processes(tmp_path):
    command = 'sleep 100 & echo $$ $! > log.txt.waiting; wait'
    with interrupt_when_waiting(tmp_path):
        _, error = measure(SLOW, command, code=130)
    check_line(error.splitlines()[-2], 'out')
    assert_ended([int(word) for word in Path('log.txt.waiting').read_text().split()])


def test_a_wall_time_is_not_compared_with_a_rate_even_by_force():
    write_commands('times', 3, None)
    write_commands('rates', 3, 10)
    for other in ('rates', str(write_sample('run.json'))):
        _, error = run_main('compare', 'times', other, '--force', code=2)
        check_error(error, 'wall times', 'different work')


@pytest.mark.parametrize('flag', ['--against=results', '--across=hosts'])
def test_flags_for_runs_of_this_program_refuse_commands(flag):
    write_commands('commands', 3, 10)
    write_sample('results/run.json')
    _, error = run_main('compare', 'commands', flag, code=2)
    check_error(error, 'commands/0.json', 'another program', flag.partition('=')[0])


def test_noise_beside_a_command_makes_its_runs_doubtful():
    noise = {'seconds': 3.0, 'other_cpu_share': 0.5}
    warning = {'code': 'machine_loaded', 'text': 'other processes used 50 %'}
    write_commands('quiet', 3, 10)
    write_commands('loaded', 3, 5, noise=noise, warnings=[warning])
    out, _ = run_main('compare', 'quiet', 'loaded')
    assert '! 5.01' in out
    assert 'other programs' in out
    assert out.startswith('loaded is slower than quiet: ratio 0.500')
    assert '3 of 6 runs are doubtful' in out


@pytest.mark.parametrize(('rate', 'cells'), [(None, ['3.01 s', '6.01 s']), (10, ['10.0', '5.01'])])
def test_the_page_has_the_table_of_two_commands(rate, cells):
    write_commands('results/a', 3, rate)
    write_commands('results/b', 6, rate and rate / 2, flags={'command': 'python b.py'})
    page = make_page(collect(['results/a', 'results/b']), now=datetime.now(UTC))
    for fact in (*cells, 'slower', '6 runs of other programs'):
        assert fact in page.html
    assert page.answers[0].startswith('b is slower than a: ratio 0.500')
    assert 'images/sec' not in page.html
    assert not page.plots


def test_the_page_has_a_command_beside_a_run_only_in_a_table_of_both():
    write_commands('results/a', 3, 10)
    write_sample('results/b/run.json', rate=100)
    page = make_page(collect(['results/a', 'results/b']), now=datetime.now(UTC))
    assert 'ratio 9.' in page.answers[0]
    with refused('results/a/0.json', 'both sides'):
        make_page(collect(['results']), now=datetime.now(UTC))
