"""The processes that tests/support/hosts.py starts in new namespaces: `host_processes.py host|switch FACTS`.

Both get their facts as JSON, print their process id, then `ready` when their files are mounted, and go on when a line
comes. A `host` is the first process of a host: it starts sshd, prints `up` when that answers, and reaps what others
leave. A `switch` holds the network between the hosts, and delays what they send if the kernel cannot. Needs nothing but
Python, for a quick start.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Folders in which processes of one machine meet. Each host has its own.
OWN_FOLDERS = ('/dev/shm', '/run', '/tmp')
# Makes network devices whose packets a process reads and writes.
TUN = '/dev/net/tun'
_SSH_PORT = 22
# Of linux/sched.h and linux/prctl.h.
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
_CLONE_NEWPID, _CLONE_NEWNET = 0x20000000, 0x40000000
_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29
# Of linux/if_tun.h. The kernel passes packets of up to 64 KB with a header that says how to split them.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO6 = 1, 2, 4
_MOST_BYTES = 1 << 17
# Packets that are taken from one side before the other sides have a turn.
_AT_ONCE = 32
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount(*arguments: str) -> None:
    """Calls mount(8), which cannot write its table in /run."""
    subprocess.run(['mount', '--no-mtab', *arguments], check=True)


def unshare(flags: int) -> None:
    """Moves this process into new namespaces, one for its mounts included."""
    if _LIBC.unshare(flags | _CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), 'unshare')


def own_folders(shared: Sequence[str]) -> None:
    """Mounts an empty folder over each of OWN_FOLDERS. What the hosts share stays visible in it."""
    for folder in OWN_FOLDERS:
        # The new folder can only be filled from the old one, so it lies elsewhere at first.
        fresh = '/mnt'
        mount('-t', 'tmpfs', '-o', 'mode=1777', 'tmpfs', fresh)
        for path in shared:
            if path.startswith(f'{folder}/'):
                Path(fresh + path.removeprefix(folder)).mkdir(parents=True)
                mount('--bind', path, fresh + path.removeprefix(folder))
        mount('--move', fresh, folder)
    Path('/run/sshd').mkdir()


def be_host(facts: Mapping[str, Any]) -> None:
    """Runs the first process of a host, for ever, as a child of this process."""
    unshare(_CLONE_NEWUTS | _CLONE_NEWIPC | _CLONE_NEWPID | _CLONE_NEWNET)
    if pid := os.fork():
        print(pid, flush=True)
        os.waitpid(pid, 0)
        return
    # All processes of the host end with this one.
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Mounts are invisible outside.
    mount('--make-rprivate', '/')
    mount('-t', 'proc', 'proc', '/proc')
    os.sched_setaffinity(0, facts['cores'])
    socket.sethostname(facts['name'])
    own_folders(facts['shared'])
    mount_files(facts)
    print('ready', flush=True)
    if not sys.stdin.readline():
        return
    sshd = subprocess.Popen(facts['sshd'], stdin=subprocess.DEVNULL, env={'PATH': os.environ['PATH']})
    while sshd.poll() is None:
        with socket.socket() as probe:
            if not probe.connect_ex(('127.0.0.1', _SSH_PORT)):
                print('up', flush=True)
                break
        time.sleep(0.005)
    else:
        sys.exit(f'sshd ended with {sshd.returncode}; see {facts["sshd"][-1]}')
    while True:
        try:
            os.wait()
        except ChildProcessError:
            # sshd was ended by a test. The host goes on without it.
            time.sleep(0.1)


def mount_files(facts: Mapping[str, Any]) -> None:
    """Mounts files and folders over those of the machine: {there: here}."""
    for there, here in facts['files'].items():
        mount('--bind', here, there)


def be_switch(facts: Mapping[str, Any]) -> None:
    """Holds the network, for ever. Makes and serves the links that it is asked for, as [[pid, port, seconds], ...]."""
    unshare(_CLONE_NEWNET)
    mount('--make-rprivate', '/')
    mount_files(facts)
    print(os.getpid(), 'ready', sep='\n', flush=True)
    links = json.loads(sys.stdin.readline() or '[]')
    ends: dict[int, tuple[int, float]] = {}
    for pid, port, secs in links:
        own, host = _tap(port, os.getpid()), _tap('eth0', pid)
        ends |= {own: (host, secs), host: (own, secs)}
    print('up', flush=True)
    if ends:
        # A link that waited for processes that compute would be slower than it says.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        _LIBC.prctl(_PR_SET_TIMERSLACK, 1)
        _delay(ends)
    while True:
        signal.pause()


def _tap(name: str, pid: int) -> int:
    """Makes a network device in the network of a process, whose packets this process reads and writes."""
    with open('/proc/self/ns/net') as own, open(f'/proc/{pid}/ns/net') as other:
        if _LIBC.setns(other.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), 'setns')
        device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, _TUNSETIFF, struct.pack('16sH22x', name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO6)
        if _LIBC.setns(own.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), 'setns')
    return device


def _delay(ends: Mapping[int, tuple[int, float]]) -> None:
    """Passes packets between pairs of devices: {from: (to, seconds)}."""
    waiting: dict[int, deque[tuple[float, bytes]]] = {end: deque() for end in ends}
    while True:
        now = time.monotonic()
        for end, packets in waiting.items():
            while packets and packets[0][0] <= now:
                # If the other end is down, or full, the packet is lost, as on a wire.
                with contextlib.suppress(OSError):
                    os.write(ends[end][0], packets.popleft()[1])
        due = [packets[0][0] for packets in waiting.values() if packets]
        secs = max(0.0, min(due) - time.monotonic()) if due else None
        for end in select.select([*ends], [], [], secs)[0]:
            until = time.monotonic() + ends[end][1]
            for _ in range(_AT_ONCE):
                try:
                    waiting[end].append((until, os.read(end, _MOST_BYTES)))
                except OSError:
                    break


if __name__ == '__main__':
    {'host': be_host, 'switch': be_switch}[sys.argv[1]](json.loads(sys.argv[2]))
