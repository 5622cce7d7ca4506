"""A signal to the launcher, even kill -9, ends all that it has started; one to a run ends it between two steps."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.hosts import Command
from commands import cluster as cluster_command
from tests.support.programs import STARTED, Watched, check_error, program, run

pytestmark = pytest.mark.distributed

ROOT = Path(cluster_command.__file__).resolve().parent.parent


@contextlib.contextmanager
def launched(*commands: Command) -> Iterator[tuple[subprocess.Popen[str], Watched]]:
    """A launcher in a process of its own, whose commands have all written a line to standard output."""
    # SIGINT is ignored where the tests run in the background of a shell, SIGHUP under nohup.
    code = (
        'import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n'
        'signal.signal(signal.SIGHUP, signal.SIG_DFL)\n'
        f'from cluster.launcher import Command, launch\nsys.exit(launch({list(commands)!r}))'
    )
    with (
        contextlib.ExitStack() as stack,
        subprocess.Popen(
            [sys.executable, '-c', code], cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
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
        assert [line for line in err.splitlines() if line.startswith('worker 0 | ')] == ['worker 0 | SIGTERM']
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


# ---- a process of the run --------------------------------------------------------------------------------------------

# The signal comes during a step, which ends a second later. A step may take a tenth of a second, or twice as long as
# the last one.
PROGRAM = """
import os, signal, time
from cluster import signals
signals._GRACE_SECS = 0.1
ended = ['step 1']
stop = signals.Stop(lambda *how: print(*how, *ended))
with stop.listening():
    stop.end_if_requested({last_step_secs})
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
    ended.append('step 2')
    stop.end_if_requested(1)
"""


@pytest.mark.parametrize(('last_step_secs', 'ended'), [(0, 'step 1'), (30, 'step 1 step 2')])
def test_a_step_may_take_twice_as_long_as_the_last_one(last_step_secs: int, ended: str) -> None:
    program = PROGRAM.format(last_step_secs=last_step_secs)
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (143, f'143 SIGTERM {ended}\n', '')
