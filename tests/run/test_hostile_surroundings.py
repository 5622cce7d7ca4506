"""Hostile surroundings, through the real command: full and read-only disks, files that change, odd names, locales.

Each ends in time with the error of its row, and leaves no damaged file.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from records.layout import shard_name
from run.instruments import write_scalars
from tests.support.graphs import file_size_limit
from tests.support.images import encoded, example, write_files, write_shard
from tests.support.outputs import check_line, failed
from tests.support.programs import ROOT, Capture, run_command, run_process, the_error
from tests.support.runs import made, values_in
from tests.support.sample_results import write_sample

pytestmark = [pytest.mark.graph, pytest.mark.long, pytest.mark.usefixtures('forget_models')]

_RUN = ['--model=trivial', '--device=cpu', '--batch_size=2', '--num_batches=4', '--num_warmup_batches=0']
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason='mounting a small disk needs root')


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=64m', 'tmpfs', folder], capture_output=True).returncode:
        pytest.skip('this machine mounts no small disk')
    try:
        yield folder
    finally:
        subprocess.run(['umount', '--lazy', folder], check=True)


def fill(disk: Path) -> None:
    with (disk / 'ballast').open('wb', buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def run_until_fault(change: Callable[[], object], *facts: object, **flags: Any) -> None:
    """Takes steps, after some of which something changes; fails unless they end with a fault that names these facts."""
    with failed(*facts):
        for step in made(num_batches=None, target_seconds=2, num_warmup_batches=0, **flags).steps():
            if step.index == 10:
                change()


@needs_mounts
def test_a_disk_that_fills_up_while_training_leaves_the_checkpoints_before(disk: Path) -> None:
    flags = {'train_dir': str(disk), 'save_summaries_steps': 1, 'summary_verbosity': 1}
    run_until_fault(lambda: fill(disk), f'--train_dir={disk}', **flags)
    assert all(np.isfinite(value).all() for value in values_in(disk).values())
    assert not [name for name in files_in(disk) if name.startswith('.')]


@needs_mounts
def test_a_result_that_finds_no_room_is_an_error_after_its_lines(disk: Path, capfd: Capture) -> None:
    fill(disk)
    code, out, lines = run_command(capfd, *_RUN, f'--result_file={disk}/result.json')
    assert code == 1
    check_line(the_error(lines), f'--result_file={disk}/result.json', 'No space left')
    assert out.count('total images/sec: ') == 1
    assert files_in(disk) == ['ballast']


@needs_mounts
def test_what_is_read_only_is_refused_before_the_run(disk: Path, capfd: Capture) -> None:
    (disk / 'trained').mkdir()
    subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
    for flag in (f'--train_dir={disk}/trained', f'--train_dir={disk}/new', f'--result_file={disk}/result.json'):
        code, out, lines = run_command(capfd, *_RUN, flag)
        assert (code, out) == (2, '')
        check_line(the_error(lines), flag, 'read-only')


# ---- full disks: a limit of the size of files stands for them --------------------------------------------------------


def test_summaries_that_cannot_be_written_end_the_run(tmp_path: Path, capfd: Capture) -> None:
    # The summary has the graph, of 57 KB. What is captured is a file, too, but a smaller one.
    summaries = ['--save_summaries_steps=1', '--summary_verbosity=1']
    with file_size_limit(30_000):
        code, _, lines = run_command(capfd, *_RUN, f'--train_dir={tmp_path}', *summaries)
    assert code == 1, lines
    check_line(the_error(lines), f'--train_dir={tmp_path}')
    (tmp_path / 'evaluated').mkdir()
    with file_size_limit(50), failed(f'--eval_dir={tmp_path}/evaluated'):
        write_scalars(str(tmp_path / 'evaluated'), 'eval_dir', 1, {'accuracy': 0.5})


def test_shards_that_do_not_fit_are_not_told_as_success(tmp_path: Path, capfd: Capture) -> None:
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


@pytest.mark.parametrize(
    ('flag', 'name'),
    [
        *((flag, 'file') for flag in ('trace_file', 'graph_file', 'tfprof_file')),
        ('partitioned_graph_file_prefix', 'part'),
        ('profile_dir', 'profile'),
    ],
)
def test_files_about_a_run_that_do_not_fit_leave_nothing_and_keep_what_was_there(
    flag: str, name: str, tmp_path: Path, capfd: Capture
) -> None:
    (tmp_path / 'file').write_text('of an earlier run')
    steps = ['--num_warmup_batches=1', *(['--profile_steps=2,3'] if flag == 'profile_dir' else [])]
    with file_size_limit(2_000):
        code, _, lines = run_command(capfd, *_RUN, *steps, f'--{flag}={tmp_path}/{name}')
    assert code == 1, lines
    check_line(the_error(lines), f'--{flag}={tmp_path}/{name}')
    assert (tmp_path / 'file').read_text() == 'of an earlier run'
    assert [path.name for path in tmp_path.rglob('*') if path.is_file()] == ['file']


def test_a_sweep_whose_plan_does_not_fit_can_be_started_again(tmp_path: Path, capfd: Capture) -> None:
    command = ['sweep', '--grid=--weight_decay=0,1', f'--output={tmp_path / "new"}', '--', *_RUN]
    # The plan has more bytes than the message, which is captured in a file, too.
    with file_size_limit(700):
        code, _, lines = run_command(capfd, *command)
    assert code == 1, lines
    check_line(the_error(lines), f'{tmp_path / "new"}', 'start again')
    assert '--resume' not in the_error(lines)
    assert [*(tmp_path / 'new').iterdir()] == []


def test_plots_that_do_not_fit_leave_nothing(tmp_path: Path, capfd: Capture) -> None:
    result, plots = write_sample(tmp_path / 'results' / 'a.json'), tmp_path / 'plots'
    with file_size_limit(15_000):
        code, _, lines = run_command(capfd, 'report', str(result), f'--plots={plots}', '--output=/dev/null')
    assert code == 1, lines
    check_line(the_error(lines), plots)
    # Those that were whole before stay.
    assert {path.suffix for path in plots.iterdir()} <= {'.svg', '.png'}
    assert all(path.stat().st_size for path in plots.iterdir())


# ---- files that change -----------------------------------------------------------------------------------------------


def test_a_checkpoint_that_was_cut_is_named_by_all_that_read_it(tmp_path: Path, capfd: Capture) -> None:
    code, _, lines = run_command(capfd, *_RUN, f'--train_dir={tmp_path}')
    assert code == 0, lines
    [data] = tmp_path.glob('model.ckpt-4.data-*')
    os.truncate(data, data.stat().st_size // 2)
    before = files_in(tmp_path)
    for flags in (_RUN, [*_RUN, '--eval']):
        code, _, lines = run_command(capfd, *flags, f'--train_dir={tmp_path}')
        assert code == 1
        check_line(the_error(lines), data)
    assert files_in(tmp_path) == before


RECORD = example(encoded(np.full([40, 50, 3], 99, np.uint8)), 1)


def replace_by_garbage(shard: Path) -> None:
    garbage = shard.with_name('garbage')
    garbage.write_bytes(bytes(range(256)) * 100)
    garbage.rename(shard)


# By name: what happens to the first of the shards when steps are taken, and what the error names besides it.
CHANGES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    'it is deleted': (Path.unlink, ['No such file']),
    'all are deleted': (lambda shard: shutil.rmtree(shard.parent), ['No such file']),
    'it is cut': (lambda shard: os.truncate(shard, 5000), ['record ', 'cut short']),
    'garbage takes its place': (replace_by_garbage, ['record 0', 'checksum']),
    'it is emptied': (lambda shard: os.truncate(shard, 0), [' 0 of ']),
}


@pytest.mark.parametrize('name', CHANGES)
def test_shards_that_change_during_a_run_are_named(name: str, tmp_path: Path) -> None:
    """At the latest at its end: TensorFlow passes over shards that are missing or empty."""
    (shard, *_), (change, facts) = write_shards(tmp_path / 'shards'), CHANGES[name]
    run_until_fault(lambda: change(shard), shard, *facts, data_dir=str(shard.parent))


def test_a_run_without_a_record_left_does_not_wait_for_ever(tmp_path: Path) -> None:
    """In a process of its own, which ends in the midst of a step."""
    shards = write_shards(tmp_path / 'shards')
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *_RUN, '--num_batches=1000000']
    flags = [f'--data_dir={shards[0].parent}', '--display_every=10', f'--result_file={tmp_path}/result.json']
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            next(line for line in process.stdout if line.startswith('10\t'))
            for shard in shards:
                os.truncate(shard, 0)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 1
    check_line(err.splitlines()[-1], 'tf_cnn_benchmarks: error: ', f'--data_dir={shards[0].parent}', 'empty')
    assert json.loads((tmp_path / 'result.json').read_text())


def write_shards(folder: Path) -> list[Path]:
    folder.mkdir()
    shards = [folder / shard_name('train', number, 3) for number in range(3)]
    for shard in shards:
        write_shard(shard, [RECORD] * 40)
    return shards


NAME = 'a blank, a line\nbreak, "quotes\', é, 日本 and {x}$HOME;#'
MODEL = "from models.registry import register_model\nregister_model('own', lambda cnn, x, num_classes: "
MODEL += "cnn.dense(cnn.flatten(x), num_classes, 'logits'), image_size=8)\n"


def test_a_run_needs_no_home_and_no_utf_8_for_its_output_and_takes_files_of_any_name(
    tmp_path: Path, capfd: Capture
) -> None:
    folder = tmp_path / NAME
    shards = write_shards(tmp_path / 'shards')[0].parent.rename(folder)
    (folder / 'own {model}.py').write_text(MODEL)
    # Braces are the fields of result files.
    result = tmp_path / 'result é "\'\n 日本.json'
    flags = ['--model=own', f'--model_file={folder}/own {{model}}.py', f'--train_dir={folder}/trained']
    read = [*flags, *_RUN[1:], f'--data_dir={shards}', f'--result_file={result}']
    code, out, lines = run_process(*read, HOME=None, USER=None, LOGNAME=None, PYTHONIOENCODING='ascii')
    assert code == 0, lines
    assert 'total images/sec: ' in out
    assert json.loads(result.read_text())
    # Training goes on there, and is evaluated.
    assert run_command(capfd, *flags, *_RUN[1:])[0] == 0
    assert (folder / 'trained' / 'model.ckpt-8.index').exists()
    code, out, _ = run_command(capfd, *flags, '--eval', *_RUN[1:4])
    assert (code, out.count('[8 examples]')) == (0, 1)


def test_a_name_that_the_locale_cannot_express_is_refused_with_what_to_set(tmp_path: Path) -> None:
    locale: dict[str, Any] = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    code, _, lines = run_process(*_RUN, f'--train_dir={tmp_path}/é', **locale)
    assert code == 2
    check_line(lines[-1], 'tf_cnn_benchmarks: error: --train_dir=', 'PYTHONUTF8=1')


def test_a_host_that_does_not_resolve_is_named() -> None:
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as own:
        port = own.getsockname()[1]
    hosts = ['--ps_hosts=no-such-host.invalid:2222', f'--worker_hosts=127.0.0.1:{port}']
    task = ['--job_name=worker', '--task_index=0', '--connect_timeout_secs=1']
    code, _, lines = run_process(*_RUN, *hosts, *task)
    assert code == 1
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', 'no-such-host.invalid')
