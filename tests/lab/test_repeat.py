"""--repeat: runs in fresh processes, their total and interval, the files of their results, and runs
that fail.
"""

import io
from pathlib import Path

import pytest

from tests.lab.fake_runs import interrupt_when, pids_in, use_fake_program
from tests.support.outputs import check_line, failed, refused
from tests.support.sample_results import sample_document, write_document
from tf_cnn.cli.benchmark import main
from tf_cnn.lab.repeat import run_repeats
from tf_cnn.plan.parsing import parse_argv
from tf_cnn.results.console import Console, format_total
from tf_cnn.results.document import Result, read_result

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _small_program(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_program(monkeypatch)


class Repeats:
    """Runs of the small program, at ten images/sec for each image of a batch, and their output."""

    def __init__(self) -> None:
        self._out, self._err = io.StringIO(), io.StringIO()

    def run(self, *argv: str) -> int:
        return run_repeats(argv, parse_argv(argv).params, Console(self._out, self._err))

    @property
    def out(self) -> str:
        return self._out.getvalue()

    @property
    def err(self) -> list[str]:
        return self._err.getvalue().splitlines()


def test_each_run_is_a_process_and_the_total_covers_all():
    repeats = Repeats()
    path = '--result_file={model}-{batch_size}.json'
    assert repeats.run('--model=lenet', '--batch_size=8', '--repeat=3', path) == 0
    paths = [Path(f'lenet-8.{number}.json') for number in (1, 2, 3)]
    assert len({read_result(path).id for path in paths}) == len({*pids_in('log.txt')}) == 3
    # Standard output has the total alone.
    assert repeats.out == f'{format_total(80)}\n'
    for number in (1, 2, 3):
        assert f'run {number} of 3: 80.0 images/sec' in repeats.err
    assert 'lenet, replicated, batch 8, 1*1: 80.0 images/sec (80.0 to 80.0).' in repeats.err
    check_line(repeats.err[-1], paths[0], paths[2])


def test_no_result_is_replaced_where_its_path_has_the_number_of_the_run(tmp_path):
    repeats = Repeats()
    for expected in (['1/1*1.json', '2/1*1.json'], ['3/1*1.json', '4/1*1.json']):
        before = {*tmp_path.glob('new/*/*.json')}
        repeats.run('--model=lenet', '--repeat=2', '--result_file=new/{run}/{shape}.json')
        added = {*tmp_path.glob('new/*/*.json')} - before
        assert sorted(str(path.relative_to(tmp_path / 'new')) for path in added) == expected
    assert 'new/1/1*1.json exists' in '\n'.join(repeats.err)
    assert len({read_result(path).id for path in tmp_path.glob('new/*/*.json')}) == 4


def test_a_result_that_cannot_be_kept_ends_the_runs_with_the_total_so_far():
    # A link into a folder where nobody can make a file acts like a full disk.
    Path('r.2.json').symlink_to('/proc/r.json')
    repeats = Repeats()
    with failed('--result_file=r.2.json'):
        repeats.run('--batch_size=8', '--repeat=3', '--result_file=r.json')
    assert repeats.out == f'{format_total(80)}\n'
    assert 'stopped after 2 of 3 runs' in repeats.err
    assert isinstance(read_result(Path('r.1.json')), Result)


def test_the_banner_and_each_warning_of_the_runs_are_shown_once():
    codes = {'a': 'settings', 'b': 'settings', 'c': 'steal'}
    warnings = [{'code': code, 'text': text} for text, code in codes.items()]
    write_document('document.txt', sample_document(warnings=warnings))
    repeats = Repeats()
    assert repeats.run('--repeat=3') == 0
    banner = ['TensorFlow:  2.21', 'Batch size:  32 global', 'Machine:     Example CPU 1', '=' * 10]
    assert repeats.err[: len(banner)] == banner
    assert repeats.err.count(banner[0]) == 1
    notes = repeats.err[-4:-1]
    assert notes[1:] == ['warning: all: a', 'warning: all: b']
    check_line(notes[0], '! 3 of 3 runs were disturbed')


def test_a_run_that_stopped_early_is_reported_with_its_reason_and_stays(monkeypatch):
    use_fake_program(monkeypatch, {'--batch_size=8': {'2': 'stop early'}})
    repeats = Repeats()
    assert repeats.run('--repeat=3', '--batch_size=8', '--result_file=r.json') == 1
    assert repeats.out == f'{format_total(80)}\n'
    [line] = [line for line in repeats.err if 'run 2 of 3: ' in line]
    check_line(line, 'failed', 'the loss is nan')
    assert any(line.endswith('80.0 images/sec; 1 run left out.') for line in repeats.err)
    assert 'run 2: left out: the loss is nan' in repeats.err
    stopped = read_result(Path('r.2.json'))
    assert isinstance(stopped, Result)
    assert not stopped.is_complete


def test_without_a_run_that_ends_well_there_is_no_total(monkeypatch):
    use_fake_program(monkeypatch, {'--batch_size=8': 'fail'})
    repeats = Repeats()
    with failed('--repeat=2', 'the disk is on fire'):
        repeats.run('--repeat=2', '--batch_size=8')
    assert repeats.out == ''


def test_ctrl_c_shows_the_total_of_the_finished_runs(monkeypatch):
    use_fake_program(monkeypatch, {'--batch_size=8': {'3': 'wait'}})
    repeats = Repeats()
    with interrupt_when(lambda: bool(pids_in('waiting'))), pytest.raises(KeyboardInterrupt):
        repeats.run('--repeat=5', '--batch_size=8')
    assert repeats.out == f'{format_total(80)}\n'
    assert 'stopped after 2 of 5 runs' in repeats.err
    # Two runs have no interval.
    assert 'lenet, replicated, batch 8, 1*1: 80.0 images/sec.' in repeats.err
    assert repeats.err[-1].endswith('--repeat=3')


def test_files_that_cannot_be_made_or_that_a_later_run_would_overwrite_are_refused():
    Path('lenet').touch()
    path = '--result_file={model}/{batch_size}.json'
    with refused('--result_file=lenet/32.1.json', 'a file is where a folder must be'):
        main(['--model=lenet', '--device=cpu', '--repeat=2', path])
    for flags in (
        '--result_file=-',
        '--eval --train_dir=t',
        '--train_dir=t',
        '--trace_file=t',
        '--benchmark_log_dir=logs',
    ):
        with refused('--repeat=2', flags.split()[0]):
            parse_argv(['--repeat=2', *flags.split()])
    # All runs may read one checkpoint.
    parse_argv(['--repeat=2', '--forward_only', '--train_dir=t'])
