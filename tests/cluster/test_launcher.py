"""The launcher starts the processes of a cluster, shows their lines and ends them.

The processes are small programs that wait for what they need on FIFOs, so that nothing depends on
time.
"""

import contextlib
import errno
import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.outputs import check_error, check_line, check_warning, failed
from tests.support.programs import ROOT, Task, Terminal, assert_ended, launched
from tf_cnn.launch.hosts import Command
from tf_cnn.launch.launcher import launch

pytestmark = pytest.mark.distributed

PREAMBLE = """
import json, os, signal, subprocess, sys, threading
def on_sigterm(function):
    def handle(number, frame):
        function()
    signal.signal(signal.SIGTERM, handle)
def wait():
    while True:
        signal.pause()
"""
CORES = sorted(os.sched_getaffinity(0))
# The launcher reports a started process in a line with this text.
STARTED = ' is process '


def program(name: str, code: str, **more: Any) -> Command:
    """Returns the command of a process that runs Python code after PREAMBLE."""
    return Command(name, (sys.executable, '-I', '-S', '-c', PREAMBLE + code), **more)


def run(*commands: Command, **options: Any) -> tuple[int, list[str], list[str]]:
    """Calls launch; returns the exit code and the lines of both streams, without the lines about
    starts.
    """
    out, err = io.StringIO(), io.StringIO()
    code = launch(commands, out=out, err=err, **options)
    lines = [line for line in err.getvalue().splitlines() if STARTED not in line]
    return code, out.getvalue().splitlines(), lines


@pytest.fixture
def fifo(tmp_path: Path) -> Callable[[str], str]:
    """Makes a FIFO: its reader and its writer wait for each other when they open it."""

    def make(name: str) -> str:
        path = str(tmp_path / name)
        os.mkfifo(path)
        return path

    return make


def opened(path: str, mode: str) -> str:
    """Code that opens a FIFO, and so waits until another process opens its other side."""
    return f'open({path!r}, {mode!r}).close()\n'


# ---- the lines of processes ----------------------------------------------------------------------


def test_lines_of_processes_that_write_at_once_stay_whole_and_in_order():
    code = """
def write(stream, number):
    for line in range(500):
        stream.write(f'{number}:{line}:' + 'x' * (line * 7 % 300) + '\\n')
        stream.flush()
streams = enumerate((sys.stdout, sys.stderr))
threads = [threading.Thread(target=write, args=(s, i)) for i, s in streams]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    names = ['worker 0', 'worker 1', 'worker 2', 'worker 3', 'ps 0']
    exit_code, out, err = run(
        *(program(name, code, has_result=name == 'worker 0') for name in names)
    )
    of_out, of_err = ([f'{i}:{n}:' + 'x' * (n * 7 % 300) for n in range(500)] for i in (0, 1))
    assert (exit_code, out, len(err)) == (0, of_out, 9 * 500)
    for name in names:
        prefix = f'{name:<8} | '
        lines = [line.removeprefix(prefix) for line in err if line.startswith(prefix)]
        assert [line for line in lines if line[0] == '1'] == of_err
        assert [line for line in lines if line[0] == '0'] == of_out * (name != 'worker 0')


def test_a_quiet_launcher_shows_warnings_once_and_errors():
    code = """
for line in ('Building', 'tf_cnn_benchmarks: warning: of all', 'tf_cnn_benchmarks: error: NAME'):
    print(line, file=sys.stderr)
print('total images/sec: 1.00')
"""
    names = ['ps 0', 'worker 0', 'worker 1']
    commands = [
        program(name, code.replace('NAME', name), has_result=name == 'worker 0') for name in names
    ]
    exit_code, out, err = run(*commands, quiet=True)
    assert (exit_code, out) == (0, ['total images/sec: 1.00'])
    *errors, warning = sorted(err, key=lambda line: line.split(' | ')[1])
    assert errors == [f'{name:<8} | tf_cnn_benchmarks: error: {name}' for name in names]
    assert warning.endswith(' | tf_cnn_benchmarks: warning: of all')


def test_the_last_lines_of_all_come_before_a_failure(fifo):
    ready = fifo('ready')
    many = 'for number in range(100): print(number, file=sys.stderr)\n'
    waiting = program('worker 0', many + opened(ready, 'w') + 'wait()', has_result=True)
    # The launcher has read everything from the process that ended, and from the other as much as it
    # could. All text is on one stream, since two streams are read in any order.
    failing = program(
        'worker 1', opened(ready, 'r') + "print(*range(100), 'why', sep='\\n'); sys.exit(3)"
    )
    exit_code, out, [*lines, error] = run(waiting, failing, quiet=True)
    assert (exit_code, out) == (3, [])
    check_error(error, 'worker 1', '3', 'worker 0')
    of_other = [line for line in lines if line.startswith('worker 0 | ')]
    assert len(of_other) <= 40
    of_failed = [f'worker 1 | {line}' for line in (*range(61, 100), 'why')]
    assert lines == of_other + of_failed


def test_a_terminal_shows_what_the_chief_does_and_in_the_end_the_result_alone(fifo):
    first = fifo('first')
    chief = f"""
print('Building the graph', file=sys.stderr, flush=True)
open({first!r}).close()
print('==========\\nStep\\tImg/sec\\ttotal_loss', flush=True)
"""
    commands = [
        program('worker 0', chief, has_result=True),
        program('worker 1', "print('Waiting')"),
    ]
    code = (
        'import sys; from tf_cnn.launch.launcher import Command, launch\n'
        f'sys.exit(launch({commands!r}, quiet=True))'
    )
    with Terminal([sys.executable, '-c', code]) as terminal:
        terminal.read('Building the graph')
        open(first, 'w').close()
        terminal.read(until=None)
        assert terminal.process.returncode == 0
        assert terminal.lines == ['==========', 'Step    Img/sec total_loss']
    assert b'Waiting' not in terminal.written


def test_odd_bytes_and_a_last_line_without_an_end_are_shown():
    code = "os.write(2, b'one\\r\\ntwo\\rthree \\xff\\n\\nno end'); os.write(1, b'no end')"
    _, out, err = run(program('a', code, has_result=True))
    assert out == ['no end']
    assert err == ['a | one', 'a | two', 'a | three \\xff', 'a | ', 'a | no end']


@pytest.mark.parametrize('reader_left', [False, True])
def test_lines_that_cannot_be_written_end_the_cluster(reader_left):
    descriptor = os.open('/dev/full', os.O_WRONLY)
    if reader_left:
        os.close(descriptor)
        read_end, descriptor = os.pipe()
        os.close(read_end)
    chatty = program('a', "while True: print('text', flush=True)", has_result=True)
    out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, 'w')))
    with pytest.raises(BrokenPipeError) if reader_left else failed(os.strerror(errno.ENOSPC)):
        launch([chatty, program('b', 'wait()')], out=out, err=io.StringIO())
    # The last text cannot be stored.
    with contextlib.suppress(OSError):
        out.close()


# ---- the ends of processes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ('code', 'exit_code', 'facts'),
    [('sys.exit(1)', 1, ['1']), ('os.kill(os.getpid(), signal.SIGKILL)', 137, ['9', 'Killed'])],
)
def test_a_failure_stops_the_others_and_gives_the_exit_code(code, exit_code, facts):
    server = program('ps 0', 'wait()', is_server=True)
    commands = server, program('worker 0', 'wait()'), program('worker 3', code)
    launch_code, out, [error] = run(*commands)
    assert (launch_code, out) == (exit_code, [])
    # The failed process, its exit, and the processes that are stopped.
    check_error(error, 'worker 3', *facts, 'ps 0', 'worker 0')


def test_a_process_that_stays_when_it_is_stopped_is_killed(fifo):
    ready = fifo('ready')
    deaf = program('worker 0', 'on_sigterm(lambda: None)\n' + opened(ready, 'w') + 'wait()')
    failing = program('worker 1', opened(ready, 'r') + 'sys.exit(3)')
    exit_code, _, [_, warning] = run(deaf, failing, grace_secs=0.1)
    assert exit_code == 3
    check_warning(warning, 'worker 0', '0.1')


def test_servers_serve_until_stopped_workers_have_ended(fifo):
    """A server that was stopped together with the worker would be gone when the worker asks."""
    ready, request, answer = fifo('ready'), fifo('request'), fifo('answer')
    server = program('ps 0', opened(request, 'r') + opened(answer, 'w') + 'wait()', is_server=True)
    save = f"""
def save():
    {opened(request, 'w')}
    {opened(answer, 'r')}
    print('saved', flush=True)
    os._exit(0)
on_sigterm(save)
"""
    chief = program('worker 0', save + opened(ready, 'w') + 'wait()', has_result=True)
    failing = program('worker 1', opened(ready, 'r') + 'sys.exit(1)')
    assert run(server, chief, failing, grace_secs=60)[:2] == (1, ['saved'])


def failing_twice(log: Path, exit_code: int) -> str:
    """Code that notes each start in a file, and fails in the first two."""
    note = f"open({str(log)!r}, 'a').write('x')\n"
    return f'{note}sys.exit({exit_code} if len(open({str(log)!r}).read()) < 3 else 0)'


def test_after_a_failure_all_are_started_again(tmp_path, fifo):
    log, of_other, ready = tmp_path / 'log', tmp_path / 'other', fifo('ready')
    first = program('worker 0', opened(ready, 'r') + failing_twice(log, 7))
    note = f"open({str(of_other)!r}, 'a').write('x')\n"
    other = program('worker 1', note + opened(ready, 'w'))
    exit_code, _, err = run(first, other, num_restarts=2)
    assert (exit_code, log.read_text(), of_other.read_text()) == (0, 'xxx', 'xxx')
    for number, warning in enumerate([line for line in err if 'warning' in line], 1):
        check_warning(warning, f'{number} of 2')


# Wrong use, with exit code 2, would fail again.
@pytest.mark.parametrize(('code', 'starts'), [(7, 'xx'), (2, 'x')])
def test_processes_are_started_again_as_often_as_allowed_unless_used_wrongly(
    code, starts, tmp_path
):
    failing = program('worker 0', failing_twice(tmp_path / 'log', code))
    exit_code, _, [*_, error] = run(failing, num_restarts=1)
    assert (exit_code, (tmp_path / 'log').read_text()) == (code, starts)
    check_error(error, 'worker 0', str(code))


def test_servers_end_by_themselves_after_the_workers(fifo):
    gate = fifo('done')
    server = program('ps 0', opened(gate, 'r') + "print('done')", is_server=True)
    assert run(server, program('worker 0', opened(gate, 'w'))) == (0, [], ['ps 0     | done'])


def test_a_server_that_stays_is_stopped_and_named():
    exit_code, _, [error] = run(
        program('ps 0', 'pass', is_server=True),
        program('ps 1', 'wait()', is_server=True),
        program('worker 0', 'pass'),
        servers_end_secs=0.1,
    )
    assert exit_code == 1
    check_error(error, 'ps 1', '0.1')
    assert 'ps 0' not in error


def test_descendants_that_outlive_a_process_are_ended():
    code = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    exit_code, [pid], _ = run(program('a', code, has_result=True))
    assert exit_code == 0
    assert_ended([int(pid)])


def test_a_program_that_does_not_exist_is_named():
    exit_code, _, [line, _] = run(Command('worker 0', ('/no/such/program',)))
    assert exit_code == 127
    check_line(line, 'worker 0 | ', '/no/such/program', os.strerror(errno.ENOENT))


@pytest.mark.parametrize('cores', [None, (CORES[-1],)])
def test_a_process_has_its_cores_and_environment_and_no_input(cores):
    values = "[sorted(os.sched_getaffinity(0)), os.environ['NAME'], sys.stdin.read()]"
    code = f'print(json.dumps({values}))'
    _, [line], _ = run(program('a', code, env={'NAME': 'value'}, cores=cores, has_result=True))
    assert json.loads(line) == [[*(cores or CORES)], 'value', '']


# ---- signals to the launcher ---------------------------------------------------------------------

READY = "print('ready', flush=True)\n"
OBEDIENT = program('worker 0', READY + 'wait()')
SERVER = program('ps 0', READY + 'wait()', is_server=True)


# Runs launch() as a command.
LAUNCH = """
import contextlib, sys
from tf_cnn.launch.launcher import Command, launch
exit_code = launch(COMMANDS)
with contextlib.suppress(OSError):  # Python would exit with 120 otherwise
    sys.stderr.close()
sys.exit(exit_code)
"""


@contextlib.contextmanager
def launching(folder: Path, *commands: Command) -> Iterator[tuple[Task, list[int]]]:
    """Yields a launcher in a process of its own, and its processes, which have written a line."""
    code = LAUNCH.replace('COMMANDS', repr([*commands]))
    with launched([sys.executable, '-c', code], folder, cwd=ROOT) as launcher:
        launcher.await_line(r'\| ready$', times=len(commands))
        yield launcher, [*map(int, launcher.lines(rf'{STARTED}(\d+) '))]


@pytest.mark.surroundings
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_processes(number, tmp_path):
    with launching(tmp_path, SERVER, OBEDIENT) as (launcher, pids):
        launcher.send(number)
        assert launcher.has_ended(60)
        assert launcher.exit_code == 128 + number
        *_, stopping, error = launcher.err.splitlines()
        check_warning(stopping, number.name, 'ps 0', 'worker 0')
        check_error(error, number.name)
        assert_ended(pids)


def test_ctrl_c_in_a_terminal_reaches_the_processes_as_one_sigterm(tmp_path):
    code = """
signal.signal(signal.SIGINT, lambda *_: os.write(1, b'SIGINT\\n'))
def end():
    os.write(1, b'SIGTERM\\n')
    os._exit(0)
on_sigterm(end)
"""
    command = program('worker 0', code + READY + 'wait()')
    with launching(tmp_path, command) as (launcher, pids):
        # As a terminal does.
        os.killpg(launcher.pid, signal.SIGINT)
        assert launcher.has_ended(60)
        assert launcher.exit_code == 130
        assert launcher.lines(r'^worker 0 \| (.*)$') == ['ready', 'SIGTERM']
        assert_ended(pids)


def test_a_second_signal_reaches_the_processes_as_another_sigterm(tmp_path):
    # Ends itself at the second; without it, the launcher would wait for 60 s before SIGKILL.
    code = """
received = []
def note():
    received.append(1)
    os.write(1, b'SIGTERM\\n')
    if len(received) == 2:
        os._exit(0)
on_sigterm(note)
"""
    command = program('worker 0', code + READY + 'wait()')
    with launching(tmp_path, command) as (launcher, _):
        launcher.send(signal.SIGTERM)
        launcher.await_line(r'^worker 0 \| SIGTERM$')
        # A signal sent sooner counts as the same one: timeout(1) sends two at once.
        time.sleep(0.5)
        launcher.send(signal.SIGTERM)
        assert launcher.has_ended(30)
        assert launcher.lines(r'^worker 0 \| (SIGTERM)$') == ['SIGTERM'] * 2


def test_no_process_outlives_a_launcher_that_is_killed(tmp_path):
    deaf = program('worker 1', 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + READY + 'wait()')
    with launching(tmp_path, SERVER, OBEDIENT, deaf) as (launcher, pids):
        launcher.kill()
        assert_ended(pids)
