"""Sweeps that are interrupted, killed, or out of disk space lose nothing, and continue with what is
missing.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line, failed, refused
from tests.support.programs import ROOT, assert_ended
from tests.sweep.fake_runs import (
    FAKE,
    await_waiting,
    environment,
    fake_runner,
    make_sweep,
    plan_of,
    sizes_in,
)
from tf_cnn.lab.folder import Folder
from tf_cnn.sweep.run_plan import run_plan

pytestmark = pytest.mark.distributed

TEXT = 'repeats = 2\n[flags]\nmodel = "lenet"\n[grid]\nbatch_size = [1, 2, 3]\n'
# The command, with the small program in place of the real one.
COMMAND = (
    'import sys, tf_cnn.cli.sweep as s, tf_cnn_benchmarks as b; s.PROGRAM = {!r}; '
    'sys.exit(b.main())'
)
DEADLINE_SECS = 60


@contextlib.contextmanager
def sweeping(
    tmp_path: Path, *argv: object, waits: str = '', num_steps: int = 4
) -> Iterator[subprocess.Popen]:
    """A process that runs `sweep` with these arguments; ends with the block. Runs with the word
    `waits` in their command line wait for ever.
    """
    process = subprocess.Popen(
        [sys.executable, '-c', COMMAND.format(FAKE), 'sweep', *map(str, argv)],
        cwd=ROOT,
        env={**os.environ, **environment(tmp_path, {waits: 'wait'}, num_steps)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def sizes(tmp_path: Path) -> tuple[Path, str]:
    """The arguments of a sweep of three batch sizes, two runs of each, in the folder out/."""
    file = tmp_path / 'sizes.toml'
    file.write_text(TEXT)
    return file, f'--output={tmp_path}/out'


def test_a_sweep_that_was_killed_continues_with_what_is_missing(sizes, tmp_path):
    out = tmp_path / 'out'
    with sweeping(tmp_path, *sizes, waits='--batch_size=3') as process:
        # The run and its child, which has a session of its own.
        pids = await_waiting(tmp_path, 2)
        process.kill()
        process.wait()
    assert_ended(pids)
    assert sizes_in(tmp_path) == [1, 2, 3]
    # What a run had begun to write when the power failed.
    (out / 'results' / '.3-3-1x1.1.json').write_text('{"schema": "tf_cnn')
    with sweeping(tmp_path, '--resume', out) as process:
        table, messages = process.communicate(timeout=DEADLINE_SECS)
    assert process.returncode == 0, messages
    assert Counter(sizes_in(tmp_path)) == {1: 2, 2: 2, 3: 3}
    assert len(list((out / 'results').iterdir())) == 6
    assert table == (out / 'table.md').read_text()
    assert [line.split('|')[1].strip() for line in table.splitlines()[2:5]] == ['1', '2', '3']
    # Now nothing is missing.
    with sweeping(tmp_path, '--resume', out) as process:
        assert process.communicate(timeout=DEADLINE_SECS)[0] == table
    assert len(sizes_in(tmp_path)) == 7


@pytest.mark.surroundings
@pytest.mark.parametrize(('number', 'exit_code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_and_says_how_to_continue(number, exit_code, sizes, tmp_path):
    with sweeping(tmp_path, *sizes, waits='--batch_size=2') as process:
        pids = await_waiting(tmp_path, 2)
        process.send_signal(number)
        _, messages = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == exit_code, messages
    assert_ended(pids)
    *_, advice, error = messages.splitlines()
    check_line(advice, '1 of 6', f'sweep --resume {quoted(tmp_path / "out")}')
    assert error.startswith('tf_cnn_benchmarks: error: ')
    assert [path.name for path in (tmp_path / 'out/results').iterdir()] == ['1-1-1x1.1.json']


def test_a_table_that_cannot_be_written_is_printed(tmp_path, capsys):
    plan, folder = make_sweep(tmp_path, '[grid]\nbatch_size = [1, 2]\n')
    (folder.path / 'table.md').mkdir()
    with failed(folder.path / 'table.md'):
        run_plan(plan, folder, fake_runner(tmp_path))
    assert ' 20.0 |' in capsys.readouterr().out


def test_two_sweeps_do_not_share_a_folder(sizes, tmp_path):
    folder = Folder(tmp_path / 'out')
    with sweeping(tmp_path, *sizes, waits='--batch_size=1') as process:
        await_waiting(tmp_path, 2)
        plan = folder.read_plan()
        with refused(folder.path):
            run_plan(plan, folder, fake_runner(tmp_path))
        assert process.poll() is None
    with refused(folder.path, '--resume'):
        folder.create_for_plan(plan)


def test_a_folder_with_something_else_is_refused(tmp_path):
    plan = plan_of(tmp_path, TEXT)
    with refused(tmp_path):
        Folder(tmp_path).create_for_plan(plan)
    with refused(tmp_path, 'sweep.json'):
        Folder(tmp_path).read_plan()
    (tmp_path / 'sweep.json').write_text('{"schema": ')
    with refused(tmp_path / 'sweep.json'):
        Folder(tmp_path).read_plan()


def test_the_plan_is_kept_as_it_was_made(tmp_path):
    modes = 'shape = ["1*1", "2*1+1"]\nvariable_update = ["replicated", "parameter_server"]'
    plan, folder = make_sweep(tmp_path, TEXT + modes)
    assert plan.left_out
    assert folder.read_plan() == plan


@pytest.mark.skipif(os.geteuid() != 0, reason='mounting a small disk needs root')
def test_a_full_disk_ends_the_sweep_in_one_line_and_loses_nothing(tmp_path):
    disk = tmp_path / 'disk'
    disk.mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', disk], capture_output=True
    )
    if mounted.returncode:
        pytest.skip('this machine mounts no small disk')
    try:
        plan = plan_of(tmp_path, '[grid]\nbatch_size = [1, 2, 3, 4, 5, 6]\n')
        folder = Folder(disk / 'out')
        folder.create_for_plan(plan)
        # There is room for two results, with their logs, and not for a third one.
        environment(tmp_path, num_steps=2000)
        size = int(2.5 * len((tmp_path / 'document.txt').read_bytes()))
        ballast = disk / 'ballast'
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - size))
        with sweeping(tmp_path, '--resume', folder.path, num_steps=2000) as process:
            _, messages = process.communicate(timeout=DEADLINE_SECS)
        assert process.returncode == 1
        error = messages.splitlines()[-1]
        assert error.startswith('tf_cnn_benchmarks: error')
        check_line(error, folder.path, 'No space left', '--resume')
        whole = {path: path.read_bytes() for path in folder.results.glob('[!.]*')}
        assert len(whole) == 2
        ballast.unlink()
        assert run_plan(plan, folder, fake_runner(tmp_path)) == 0
        assert {path: path.read_bytes() for path in whole} == whole
        results = [json.loads(path.read_text()) for path in folder.results.iterdir()]
        assert [result['schema'] for result in results] == ['tf_cnn_benchmarks.result'] * 6
    finally:
        subprocess.run(['umount', disk], check=True)
