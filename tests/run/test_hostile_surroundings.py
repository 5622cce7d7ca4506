"""Hostile surroundings, through the real command: full and read-only disks, files that change, odd names, locales.

Each ends in time with the error of its row, and leaves no damaged file.
"""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from inputs.data_sets import find_shards
from records.layout import shard_name
from run.process import await_loss
from tests.run.test_bad_input import ROOT
from tests.support.images import encoded, example, write_shard
from tests.support.outputs import check_line
from tests.support.programs import Commands, running

pytestmark = [pytest.mark.graph, pytest.mark.long]

_RUN = ['--model=trivial', '--device=cpu', '--batch_size=2', '--num_batches=4', '--num_warmup_batches=0']
# More steps than there is time for.
_ENDLESS = ['--model=lenet', '--device=cpu', '--batch_size=4', '--num_batches=1000000', '--num_warmup_batches=0']
needs_mounts = pytest.mark.skipif(os.geteuid() != 0, reason='mounting a small disk needs root')


@pytest.fixture(scope='module')
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with running(tmp_path_factory.mktemp('commands')) as process:
        yield process


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


def fill(disk: Path, spare: int = 0) -> None:
    """Leaves so many bytes free, though others may write there, too."""
    with (disk / 'ballast').open('wb', buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        file.truncate(file.tell() - spare)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@needs_mounts
def test_a_disk_that_fills_up_while_training_leaves_the_checkpoints_before(commands: Commands, disk: Path) -> None:
    flags = ['--save_summaries_steps=1', '--summary_verbosity=1', '--display_every=10']
    ended = commands.run(*_ENDLESS, f'--train_dir={disk}', *flags, at='10\t', during=lambda: fill(disk))
    assert ended.exit_code == 1
    check_line(ended.error, f'--train_dir={disk}')
    reader = tf.train.load_checkpoint(tf.train.latest_checkpoint(str(disk)))
    assert all(np.isfinite(reader.get_tensor(name)).all() for name in reader.get_variable_to_shape_map())
    assert not [name for name in files_in(disk) if name.startswith('.')]


@needs_mounts
def test_a_result_that_finds_no_room_is_an_error_after_its_lines(commands: Commands, disk: Path) -> None:
    fill(disk)
    ended = commands.run(*_RUN, f'--result_file={disk}/result.json')
    assert ended.exit_code == 1
    check_line(ended.error, f'--result_file={disk}/result.json', 'No space left')
    assert ended.out.count('total images/sec: ') == 1
    assert files_in(disk) == ['ballast']


@needs_mounts
def test_what_is_read_only_is_refused_before_the_run(commands: Commands, disk: Path) -> None:
    (disk / 'trained').mkdir()
    subprocess.run(['mount', '-o', 'remount,ro', disk], check=True)
    for flag in (f'--train_dir={disk}/trained', f'--train_dir={disk}/new', f'--result_file={disk}/result.json'):
        ended = commands.run(*_RUN, flag)
        assert (ended.exit_code, ended.out) == (2, '')
        check_line(ended.error, flag, 'read-only')


def test_a_checkpoint_that_was_cut_is_named_by_all_that_read_it(commands: Commands, tmp_path: Path) -> None:
    assert commands.run(*_RUN, f'--train_dir={tmp_path}').exit_code == 0
    [data] = tmp_path.glob('model.ckpt-4.data-*')
    os.truncate(data, data.stat().st_size // 2)
    before = files_in(tmp_path)
    for flags in (_RUN, [*_RUN, '--eval']):
        ended = commands.run(*flags, f'--train_dir={tmp_path}')
        assert ended.exit_code == 1
        check_line(ended.error, data)
    assert files_in(tmp_path) == before


def test_two_runs_never_mix_their_checkpoints(commands: Commands, tmp_path: Path) -> None:
    """This process holds the folder as another run does while it saves."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        ended = commands.run(*_RUN, f'--train_dir={tmp_path}')
    finally:
        os.close(folder)
    assert ended.exit_code == 1
    check_line(ended.error, f'--train_dir={tmp_path}', 'another run')
    assert files_in(tmp_path) == []


RECORD = example(encoded(np.full([40, 50, 3], 99, np.uint8)), 1)


def swap_for_garbage(shards: list[Path]) -> None:
    garbage = shards[0].with_name('garbage')
    garbage.write_bytes(bytes(range(256)) * 100)
    garbage.rename(shards[0])


def empty(shards: list[Path]) -> None:
    for shard in shards:
        os.truncate(shard, 0)


# By name: what happens to the shards when steps are taken, and what the error names besides the first of them.
CHANGES: dict[str, tuple[Callable[[list[Path]], object], list[str]]] = {
    'one is deleted': (lambda shards: shards[0].unlink(), ['No such file']),
    'all are deleted': (lambda shards: shutil.rmtree(shards[0].parent), ['No such file']),
    'one is cut': (lambda shards: os.truncate(shards[0], 5000), ['record ', 'cut short']),
    'one is swapped for garbage': (swap_for_garbage, ['record 0', 'checksum']),
    'one is emptied': (lambda shards: empty(shards[:1]), [' 0 of ']),
}


@pytest.mark.parametrize('name', CHANGES)
def test_shards_that_change_during_a_run_are_named(commands: Commands, name: str, tmp_path: Path) -> None:
    """At the latest at its end: TensorFlow passes over shards that are missing or empty."""
    shards = write_shards(tmp_path / 'shards')
    change, facts = CHANGES[name]
    flags = [f'--data_dir={shards[0].parent}', '--target_seconds=2', '--display_every=10']
    run = [flag for flag in _ENDLESS if 'num_batches' not in flag]
    ended = commands.run(*run, *flags, at='10\t', during=lambda: change(shards))
    assert ended.exit_code == 1
    check_line(ended.error, shards[0], *facts)


def test_shards_that_end_within_their_first_header_hold_no_record(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / 'shards')
    for shard in shards:
        os.truncate(shard, 5)
    found = find_shards(str(shards[0].parent), 'train')
    check_line(await_loss(found, threading.Event()), f'--data_dir={shards[0].parent}')


def test_a_run_without_a_record_left_does_not_wait_for_ever(tmp_path: Path) -> None:
    """In a process of its own, which ends in the midst of a step."""
    shards = write_shards(tmp_path / 'shards')
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *_ENDLESS, f'--data_dir={shards[0].parent}']
    flags = ['--display_every=10', f'--result_file={tmp_path}/result.json']
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            next(line for line in process.stdout if line.startswith('10\t'))
            empty(shards)
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


def run_alone(*flags: str, **environ: str | None) -> tuple[int, str, str]:
    """A process with these variables; those that are None are not there."""
    merged = {name: value for name, value in {**os.environ, **environ}.items() if value is not None}
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), *flags]
    done = subprocess.run(command, capture_output=True, env=merged, timeout=120)
    out, err = (text.decode(errors='backslashreplace') for text in (done.stdout, done.stderr))
    assert 'Traceback' not in err, err
    return done.returncode, out, err


def test_a_run_needs_no_home_and_no_utf_8_for_its_output_and_takes_files_of_any_name(tmp_path: Path) -> None:
    folder = tmp_path / NAME
    shards = write_shards(tmp_path / 'shards')[0].parent.rename(folder)
    (folder / 'own {model}.py').write_text(MODEL)
    # Braces are the fields of result files.
    result = tmp_path / 'result é "\'\n 日本.json'
    code, out, err = run_alone(
        *('--model=own', f'--model_file={folder}/own {{model}}.py', f'--data_dir={shards}', *_RUN[1:]),
        *(f'--train_dir={folder}/trained', f'--result_file={result}'),
        **{'HOME': None, 'USER': None, 'LOGNAME': None, 'PYTHONIOENCODING': 'ascii'},
    )
    assert code == 0, err
    assert 'total images/sec: ' in out
    assert (folder / 'trained' / 'model.ckpt-4.index').exists()
    assert json.loads(result.read_text())


def test_a_name_that_the_locale_cannot_express_is_refused_with_what_to_set(tmp_path: Path) -> None:
    locale = {'LC_ALL': 'C', 'PYTHONUTF8': '0', 'PYTHONCOERCECLOCALE': '0'}
    code, _, err = run_alone(*_RUN, f'--train_dir={tmp_path}/é', **locale)
    assert code == 2
    check_line(err.splitlines()[-1], 'tf_cnn_benchmarks: error: --train_dir=', 'PYTHONUTF8=1')


def test_a_host_that_does_not_resolve_is_named() -> None:
    with contextlib.closing(socket.create_server(('127.0.0.1', 0))) as own:
        port = own.getsockname()[1]
    hosts = ['--ps_hosts=no-such-host.invalid:2222', f'--worker_hosts=127.0.0.1:{port}']
    code, _, err = run_alone(*_RUN, *hosts, '--job_name=worker', '--task_index=0', '--connect_timeout_secs=3')
    assert code == 1
    check_line(err.splitlines()[-1], 'tf_cnn_benchmarks: error: ', 'no-such-host.invalid')
