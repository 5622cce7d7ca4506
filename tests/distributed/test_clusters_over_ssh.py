"""`cluster --hosts` on real hosts in namespaces, over a real ssh: every mode trains, and whatever
ends, all ends.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import NEEDED, Host, Network, make_hosts
from tests.support.outputs import check_line

pytestmark = [pytest.mark.distributed, NEEDED]

ROOT = Path(__file__).resolve().parent.parent.parent
_DEADLINE_SECS = 120.0
# What the hosts have of this machine, such as the folder of the program if it is in /tmp.
_FILES_AT_FIRST: dict[str, set[str]] = {}
# How soon nothing may run on any host, in seconds. An idle machine needs less than 5, a loaded one
# longer.
_GONE_SECS = 30.0
# What stands in for the program where only its life counts: it listens at its address, and has a
# child.
_PROGRAM = """
import os, signal, socket, subprocess, sys
flags = dict(word.removeprefix('--').partition('=')[::2] for word in sys.argv[1:])
address = flags[flags['job_name'] + '_hosts'].split(',')[int(flags['task_index'])]
host, port = address.split(':')
server = socket.create_server((host, int(port)))
child = subprocess.Popen(['sleep', '1000'])
switch = os.environ.get('TF_ENABLE_ONEDNN_OPTS')
print('is up at', host, 'in', os.getcwd(), 'with', switch, file=sys.stderr, flush=True)
signal.sigwait([signal.SIGTERM])
sys.exit(3)
"""


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(3) as made:
        _FILES_AT_FIRST.update({host.name: files_of(host) for host in made.hosts})
        yield made


@pytest.fixture(scope='module')
def stand_in(network: Network) -> Path:
    """A folder with all of the program, but with _PROGRAM as its command."""
    folder = network.folder / 'stand_in'
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.suffix == '.py' or (path / '__init__.py').exists():
            (folder / path.name).symlink_to(path)
    (folder / 'tf_cnn_benchmarks.py').unlink()
    (folder / 'tf_cnn_benchmarks.py').write_text(_PROGRAM)
    return folder


def command(network: Network, *words: str) -> list[str]:
    """Returns the command line of `cluster` at the desk of the network."""
    return network.command(sys.executable, ROOT / 'tf_cnn_benchmarks.py', 'cluster', *words)


def run(network: Network, *words: str) -> 'subprocess.CompletedProcess[str]':
    """Runs `cluster` to its end."""
    return subprocess.run(
        command(network, *words), capture_output=True, text=True, timeout=_DEADLINE_SECS
    )


def files_of(host: Host) -> set[str]:
    """Returns the files and folders in what each host has for itself."""
    return {*host.run('find', '/tmp', '/dev/shm', '-maxdepth', '1').stdout.split()}


def left_behind(network: Network) -> list[str]:
    """Returns what hosts have of a cluster: processes beside sshd, and files."""
    found = []
    for host in network.hosts:
        lines = map(' '.join, host.processes().values())
        found += [
            f'{host.name}: {line}'
            for line in lines
            if 'sshd: /' not in line and 'sshd -D' not in line
        ]
        found += [f'{host.name}: {path}' for path in files_of(host) - _FILES_AT_FIRST[host.name]]
    return found


def assert_all_gone(network: Network) -> None:
    deadline = time.monotonic() + _GONE_SECS
    while left := left_behind(network):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


class Started:
    """A cluster of the stand-in, with these options and 4 processes."""

    def __init__(self, network: Network, folder: Path, *options: str, **environ: str) -> None:
        self._network = network
        self._popen = subprocess.Popen(
            command(
                network,
                *options,
                f'--remote_dir={folder}',
                '--ps=1',
                '--verbose',
                '--',
                '--device=cpu',
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        self.err = ''

    def await_up(self) -> None:
        """Waits until all its processes have said that they are up."""
        assert self._popen.stderr
        while self.err.count('is up at') < 4:
            line = self._popen.stderr.readline()
            assert line, self.err
            self.err += line

    def end(self, number: signal.Signals | None = None) -> int:
        """Sends a signal to the launcher, if any, and waits for its end; returns its exit code."""
        if number:
            self._popen.send_signal(number)
        self.err += self._popen.communicate(timeout=_DEADLINE_SECS)[1]
        return self._popen.returncode

    def pid_on(self, host: int, words: str) -> int:
        """Returns the newest process of a host whose command line contains these words."""
        return max(
            pid
            for pid, line in self._network.hosts[host].processes().items()
            if words in ' '.join(line)
        )


@pytest.mark.parametrize(
    ('mode', 'options'),
    [
        # More servers than hosts: taken host by host, their order is not that of their indices.
        ('parameter_server', ['--ps=4']),
        pytest.param('distributed_replicated', ['--ps=1'], marks=pytest.mark.all_modes),
        ('collective_all_reduce', []),
        pytest.param('distributed_all_reduce', [], marks=pytest.mark.all_modes),
    ],
)
def test_every_mode_trains_on_three_hosts(mode: str, options: list[str], network: Network) -> None:
    flags = [
        '--model=trivial',
        '--device=cpu',
        '--batch_size=2',
        '--num_batches=3',
        '--num_warmup_batches=1',
    ]
    hosts = '--hosts=node1,node2,node3'
    result = run(network, hosts, *options, '--', *flags, f'--variable_update={mode}')
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r'^total images/sec: [0-9.]+$', result.stdout, re.MULTILINE)) == 1
    assert '6 global' in result.stdout
    assert_all_gone(network)


def test_processes_run_where_and_how_the_user_says(network: Network, stand_in: Path) -> None:
    # Only the settings of libraries pass; the folder is that of the launcher, if the host has it.
    environ = {'TF_ENABLE_ONEDNN_OPTS': '1', 'TF_CONFIG': '{}'}
    started = Started(network, stand_in, '--hosts=node1:2,node3', **environ)
    started.await_up()
    assert started.end(signal.SIGTERM) == 128 + signal.SIGTERM
    up = sorted(
        line.replace(' is up at', '') for line in started.err.splitlines() if 'is up at' in line
    )
    first, third = network.hosts[0].address, network.hosts[2].address
    where = f'in {os.getcwd()} with 1'
    assert [' '.join(line.split()) for line in up] == [
        f'ps 0 | {first} {where}',
        f'worker 0 | {first} {where}',
        f'worker 1 | {first} {where}',
        f'worker 2 | {third} {where}',
    ]
    assert_all_gone(network)


@pytest.mark.parametrize(
    ('victim', 'exit_code', 'facts'),
    [
        ('tf_cnn_benchmarks.py', 128 + 9, ['worker 1', 'signal 9']),
        ('tf_cnn.launch.remote run', 1, ['worker 1', 'the connection to node2 has ended']),
        ('sshd: root', 1, ['worker 1', 'the connection to node2 has ended']),
        (None, -9, []),
    ],
    ids=['process', 'parent', 'sshd', 'launcher'],
)
def test_all_end_when_one_is_killed(
    victim: str | None, exit_code: int, facts: list[str], network: Network, stand_in: Path
) -> None:
    started = Started(network, stand_in, '--hosts=node1,node2,node3')
    started.await_up()
    if victim:
        os.kill(started.pid_on(1, victim), signal.SIGKILL)
    if victim == 'tf_cnn.launch.remote run':
        # As with a launcher on one machine: the kernel ends the processes that it started, but not
        # their children. They keep the connection open.
        os.kill(started.pid_on(1, 'sleep'), signal.SIGKILL)
    assert started.end(None if victim else signal.SIGKILL) == exit_code
    if facts:
        (line,) = (
            line for line in started.err.splitlines() if line.startswith('tf_cnn_benchmarks: error')
        )
        check_line(line, *facts)
    assert_all_gone(network)


@pytest.mark.parametrize(
    'secs',
    [
        0.3,
        1.2,
        *(pytest.param(0.1 * number, marks=pytest.mark.all_modes) for number in range(1, 21)),
    ],
)
def test_ctrl_c_leaves_nothing_behind_in_any_phase(
    secs: float, network: Network, stand_in: Path
) -> None:
    started = Started(network, stand_in, '--hosts=node1,node2,node3')
    # Not to wait for anything: any moment will do, while it imports, connects, or starts the
    # processes.
    time.sleep(secs)
    assert started.end(signal.SIGINT) in (130, -signal.SIGINT)
    assert 'Traceback' not in started.err
    assert_all_gone(network)


@pytest.mark.parametrize(
    ('options', 'facts'),
    [
        (['--hosts=node1,node9'], ['node9', 'cannot connect', '`ssh node9`']),
        (['--hosts=node1,10.77.0.99'], ['10.77.0.99', 'cannot connect', 'No route to host']),
        (
            ['--hosts=node1', '--ssh=ssh -o PubkeyAuthentication=no'],
            ['node1', 'Permission denied', 'without a password'],
        ),
        (
            ['--hosts=node1', '--remote_python=/no/python'],
            ['node1', '/no/python', '--remote_python'],
        ),
        (
            ['--hosts=node1', '--remote_python=/bin/false'],
            ['node1', '/bin/false', '--remote_python'],
        ),
        (['--hosts=node1', '--remote_dir=/no/folder'], ['node1', '/no/folder', '--remote_dir']),
        (
            ['--hosts=node1', '--remote_dir=/usr'],
            ['node1', '/usr', 'tf_cnn_benchmarks.py', '--remote_dir'],
        ),
    ],
)
def test_hosts_that_cannot_be_used_are_named_in_a_line_each(
    options: list[str], facts: list[str], network: Network
) -> None:
    result = run(network, *options, '--', '--model=trivial', '--device=cpu')
    assert (result.returncode, result.stdout) == (1, '')
    (line,) = result.stderr.splitlines()
    check_line(line, *facts)
    assert_all_gone(network)
