"""Commands of any program: in turns, over a grid, and to the end of their processes."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fake_runs import WITH_SIGINT, interrupt_when, pids_in, wait_for
from tests.support.outputs import check_error, check_line, check_warning
from tests.support.programs import (
    DEADLINE_SECS,
    PROGRAM,
    assert_ended,
    environment,
    run_main,
    run_process,
)
from tf_cnn.results.collection import collect

pytestmark = pytest.mark.distributed

RATE = r'--rate=rate: (\S+)'
SLOW, FAST = (
    'echo A >> order; sleep 2.1; echo rate: 10',
    'echo B >> order; sleep 2.1; echo rate: 20',
)


def compare(*words: str, code: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Returns the document of a comparison in three rounds, and the lines on standard error."""
    argv = ('compare', *words, '--rounds=3', '--output=out', '--format=json')
    out, err = run_main(*argv, code=code)
    return json.loads(out) if out else {}, err.splitlines()


def sweep(*words: str, code: int = 0) -> list[dict[str, Any]]:
    out, _ = run_main('sweep', *words, '--output=out', '--format=json', code=code)
    return list(json.loads(out)['rows'])


def test_two_commands_run_in_turns_and_their_results_can_be_compared_again():
    document, lines = compare(f'--command={SLOW}', f'--command={FAST}', RATE)
    order = Path('order').read_text().split()
    # Each round has the reverse order of the one before.
    assert (order[:4], sorted(order[4:])) == ([*'ABBA'], [*'AB'])
    check_line(document['answer'], 'B is faster than A: ratio 2.000')
    [row] = document['rows']
    assert row['differences']['command'] == [SLOW, FAST]
    assert sum(line.startswith('round 3') for line in lines) == 2
    check_line(next(line for line in lines if line.startswith('so far')), 'B is faster than A')
    out, _ = run_main('compare', 'out/results/a', 'out/results/b', '--format=json')
    assert json.loads(out)['rows'][0]['ratio'] == row['ratio']
    # The same command has nothing left to run; other patterns need another folder.
    again, _ = compare(f'--command={SLOW}', f'--command={FAST}', RATE)
    assert (again['rows'], len(Path('order').read_text().split())) == (document['rows'], 6)
    _, lines = compare(f'--command={SLOW}', f'--command={FAST}', r'--rate=e: (\S+)', code=2)
    check_line(lines[-1], '--output=out', 'other commands')


def test_times_are_better_if_they_are_smaller_and_each_named_number_is_a_row():
    command = 'echo torch {}; echo 2e3 tok/s, {} GB/s; echo took {} s'
    document, _ = compare(
        *(f'--command={command.format(*values)}' for values in (('2.5', 4, 3), ('2.6', 2, 1.5))),
        r'--rate=(?P<tokens>\S+) tok/s, (?P<bus>\S+) GB/s',
        r'--secs=took (\S+) s',
        r'--record=torch (?P<torch>\S+)',
    )
    rows = {row['setting']['measured']: row for row in document['rows'] if row['who']}
    assert {name: row['ratio'] for name, row in rows.items()} == {
        'tokens': pytest.approx(1),
        'bus': pytest.approx(0.5),
        'seconds': pytest.approx(2),
    }
    assert rows['bus']['differences']['versions.torch'] == ['2.5', '2.6']


def test_without_a_rate_the_wall_times_are_compared():
    document, _ = compare('--command=sleep 0.6', '--command=sleep 0.2')
    check_line(document['answer'], 'B is faster than A: ratio ')
    [row] = document['rows']
    assert 1 < row['ratio'] <= 0.75 / 0.2


def test_two_commands_are_compared_at_each_point_of_a_grid():
    grid = ('--grid=bs=16,64', '--grid=FACTOR=1,2')
    command = 'echo rate: $(({} * {{bs}} * FACTOR)) {{print $1}}'
    document, _ = compare(*(f'--command={command.format(n)}' for n in (10, 9)), RATE, *grid)
    rows = [row for row in document['rows'] if row['who']]
    settings = [(row['setting']['bs'], row['setting']['FACTOR']) for row in rows]
    assert sorted(settings) == [('16', '1'), ('16', '2'), ('64', '1'), ('64', '2')]
    assert {round(row['ratio'], 6) for row in rows} == {0.9}


def test_a_sweep_of_a_command_has_a_row_for_each_value_also_for_one_that_fails():
    values = "--grid=word=1,it's a b;$(exit 9),3"
    command = "printf 'rate: %s\\n' {word}; test {word} != 3 || { echo no room >&2; exit 4; }"
    rows = sweep(f'--command={command}', r'--rate=rate: (\d)', values, code=1)
    assert [row['status'] for row in rows] == ['complete', 'left out', 'left out']
    check_line(rows[1]['remark'], '--rate=rate')
    check_line(rows[2]['remark'], 'exit code 4', 'no room')


def test_a_command_has_the_folder_and_the_variables_of_the_shell():
    for variables, expected in (
        ({'KERAS_HOME': None, 'TF_CPP_MIN_LOG_LEVEL': None, 'PYTHONPATH': None}, '-/-/-'),
        ({'KERAS_HOME': 'k', 'TF_CPP_MIN_LOG_LEVEL': '2', 'PYTHONPATH': 'p'}, 'k/2/p'),
    ):
        names = ('KERAS_HOME', 'TF_CPP_MIN_LOG_LEVEL', 'PYTHONPATH')
        text = '/'.join(f'${{{name}--}}' for name in names)
        command = f'--command=echo "{text}" > variables'
        words = ['sweep', command, '--grid=N=1', f'--output=out-{expected[0]}']
        process = run_process([*PROGRAM, *words], Path.cwd(), **variables)
        assert process.code == 0, process.err
        assert Path('variables').read_text() == f'{expected}\n'


@pytest.mark.parametrize(
    ('command', 'facts'),
    [
        ('echo broken >&2; exit 3', ['exit code 3', 'broken']),
        ('echo No space left on device >&2; exit 3', ['exit code 3', 'No space left']),
        ('no_such_command', ['exit code 127', 'no_such_command']),
        ('kill -9 $$', ['signal 9']),
        ('true', ['--rate=rate', 'nothing']),
        ('echo rate: 1,95', ['--rate=rate', '1,95']),
        ('sleep 100', ['--timeout_secs=6']),
        # A pattern that backtracks for ever.
        ('echo rate: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!', ['--timeout_secs=6']),
    ],
)
def test_a_command_without_a_rate_ends_the_comparison_in_one_line(command, facts):
    words = [r'--rate=rate: (?:(\d+)|(?:a+)+)$' if 'aaa' in command else RATE]
    words += [f'--command={text}' for text in ('echo rate: 10', command)]
    words += ['--timeout_secs=6'] if facts == ['--timeout_secs=6'] else []
    _, lines = compare(*words, code=1)
    check_error('\n'.join(lines), f'--command={command}', *facts, 'out/results/b/b.1.json')
    # The results of the other command stay.
    assert [run.rates for run in collect(['out/results/a']).commands] == [{'rate': 10}]
    [failure] = collect(['out']).failures
    assert failure.reason in lines[-1]


LEAVING = 'setsid sleep 100 & echo $! > pids; setsid sh -c "sleep 100 & echo \\$! >> pids"'


def test_processes_that_a_command_leaves_are_ended_and_it_is_said():
    _, err = run_main('sweep', f'--command={LEAVING}; sleep 0.2', '--grid=N=1', '--output=out')
    assert_ended(pids_in('pids'))
    check_warning(err, 'left', '2 sleep')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_all_processes_of_a_command_and_results_stay(number):
    command = f'--command=test $N = 1 || {{ {LEAVING}; touch waits; wait; sleep 100; }}'
    words = ['sweep', command, '--grid=N=1,2', '--output=out']
    with subprocess.Popen(
        [*WITH_SIGINT, *PROGRAM, *words], env=environment(), stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: Path('waits').exists() and len(pids_in('pids')) == 2)
        process.send_signal(number)
        _, messages = process.communicate(timeout=DEADLINE_SECS)
    assert_ended(pids_in('pids'))
    assert [path.name for path in Path('out/results').iterdir()] == ['1-1.1.json']
    if number == signal.SIGKILL:
        assert process.returncode == -9
    else:
        assert process.returncode == 128 + number, messages
        *_, advice, error = messages.splitlines()
        check_line(advice, '--output=out')
        assert error.startswith('tf_cnn_benchmarks: error: ')


def test_one_ctrl_c_ends_a_pattern_that_backtracks():
    words = ['--command=echo rate: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!; touch waits']
    with interrupt_when(lambda: Path('waits').exists()):
        run_main(
            'sweep', *words, '--grid=N=1', '--output=out', r'--rate=(?:(\d+)|(?:a+)+)$', code=130
        )


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, *_):
        if name.partition('.')[0] in ('tensorflow', 'matplotlib', 'jinja2', 'scipy'):
            raise ImportError(f'{name} is blocked')
sys.meta_path.insert(0, Blocker())
"""


def test_commands_are_measured_and_compared_without_tensorflow(tmp_path):
    (tmp_path / 'usercustomize.py').write_text(BLOCKED)
    (tmp_path / 'sitecustomize.py').write_text(BLOCKED)
    variables = {'PYTHONPATH': str(tmp_path)}
    script = 'try: import tensorflow\nexcept ImportError as error: print(error)'
    assert 'is blocked' in run_process([sys.executable, '-c', script], **variables).out
    words = ['sweep', '--command=echo rate: {n}', RATE, '--grid=n=10,20', '--repeats=3']
    process = run_process([*PROGRAM, *words, '--output=out'], **variables)
    assert process.code == 0, process.err
    process = run_process([*PROGRAM, 'compare', 'out', '--fail_below=0.5'], **variables)
    assert (process.code, process.err) == (3, process.err)
