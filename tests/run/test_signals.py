"""A signal at any moment ends a run within seconds, with its code, one line, and what was
measured.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.outputs import check_line
from tests.support.programs import ROOT, run_process, the_error
from tf_cnn.results.document import Result, read_result
from tf_cnn.training.checkpoint_files import latest_checkpoint

pytestmark = [pytest.mark.distributed, pytest.mark.long]

# A signal is answered within 2 s; the rest is for a machine that is busy with other tests.
ANSWER_SECS = 2 + 8
ENDLESS = ('--num_batches=1000000', '--display_every=1')


@contextmanager
def running(*flags: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose lines on both streams come by its standard output."""
    command = [sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'), '--device=cpu', *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: subprocess.Popen[str], pattern: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(pattern, line):
            return
    pytest.fail(f'it ended before {pattern}')


def answer(process: subprocess.Popen[str], number: int) -> list[str]:
    process.send_signal(number)
    began = time.monotonic()
    out, _ = process.communicate(timeout=60)
    assert time.monotonic() - began < ANSWER_SECS
    assert 'Traceback' not in out, out
    return out.splitlines()


# A network whose graph takes minutes to build, and one whose step takes minutes.
DEEP, SLOW = ('--model=resnet152', '--num_gpus=8'), ('--model=vgg16', '--batch_size=256')
SMALL = ('--model=lenet', '--batch_size=4')


@pytest.mark.parametrize(
    ('flags', 'line', 'number'),
    [
        (DEEP, 'Building the graph', signal.SIGTERM),
        (DEEP, 'Building the graph', signal.SIGINT),
        (SMALL, 'Initialising', signal.SIGUSR1),
        (SLOW, 'Running 10 warm-up steps', signal.SIGTERM),
        ((*SMALL, '--num_warmup_batches=1000000'), 'Running', signal.SIGXCPU),
        (SMALL, '3\timages/sec', signal.SIGUSR2),
        (SMALL, '3\timages/sec', signal.SIGALRM),
        (SMALL, '3\timages/sec', signal.SIGHUP),
    ],
)
def test_a_signal_ends_a_run_in_any_phase(
    flags: tuple[str, ...], line: str, number: signal.Signals, tmp_path: Path
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f'{number.name} is ignored here')
    path = tmp_path / 'r.json'
    with running(*flags, *ENDLESS, f'--result_file={path}') as process:
        read_until(process, line)
        lines = answer(process, number)
    assert process.returncode == 128 + number, lines
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', number.name)
    result = read_result(path)
    assert isinstance(result, Result)
    assert (result.is_complete, result.exit_status.exit_code) == (False, 128 + number)
    assert number.name in (result.reason or '')
    assert (result.statistics.num_steps >= 3) == line.startswith('3')


def test_a_result_is_not_lost_by_a_run_that_ends_early_or_that_another_run_follows(
    tmp_path: Path,
) -> None:
    path = tmp_path / 'r.json'
    flag = f'--result_file={path}'
    code, _, _ = run_process(*SMALL, '--device=cpu', '--num_batches=3', flag)
    before = path.read_bytes()
    assert code == 0
    with running(*SMALL, *ENDLESS, '--num_warmup_batches=1000000', flag) as process:
        read_until(process, 'Running')
        code, out, lines = run_process(*SMALL, '--device=cpu', flag)
        assert (code, out) == (2, '')
        check_line(the_error(lines), flag, 'another run')
        lines = answer(process, signal.SIGTERM)
    assert process.returncode == 143
    assert [line for line in lines if flag in line and 'earlier result' in line]
    assert path.read_bytes() == before


def test_a_signal_after_the_total_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / 'r.json'
    with running(*SMALL, '--num_batches=20', f'--result_file={path}') as process:
        read_until(process, 'total images/sec')
        answer(process, signal.SIGTERM)
    result = read_result(path)
    assert isinstance(result, Result)
    assert (process.returncode, result.is_complete) == (0, True)


def test_ctrl_c_twice_while_training_keeps_the_last_checkpoint_and_the_third_time_ends_at_once(
    tmp_path: Path,
) -> None:
    flags = (
        '--model=alexnet',
        '--batch_size=64',
        '--num_warmup_batches=1',
        *ENDLESS,
        f'--train_dir={tmp_path}',
    )
    with running(*flags) as process:
        read_until(process, '2\timages/sec')
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.4)
        lines = answer(process, signal.SIGTERM)
    assert process.returncode == 143, lines
    saved = latest_checkpoint(str(tmp_path))
    timed = next(
        match
        for line in lines
        if (match := re.search(r'it timed (\d+) step.*global step (\d+)', line))
    )
    assert saved == str(tmp_path / f'model.ckpt-{timed[2]}')
    with running(*SLOW, *ENDLESS, f'--train_dir={tmp_path / "slow"}') as process:
        read_until(process, 'Running 10 warm-up steps')
        for _ in range(2):
            os.kill(process.pid, signal.SIGTERM)
            time.sleep(0.4)
        lines = answer(process, signal.SIGTERM)
    assert process.returncode == 143
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', 'SIGTERM')
