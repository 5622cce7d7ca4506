"""A signal at any moment ends a run within seconds with its code, one line and a partial result."""

import signal
import time

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import Task, catches_sigterm, launched, run
from tf_cnn.results.document import Result, read_result
from tf_cnn.training.checkpoint_files import latest_checkpoint

pytestmark = [pytest.mark.distributed, pytest.mark.long]

# A run answers a signal within 2 s; the rest is for a machine that is busy with other tests.
ANSWER_SECS = 2 + 8
ENDLESS = '--device=cpu --num_batches=1000000 --display_every=1'


def answer(process: Task, number: signal.Signals) -> list[str]:
    """Sends the signal; returns the lines on standard error once the process has ended."""
    process.send(number)
    began = time.monotonic()
    assert process.has_ended(60)
    assert time.monotonic() - began < ANSWER_SECS
    assert 'Traceback' not in process.err, process.err
    return process.err.splitlines()


# Networks that take minutes: DEEP to build its graph, SLOW for each step.
DEEP, SLOW = '--model=resnet152 --num_gpus=8', '--model=vgg16 --batch_size=256'
SMALL = '--model=lenet --device=cpu --batch_size=4'


@pytest.mark.parametrize(
    ('flags', 'line', 'number'),
    [
        (DEEP, '^Building the graph', signal.SIGTERM),
        (DEEP, '^Building the graph', signal.SIGINT),
        (SMALL, '^Initialising', signal.SIGUSR1),
        (SLOW, '^Running warm up', signal.SIGTERM),
        (f'{SMALL} --num_warmup_batches=1000000', '^Running', signal.SIGXCPU),
        (SMALL, '^3\timages/sec', signal.SIGUSR2),
        (SMALL, '^3\timages/sec', signal.SIGALRM),
        (SMALL, '^3\timages/sec', signal.SIGHUP),
    ],
)
def test_a_signal_ends_a_run_in_any_phase(flags, line, number, tmp_path):
    path = tmp_path / 'r.json'
    with launched(f'{ENDLESS} {flags} --result_file={quoted(path)}', tmp_path) as process:
        process.await_line(line)
        lines = answer(process, number)
    assert process.exit_code == 128 + number, lines
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', number.name)
    result = read_result(path)
    assert isinstance(result, Result)
    assert (result.is_complete, result.exit_status.exit_code) == (False, 128 + number)
    assert number.name in (result.reason or '')
    assert (result.statistics.num_steps >= 3) == line.startswith('^3')


def test_a_signal_during_the_import_of_tensorflow_changes_no_file(tmp_path):
    flags = f'{ENDLESS} {SMALL} --result_file={quoted(tmp_path)}/r.json'
    with launched(flags, tmp_path, fresh=True) as process:
        while not catches_sigterm(process.pid):
            time.sleep(0.002)
        lines = answer(process, signal.SIGTERM)
    assert process.exit_code == 143
    assert lines == ['tf_cnn_benchmarks: error: stopped by SIGTERM']
    assert not [*tmp_path.glob('*json*')]


def test_a_run_that_ends_early_does_not_replace_the_result_of_a_later_run(tmp_path):
    path = tmp_path / 'r.json'
    flag = f'--result_file={quoted(path)}'
    assert run(f'{SMALL} --num_batches=3 {flag}').code == 0
    flags = f'{SMALL} {ENDLESS} --num_warmup_batches=1000000 {flag}'
    with launched(flags, tmp_path) as process:
        process.await_line('^Running')
        assert run(f'{SMALL} --num_batches=3 {flag}').code == 0
        second_result = path.read_bytes()
        lines = answer(process, signal.SIGTERM)
    assert process.exit_code == 143
    assert [line for line in lines if f'--result_file={path}' in line and 'earlier result' in line]
    assert [*tmp_path.glob('*json*')] == [path]
    assert path.read_bytes() == second_result


def test_a_signal_after_the_total_changes_nothing(tmp_path):
    path = tmp_path / 'r.json'
    with launched(f'{SMALL} --num_batches=20 --result_file={quoted(path)}', tmp_path) as process:
        process.await_line('^total images/sec')
        answer(process, signal.SIGTERM)
    result = read_result(path)
    assert isinstance(result, Result)
    assert (process.exit_code, result.is_complete) == (0, True)


SLEEPING = """
import tensorflow.compat.v1 as tf
from tf_cnn_benchmarks import register_model
import time
def sleeping(cnn, images, num_classes):
    images = tf.reshape(tf.py_func(lambda x: time.sleep(2) or x, [images], tf.float32), [1, 12])
    return cnn.dense(images, num_classes, 'logits')
register_model('sleeping', sleeping, image_size=2, batch_size=1)
"""


def test_a_step_that_is_longer_than_the_answer_to_a_signal_ends_before_the_run(tmp_path):
    (tmp_path / 'sleeping.py').write_text(SLEEPING)
    flags = '--model_file=sleeping.py --model=sleeping --num_warmup_batches=1 --train_dir=train'
    with launched(f'{ENDLESS} {flags}', tmp_path, cwd=tmp_path) as process:
        process.await_line('^1\timages/sec')
        lines = answer(process, signal.SIGTERM)
    assert process.exit_code == 143, lines
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', 'SIGTERM')
    assert latest_checkpoint(str(tmp_path / 'train')) == str(tmp_path / 'train/model.ckpt-3')


def test_a_second_signal_does_not_wait_for_the_step(tmp_path):
    (tmp_path / 'sleeping.py').write_text(SLEEPING.replace('sleep(2)', 'sleep(5)'))
    flags = '--model_file=sleeping.py --model=sleeping --num_warmup_batches=0 --train_dir=train'
    with launched(f'{ENDLESS} {flags}', tmp_path, cwd=tmp_path) as process:
        process.await_line('^1\timages/sec')
        process.send(signal.SIGTERM)
        time.sleep(0.4)
        lines = answer(process, signal.SIGTERM)
    assert process.exit_code == 143, lines
    check_line(lines[-1], 'tf_cnn_benchmarks: error: ', 'SIGTERM')
    assert [line for line in lines if 'is lost' in line]
    assert latest_checkpoint(str(tmp_path / 'train')) == str(tmp_path / 'train/model.ckpt-0')
