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
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.support.outputs import check_line, failed
from tests.support.programs import (
    CORES,
    Watched,
    check_error,
    check_warning,
    program,
    run,
    terminal,
)
from tf_cnn.cli import cluster as cluster_command
from tf_cnn.launch.hosts import Command, Host, LocalProcess
from tf_cnn.launch.launcher import launch
from tf_cnn.launch.remote import MARK, versions
from tf_cnn.launch.ssh import SshHost, SshTarget, prepare_hosts

pytestmark = pytest.mark.distributed

ROOT = Path(cluster_command.__file__).resolve().parents[2]


@pytest.fixture
def fifo(tmp_path: Path) -> Callable[[str], str]:
    """Makes a FIFO, whose reader and writer wait for each other when they open it."""

    def make(name: str) -> str:
        path = str(tmp_path / name)
        os.mkfifo(path)
        return path

    return make


def opened(path: str, mode: str) -> str:
    """Code that opens a FIFO, and so waits until another process opens its other side."""
    return f'open({path!r}, {mode!r}).close()\n'


def test_lines_of_processes_that_write_at_once_stay_whole_and_in_order() -> None:
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
    names = [f'worker {index}' for index in range(4)] + ['ps 0']
    exit_code, out, err = run(
        *(program(name, code, has_result=name == 'worker 0') for name in names)
    )
    assert exit_code == 0

    def expected(stream: int) -> list[str]:
        return [f'{stream}:{line}:' + 'x' * (line * 7 % 300) for line in range(500)]

    assert out == expected(0)
    for name in names:
        prefix = f'{name:<8} | '
        lines = [line.removeprefix(prefix) for line in err if line.startswith(prefix)]
        assert [line for line in lines if line[0] == '1'] == expected(1)
        assert [line for line in lines if line[0] == '0'] == (
            [] if name == 'worker 0' else expected(0)
        )
    assert len(err) == 9 * 500


def test_a_quiet_launcher_shows_warnings_and_errors_alone() -> None:
    code = """
for line in ('Building', 'tf_cnn_benchmarks: warning: of all', 'tf_cnn_benchmarks: error: NAME'):
    print(line, file=sys.stderr)
print('total images/sec: 1.00')
"""
    names = ['ps 0', 'worker 0', 'worker 1']
    commands = [
        program(
            name,
            code.replace('NAME', name),
            is_server=name == 'ps 0',
            has_result=name == 'worker 0',
        )
        for name in names
    ]
    exit_code, out, err = run(*commands, quiet=True)
    assert (exit_code, out) == (0, ['total images/sec: 1.00'])
    lines = sorted(err, key=lambda line: line.split(' | ')[1])
    # What several processes warn about is shown once.
    assert lines[3].endswith(' | tf_cnn_benchmarks: warning: of all')
    assert lines[:3] == [f'{name:<8} | tf_cnn_benchmarks: error: {name}' for name in names]
    assert len(lines) == 4


def test_the_last_lines_of_all_come_before_a_failure(fifo: Callable[[str], str]) -> None:
    ready = fifo('ready')
    many = 'for number in range(100): print(number, file=sys.stderr)\n'
    waiting = program('worker 0', many + opened(ready, 'w') + 'wait()', has_result=True)
    # The launcher has read what a process has written before it ended; of another, as much as it
    # could. All on one stream, since nothing says in which order two are read.
    failing = program(
        'worker 1', opened(ready, 'r') + "print(*range(100), 'why', sep='\\n'); sys.exit(3)"
    )
    exit_code, out, err = run(waiting, failing, quiet=True)
    *lines, error = err
    assert (exit_code, out) == (3, [])
    check_error(error, 'worker 1', '3', 'worker 0')
    of_failed = [
        line.removeprefix('worker 1 | ') for line in lines if line.startswith('worker 1 | ')
    ]
    assert of_failed == [*map(str, range(61, 100)), 'why']
    of_other = [line for line in lines if line.startswith('worker 0 | ')]
    assert len(of_other) <= 40
    assert lines == [*of_other, *(f'worker 1 | {line}' for line in of_failed)]


def test_a_signal_to_a_quiet_launcher_shows_no_other_lines(fifo: Callable[[str], str]) -> None:
    ready = fifo('ready')
    code = (
        f"print('text', file=sys.stderr, flush=True); open({ready!r}, 'w').close(); "
        'os.kill(os.getppid(), 15); wait()'
    )
    reader = program('worker 1', opened(ready, 'r') + 'wait()')
    exit_code, _, [error] = run(program('worker 0', code), reader, quiet=True)
    assert exit_code == 143
    check_error(error, 'SIGTERM', 'worker 0', 'worker 1')


def test_a_terminal_shows_what_the_chief_does_and_in_the_end_the_result_alone(
    fifo: Callable[[str], str],
) -> None:
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
        'import sys; from tf_cnn.launch.launcher import Command, '
        f'launch\nsys.exit(launch({commands!r}, quiet=True))'
    )
    with terminal([sys.executable, '-c', code], cwd=ROOT) as seen:
        seen.read('Building the graph')
        open(first, 'w').close()
        seen.read(until=None)
        assert seen.process.returncode == 0
        assert seen.lines == ['==========', 'Step    Img/sec total_loss']
    assert b'Waiting' not in seen.written


def test_odd_bytes_and_a_last_line_without_an_end_are_shown() -> None:
    code = "os.write(2, b'one\\r\\ntwo\\rthree \\xff\\n\\nno end'); os.write(1, b'no end')"
    _, out, err = run(program('a', code, has_result=True))
    assert out == ['no end']
    assert err == ['a | one', 'a | two', 'a | three \\xff', 'a | ', 'a | no end']


@pytest.mark.parametrize('reader_left', [False, True])
def test_lines_that_cannot_be_written_end_the_cluster(reader_left: bool) -> None:
    descriptor = os.open('/dev/full', os.O_WRONLY)
    if reader_left:
        os.close(descriptor)
        read_end, descriptor = os.pipe()
        os.close(read_end)
    chatty = program('a', "while True: print('text', flush=True)", has_result=True)
    out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, 'w')))
    with pytest.raises(BrokenPipeError) if reader_left else failed(os.strerror(errno.ENOSPC)):
        launch([chatty, program('b', 'wait()')], out=out, err=io.StringIO())
    # What was written last cannot be stored.
    with contextlib.suppress(OSError):
        out.close()


@pytest.mark.parametrize(
    ('code', 'exit_code', 'facts'),
    [('sys.exit(1)', 1, ['1']), ('os.kill(os.getpid(), signal.SIGKILL)', 137, ['9', 'Killed'])],
)
def test_a_failure_stops_the_others_and_its_exit_code_is_that_of_all(
    code: str, exit_code: int, facts: list[str]
) -> None:
    found, out, [error] = run(
        program('ps 0', 'wait()', is_server=True),
        program('worker 0', 'wait()'),
        program('worker 3', code),
    )
    assert (found, out) == (exit_code, [])
    # Which failed, how, and which are stopped.
    check_error(error, 'worker 3', *facts, 'ps 0', 'worker 0')


@pytest.mark.parametrize(
    ('at_sigterm', 'grace_secs'),
    [('on_sigterm(lambda: os._exit(99))', 60), ('on_sigterm(lambda: None)', 0.1)],
)
def test_the_exit_code_of_a_process_that_was_stopped_does_not_count_and_one_that_stays_is_killed(
    at_sigterm: str, grace_secs: float, fifo: Callable[[str], str]
) -> None:
    ready = fifo('ready')
    stopped = program('worker 0', f'{at_sigterm}\n{opened(ready, "w")}wait()')
    failing = program('worker 1', opened(ready, 'r') + 'sys.exit(3)')
    exit_code, _, [error, *warnings] = run(stopped, failing, grace_secs=grace_secs)
    assert exit_code == 3
    check_error(error, 'worker 1', '3', 'worker 0')
    assert '99' not in error
    assert len(warnings) == (grace_secs == 0.1)
    for warning in warnings:
        check_warning(warning, 'worker 0', '0.1')


def test_servers_serve_until_stopped_workers_have_ended(fifo: Callable[[str], str]) -> None:
    """A server that was stopped together with the worker would be gone when the worker asks."""
    ready, request, answer = fifo('ready'), fifo('request'), fifo('answer')
    server = program('ps 0', opened(request, 'r') + opened(answer, 'w') + 'wait()', is_server=True)
    save = f"""
def save():
    open({request!r}, 'w').close()
    open({answer!r}).close()
    print('saved', flush=True)
    os._exit(0)
on_sigterm(save)
"""
    chief = program('worker 0', save + opened(ready, 'w') + 'wait()', has_result=True)
    failing = program('worker 1', opened(ready, 'r') + 'sys.exit(1)')
    assert run(server, chief, failing, grace_secs=60)[:2] == (1, ['saved'])


def test_after_a_failure_all_are_started_again_as_often_as_allowed(
    tmp_path: Path, fifo: Callable[[str], str]
) -> None:
    log, ready = tmp_path / 'log', fifo('ready')
    failing = (
        f"open({str(log)!r}, 'a').write('x'); sys.exit(CODE if len(open({str(log)!r}).read()) "
        '< 3 else 0)'
    )
    other = program(
        'worker 1', f"open({str(tmp_path / 'other')!r}, 'a').write('x')\n" + opened(ready, 'w')
    )
    first = program('worker 0', opened(ready, 'r') + failing.replace('CODE', '7'))
    exit_code, _, err = run(first, other, num_restarts=2)
    assert (exit_code, log.read_text(), (tmp_path / 'other').read_text()) == (0, 'xxx', 'xxx')
    for number, warning in enumerate([line for line in err if 'warning' in line], 1):
        check_warning(warning, f'{number} of 2')
    log.write_text('')
    exit_code, _, [_, _, error] = run(
        program('worker 0', failing.replace('CODE', '7')), num_restarts=1
    )
    assert (exit_code, log.read_text()) == (7, 'xx')
    check_error(error, 'worker 0', '7')
    # Wrong use would fail again.
    log.write_text('')
    exit_code, _, _ = run(program('worker 0', failing.replace('CODE', '2')), num_restarts=1)
    assert (exit_code, log.read_text()) == (2, 'x')


def test_servers_end_by_themselves_after_the_workers(fifo: Callable[[str], str]) -> None:
    done = fifo('done')
    server = program('ps 0', opened(done, 'r') + "print('done')", is_server=True)
    assert run(server, program('worker 0', opened(done, 'w'))) == (0, [], ['ps 0     | done'])


def test_a_server_that_stays_is_stopped_and_named() -> None:
    exit_code, _, [error] = run(
        program('ps 0', 'pass', is_server=True),
        program('ps 1', 'wait()', is_server=True),
        program('worker 0', 'pass'),
        servers_end_secs=0.1,
    )
    assert exit_code == 1
    check_error(error, 'ps 1', '0.1')
    assert 'ps 0' not in error


def test_what_a_process_leaves_behind_is_ended() -> None:
    code = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    out = io.StringIO()
    assert launch([program('a', code, has_result=True)], out=out, err=io.StringIO()) == 0
    with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
        Watched(stack, [int(out.getvalue())]).assert_all_end()


def test_a_program_that_does_not_exist_is_named() -> None:
    exit_code, _, [line, _] = run(Command('worker 0', ('/no/such/program',)))
    assert exit_code == 127
    check_line(line, 'worker 0 | ', '/no/such/program', os.strerror(errno.ENOENT))


def test_a_process_has_its_cores_and_environment_and_no_input() -> None:
    code = (
        "print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ['NAME'], sys.stdin.read()]))"
    )
    for cores in (None, (CORES[-1],)):
        _, out, _ = run(program('a', code, env={'NAME': 'value'}, cores=cores, has_result=True))
        assert json.loads(out[0]) == [[*(cores or CORES)], 'value', '']


def test_a_process_that_cannot_be_started_is_named_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[LocalProcess] = []

    def start(host: Host, command: Command) -> LocalProcess:
        if started:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        started.append(LocalProcess(command))
        return started[0]

    monkeypatch.setattr(Host, 'start', start)
    with failed('p1', os.strerror(errno.EMFILE)):
        run(program('p0', 'wait()'), program('p1', 'wait()'))
    assert started[0].exit_code() == -signal.SIGKILL


# ---- the processes on another host ---------------------------------------------------------------


@pytest.mark.parametrize(('wanted', 'place'), [('here', 'here'), ('no such folder', 'home')])
def test_a_remote_process_runs_in_the_working_folder_else_at_home(
    wanted: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / 'here').mkdir()
    (tmp_path / 'home').mkdir()
    remote = [sys.executable, '-m', 'tf_cnn.launch.remote', 'run', str(tmp_path / wanted), '']
    with subprocess.Popen(
        [*remote, 'A=1', '--', 'sh', '-c', 'pwd; echo $A; exit 3'],
        cwd=ROOT,
        env={'HOME': str(tmp_path / 'home'), 'PATH': '/usr/bin:/bin'},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launched:
        assert launched.stdout
        lines = launched.stdout.read().splitlines()
    assert [line for line in lines if not line.startswith(MARK)] == [str(tmp_path / place), '1']
    assert lines[-1] == f'{MARK}exit 3'


@pytest.mark.parametrize(('text', 'code'), [('', -15), ('\n10\n', -10), ('\n9\n', -9)])
def test_a_remote_process_ends_with_its_input_or_by_a_signal_from_it(text: str, code: int) -> None:
    remote = [sys.executable, '-m', 'tf_cnn.launch.remote', 'run', '/', '']
    with subprocess.Popen(
        [*remote, '--', 'sleep', '100'],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as launched:
        assert launched.stdin
        assert launched.stdout
        assert launched.stdout.readline() == f'{MARK}ready\n'
        pid = int(launched.stdout.readline().removeprefix(f'{MARK}process '))
        launched.stdin.write(text)
        launched.stdin.flush()
        if not text:
            launched.stdin.close()
        assert launched.stdout.readline() == f'{MARK}exit {code}\n'
        assert not psutil.pid_exists(pid)


def target_with(script: str, folder: Path) -> SshTarget:
    """A target whose ssh is this shell script."""
    ssh = folder / 'ssh'
    ssh.write_text(f'#!/bin/sh\n{script}')
    ssh.chmod(0o700)
    return SshTarget((str(ssh),), sys.executable, str(ROOT), str(folder))


# Prints what a login script may print, then does as ssh does.
_NOISY_SSH = """
printf 'welcome\\n{"unfinished": 1}'
for command; do :; done
exec sh -c "$command"
"""
_LAYOUT = {'somewhere': [('ps', 0), ('worker', 0)]}


def test_what_a_login_script_prints_is_not_part_of_any_output(tmp_path: Path) -> None:
    target = target_with(_NOISY_SSH, tmp_path)
    tasks = prepare_hosts(_LAYOUT, target, 0, [])
    assert [task.name for task in tasks] == ['ps 0', 'worker 0']
    out = io.StringIO()
    command = Command('worker 0', ['echo', 'result'], {}, has_result=True, host=tasks[0].host)
    assert launch([command], out=out, err=io.StringIO()) == 0
    assert out.getvalue() == 'result\n'


def test_a_connection_that_is_lost_before_the_answer_is_named(tmp_path: Path) -> None:
    target = target_with(f"printf '%s' '{MARK}{{\"vers'", tmp_path)
    with failed('somewhere', 'cannot be started'):
        prepare_hosts(_LAYOUT, target, 0, [])


@pytest.mark.parametrize('subject', ['tf_cnn_benchmarks', 'TensorFlow'])
def test_a_host_with_another_version_is_named(subject: str, tmp_path: Path) -> None:
    answer = json.dumps({'versions': {**versions(), subject: '0.0.9'}, 'tasks': []})
    with failed('somewhere', subject, '0.0.9', 'install the same on both'):
        prepare_hosts(_LAYOUT, target_with(f"echo '{MARK}{answer}'", tmp_path), 0, [])


def over_ssh(script: str, folder: Path) -> tuple[int, str, str]:
    """Launches a shell script as a remote process; returns exit code, output and errors."""
    host = SshHost('somewhere', target_with(_NOISY_SSH, folder))
    out, err = io.StringIO(), io.StringIO()
    argv = ['sh', '-c', script]
    code = launch([Command('worker 0', argv, {}, has_result=True, host=host)], out=out, err=err)
    return code, out.getvalue(), err.getvalue()


def test_an_unfinished_last_line_of_a_remote_process_hides_no_exit_code(tmp_path: Path) -> None:
    code, out, err = over_ssh('printf half; kill -9 $$', tmp_path)
    assert (code, out) == (128 + 9, 'half\n')
    assert 'signal 9' in err


def test_a_remote_process_ends_though_a_descendant_holds_its_output(tmp_path: Path) -> None:
    began = time.monotonic()
    assert over_ssh('setsid sleep 20 & echo done', tmp_path)[:2] == (0, 'done\n')
    assert time.monotonic() - began < 15


def test_hosts_that_do_not_answer_end_the_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('tf_cnn.launch.ssh._REPLY_SECS', 0.5)
    host = SshHost('somewhere', target_with('exec sleep 60', tmp_path))
    commands = [Command(f'worker {i}', ['true'], {}, host=host) for i in range(10)]
    err = io.StringIO()
    assert launch(commands, out=io.StringIO(), err=err) == 1
    check_line(err.getvalue().splitlines()[0], 'worker', 'somewhere does not answer')
