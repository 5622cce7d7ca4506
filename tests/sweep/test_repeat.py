"""--repeat: runs in fresh processes, their total and interval, the files of their results, and runs
that fail.
"""

import io
import json
from pathlib import Path

import pytest

from tests.support.outputs import failed, refused
from tests.support.sample_results import (
    interrupt_when_waiting,
    sample_document,
    starter,
    step_seconds,
)
from tf_cnn.cli.benchmark import main
from tf_cnn.results.console import Console
from tf_cnn.results.document import Result, read_result
from tf_cnn.run.parsing import parse_argv
from tf_cnn.sweep.repeat import run_repeats

pytestmark = pytest.mark.unit

RULE = '-' * 64


def repeated(
    folder: Path, *argv: str, behaviours: dict[str, object] | None = None
) -> tuple[int, str, str]:
    """The exit code and what was printed on both streams. The small program reaches ten times its
    batch size.
    """
    out, err = io.StringIO(), io.StringIO()
    code = run_repeats(
        argv, parse_argv(argv).params, Console(out, err), starter(folder, behaviours=behaviours)
    )
    return code, out.getvalue(), err.getvalue()


def test_each_run_is_a_process_and_the_total_is_that_of_all(tmp_path: Path) -> None:
    path = tmp_path / '{model}-{batch_size}.json'
    code, out, err = repeated(
        tmp_path, '--model=lenet', '--batch_size=8', '--repeat=3', f'--result_file={path}'
    )
    assert code == 0
    first, second, third = (
        read_result(tmp_path / f'lenet-8.{number}.json') for number in (1, 2, 3)
    )
    assert len({found.id for found in (first, second, third)}) == 3
    # The path may have a field for the number.
    new = f'--result_file={tmp_path}/new/{{run}}/{{shape}}.json'
    repeated(tmp_path, '--model=lenet', '--repeat=2', new)
    assert {
        str(path.relative_to(tmp_path / 'new')) for path in (tmp_path / 'new').rglob('*.json')
    } == {*('1/1*1.json', '2/1*1.json')}
    # No result is replaced.
    assert f'{tmp_path}/new/3/1*1.json' in repeated(tmp_path, '--model=lenet', '--repeat=2', new)[2]
    assert len({read_result(path).id for path in (tmp_path / 'new').rglob('*.json')}) == 4
    assert out == f'{RULE}\ntotal images/sec: 80.00\n{RULE}\n'
    assert [f'run {number} of 3: 80.0 images/sec' in err for number in (1, 2, 3)] == [True] * 3
    assert (
        'rate of 3 runs: 80.00 images/sec (all images / all seconds), 95 % interval 80.00 to '
        '80.00 (+/- 0.0 %)' in err
    )


def test_a_result_that_cannot_be_kept_ends_the_runs_with_the_total_so_far(tmp_path: Path) -> None:
    # A link to where no file can be made stands for a full disk.
    (tmp_path / 'r.2.json').symlink_to('/proc/r.json')
    argv = ['--batch_size=8', '--repeat=3', f'--result_file={tmp_path}/r.json']
    out, err = io.StringIO(), io.StringIO()
    with failed(f'--result_file={tmp_path}/r.2.json'):
        run_repeats(argv, parse_argv(argv).params, Console(out, err), starter(tmp_path))
    assert out.getvalue() == f'{RULE}\ntotal images/sec: 80.00\n{RULE}\n'
    assert 'stopped after 2 of 3 runs' in err.getvalue()
    assert isinstance(read_result(tmp_path / 'r.1.json'), Result)


def test_the_banner_and_each_warning_of_the_runs_are_shown_once(tmp_path: Path) -> None:
    started = starter(tmp_path)
    warnings = [
        {'code': code, 'text': text}
        for code, text in (('settings', 'a'), ('settings', 'b'), ('steal', 'c'))
    ]
    (tmp_path / 'document.txt').write_text(
        json.dumps(sample_document(seconds=step_seconds(num_steps=4), warnings=warnings))
    )
    out, err = io.StringIO(), io.StringIO()
    assert (
        run_repeats(['--repeat=3'], parse_argv(['--repeat=3']).params, Console(out, err), started)
        == 0
    )
    # Standard output has the total alone.
    assert out.getvalue() == f'{RULE}\ntotal images/sec: 320.00\n{RULE}\n'
    lines = err.getvalue().splitlines()
    banner = ['TensorFlow:  2.21', 'Batch size:  32 global', 'Machine:     Example CPU 1', '=' * 10]
    assert lines[: len(banner)] == banner
    assert lines.count(banner[0]) == 1
    assert [line.partition('3 of 3 runs: ')[2] for line in lines if 'warning' in line] == [
        'a',
        'b',
        'c',
    ]


def test_a_run_that_stopped_early_is_told_with_its_reason_and_kept(tmp_path: Path) -> None:
    argv = ('--repeat=3', '--batch_size=8', f'--result_file={tmp_path}/r.json')
    code, out, err = repeated(tmp_path, *argv, behaviours={'--batch_size=8': {'2': 'stop early'}})
    assert code == 1
    assert 'total images/sec' in out
    notes = err.splitlines()
    assert any('run 2 of 3: failed' in line and 'the loss is nan' in line for line in notes)
    assert not any('run 2 of 3: 80' in line for line in notes)
    assert any('1 of 3 runs failed' in line and 'the loss is nan' in line for line in notes)
    stopped = read_result(tmp_path / 'r.2.json')
    assert isinstance(stopped, Result)
    assert not stopped.is_complete
    # If no run ends well, there is no total.
    with failed('--repeat=2', 'the disk is on fire'):
        repeated(tmp_path, '--repeat=2', '--batch_size=8', behaviours={'--batch_size=8': 'fail'})


def test_ctrl_c_shows_the_total_of_the_runs_that_are_done(tmp_path: Path) -> None:
    behaviours: dict[str, object] = {'--batch_size=8': {'3': 'wait'}}
    out, err = io.StringIO(), io.StringIO()
    argv = ['--repeat=5', '--batch_size=8']
    with interrupt_when_waiting(tmp_path), pytest.raises(KeyboardInterrupt):
        run_repeats(
            argv,
            parse_argv(argv).params,
            Console(out, err),
            starter(tmp_path, behaviours=behaviours),
        )
    assert 'total images/sec' in out.getvalue()
    assert 'stopped after 2 of 5 runs' in err.getvalue()
    # Two runs have no interval.
    assert 'rate of 2 runs: 80.00' in err.getvalue()
    assert '--repeat=3' in err.getvalue()
    assert '95 %' not in err.getvalue()


def test_a_folder_that_cannot_be_made_is_told_before_the_first_run(tmp_path: Path) -> None:
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
def test_what_runs_would_overwrite_is_refused(flags: str) -> None:
    with refused('--repeat=2', flags.split()[0]):
        parse_argv(['--repeat=2', *flags.split()])
