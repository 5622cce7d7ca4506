"""A signal to the launcher, even kill -9, ends all that it has started; one to a run ends it
between two steps.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import STARTED, Watched, check_error, program, run
from tf_cnn.cli import cluster as cluster_command
from tf_cnn.launch.hosts import Command

pytestmark = pytest.mark.distributed

ROOT = Path(cluster_command.__file__).resolve().parents[2]


@contextlib.contextmanager
def launched(*commands: Command) -> Iterator[tuple[subprocess.Popen[str], Watched]]:
    """A launcher in a process of its own, whose commands have all written a line to standard
    output.
    """
    # SIGINT is ignored where the tests run in the background of a shell, SIGHUP under nohup.
    code = (
        'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n'
        'signal.signal(signal.SIGHUP, signal.SIG_DFL)\n'
        f'from tf_cnn.launch.launcher import Command, launch\nsys.exit(launch({list(commands)!r}))'
    )
    with (
        contextlib.ExitStack() as stack,
        subprocess.Popen(
            [sys.executable, '-c', code],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as launcher,
    ):
        stack.callback(launcher.kill)
        assert launcher.stderr is not None
        pids, num_ready = [], 0
        while num_ready < len(commands):
            line = launcher.stderr.readline()
            assert line, 'the launcher ended'
            if STARTED in line:
                pids.append(int(line.split(STARTED)[1].split()[0]))
            num_ready += line.endswith('| ready\n')
        yield launcher, Watched(stack, pids)


READY = "print('ready', flush=True)\n"
OBEDIENT = program('worker 0', READY + 'wait()')
SERVER = program('ps 0', READY + 'wait()', is_server=True)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_processes(number: signal.Signals) -> None:
    with launched(SERVER, OBEDIENT) as (launcher, processes):
        launcher.send_signal(number)
        _, err = launcher.communicate(timeout=60)
        assert launcher.returncode == 128 + number
        # Lines that name a process may come late.
        *late, line = err.splitlines()
        assert all(' is process ' in other for other in late), err
        check_error(line, number.name, 'ps 0', 'worker 0')
        processes.assert_all_end()


def test_ctrl_c_in_a_terminal_reaches_the_processes_as_one_sigterm() -> None:
    code = """
signal.signal(signal.SIGINT, lambda *_: os.write(1, b'SIGINT\\n'))
def end():
    os.write(1, b'SIGTERM\\n')
    os._exit(0)
on_sigterm(end)
"""
    with launched(program('worker 0', code + READY + 'wait()')) as (launcher, processes):
        # As a terminal does.
        os.killpg(launcher.pid, signal.SIGINT)
        _, err = launcher.communicate(timeout=60)
        assert launcher.returncode == 130
        assert [line for line in err.splitlines() if line.startswith('worker 0 | ')] == [
            'worker 0 | SIGTERM'
        ]
        processes.assert_all_end()


def test_no_process_outlives_a_launcher_that_is_killed() -> None:
    deaf = program('worker 1', 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + READY + 'wait()')
    with launched(SERVER, OBEDIENT, deaf) as (launcher, processes):
        launcher.kill()
        launcher.wait()
        processes.assert_all_end()


def test_signals_work_as_before_when_all_have_ended() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    run(program('a', 'pass'))
    assert [signal.getsignal(number) for number in numbers] == before


# ---- a process of the run ------------------------------------------------------------------------


def ended(code: str) -> tuple[int, str, str]:
    """Returns the exit code and both streams of a process that runs this code."""
    preamble = 'import os, signal, sys, time\nfrom tf_cnn.system.signals import SIGNALS, Stopped\n'
    command = [sys.executable, '-c', preamble + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize('number', [1, 2, 10, 12, 14, 15, 24])
def test_a_signal_that_arrives_where_an_exception_would_be_lost_is_raised_by_the_next_phase(
    number: int,
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f'{signal.Signals(number).name} is ignored here')
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
    assert ended(code) == (
        0,
        f'goes on\n{128 + number} {word} by {signal.Signals(number).name}\n',
        '',
    )


@pytest.mark.parametrize(('grace_secs', 'steps'), [(0.1, '1'), (30, '1 2')])
def test_when_no_phase_asks_in_time_a_thread_finishes_and_ends_the_process(
    grace_secs: float, steps: str
) -> None:
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


def test_a_signal_that_timeout_sends_twice_at_once_is_one_request() -> None:
    code = """
with SIGNALS.storing():
    for pause in (0, 0, 0.5, 0):
        time.sleep(pause)
        signal.raise_signal(signal.SIGTERM)
    print(SIGNALS.count, SIGNALS.take_stop().reason)
"""
    assert ended(code) == (0, '2 stopped by SIGTERM\n', '')


def test_signals_that_the_user_handles_or_ignores_are_left_alone() -> None:
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


def test_a_launcher_whose_terminal_is_gone_ends_with_the_code_of_sighup() -> None:
    with launched(OBEDIENT) as (launcher, processes):
        assert launcher.stderr is not None
        # What is written from now on fails, as on a terminal that was closed.
        launcher.stderr.close()
        launcher.send_signal(signal.SIGHUP)
        assert launcher.wait(timeout=60) == 128 + signal.SIGHUP
        processes.assert_all_end()
