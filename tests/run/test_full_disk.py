"""No success is told where a disk became full; a limit of the size of files stands for the disk."""

from pathlib import Path

import numpy as np
import pytest

from run.instruments import write_scalars
from tests.run.test_bad_input import run_command, the_error
from tests.support.graphs import file_size_limit
from tests.support.images import encoded, write_files
from tests.support.outputs import check_line, failed
from tests.support.sample_results import write_sample

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]

_RUN = ['--model=trivial', '--device=cpu', '--batch_size=2', '--num_batches=4', '--num_warmup_batches=0']


def test_summaries_that_cannot_be_written_end_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The summary has the graph, of 57 KB. What is captured is a file, too, but a smaller one.
    with file_size_limit(30_000):
        code, _, lines = run_command(
            capfd, *_RUN, f'--train_dir={tmp_path}', '--save_summaries_steps=1', '--summary_verbosity=1'
        )
    assert code == 1, lines
    check_line(the_error(lines), f'--train_dir={tmp_path}')


def test_shards_that_do_not_fit_are_not_told_as_success(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    noise = np.random.default_rng(1).integers(0, 256, [200, 200, 3], np.uint8)
    photos = write_files(tmp_path, {f'photos/a/{number}.jpg': encoded(noise) for number in range(4)}) / 'photos'
    shards = tmp_path / 'shards'
    command = ['records', f'--input={photos}', f'--output={shards}', '--shards=1', '--num_processes=1']
    with file_size_limit(60_000):
        code, out, lines = run_command(capfd, *command)
    assert (code, out) == (1, ''), lines
    check_line(the_error(lines), f'--output={shards}')
    assert list(shards.iterdir()) == []
    code, _, lines = run_command(capfd, *command)
    assert code == 0, lines


def test_files_about_a_run_that_do_not_fit_leave_nothing_and_keep_what_was_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {flag: tmp_path / flag for flag in ('trace_file', 'graph_file', 'tfprof_file')}
    for flag, path in files.items():
        path.write_text('of an earlier run')
        with file_size_limit(2_000):
            code, _, lines = run_command(capfd, *_RUN, '--num_warmup_batches=1', f'--{flag}={path}')
        assert code == 1, lines
        check_line(the_error(lines), f'--{flag}={path}')
        assert path.read_text() == 'of an earlier run'
    prefix = tmp_path / 'part'
    with file_size_limit(2_000):
        code, _, lines = run_command(
            capfd, *_RUN, '--num_warmup_batches=1', f'--partitioned_graph_file_prefix={prefix}'
        )
    assert code == 1, lines
    assert {path.name for path in tmp_path.iterdir()} == {*files}
    folder = tmp_path / 'profile'
    with file_size_limit(2_000):
        code, _, lines = run_command(capfd, *_RUN, f'--profile_dir={folder}', '--profile_steps=2,3')
    assert code == 1, lines
    check_line(the_error(lines), f'--profile_dir={folder}')
    assert [path for path in folder.rglob('*') if path.is_file()] == []


def test_the_summary_of_an_evaluation_that_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    with file_size_limit(50), failed(f'--eval_dir={tmp_path}'):
        write_scalars(str(tmp_path), 'eval_dir', 1, {'accuracy': 0.5})


def test_a_sweep_whose_plan_does_not_fit_can_be_started_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ['sweep', '--grid=--weight_decay=0,1', f'--output={tmp_path / "new"}', '--', *_RUN]
    # The plan has more bytes than the message, which is captured in a file, too.
    with file_size_limit(700):
        code, _, lines = run_command(capfd, *command)
    assert code == 1, lines
    check_line(the_error(lines), f'{tmp_path / "new"}', 'start again')
    assert '--resume' not in the_error(lines)
    assert [*(tmp_path / 'new').iterdir()] == []


def test_plots_that_do_not_fit_leave_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = write_sample(tmp_path / 'results' / 'a.json')
    plots = tmp_path / 'plots'
    with file_size_limit(15_000):
        code, _, lines = run_command(capfd, 'report', str(result), f'--plots={plots}', '--output=/dev/null')
    assert code == 1, lines
    check_line(the_error(lines), plots)
    # Those that were whole before stay.
    assert {path.suffix for path in plots.iterdir()} <= {'.svg', '.png'}
    assert all(path.stat().st_size for path in plots.iterdir())
