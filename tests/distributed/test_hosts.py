"""The hosts of tests/support/hosts.py are hosts: with addresses, links, ssh and files of their own. Nothing is left."""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import host_processes, hosts
from tests.support.hosts import NEEDED, Host, Network, make_hosts

pytestmark = [pytest.mark.distributed, NEEDED]

RATE_MBIT, LATENCY_MS = 40.0, 2.0
# Sends to whom connects, or receives from him; then one byte there and back, 20 times.
SERVER = """
import socket, sys, time
listener = socket.create_server(('', 0))
print(listener.getsockname()[1], flush=True)
end, _ = listener.accept()
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
left = int(sys.argv[1])
end.sendall(bytes(left))
while left:
    left -= len(end.recv(min(left, 1 << 16)))
while byte := end.recv(1):
    end.sendall(byte)
"""
CLIENT = """
import json, socket, sys, time
end = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def receive(left):
    while left:
        left -= len(end.recv(min(left, 1 << 16)))
size, secs = int(sys.argv[3]), []
began = time.monotonic()
receive(size)
secs.append(time.monotonic() - began)
began = time.monotonic()
end.sendall(bytes(size))
end.sendall(b'x')
receive(1)
secs.append(time.monotonic() - began)
trips = []
for _ in range(20):
    began = time.monotonic()
    end.sendall(b'x')
    receive(1)
    trips.append(time.monotonic() - began)
print(json.dumps([*secs, min(trips)]))
"""
# The names of all programs that run.
PROGRAMS = """
import glob
for path in glob.glob('/proc/[0-9]*/comm'):
    try:
        print(open(path).read())
    except OSError:
        pass
"""
PYTHON = (sys.executable, '-I', '-S', '-c')


@pytest.fixture(scope='module')
def network() -> Iterator[Network]:
    with make_hosts(3, cores=[[core] for core in sorted(os.sched_getaffinity(0))[:1]] * 3) as made:
        yield made


def measure(client: Host, server: Host, size: int) -> tuple[float, float, float]:
    """The seconds in which so many bytes come from the server, and go there, and those of the fastest round trip."""
    command = server.command(*PYTHON, SERVER, size)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            port = process.stdout.readline()
            down, up, trip = json.loads(client.run(*PYTHON, CLIENT, server.address, port, size).stdout)
        finally:
            process.kill()
    return down, up, trip


def leave_running(host: Host) -> None:
    """Leaves a process on a host that has a session of its own and ignores signals; returns when it runs."""
    host.run('sh', '-c', 'setsid sh -c \'trap "" TERM HUP; sleep 1000\' > /dev/null 2>&1 &')
    while 'sleep' not in host.run(*PYTHON, PROGRAMS).stdout:
        pass


def namespaces(pid: int) -> dict[str, str]:
    """The namespaces of a process, by their kinds."""
    return {kind: os.readlink(f'/proc/{pid}/ns/{kind}') for kind in ('net', 'pid', 'mnt', 'uts', 'ipc')}


def held_namespaces(stack: contextlib.ExitStack, *pids: int) -> set[str]:
    """The namespaces of processes, without those of this one. Until the end of the stack no others get their names."""
    own = set(namespaces(os.getpid()).values())
    for pid in pids:
        for kind in namespaces(pid):
            stack.callback(os.close, os.open(f'/proc/{pid}/ns/{kind}', os.O_RDONLY))
    return {name for pid in pids for name in namespaces(pid).values()} - own


def used_namespaces() -> set[str]:
    """The namespaces of all processes."""
    used: set[str] = set()
    for entry in os.scandir('/proc'):
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                used |= set(namespaces(int(entry.name)).values())
    return used


def machine() -> tuple[str, str, list[str]]:
    """What hosts could leave behind: mounts, network devices, folders."""
    mounts = Path('/proc/self/mountinfo').read_text()
    devices = subprocess.run(['ip', '-brief', 'link'], capture_output=True, text=True, check=True).stdout
    return mounts, devices, sorted(str(path) for path in Path('/tmp').glob(f'tf_cnn_benchmarks_hosts_{os.getpid()}_*'))


def test_each_host_reaches_the_others_by_name_and_address(network: Network) -> None:
    for host in network.hosts:
        for other in network.hosts:
            code = f'import socket; print(socket.gethostbyname("{other.name}"))'
            assert host.run(*PYTHON, code).stdout == f'{other.address}\n'
            down, _, _ = measure(host, other, 1000)
            assert down < 10


def test_ssh_runs_commands_on_each_host_from_the_desk_and_from_other_hosts(network: Network) -> None:
    for host in network.hosts:
        assert network.run('ssh', '-F', network.ssh_config, host.name, 'hostname').stdout == f'{host.name}\n'
    first, second, _ = network.hosts
    assert first.run('ssh', second.name, 'hostname').stdout == f'{second.name}\n'


def test_a_key_that_a_host_does_not_know_is_refused(network: Network) -> None:
    host = network.hosts[0]
    known = host.folder / 'authorized_keys'
    keys = known.read_text()
    known.write_text('')
    try:
        ssh = network.run('ssh', '-F', network.ssh_config, host.name, 'true', check=False)
        assert ssh.returncode == 255
        assert 'Permission denied (publickey)' in ssh.stderr
    finally:
        known.write_text(keys)


def test_a_host_has_the_cores_it_is_given(network: Network) -> None:
    code = 'import os; print(sorted(os.sched_getaffinity(0)))'
    for host in network.hosts:
        expected = f'{[*host.cores]}\n'
        assert host.run(*PYTHON, code).stdout == expected
        assert network.run('ssh', host.name, f"{sys.executable} -I -S -c '{code}'").stdout == expected


def test_processes_and_memory_of_a_host_are_its_own(network: Network) -> None:
    first, second, _ = network.hosts
    for folder in ('/tmp', '/run', '/dev/shm'):
        first.run('touch', f'{folder}/own')
        assert first.run('ls', f'{folder}/own').returncode == 0
        assert second.run('ls', f'{folder}/own', check=False).returncode == 2
        assert not Path(folder, 'own').exists()
    leave_running(first)
    assert 'sleep' in first.run(*PYTHON, PROGRAMS).stdout
    assert 'sleep' not in second.run(*PYTHON, PROGRAMS).stdout
    assert len({tuple(namespaces(host.pid).values()) for host in network.hosts}) == 3


def test_a_host_can_have_other_files(tmp_path: Path) -> None:
    (tmp_path / 'motd').write_text('other\n')
    files = {'node2': {'/etc/issue': tmp_path / 'motd'}}
    with make_hosts(2, shared=[tmp_path], files=files) as network:
        first, second = network.hosts
        assert second.run('cat', '/etc/issue').stdout == 'other\n'
        assert first.run('cat', '/etc/issue').stdout == Path('/etc/issue').read_text()
        assert first.run('cat', tmp_path / 'motd').stdout == 'other\n'


def test_a_link_has_its_rate_in_both_directions() -> None:
    size = 2_000_000
    with make_hosts(2, rate_mbit=RATE_MBIT) as network:
        down, up, _ = measure(network.hosts[0], network.hosts[1], size)
    fastest = size * 8 / (RATE_MBIT * 1e6)
    assert fastest * 0.95 < down < fastest * 3
    assert fastest * 0.95 < up < fastest * 3


@pytest.mark.parametrize('rate_mbit', [None, RATE_MBIT])
def test_a_link_has_its_latency(rate_mbit: float | None) -> None:
    size = 2_000_000
    with make_hosts(2, rate_mbit=rate_mbit, latency_ms=LATENCY_MS) as network:
        down, up, trip = measure(network.hosts[0], network.hosts[1], size)
    # There and back over two links.
    assert 4 * LATENCY_MS < 1000 * trip < 20 * LATENCY_MS
    if rate_mbit:
        fastest = size * 8 / (rate_mbit * 1e6)
        assert fastest * 0.95 < down < fastest * 4
        assert fastest * 0.95 < up < fastest * 4


@pytest.mark.parametrize('latency_ms', [0.0, LATENCY_MS])
def test_a_host_without_its_cable_does_not_answer(latency_ms: float) -> None:
    with make_hosts(1, latency_ms=latency_ms) as network:
        ssh = ('ssh', '-o', 'ConnectTimeout=1', 'node1', 'true')
        network.hosts[0].set_link('down')
        assert network.run(*ssh, check=False).returncode == 255
        network.hosts[0].set_link('up')
        assert network.run('ssh', '-o', 'ConnectTimeout=20', 'node1', 'true').returncode == 0


@pytest.mark.parametrize('latency_ms', [0.0, LATENCY_MS])
def test_nothing_is_left(latency_ms: float) -> None:
    before, used = machine(), set()
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ZeroDivisionError), make_hosts(2, rate_mbit=40, latency_ms=latency_ms) as network:
            assert machine()[:2] == before[:2]
            assert len(machine()[2]) == len(before[2]) + 1
            leave_running(network.hosts[0])
            used = held_namespaces(stack, network.pid, *(host.pid for host in network.hosts))
            assert used <= used_namespaces()
            raise ZeroDivisionError
        assert used
        assert not used & used_namespaces()
    assert machine() == before


def test_nothing_is_left_when_the_process_that_made_it_is_killed() -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(Path.cwd())!r})
from tests.distributed.test_hosts import leave_running
from tests.support.hosts import make_hosts
with make_hosts(2, latency_ms=1.0) as network:
    for host in network.hosts:
        leave_running(host)
    print(network.folder, network.pid, *(host.pid for host in network.hosts), flush=True)
    print(*(pid for host in network.hosts for pid in host.pids()), flush=True)
    time.sleep(1000)
"""
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, text=True))
        stack.callback(process.kill)
        assert process.stdout
        folder, *first = process.stdout.readline().split()
        used = held_namespaces(stack, *map(int, first))
        others = process.stdout.readline().split()
        # sshd and the process that was left, on both hosts.
        assert len(others) >= 4
        descriptors = []
        for pid in map(int, [*first, *others]):
            # One of them may have been about to end.
            with contextlib.suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(pid))
                stack.callback(os.close, descriptors[-1])
        process.kill()
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], 30)[0]
        assert used
        assert not used & used_namespaces()
    # The files are removed when the next network is made, here or by another process.
    with make_hosts(1):
        assert not Path(folder).exists()


def test_a_machine_without_what_hosts_need_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    why_not = hosts.why_not.__wrapped__
    assert why_not() is None
    with monkeypatch.context() as patch:
        patch.setattr('os.geteuid', lambda: 1000)
        assert 'root' in str(why_not())
    with monkeypatch.context() as patch:
        patch.setattr(hosts, '_PATH', '/nowhere')
        assert 'sshd' in str(why_not())
    with monkeypatch.context() as patch:
        patch.setattr(hosts, '_has_netem', lambda: False)
        patch.setattr(host_processes, 'TUN', '/nowhere')
        assert '/nowhere' in str(why_not())
