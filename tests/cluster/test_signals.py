"""A signal to a run ends it between two steps."""

import signal
import sys

import pytest

from tests.support.programs import ROOT, Finished, run_process

pytestmark = pytest.mark.distributed


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
