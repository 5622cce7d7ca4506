"""--repeat: runs in fresh processes, their total and interval, the files of their results, and runs
that fail.
"""

import io

import pytest

from tests.support.outputs import check_line, failed, refused
from tests.support.sample_results import sample_document, sample_record, write_document
from tests.sweep.fake_runs import fake_runner, interrupt_when_waiting
from tf_cnn.cli.benchmark import main
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.results.console import Console, format_total
from tf_cnn.results.document import Result, read_result
from tf_cnn.sweep.repeat import _summarize_warnings, run_repeats
from tf_cnn.sweep.runner import Runner

pytestmark = pytest.mark.unit


class Repeats:
    """Runs of the small program, at ten images/sec for each image of a batch, and their output."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self._out, self._err = runner, io.StringIO(), io.StringIO()

    def run(self, *argv: str) -> int:
        console = Console(self._out, self._err)
        return run_repeats(argv, parse_argv(argv).params, console, self.runner)

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> list[str]:
        return self._err.getvalue().splitlines()


def test_each_run_is_a_process_and_the_total_covers_all(tmp_path):
    repeats = Repeats(fake_runner(tmp_path))
    path = f'{tmp_path}/{{model}}-{{batch_size}}.json'
    argv = ('--model=lenet', '--batch_size=8', '--repeat=3', f'--result_file={path}')
    assert repeats.run(*argv) == 0
    results = [read_result(tmp_path / f'lenet-8.{number}.json') for number in (1, 2, 3)]
    assert len({result.id for result in results}) == 3
    assert repeats.out == f'{format_total(80)}\n'
    text = '\n'.join(repeats.err)
    for number in (1, 2, 3):
        assert f'run {number} of 3: 80.0 images/sec' in text
    (line,) = (line for line in repeats.err if line.startswith('rate of 3 runs: 80.0 '))
    check_line(line, '95 % interval 80.0 to 80.0 (+/- 0.0 %)')
    assert repeats.err[-1] == f'results: {tmp_path}/lenet-8.1.json to {tmp_path}/lenet-8.3.json'


def test_no_result_is_replaced_where_its_path_has_the_number_of_the_run(tmp_path):
    path = f'{tmp_path}/new/{{run}}/{{shape}}.json'
    argv = ('--model=lenet', '--repeat=2', f'--result_file={path}')
    repeats = Repeats(fake_runner(tmp_path))
    for expected in (['1/1*1.json', '2/1*1.json'], ['3/1*1.json', '4/1*1.json']):
        before = {*tmp_path.glob('new/*/*.json')}
        repeats.run(*argv)
        added = {*tmp_path.glob('new/*/*.json')} - before
        assert sorted(str(path.relative_to(tmp_path / 'new')) for path in added) == expected
    assert f'{tmp_path}/new/1/1*1.json exists' in '\n'.join(repeats.err)
    assert repeats.err[-1] == f'results: {tmp_path}/new/3/1*1.json to {tmp_path}/new/4/1*1.json'
    assert len({read_result(path).id for path in tmp_path.glob('new/*/*.json')}) == 4


def test_a_result_that_cannot_be_kept_ends_the_runs_with_the_total_so_far(tmp_path):
    # A link into a folder where nobody can make a file acts like a full disk.
    (tmp_path / 'r.2.json').symlink_to('/proc/r.json')
    repeats = Repeats(fake_runner(tmp_path))
    with failed(f'--result_file={tmp_path}/r.2.json'):
        repeats.run('--batch_size=8', '--repeat=3', f'--result_file={tmp_path}/r.json')
    assert repeats.out == f'{format_total(80)}\n'
    assert 'stopped after 2 of 3 runs' in repeats.err
    assert isinstance(read_result(tmp_path / 'r.1.json'), Result)


def test_the_banner_and_each_warning_of_the_runs_are_shown_once(tmp_path):
    repeats = Repeats(fake_runner(tmp_path))
    codes = {'a': 'settings', 'b': 'settings', 'c': 'steal'}
    warnings = [{'code': code, 'text': text} for text, code in codes.items()]
    write_document(tmp_path / 'document.txt', sample_document(warnings=warnings))
    assert repeats.run('--repeat=3') == 0
    # Standard output has the total alone.
    assert repeats.out == f'{format_total(320)}\n'
    banner = ['TensorFlow:  2.21', 'Batch size:  32 global', 'Machine:     Example CPU 1', '=' * 10]
    assert repeats.err[: len(banner)] == banner
    assert repeats.err.count(banner[0]) == 1
    told = [line.partition('3 of 3 runs: ')[2] for line in repeats.err if 'warning' in line]
    assert told == ['a', 'b', 'c']


def test_a_warning_with_different_numbers_says_which_run_has_the_numbers():
    loads = (None, '85 % of the cores', '12 % of the cores')
    outcomes = [
        sample_record(warnings=[{'code': 'machine_loaded', 'text': load}] if load else [])
        for load in loads
    ]
    assert _summarize_warnings(outcomes) == ['2 of 3 runs, in run 2: 85 % of the cores']
    same = [sample_record(warnings=[{'code': 'steal', 'text': 'x'}]) for _ in range(3)]
    assert _summarize_warnings(same) == ['3 of 3 runs: x']


def test_a_run_that_stopped_early_is_reported_with_its_reason_and_stays(tmp_path):
    repeats = Repeats(fake_runner(tmp_path, {'--batch_size=8': {'2': 'stop early'}}))
    assert repeats.run('--repeat=3', '--batch_size=8', f'--result_file={tmp_path}/r.json') == 1
    assert repeats.out == f'{format_total(80)}\n'
    (run,) = (line for line in repeats.err if 'run 2 of 3: ' in line)
    check_line(run, 'failed', 'the loss is nan')
    assert any('1 of 3 runs failed' in line and 'the loss is nan' in line for line in repeats.err)
    stopped = read_result(tmp_path / 'r.2.json')
    assert isinstance(stopped, Result)
    assert not stopped.is_complete


def test_without_a_run_that_ends_well_there_is_no_total(tmp_path):
    repeats = Repeats(fake_runner(tmp_path, {'--batch_size=8': 'fail'}))
    with failed('--repeat=2', 'the disk is on fire'):
        repeats.run('--repeat=2', '--batch_size=8')
    assert repeats.out == ''


def test_ctrl_c_shows_the_total_of_the_finished_runs(tmp_path):
    repeats = Repeats(fake_runner(tmp_path, {'--batch_size=8': {'3': 'wait'}}))
    with interrupt_when_waiting(tmp_path), pytest.raises(KeyboardInterrupt):
        repeats.run('--repeat=5', '--batch_size=8')
    assert repeats.out == f'{format_total(80)}\n'
    assert 'stopped after 2 of 5 runs' in repeats.err
    # Two runs have no interval.
    (line,) = (line for line in repeats.err if line.startswith('rate of 2 runs: 80.0 '))
    assert '--repeat=3' in line
    assert '95 %' not in line


def test_a_folder_that_cannot_be_made_is_refused_before_the_first_run(tmp_path):
    (tmp_path / 'lenet').touch()
    impossible = f'{tmp_path}/{{model}}/{{batch_size}}.json'
    with refused(f'--result_file={tmp_path}/lenet/32.1.json', 'a file is where a folder must be'):
        main(['--model=lenet', '--device=cpu', '--repeat=2', f'--result_file={impossible}'])


@pytest.mark.parametrize(
    'flags',
    [
        '--result_file=-',
        '--eval --train_dir=t',
        '--train_dir=t',
        '--trace_file=t',
        '--benchmark_log_dir=logs',
    ],
)
def test_files_that_a_later_run_would_overwrite_are_refused(flags):
    with refused('--repeat=2', flags.split()[0]):
        parse_argv(['--repeat=2', *flags.split()])
