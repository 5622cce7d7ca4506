"""Hosts on this machine: namespaces with a network, processes and folders of their own, and links
of a given speed.

    with make_hosts(2, rate_mbit=100) as network:
        first, second = network.hosts
        second.run('hostname')
        subprocess.run(network.command('ssh', 'node1', 'hostname'))

Each host has a name, an address, a link to a switch, an sshd, and its own /tmp, /run and /dev/shm.
It shares all other files with this machine, as on a network disk. Networks are separate from each
other and from outside, and end with the process that made them, even by SIGKILL.
"""

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.programs import ROOT, run_process

_PROGRAMS = ('ip', 'tc', 'unshare', 'nsenter', 'mount', 'ssh', 'sshd', 'ssh-keygen')
_ADDRESSES = '10.77.0'
# Each host has these folders for itself; processes of one machine share them.
_OWN_FOLDERS = ('/dev/shm', '/run', '/tmp')
# Where tests and users sit: on the switch, with a link without limits.
_DESK = 254
_BASHRC = Path('~/.bashrc').expanduser()
_SYSTEM_SSH_CONFIG = Path('/etc/ssh/ssh_config')
# The bytes that a link passes at once after a pause. Fewer could not be timed; more would hide the
# rate from small messages.
_LEAST_BURST_BYTES, _BURST_SECS = 10_000, 0.0003
# Packets wait this long for a link, then they are dropped.
_QUEUE_SECS = 0.05
# How long a loaded machine may take to end a host, or to connect it.
_END_SECS = 30.0
# The PATH of a user may lack these folders.
_PATH = os.pathsep.join(filter(None, [os.environ.get('PATH'), '/usr/sbin', '/sbin']))
_ENVIRONMENT = {**os.environ, 'PATH': _PATH}

_SSHD_CONFIG = """
ListenAddress 0.0.0.0
AuthorizedKeysFile {folder}/authorized_keys
PidFile /run/sshd.pid
UsePAM no
UseDNS no
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
# The default takes 0.1 s of a core at each end.
KexAlgorithms curve25519-sha256
MaxStartups 100
LogLevel VERBOSE
"""
_SSH_CONFIG = """
Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  PasswordAuthentication no
  LogLevel ERROR
"""


@functools.cache
def why_not() -> str | None:
    """Returns why there can be no hosts on this machine; None if there can."""
    if missing := [name for name in _PROGRAMS if not shutil.which(name, path=_PATH)]:
        return f'hosts are made with {", ".join(missing)}, which this machine lacks'
    trial = (
        'ip link add bridge0 type bridge && ip link add veth0 type veth peer name veth1 && tc '
        'qdisc add dev veth0 root tbf rate 1gbit burst 100kb latency 1ms && mount -t tmpfs tmpfs '
        '/mnt'
    )
    tried = subprocess.run(
        ['unshare', '--net', '--pid', '--mount', '--uts', '--ipc', '--fork', 'sh', '-c', trial],
        capture_output=True,
        text=True,
        errors='replace',
    )
    if tried.returncode:
        return f'hosts are namespaces, which cannot be made here: {" ".join(tried.stderr.split())}'
    return None


# For tests that need hosts.
NEEDED = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


class _FirstProcess:
    """The first process of new namespaces: a shell that runs these lines.

    The last line ends with file 3, which this process closes, also when it is killed. `pid` is the
    shell's number on this machine.
    """

    def __init__(self, namespaces: str, lines: Sequence[str]) -> None:
        # /proc still shows this machine.
        script = ['set -e', 'read pid _ </proc/self/stat', 'echo $pid', 'exec 3<&0', *lines]
        self._process = subprocess.Popen(
            ['unshare', *namespaces.split(), 'sh', '-c', '\n'.join(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_ENVIRONMENT,
        )
        self.pid = 0

    def await_ready(self) -> None:
        assert self._process.stdout
        self.pid = int(self._process.stdout.readline() or 0)
        if self._process.stdout.readline() != 'ready\n':
            raise RuntimeError('a process that makes hosts has ended; see its standard error')

    def close(self) -> None:
        """Ends this process; returns when all processes of its host have ended."""
        self._process.communicate(timeout=_END_SECS)


def _mount(*words: object) -> str:
    # mount(8) cannot write its table in /run.
    return shlex.join(['mount', '--no-mtab', *map(str, words)])


def _mount_own_folders(shared: Sequence[Path]) -> Iterator[str]:
    """Yields the lines that mount an empty folder over each of _OWN_FOLDERS. Shared folders stay
    visible.
    """
    for folder in _OWN_FOLDERS:
        # The new folder can only be filled from the old one, so it lies elsewhere at first.
        yield _mount('-t', 'tmpfs', '-o', 'mode=1777', 'tmpfs', '/mnt')
        for path in shared:
            if path.is_relative_to(folder):
                target = Path('/mnt', path.relative_to(folder))
                yield shlex.join(['mkdir', '-p', str(target)])
                yield _mount('--bind', path, target)
        yield _mount('--move', '/mnt', folder)


def _enter(pid: int, namespaces: str, argv: Sequence[object]) -> list[str]:
    """Returns the command that runs argv in namespaces of a process, in this working directory."""
    entered = [f'--{name}' for name in namespaces.split()]
    here = ['env', f'--chdir={os.getcwd()}']
    return ['nsenter', f'--target={pid}', *entered, '--', *here, *map(str, argv)]


@dataclass(frozen=True)
class Host:
    """One of the hosts, with the name that other hosts and ssh use.

    pid is its first process, as this machine numbers it. All others end with it.
    """

    name: str
    address: str
    pid: int

    def command(self, *argv: object) -> list[str]:
        """Returns the command that runs argv on this host, without ssh."""
        return _enter(self.pid, 'mount uts ipc net pid', argv)

    def run(self, *argv: object, **environ: str) -> str:
        """Runs a command on this host, which must succeed; returns its standard output."""
        process = run_process(self.command(*argv), **environ)
        assert process.code == 0, process.err
        return process.out

    def processes(self) -> dict[int, list[str]]:
        """Returns the words of each process that was started on this host, by its number on this
        machine.
        """
        namespace, commands = os.readlink(f'/proc/{self.pid}/ns/pid'), {}
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if os.readlink(f'/proc/{process.pid}/ns/pid') == namespace:
                    commands[process.pid] = process.cmdline()
        del commands[self.pid]
        # A process that ends has no words.
        return {pid: words for pid, words in commands.items() if words not in ([], ['cat', '-'])}


@dataclass(frozen=True)
class Network:
    """Hosts on a switch (node1, node2 and so on), and a desk there, where users start commands.

    Attributes:
      folder: a folder that this machine, the desk and all hosts see. It disappears with the
        network.
      pid: the process with the network and the files of the desk.
    """

    hosts: tuple[Host, ...]
    folder: Path
    pid: int

    def command(self, *argv: object) -> list[str]:
        """Returns the command that runs argv at the desk: on the network, with names of hosts, else
        on this machine. The process itself becomes argv, so it gets signals.
        """
        return _enter(self.pid, 'mount net', argv)


@contextlib.contextmanager
def make_hosts(
    count: int, *, rate_mbit: float | None = None, shared: Sequence[Path] = ()
) -> Iterator[Network]:
    """Makes hosts for the block. Two hosts take about 0.4 s on two idle cores.

    Args:
      rate_mbit: what each link carries in each direction, in Mbit/s with Ethernet's headers; None
        for no limit.
      shared: folders in /tmp, /run or /dev/shm that all hosts see, such as tmp_path. They see the
        program itself and its Python wherever these are.
    """
    names = [f'node{i + 1}' for i in range(count)]
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix='tf_cnn_benchmarks_hosts_', dir='/tmp')
        folder = Path(stack.enter_context(temporary)).resolve()
        _write_settings(folder, names)
        files = [_mount('--bind', folder / 'hosts', '/etc/hosts')]
        if _SYSTEM_SSH_CONFIG.exists():
            files.append(_mount('--bind', folder / 'ssh_config', _SYSTEM_SSH_CONFIG))
        # bash reads this file for each command of ssh, and may take longer for it than for the
        # command.
        if _BASHRC.exists():
            files.append(_mount('--bind', '/dev/null', _BASHRC))
        paths = [folder, *shared, ROOT, Path(sys.prefix), Path(sys.base_prefix), Path.cwd()]
        own_folders = [*_mount_own_folders([path.resolve() for path in paths])]

        def start(namespaces: str, *lines: str) -> _FirstProcess:
            process = contextlib.closing(_FirstProcess(namespaces, lines))
            return stack.enter_context(process)

        switch = start('--mount --net', *files, 'echo ready', 'exec cat <&3')
        processes = [
            start(
                '--mount --net --uts --ipc --pid --fork',
                f'hostname {name}',
                _mount('-t', 'proc', 'proc', '/proc'),
                *own_folders,
                *files,
                # For sshd, which must be started by its whole path.
                'mkdir /run/sshd',
                f'$(command -v sshd) -D -f {folder}/sshd_config -h {folder}/{name}_key '
                f'-E {folder}/{name}.log &',
                # It listens when this file is there. If it has ended, so does this shell.
                'until [ -s /run/sshd.pid ]; do kill -0 $!; sleep 0.005; done',
                'echo ready',
                # The shell also reaps what others leave.
                'cat - <&3 & wait $!',
            )
            for name in names
        ]
        for process in (switch, *processes):
            process.await_ready()
        _connect(switch.pid, [process.pid for process in processes], rate_mbit)
        hosts = tuple(
            Host(name, f'{_ADDRESSES}.{i + 1}', processes[i].pid) for i, name in enumerate(names)
        )
        yield Network(hosts, folder, switch.pid)


def _connect(switch: int, pids: Sequence[int], rate_mbit: float | None) -> None:
    """Connects the hosts of these first processes with links of this rate."""
    ports = [f'port{i + 1}' for i in range(len(pids))]
    lines = ['link set lo up', 'link add br0 type bridge', 'link set br0 up']
    lines.append(f'address add {_ADDRESSES}.{_DESK}/24 dev br0')
    for pid, port in zip(pids, ports, strict=True):
        lines.append(f'link add {port} type veth peer name eth0 netns {pid}')
        lines += [f'link set {port} master br0', f'link set {port} up']
    _batch('ip', switch, lines)
    for i, pid in enumerate(pids):
        address = f'address add {_ADDRESSES}.{i + 1}/24 dev eth0'
        _batch('ip', pid, ['link set lo up', address, 'link set eth0 up'])
    if not rate_mbit:
        return
    bytes_per_sec = rate_mbit * 1e6 / 8
    burst = max(_LEAST_BURST_BYTES, int(bytes_per_sec * _BURST_SECS))
    limit = burst + int(bytes_per_sec * _QUEUE_SECS)
    for pid, ends in [(switch, ports), *((pid, ['eth0']) for pid in pids)]:
        # A piece of data from the kernel must fit, or the link splits it into single packets.
        if burst < 65536:
            _batch('ip', pid, [f'link set {end} gso_max_size {int(burst * 0.9)}' for end in ends])
        shape = f'root tbf rate {int(bytes_per_sec)}bps burst {burst} limit {limit}'
        _batch('tc', pid, [f'qdisc add dev {end} {shape}' for end in ends])


def _batch(program: str, pid: int, lines: Sequence[str]) -> None:
    """Gives ip(8) or tc(8) these lines in the network of a process."""
    command = ['nsenter', f'--target={pid}', '--net', '--', program, '-batch', '-']
    text = '\n'.join(lines) + '\n'
    subprocess.run(command, input=text, text=True, env=_ENVIRONMENT, timeout=_END_SECS, check=True)


def _write_settings(folder: Path, names: Sequence[str]) -> None:
    """Writes what ssh and sshd read."""
    (folder / 'authorized_keys').write_text(_make_key(folder / 'key'))
    known_hosts = [
        f'{name},{_ADDRESSES}.{number} {_make_key(folder / f"{name}_key")}'
        for number, name in enumerate(names, 1)
    ]
    (folder / 'known_hosts').write_text(''.join(known_hosts))
    addresses = [f'{_ADDRESSES}.{number} {name}' for number, name in enumerate(names, 1)]
    addresses += ['127.0.0.1 localhost', '::1 localhost', f'{_ADDRESSES}.{_DESK} desk']
    (folder / 'hosts').write_text('\n'.join(addresses) + '\n')
    (folder / 'sshd_config').write_text(_SSHD_CONFIG.format(folder=folder))
    (folder / 'ssh_config').write_text(_SSH_CONFIG.format(folder=folder))


def _make_key(path: Path) -> str:
    """Makes a key, and returns its public part, a line."""
    command = ['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-C', '', '-f', str(path)]
    subprocess.run(command, env=_ENVIRONMENT, check=True)
    return path.with_suffix('.pub').read_text()
