"""A signal at any moment ends a run within seconds with its code, one line and a partial result;
SIGNALS ends a process between two steps.
"""

import signal
import sys
import time

import pytest

from tests.support.files import quoted
from tests.support.outputs import check_line
from tests.support.programs import ROOT, Finished, Task, catches_sigterm, launched, run, run_process
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


# ---- SIGNALS -------------------------------------------------------------------------------------


def ended(code: str) -> Finished:
    preamble = 'import os, signal, sys, time\nfrom tf_cnn.system.signals import SIGNALS, Stopped\n'
    return run_process([sys.executable, '-c', preamble + code], ROOT)


@pytest.mark.surroundings
@pytest.mark.parametrize('number', [1, 2, 10, 12, 14, 15, 24])
def test_a_signal_where_an_exception_would_be_lost_is_raised_by_the_next_phase(number):
    name = signal.Signals(number).name
    code = f"""
class Swallowing:
    def __del__(self):
        signal.raise_signal({number})
with SIGNALS.storing():
    Swallowing()
    print('goes on')
    try:
        SIGNALS.check()
    except Stopped as stop:
        print(stop.exit_code, stop.reason)
    SIGNALS.check()
"""
    word = 'interrupted' if number == signal.SIGINT else 'stopped'
    assert ended(code) == (0, f'goes on\n{128 + number} {word} by {name}\n', '')


@pytest.mark.parametrize(('grace_secs', 'steps'), [(0.1, '1'), (30, '1 2')])
def test_when_no_phase_asks_in_time_a_thread_finishes_and_ends_the_process(grace_secs, steps):
    code = f"""
steps = ['1']
finish = lambda stop: print(stop.reason, *steps)
with SIGNALS.storing(finish, grace=lambda count: {grace_secs}, may_exit=True):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    steps.append('2')
    try:
        SIGNALS.check()
    except Stopped as stop:
        finish(stop)
        sys.exit(stop.exit_code)
"""
    assert ended(code) == (143, f'stopped by SIGTERM {steps}\n', '')


def test_a_signal_that_timeout_sends_twice_at_once_is_one_request():
    code = """
with SIGNALS.storing():
    for pause in (0, 0, 0.5, 0):
        time.sleep(pause)
        signal.raise_signal(signal.SIGTERM)
    while SIGNALS.count < 2:
        time.sleep(0.01)
    print(SIGNALS.count, SIGNALS.take_stop().reason)
"""
    assert ended(code) == (0, '2 stopped by SIGTERM\n', '')


@pytest.mark.parametrize(
    'start', ['SIGNALS.exit_on_signal()', ''], ids=['the command', 'another program']
)
def test_the_third_signal_ends_a_process_that_cannot_finish(start):
    code = f"""
{start}
with SIGNALS.storing(lambda stop: time.sleep(60)):
    # On a busy machine, the thread may read two signals as one.
    for _ in range(30):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.4)
"""
    assert ended(code) == (143, '', 'tf_cnn_benchmarks: error: stopped by SIGTERM\n')


def test_a_second_ctrl_c_interrupts_code_of_another_program():
    code = """
try:
    with SIGNALS.storing():
        for step in range(1, 60):
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.3)
except KeyboardInterrupt as interruption:
    print(step, type(interruption).__name__)
"""
    assert ended(code) == (0, '2 KeyboardInterrupt\n', '')


def test_signals_that_the_user_handles_or_ignores_are_left_alone():
    code = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: print('mine'))
with SIGNALS.storing():
    for number in (signal.SIGHUP, signal.SIGUSR1):
        signal.raise_signal(number)
    SIGNALS.check()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    assert ended(code) == (0, 'mine\n', '')
