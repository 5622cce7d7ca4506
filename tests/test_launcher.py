"""The word `cluster`: how it starts processes, shows their lines and ends them, and the command line of each.

The processes are small programs that wait for what they need on FIFOs, so that nothing depends on time.
"""

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import pytest

from cluster import command as cluster_command
from cluster.command import make_commands, reserved_addresses, share_cores
from cluster.launcher import Command, launch
from cluster.members import find_cluster
from errors import RunError, UsageError
from params import parse_argv

ROOT = Path(cluster_command.__file__).resolve().parent.parent
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


def program(name: str, code: str, **more: Any) -> Command:
    """A process that runs Python code; PREAMBLE's names are there."""
    return Command(name, (sys.executable, '-I', '-S', '-c', PREAMBLE + code), **more)


def run(*commands: Command, **options: Any) -> tuple[int, list[str], list[str]]:
    """The exit code of launch, the lines of standard output, and of standard error without who is which process."""
    out, err = io.StringIO(), io.StringIO()
    code = launch(commands, out=out, err=err, **options)
    lines = [line for line in err.getvalue().splitlines() if ' is process ' not in line]
    return code, out.getvalue().splitlines(), lines


@pytest.fixture
def fifo(tmp_path: Path) -> Callable[[str], str]:
    """Makes a FIFO: who opens it waits for the other side to open it."""

    def make(name: str) -> str:
        path = str(tmp_path / name)
        os.mkfifo(path)
        return path

    return make


def opened(path: str, mode: str) -> str:
    """Code that waits at a FIFO for whoever opens its other side."""
    return f'open({path!r}, {mode!r}).close()\n'


class Watched:
    """Processes to be seen to their end, whoever reaps them."""

    def __init__(self, stack: contextlib.ExitStack, pids: list[int]) -> None:
        self._descriptors = []
        for pid in pids:
            descriptor = os.pidfd_open(pid)
            stack.callback(os.close, descriptor)
            self._descriptors.append(descriptor)

    def assert_all_end(self) -> None:
        for descriptor in self._descriptors:
            assert select.select([descriptor], [], [], 30)[0], 'a process was left behind'


# Lines.


@pytest.mark.distributed
def test_lines_of_processes_that_write_at_once_stay_whole_and_in_order() -> None:
    code = """
def write(stream, number):
    for line in range(500):
        stream.write(f'{number}:{line}:' + 'x' * (line * 7 % 300) + '\\n')
        stream.flush()
threads = [threading.Thread(target=write, args=(s, i)) for i, s in enumerate((sys.stdout, sys.stderr))]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    names = [f'worker {index}' for index in range(4)] + ['ps 0']
    exit_code, out, err = run(*(program(name, code, has_result=name == 'worker 0') for name in names))
    assert exit_code == 0

    def expected(stream: int) -> list[str]:
        return [f'{stream}:{line}:' + 'x' * (line * 7 % 300) for line in range(500)]

    assert out == expected(0)
    for name in names:
        prefix = f'{name:<8} | '
        lines = [line.removeprefix(prefix) for line in err if line.startswith(prefix)]
        assert [line for line in lines if line[0] == '1'] == expected(1)
        assert [line for line in lines if line[0] == '0'] == ([] if name == 'worker 0' else expected(0))
    assert len(err) == 9 * 500


@pytest.mark.distributed
def test_the_result_comes_as_it_is_and_all_else_with_a_name_in_front() -> None:
    code = "print('total images/sec: 1.00'); print('log', file=sys.stderr)"
    exit_code, out, err = run(
        program('ps 0', code), program('worker 0', code, has_result=True), program('worker 1', code)
    )
    assert (exit_code, out) == (0, ['total images/sec: 1.00'])
    assert sorted(err) == [
        'ps 0     | log',
        'ps 0     | total images/sec: 1.00',
        'worker 0 | log',
        'worker 1 | log',
        'worker 1 | total images/sec: 1.00',
    ]


@pytest.mark.distributed
def test_odd_bytes_and_a_last_line_without_an_end_are_shown() -> None:
    code = "os.write(2, b'one\\r\\ntwo\\rthree \\xff\\n\\nno end'); os.write(1, b'no end')"
    _, out, err = run(program('a', code, has_result=True))
    assert out == ['no end']
    assert err == ['a | one', 'a | two', 'a | three \\xff', 'a | ', 'a | no end']


@pytest.mark.distributed
def test_names_have_colours_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TERM', 'xterm-256color')
    for name in ('NO_COLOR', 'FORCE_COLOR', 'COLORTERM'):
        monkeypatch.delenv(name, raising=False)
    primary, secondary = pty.openpty()
    with open(primary, 'rb', buffering=0) as terminal, open(secondary, 'w') as err:
        launch([program('a', "print('[bold]text')"), program('b', 'print(2)')], out=io.StringIO(), err=err)
        shown = terminal.read(10_000).decode()
    assert '\x1b[36ma | \x1b[0m[bold]text\r\n' in shown
    assert '\x1b[32mb | \x1b[0m2\r\n' in shown


@contextlib.contextmanager
def writer(descriptor: int) -> Iterator[TextIO]:
    """A file whose end does not complain once more about what could not be written."""
    out = io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, 'w')))
    try:
        yield out
    finally:
        with contextlib.suppress(OSError):
            out.close()


@pytest.mark.distributed
def test_lines_that_cannot_be_written_end_the_cluster_in_one_line() -> None:
    chatty = program('a', "while True: print('text', flush=True)", has_result=True)
    with (
        writer(os.open('/dev/full', os.O_WRONLY)) as out,
        pytest.raises(RunError, match=r'the lines of the cluster cannot be written: .*No space left'),
    ):
        launch([chatty, program('b', 'wait()')], out=out, err=io.StringIO())


@pytest.mark.distributed
def test_a_reader_that_left_ends_the_cluster() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    once = program('a', "print('text', flush=True); wait()", has_result=True)
    with writer(write_end) as out, pytest.raises(BrokenPipeError):
        launch([once, program('b', 'wait()')], out=out, err=io.StringIO())


# Failures.


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('code', 'exit_code', 'told'),
    [
        ('sys.exit(1)', 1, 'ended with exit code 1'),
        ('sys.exit(2)', 2, 'ended with exit code 2'),
        ('os.kill(os.getpid(), signal.SIGKILL)', 137, 'was ended by signal 9 (Killed)'),
        ('os.kill(os.getpid(), signal.SIGTERM)', 143, 'was ended by signal 15 (Terminated)'),
    ],
)
def test_a_failure_stops_the_others_and_its_exit_code_is_that_of_all(code: str, exit_code: int, told: str) -> None:
    found = run(program('ps 0', 'wait()', is_server=True), program('worker 0', 'wait()'), program('worker 1', code))
    error = f'tf_cnn_benchmarks: error: worker 1 {told}; stopping ps 0, worker 0'
    assert found == (exit_code, [], [error])


@pytest.mark.distributed
def test_the_last_words_of_a_process_come_before_its_failure_is_told() -> None:
    _, _, err = run(program('a', "print('why', file=sys.stderr); sys.exit(1)"))
    assert err == ['a | why', 'tf_cnn_benchmarks: error: a ended with exit code 1']


@pytest.mark.distributed
def test_how_a_process_ends_that_was_stopped_does_not_count(fifo: Callable[[str], str]) -> None:
    ready = fifo('ready')
    stopped = 'on_sigterm(lambda: os._exit(99))\n' + opened(ready, 'w') + 'wait()'
    exit_code, _, err = run(program('a', stopped), program('b', opened(ready, 'r') + 'sys.exit(3)'))
    assert exit_code == 3
    assert err == ['tf_cnn_benchmarks: error: b ended with exit code 3; stopping a']


@pytest.mark.distributed
def test_a_process_that_ignores_sigterm_is_killed(fifo: Callable[[str], str]) -> None:
    ready = fifo('ready')
    stuck = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + opened(ready, 'w') + 'wait()'
    exit_code, _, err = run(program('a', stuck), program('b', opened(ready, 'r') + 'sys.exit(3)'), grace_secs=0.1)
    assert exit_code == 3
    assert err[1:] == ['tf_cnn_benchmarks: warning: a did not end within 0.1 s, it is killed']


@pytest.mark.distributed
def test_servers_serve_until_stopped_workers_have_ended(fifo: Callable[[str], str]) -> None:
    """A server that were stopped together with the worker would be gone when the worker asks."""
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


@pytest.mark.distributed
def test_keep_going_lets_the_others_end_and_still_fails(fifo: Callable[[str], str], tmp_path: Path) -> None:
    killed = fifo('killed')
    # b outlives a by what it has to say: the FIFO's other side is the end of a.
    a = f'descriptor = os.open({killed!r}, os.O_WRONLY); os.kill(os.getpid(), signal.SIGKILL)'
    b = f"open({killed!r}).read(); print('done')"
    exit_code, out, err = run(program('a', a), program('b', b, has_result=True), keep_going=True)
    assert (exit_code, out) == (137, ['done'])
    assert err == ['tf_cnn_benchmarks: error: a was ended by signal 9 (Killed); the others go on']


@pytest.mark.distributed
def test_a_failed_process_is_started_again_as_often_as_allowed(tmp_path: Path) -> None:
    log = tmp_path / 'log'
    code = f"open({str(log)!r}, 'a').write('x'); sys.exit(7 if len(open({str(log)!r}).read()) < 3 else 0)"
    exit_code, _, err = run(program('a', code), num_restarts=2)
    assert (exit_code, log.read_text()) == (0, 'xxx')
    warning = 'tf_cnn_benchmarks: warning: a ended with exit code 7; it is started again'
    assert err == [f'{warning} (1 of 2 times)', f'{warning} (2 of 2 times)']
    log.write_text('')
    exit_code, _, err = run(program('a', code), num_restarts=1)
    assert (exit_code, log.read_text()) == (7, 'xx')
    assert err[1:] == ['tf_cnn_benchmarks: error: a ended with exit code 7']


@pytest.mark.distributed
def test_servers_end_by_themselves_after_the_workers(fifo: Callable[[str], str]) -> None:
    done = fifo('done')
    server = program('ps 0', opened(done, 'r') + "print('done')", is_server=True)
    assert run(server, program('worker 0', opened(done, 'w'))) == (0, [], ['ps 0     | done'])


@pytest.mark.distributed
def test_a_server_that_stays_is_stopped_and_named() -> None:
    exit_code, _, err = run(
        program('ps 0', 'pass', is_server=True),
        program('ps 1', 'wait()', is_server=True),
        program('worker 0', 'pass'),
        servers_end_secs=0.1,
        keep_going=True,
    )
    assert exit_code == 1
    assert err == ['tf_cnn_benchmarks: error: ps 1 did not end within 0.1 s of the last worker; stopping ps 1']


@pytest.mark.distributed
def test_what_a_process_leaves_behind_is_ended() -> None:
    code = "print(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    out = io.StringIO()
    assert launch([program('a', code, has_result=True)], out=out, err=io.StringIO()) == 0
    with contextlib.ExitStack() as stack, contextlib.suppress(ProcessLookupError):
        Watched(stack, [int(out.getvalue())]).assert_all_end()


@pytest.mark.distributed
def test_a_program_that_is_not_there_is_named() -> None:
    exit_code, _, err = run(Command('a', ('/no/such/program',)))
    assert exit_code == 127
    assert err[0] == 'a | /no/such/program: it cannot be started (No such file or directory)'


@pytest.mark.distributed
def test_a_process_has_its_cores_and_environment_and_no_input() -> None:
    code = "print(json.dumps([sorted(os.sched_getaffinity(0)), os.environ['NAME'], sys.stdin.read()]))"
    one = (CORES[-1],)
    _, out, _ = run(program('a', code, env={'NAME': 'value'}, cores=one, has_result=True))
    assert json.loads(out[0]) == [[*one], 'value', '']
    _, out, _ = run(program('a', code, env={'NAME': 'value'}, has_result=True))
    assert json.loads(out[0])[0] == CORES


@pytest.mark.distributed
@pytest.mark.parametrize(
    ('limit', 'message'),
    [
        ('setrlimit(RLIMIT_NOFILE, (40, 40))', r'p\d+ cannot be started: Too many open files; start fewer processes'),
        (
            'threading.stack_size(2**30); setrlimit(RLIMIT_AS, (2**29, 2**29))',
            "p0 cannot be started: can't start new thread; start fewer processes",
        ),
    ],
    ids=['files', 'threads'],
)
def test_more_processes_than_the_machine_allows_are_one_line_and_none_is_left(limit: str, message: str) -> None:
    commands = [program(f'p{number}', 'wait()') for number in range(20)]
    code = f"""
import os, threading
from resource import *
from cluster.launcher import Command, launch
from errors import RunError
{limit}
try:
    launch({commands!r})
except RunError as error:
    print(error)
for thread in threading.enumerate()[1:]:
    thread.join()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print('none is left')
"""
    result = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    error, left = result.stdout.splitlines()
    assert re.fullmatch(message, error)
    assert left == 'none is left'
    assert [line for line in result.stderr.splitlines() if ' is process ' not in line] == []


# The end of the launcher itself.


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
            if ' is process ' in line:
                pids.append(int(line.split(' is process ')[1].split()[0]))
            num_ready += line.endswith('| ready\n')
        yield launcher, Watched(stack, pids)


READY = "print('ready', flush=True)\n"
OBEDIENT = program('worker 0', READY + 'wait()')
SERVER = program('ps 0', READY + 'wait()', is_server=True)


@pytest.mark.distributed
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_all_processes(number: signal.Signals) -> None:
    with launched(SERVER, OBEDIENT) as (launcher, processes):
        launcher.send_signal(number)
        _, err = launcher.communicate(timeout=60)
        assert launcher.returncode == 128 + number
        assert err == f'tf_cnn_benchmarks: error: interrupted by {number.name}; stopping ps 0, worker 0\n'
        processes.assert_all_end()


@pytest.mark.distributed
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


@pytest.mark.distributed
def test_no_process_outlives_a_launcher_that_is_killed() -> None:
    deaf = program('worker 1', 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\n' + READY + 'wait()')
    with launched(SERVER, OBEDIENT, deaf) as (launcher, processes):
        launcher.kill()
        launcher.wait()
        processes.assert_all_end()


@pytest.mark.distributed
def test_signals_work_as_before_when_all_have_ended() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    run(program('a', 'pass'))
    assert [signal.getsignal(number) for number in numbers] == before


# Command lines.


def commands_of(
    *run_flags: str,
    num_ps: int = 1,
    num_workers: int = 2,
    environment: dict[str, str] | None = None,
    cores: list[int] | None = None,
    controller_hosts: Sequence[str] = (),
) -> list[Command]:
    ps_hosts = [f'127.0.0.1:{1000 + index}' for index in range(num_ps)]
    worker_hosts = [f'127.0.0.1:{2000 + index}' for index in range(num_workers)]
    return make_commands(run_flags, ps_hosts, worker_hosts, environment or {}, cores, controller_hosts)


@pytest.mark.unit
def test_each_process_is_told_who_it_is_and_who_the_others_are() -> None:
    commands = commands_of('--model=lenet', '--num_batches=3', num_ps=2, num_workers=3)
    assert [command.name for command in commands] == ['ps 0', 'ps 1', 'worker 0', 'worker 1', 'worker 2']
    assert [command.is_server for command in commands] == [True, True, False, False, False]
    assert [command.has_result for command in commands] == [False, False, True, False, False]
    assert {command.argv[:2] for command in commands} == {(sys.executable, str(ROOT / 'tf_cnn_benchmarks.py'))}
    for command in commands:
        params = parse_argv(command.argv[2:]).params
        assert (params.model, params.num_batches) == ('lenet', 3)
        cluster = find_cluster(params, command.env or {})
        assert cluster is not None
        assert f'{cluster.job} {cluster.index}' == command.name
        assert cluster.ps_hosts == ('127.0.0.1:1000', '127.0.0.1:1001')
        assert cluster.worker_hosts == ('127.0.0.1:2000', '127.0.0.1:2001', '127.0.0.1:2002')


@pytest.mark.unit
def test_a_controller_has_the_result_and_its_workers_end_when_it_has() -> None:
    flags = ('--variable_update=distributed_all_reduce', '--device=cpu', '--graph_file=graph')
    commands = commands_of(*flags, num_ps=0, cores=[0, 1], controller_hosts=['127.0.0.1:3000'])
    assert [command.name for command in commands] == ['worker 0', 'worker 1', 'controller 0']
    assert [command.is_server for command in commands] == [True, True, False]
    assert [command.has_result for command in commands] == [False, False, True]
    assert [command.cores for command in commands] == [(0,), (1,), None]
    params = [parse_argv(command.argv[2:]).params for command in commands]
    assert [own.graph_file for own in params] == [None, None, 'graph']
    clusters = [find_cluster(own, {}) for own in params]
    assert [str(cluster and cluster.own) for cluster in clusters] == [
        *('worker 0 (127.0.0.1:2000)', 'worker 1 (127.0.0.1:2001)', 'controller 0 (127.0.0.1:3000)')
    ]


@pytest.mark.unit
def test_without_parameter_servers_no_flag_names_any() -> None:
    commands = commands_of('--variable_update=collective_all_reduce', num_ps=0)
    assert not any('ps_hosts' in word for command in commands for word in command.argv)


@pytest.mark.unit
def test_files_that_all_would_write_go_to_the_chief_alone(tmp_path: Path) -> None:
    flag_file = tmp_path / 'flags'
    flag_file.write_text(f'--graph_file={tmp_path}/graph\n')
    flags = (
        '--trace_file',
        'trace',
        f'--flagfile={flag_file}',
        '--partitioned_graph_file_prefix=parts',
        '--train_dir=d',
    )
    found = {command.name: parse_argv(command.argv[2:]).params for command in commands_of(*flags)}
    chief = found.pop('worker 0')
    assert (chief.trace_file, chief.graph_file) == ('trace', f'{tmp_path}/graph')
    assert (chief.partitioned_graph_file_prefix, chief.train_dir) == ('parts', 'd')
    for params in found.values():
        files = (params.trace_file, params.graph_file, params.partitioned_graph_file_prefix, params.tfprof_file)
        assert files == (None, None, None, None)
        assert params.train_dir == 'd'


@pytest.mark.unit
def test_the_cluster_around_the_caller_is_not_that_of_the_processes() -> None:
    around = {'TF_CONFIG': '{}', 'SLURM_PROCID': '3', 'OMPI_COMM_WORLD_RANK': '1', 'PMI_RANK': '1', 'PMIX_RANK': '0'}
    for command in commands_of(environment={**around, 'PATH': '/bin', 'http_proxy': 'http://proxy'}):
        assert command.env == {
            'PATH': '/bin',
            'http_proxy': 'http://proxy',
            'no_grpc_proxy': '127.0.0.1',
        }


@pytest.mark.unit
def test_workers_share_the_cores_and_parameter_servers_use_all() -> None:
    commands = commands_of(cores=[0, 4, 1, 5])
    assert [command.cores for command in commands] == [None, (0, 4), (1, 5)]
    assert [command.cores for command in commands_of(cores=None)] == [None, None, None]


@pytest.mark.unit
@pytest.mark.parametrize(
    ('num_cores', 'num_workers', 'shares'),
    [
        (4, 2, [(0, 1), (2, 3)]),
        (5, 2, [(0, 1), (2, 3)]),
        (2, 2, [(0,), (1,)]),
        (2, 5, [(0,), (1,), (0,), (1,), (0,)]),
        (1, 3, [(0,), (0,), (0,)]),
    ],
)
def test_each_worker_gets_as_many_cores(num_cores: int, num_workers: int, shares: list[tuple[int, ...]]) -> None:
    assert share_cores(range(num_cores), num_workers) == shares


@pytest.mark.unit
def test_a_reserved_port_is_for_the_server_that_it_is_meant_for() -> None:
    with reserved_addresses(20) as addresses, reserved_addresses(20) as others:
        assert len({*addresses, *others}) == 40
        host, port = addresses[0].split(':')
        with socket.socket() as stranger, pytest.raises(OSError, match='in use'):
            stranger.bind((host, int(port)))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(('0.0.0.0', int(port)))
            server.listen()
            # It is the server that is reached, not the one who holds the port.
            with socket.create_connection((host, int(port)), timeout=10) as client:
                assert server.accept()[1] == client.getsockname()
    with socket.socket() as anyone:
        anyone.bind((host, int(addresses[1].split(':')[1])))


@pytest.mark.unit
def test_more_addresses_than_there_are_files_are_refused_in_one_line() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, before[1]))
    try:
        with pytest.raises(RunError, match=r'Too many open files for port .* of 100 on 127.0.0.1; start fewer'):
            cluster_command.main(['--workers=99'])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.distributed
def test_tensorflow_serves_at_reserved_addresses_with_threads_for_its_cores_alone() -> None:
    code = """
import os, sys
import tensorflow.compat.v1 as tf
with tf.Graph().as_default(), tf.Session() as session:
    x = tf.random.uniform([64, 64])
    session.run(tf.matmul(x, x))
print(len(os.listdir('/proc/self/task')))
flags = dict(word.removeprefix('--').split('=') for word in sys.argv[1:])
hosts = flags['worker_hosts'].split(',')
tf.train.Server({'worker': hosts}, job_name='worker', task_index=int(flags['task_index']))
"""
    environment = {**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '2'}
    with reserved_addresses(2) as addresses:
        workers = make_commands((), (), addresses, environment, cores=None)
        limited, free = (
            dataclasses.replace(worker, argv=(sys.executable, '-c', code, *worker.argv[2:])) for worker in workers
        )
        exit_code, out, err = run(dataclasses.replace(limited, cores=(CORES[0],)), free)
    assert exit_code == 0, '\n'.join(err)
    if len(CORES) == 1:
        pytest.skip('one core cannot be shared out')
    (num_of_free,) = (int(line.split()[-1]) for line in err if re.fullmatch(r'worker 1 \| \d+', line))
    assert int(out[0]) < num_of_free


# The word.


@pytest.mark.unit
@pytest.mark.parametrize(
    ('argv', 'message'),
    [
        (['--ps=0'], '--ps=0: --variable_update=parameter_server keeps its variables on parameter servers; write'),
        (['--ps=1', '--', '--variable_update=collective_all_reduce'], 'has no parameter servers; leave --ps out'),
        (['--ps=1', '--', '--variable_update=distributed_all_reduce'], 'has no parameter servers; leave --ps out'),
        (['--', '--variable_update=independent'], '--variable_update=independent: cluster can start parameter_server,'),
        (
            ['--', '--variable_update=distributed_replicated', '--nocross_replica_sync'],
            '--cross_replica_sync=False: with --variable_update=distributed_replicated workers always take each step',
        ),
        (['--workers=0'], '--workers=0: it must be an integer of at least 1'),
        (['--workers=two'], '--workers=two: it must be an integer of at least 1'),
        (['--affinity=shares'], '--affinity=shares: it must be one of share, none; did you mean --affinity=share?'),
        (['--restart=-1'], '--restart=-1: it must be an integer of at least 0'),
        (['--worker=3'], '--worker: cluster has no such flag; did you mean --workers?'),
        (['--model=lenet'], '--model: cluster has no such flag; flags of the run stand behind --'),
        (['--workers'], 'Missing value for flag --workers; see cluster --help'),
        (['lenet'], 'lenet: cluster takes flags only'),
        (['--', '--', '--model=lenet'], '--: it stands once'),
        (['--', '--model=lenett'], '--model=lenett: '),
        (['--', '--modell=lenet'], '--modell: there is no such flag; did you mean --model?'),
        (['--', '--data_dir=/no/such'], '--data_dir=/no/such: there is no such folder'),
        (['--', '--graph_file=/no/such/g'], '--graph_file=/no/such/g: there is no folder /no/such'),
        (['--', '--flagfile=/no/such'], '--flagfile: Unable to open flagfile'),
        (
            ['--', '--job_name=ps'],
            '--job_name=ps: cluster tells each process its role and the addresses; leave --job_name',
        ),
        (['--', '--controller_host', 'h:1'], '--controller_host: cluster tells each process its role'),
    ],
)
def test_wrong_use_is_told_before_anything_starts(
    capfd: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        cluster_command.main(argv)
    assert message in str(raised.value)
    assert capfd.readouterr() == ('', '')


@pytest.mark.unit
def test_role_flags_in_a_flagfile_are_found(tmp_path: Path) -> None:
    path = tmp_path / 'flags'
    path.write_text('--worker_hosts=a:1,b:1\n')
    with pytest.raises(UsageError, match='--worker_hosts=a:1,b:1: cluster tells each process its role'):
        cluster_command.main(['--', f'--flagfile={path}'])


@pytest.mark.unit
def test_help_names_every_flag_of_the_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert cluster_command.main(['--workers=x', '--help']) == 0
    out = capsys.readouterr().out
    for name in ('ps', 'workers', 'affinity', 'keep_going', 'restart'):
        assert f'  --{name}: ' in out


PROGRAM = """
import os, sys
flags = dict(word.split('=') for word in sys.argv[1:])
print('TF_CONFIG' in os.environ, len(os.sched_getaffinity(0)), file=sys.stderr)
print('total images/sec: 2.00')
is_worker_1 = (flags['--job_name'], flags['--task_index']) == ('worker', '1')
sys.exit({exit_code} if is_worker_1 else 0)
"""


@pytest.fixture
def replace_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Puts a program in the place of the benchmark, of which worker 1 ends with the exit code given."""

    def replace(exit_code: int) -> None:
        path = tmp_path / 'program.py'
        path.write_text(PROGRAM.format(exit_code=exit_code))
        monkeypatch.setattr(cluster_command, '_PROGRAM', str(path))

    return replace


@pytest.mark.distributed
def test_a_cluster_prints_its_result_once(
    replace_program: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    replace_program(0)
    monkeypatch.setenv('TF_CONFIG', '{}')
    assert cluster_command.main(['--ps=2', '--', '--model=lenet', f'--graph_file={tmp_path / "graph"}']) == 0
    out, err = capsys.readouterr()
    assert out == 'total images/sec: 2.00\n'
    first, *lines = err.splitlines()
    assert first == (
        'tf_cnn_benchmarks: warning: only worker 0 gets --graph_file: each process would write to the same path'
    )
    share = max(1, len(CORES) // 2)
    assert sorted(line for line in lines if ' | ' in line) == [
        f'ps 0     | False {len(CORES)}',
        'ps 0     | total images/sec: 2.00',
        f'ps 1     | False {len(CORES)}',
        'ps 1     | total images/sec: 2.00',
        f'worker 0 | False {share}',
        f'worker 1 | False {share}',
        'worker 1 | total images/sec: 2.00',
    ]


@pytest.mark.distributed
def test_the_flags_of_the_word_reach_the_processes(
    replace_program: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    replace_program(5)
    argv = ['--workers=3', '--affinity=none', '--restart=1', '--keep_going']
    assert cluster_command.main([*argv, '--', '--variable_update=collective_all_reduce']) == 5
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.endswith(f'| False {len(CORES)}') and line.startswith('worker 2')]
    assert not [line for line in lines if line.startswith('ps ')]
    assert [line for line in lines if line.startswith('tf_cnn_benchmarks')] == [
        'tf_cnn_benchmarks: warning: worker 1 ended with exit code 5; it is started again (1 of 1 times)',
        'tf_cnn_benchmarks: error: worker 1 ended with exit code 5; the others go on',
    ]
